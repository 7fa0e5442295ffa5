"""One peer of two processes among real nodes: its exchanges count, a rank's death costs seconds."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.kits.daemon_kit import Daemon, is_alive, wait_until
from tests.process.life_kit import Party, interrupt
from tests.process.swarm.hostile_party import Setting, manifest_of

pytestmark = pytest.mark.slow

# In groups slow members hand in what they have: two processes with parts are slow on two cores.
GROUPS = Setting("streaming", (("every", 48), ("fragments", 2)), steps=0)
# Torch twice, on a machine on which all tests run at once; idle it is seven seconds.
BACK_S = 60.0


def descendants(pid: int) -> dict[int, int]:
    """Return the processes below one, each with its parent."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
    found = {pid: 0}
    while more := {each: p for each, p in parents.items() if p in found and each not in found}:
        found |= more
    del found[pid]
    return found


def second_rank(node: Daemon) -> int:
    """Return the process that the worker has started."""
    below = descendants(node.pid)
    (rank,) = (pid for pid, parent in below.items() if parent in below)
    return rank


def committed(node: Daemon) -> int:
    return int(node.status().get("exchanges_committed", 0))


@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
def test_a_peer_of_two_processes_exchanges_and_outlives_one_of_them(
    tmp_path: Path, parallel: str
) -> None:
    party = Party(tmp_path, **manifest_of(GROUPS))
    party.settings["SWARMNODE_CPU_PERCENT"] = "30"  # so that a step has a time of its own
    try:
        alone = party.join("creator")
        both = party.join("both", "--nproc", "2", "--parallel", parallel, via=alone)
        for node in (alone, both):
            node.wait(lambda s: s["exchanges_committed"] >= 3, "exchanges", BACK_S)
        rank = second_rank(both)
        os.kill(rank, signal.SIGKILL)
        began_s = time.monotonic()
        both.wait(lambda s: s["worker_restarts"] == 1, "the end of the others", BACK_S)
        both.wait(lambda s: s["state"] == "training", "training again", BACK_S)
        print(f"{parallel}: back after {time.monotonic() - began_s:.1f} s")
        before = committed(both), committed(alone)
        wait_until(lambda: committed(both) >= before[0] + 3, "its exchanges", BACK_S)
        wait_until(lambda: committed(alone) >= before[1] + 3, "exchanges with it", BACK_S)
        assert [node.status()["exchanges_half_applied"] for node in (alone, both)] == [0, 0]
        assert second_rank(both) != rank
        below = [pid for node in (alone, both) for pid in descendants(node.pid)]
        began_s = time.monotonic()
        interrupt(both, alone)
        print(f"{parallel}: ended in {time.monotonic() - began_s:.1f} s")
        assert not [pid for pid in below if is_alive(pid)]
    finally:
        party.close()
