"""Real nodes with each setting of ``config.toml`` at another value than its default.

``tests/sim/status/test_settings.py`` does the same for what a simulated node reads of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from swarmnode.config import Paths
from tests.conftest import HANGS_S
from tests.kits.daemon_kit import Daemon, free_port, make_home, new_swarm, wait_until
from tests.process.worker.test_worker_socket import own_activation
from tests.sim.every_setting import OF_THE_PROCESS, other_values, write_config

# The kit's own settings for tests: an empty variable counts as absent.
NONE_OF_THE_KIT = {"SWARMNODE_THREADS": "", "SWARMNODE_LAN": "", "SWARMNODE_DASHBOARD": ""}
QUIET = {"SWARMNODE_DASHBOARD": "off", "SWARMNODE_LAN": "false"}


class ConfiguredDaemon(Daemon):
    """A node whose settings come from its ``config.toml``, and from nothing else if it has all."""

    def arguments(self) -> list[str]:
        return ["join", self._link, *self._flags]


@pytest.fixture
def daemons() -> Iterator[list[Daemon]]:
    started: list[Daemon] = []
    yield started
    for daemon in started:
        daemon.kill()


def configured(folder: Path, settings: dict[str, Any], *flags: str, **env: str) -> Daemon:
    home = folder / "home"
    make_home(home, new_swarm())
    write_config(home, settings)
    return ConfiguredDaemon(home, "demo", *flags, env=NONE_OF_THE_KIT | env)


def events(path: Path) -> list[dict[str, Any]]:
    """Return the events of a log in which every line is one."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def values_of_a_process(folder: Path) -> dict[str, Any]:
    return other_values(folder) | {"listen": f"127.0.0.1:{free_port()}"}


@pytest.mark.parametrize("name", sorted(OF_THE_PROCESS - {"worker_socket"}))
def test_a_node_starts_with_this_setting_alone(
    tmp_path: Path, daemons: list[Daemon], name: str
) -> None:
    chosen = {name: values_of_a_process(tmp_path)[name]}
    # Not in the file, so that nodes of other tests on this machine keep their ports.
    flags = ["--role", "keeper", "--metrics", "off"]
    listen = [] if name == "listen" else ["--listen", "127.0.0.1:0"]
    daemon = configured(tmp_path, chosen, *flags, *listen, **QUIET)
    daemons.append(daemon)
    daemon.wait(lambda s: s["state"] == "serving", "serving")


async def test_a_node_trains_with_worker_socket_alone(
    tmp_path: Path, daemons: list[Daemon]
) -> None:
    path = tmp_path / "worker.sock"
    async with own_activation(path):
        flags = ["--listen", "127.0.0.1:0", "--metrics", "off"]
        daemon = configured(tmp_path, {"worker_socket": str(path)}, *flags, **QUIET)
        daemons.append(daemon)
        await trio.to_thread.run_sync(daemon.wait_training)
        await trio.to_thread.run_sync(daemon.ask, "/leave")
        await trio.to_thread.run_sync(daemon.process.wait, 30)  # type: ignore[union-attr]


def test_a_keeper_runs_with_all_of_them(tmp_path: Path, daemons: list[Daemon]) -> None:
    daemon = configured(tmp_path, values_of_a_process(tmp_path))
    daemons.append(daemon)
    daemon.wait(lambda s: s["state"] == "serving", "serving")
    paths = [tmp_path / "node.prom", tmp_path / "targets.json"]
    wait_until(lambda: all(path.exists() for path in paths), "what is saved now and then")
    daemon.ask("/leave")
    assert daemon.process is not None
    assert daemon.process.wait(HANGS_S) == 0
    assert any("listens on" in event["event"] for event in events(tmp_path / "node.log"))
    assert daemon.log == "", "everything is in the file"


def test_a_trainer_runs_with_all_of_them(tmp_path: Path, daemons: list[Daemon]) -> None:
    chosen = values_of_a_process(tmp_path)
    del chosen["role"], chosen["worker_socket"]
    daemon = configured(tmp_path, chosen)
    daemons.append(daemon)
    daemon.wait_training()
    assert (tmp_path / "targets.json").exists()
    daemon.ask("/leave")
    assert daemon.process is not None
    assert daemon.process.wait(HANGS_S) == 0
    assert daemon.log == ""
    assert all(event["time"] for event in events(tmp_path / "node.log"))
    assert all(event["time"] for event in events(Paths(daemon.home).swarm("demo").worker_log))
