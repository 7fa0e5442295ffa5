"""A value for each setting of ``config.toml`` that is not its default.

Nothing is left out: a new field of ``NodeConfig`` without a value here fails the tests that use
this table, so that no setting is shipped which no test has started a node with.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from swarmnode.config import NodeConfig
from swarmnode.ids import encode_base32
from swarmnode.testing.swarm import make_identity

# Read by the process around a node, or by its real network: tests/process starts nodes with these.
OF_THE_PROCESS = frozenset({"listen", "worker_socket", "log_format", "log_level", "log_file"})


def settings_by_name() -> dict[str, msgspec.structs.FieldInfo]:
    """Return the fields that ``config.toml`` can set."""
    fields = msgspec.structs.fields(NodeConfig)
    return {field.name: field for field in fields if field.name != "home"}


def other_values(folder: Path) -> dict[str, Any]:
    """Return a value of each setting as TOML has it; paths lie in ``folder``."""
    return {
        "listen": "127.0.0.1:0",
        "advertise": ["192.0.2.1:7337"],
        "role": "keeper",
        "network": "other",
        "node_name": "a quiet heron",
        "bootstrap": [f"{make_identity(99).peer_id}@127.0.0.1:9"],
        "lan": False,
        "rendezvous": ["link"],
        "mainline_nodes": ["127.0.0.1:9"],
        "dns_seeds": ["example.test"],
        "dns_servers": ["127.0.0.1:9"],
        "entry_nodes": str(folder / "entries"),
        "entry_nodes_key": encode_base32(bytes(32)),
        "metrics": "127.0.0.1:0",
        "metrics_allow_remote": True,
        "device": "cpu",
        "nproc": 2,
        "parallel": "fsdp2",
        "threads": 1,
        "snapshot_upload_bytes_per_s": 1_000_000,
        "snapshot_download_bytes_per_s": 1_000_000,
        "port_mapping": False,
        "relay": False,
        "relay_bytes_per_s": 1_000_000,
        "log_format": "json",
        "log_level": "debug",
        "log_file": str(folder / "node.log"),
        "dashboard": "127.0.0.1:0",
        "dashboard_share": ["127.0.0.1:0"],
        "dashboard_names": ["box.test"],
        "cpu_percent": 50,
        "gpus": [0],
        "gpu_memory": "6 GB",
        "gpu_temperature_max": 75,
        "ram": "64 GB",
        "disk": "20 GB",
        "upload": "10 Mbit/s",
        "download": "20 Mbit/s",
        "monthly_quota": "200 GB",
        "schedule": ["mon-sun"],
        "pause_on_battery": False,
        "pause_on_metered": False,
        "upload_yields": False,
        "pause_on_gpu_busy": True,
        "pause_on_user_s": 1,
        "sandbox": "files",
        "proxy": "http://127.0.0.1:9",
        "worker_socket": str(folder / "worker.sock"),
        "metrics_textfile": str(folder / "node.prom"),
        "metrics_file_sd": str(folder / "targets.json"),
    }


def write_config(home: Path, settings: dict[str, Any]) -> None:
    """Write ``config.toml``; JSON of strings, numbers, lists and truth values is TOML too."""
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in settings.items()]
    (home / "config.toml").write_text("".join(lines))
