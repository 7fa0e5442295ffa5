"""Real kill -9 while a journal is written: what was acknowledged is there, and nothing else."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from swarmnode.store.journal import Journal
from tests.conftest import ROOT
from tests.crash.journal_writer import counter_of


def run_and_kill(path: Path, seed: int, n_acks: int) -> int:
    """Let a writer acknowledge at least ``n_acks`` times, kill it, return the last counter."""
    command = [sys.executable, "-m", "tests.crash.journal_writer", str(path), str(seed)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        for _ in range(n_acks):
            line = writer.stdout.readline()
            assert line, "the writer ended by itself"
            acknowledged = int(line)
        writer.send_signal(signal.SIGKILL)
        for line in writer.stdout.read().split(b"\n")[:-1]:  # said before the signal came
            acknowledged = int(line)
        assert writer.wait() == -signal.SIGKILL
    return acknowledged


def kill_in_a_loop(path: Path, n_kills: int) -> None:
    rng = random.Random(n_kills)
    floor = 0
    for seed in range(n_kills):
        floor = max(floor, run_and_kill(path, seed, rng.randint(1, 60)))
        with Journal(path) as journal:
            counters = [counter_of(payload) for payload in journal.recovered.records]
        assert counters, "a journal that lost everything"
        assert counters == list(range(counters[0], counters[-1] + 1))
        assert counters[-1] >= floor, f"seed={seed}: acknowledged {floor}, found {counters[-1]}"


def test_twenty_kills_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    kill_in_a_loop(tmp_path / "journal", 20)


@pytest.mark.slow
def test_three_hundred_kills_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """Run: python -m pytest -n 0 -m slow tests/crash/test_journal_kill.py"""
    kill_in_a_loop(tmp_path / "journal", 300)
