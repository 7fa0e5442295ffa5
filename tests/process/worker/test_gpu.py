"""Two real nodes on a GPU: they exchange, Prometheus sees them, they end and go on from disk."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kits.daemon_kit import LOOPBACK, free_port
from tests.process.life_kit import Party, interrupt

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DIM = 3_000_000  # more than one piece
EXCHANGES = 5
STOP_S = 2.5  # 2 s is what is promised; the shell of a test is in it


@pytest.fixture
def party(tmp_path: Path) -> Iterator[Party]:
    config = {"batch": 2, "lr": 0.02 / DIM, "dim": DIM}
    party = Party(tmp_path, dim=DIM, task_config=config, strategy_settings={"every": 16})
    try:
        yield party
    finally:
        party.close()


def test_two_nodes_train_on_a_gpu(party: Party) -> None:
    port = free_port()
    first = party.join("creator", "--metrics", f"{LOOPBACK}:{port}", SWARMNODE_CPU_PERCENT="100")
    second = party.join("second", via=first, SWARMNODE_CPU_PERCENT="100")
    for node in (first, second):
        status = node.wait(
            lambda s: s["exchanges_committed"] >= EXCHANGES and s["exchanges_applied"] > 0,
            "exchanges",
        )
        assert "device=cuda" in node.log
        assert status["exchanges_half_applied"] == status["worker_restarts"] == 0
    page = urllib.request.urlopen(f"http://{LOOPBACK}:{port}/metrics", timeout=10).read().decode()
    for family in ("gpu_utilization_ratio", "gpu_memory_used_bytes", "gpu_temperature_celsius"):
        values = [line for line in page.splitlines() if line.startswith(f"swarmnode_{family}{{")]
        assert values, family
        assert float(values[0].split()[-1]) > 0 or family == "gpu_utilization_ratio"
    step = first.status()["step"]
    began_s = time.monotonic()
    interrupt(first, second)
    assert time.monotonic() - began_s < STOP_S
    again = party.join("creator", SWARMNODE_CPU_PERCENT="100")
    again.wait(lambda s: s["state"] == "training" and s["step"] > step, "training on")
    assert again.status()["worker_restarts"] == 0
