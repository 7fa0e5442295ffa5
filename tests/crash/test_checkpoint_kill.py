"""Real kill -9 while snapshots are written: what was acknowledged loads, and it is whole.

A kill does not test ``fsync``: what the kernel has survives it. That the order of the calls is
right is tested in ``unit/test_snapshot.py``.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from swarmnode.errors import CorruptRecord
from swarmnode.store.checkpoints import newest, verify_checkpoint
from swarmnode.worker.snapshots.snapshot import SnapshotStore
from tests.conftest import ROOT
from tests.crash.checkpoint_writer import check, new_node


@contextmanager
def writers(folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.crash.checkpoint_writer", str(folder)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process


def run_and_kill(process: subprocess.Popen[str], rng: random.Random) -> int:
    """Let a process write, kill it at some moment, return the last step that it acknowledged."""
    assert process.stdin is not None
    assert process.stdout is not None
    print("go", file=process.stdin, flush=True)
    pid = int(process.stdout.readline())
    acknowledged = last_saved(process.stdout.readline(), 0)
    began_s = time.perf_counter()
    n_saves = rng.randint(1, 5)
    for _ in range(n_saves):
        acknowledged = last_saved(process.stdout.readline(), acknowledged)
    one_save_s = (time.perf_counter() - began_s) / n_saves
    spin(rng.uniform(0.0, one_save_s))
    os.kill(pid, signal.SIGKILL)
    while (line := process.stdout.readline().strip()) != "killed":
        acknowledged = last_saved(line, acknowledged)
    return acknowledged


def last_saved(line: str, before: int) -> int:
    word, _, step = line.partition(" ")
    assert word == "saved", line
    return max(before, int(step))


def spin(delay_s: float) -> None:
    """Let a part of a save go by, so that kills come at each moment of one."""
    until_s = time.perf_counter() + delay_s
    while time.perf_counter() < until_s:
        pass


@pytest.mark.parametrize(
    "kills", [60, pytest.param(300, marks=pytest.mark.slow)], ids="{}-kills".format
)
def test_no_kill_costs_a_snapshot_that_was_acknowledged(tmp_path: Path, kills: int) -> None:
    """Run all: python -m pytest -n 0 -m slow tests/crash/test_checkpoint_kill.py"""
    folder = tmp_path / "snapshots"
    rng = random.Random(kills)
    floor = torn = 0
    with writers(folder) as process:
        for kill in range(kills):
            floor = max(floor, run_and_kill(process, rng))
            torn += any(folder.glob("*.tmp"))
            found = newest(folder)
            for step, path in found:
                assert verify_checkpoint(path).step == step, f"kill {kill}"
            state, strategy = new_node()
            with SnapshotStore(folder) as store:
                is_restored = store.restore(state, strategy)
            assert is_restored == bool(found)
            if is_restored:
                assert check(state, strategy) == found[0][0]
            assert state.step >= floor, f"kill {kill}: acknowledged {floor}, found {state.step}"
            assert not list(folder.glob("*.tmp"))
    assert floor > kills, "they got to write between the kills"
    assert torn > kills // 10, "and many were killed while they wrote"


def test_the_check_can_see(tmp_path: Path) -> None:
    """A snapshot that is not all of one step would be noticed."""
    state, strategy = new_node()
    with SnapshotStore(tmp_path / "snapshots") as store:
        state.step = 5
        store.save(state, strategy)
        fresh, fresh_strategy = new_node()
        assert store.restore(fresh, fresh_strategy)
    with pytest.raises((AssertionError, ValueError)):
        check(fresh, fresh_strategy)
    (path,) = (path for _, path in newest(tmp_path / "snapshots"))
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(CorruptRecord):
        verify_checkpoint(path)
