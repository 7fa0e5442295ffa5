"""A laptop that was asleep for hours: by its clocks the night was no moment, for the others it was.

A suspended machine cannot be had in a test. What its processes see of it can: they stand still,
and afterwards the clock that counts the sleep, and that alone, is hours ahead.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kits.daemon_kit import Daemon
from tests.process.life_kit import Party

NIGHT_S = 8 * 3600.0
# What Python imports before anything else: CLOCK_BOOTTIME, with the sleep that a file tells of.
SITE = """\
import os, time
_real = time.clock_gettime
def _slept():
    with open(os.environ["SLEPT"]) as file:
        return float(file.read())
time.clock_gettime = lambda clock: _real(clock) + (clock == time.CLOCK_BOOTTIME and _slept())
"""
ROUNDS = 3  # of the two that are awake, and then of all


@pytest.fixture
def party(tmp_path: Path) -> Iterator[Party]:
    party = Party(tmp_path, strategy="streaming", strategy_settings={"every": 100, "meet": "group"})
    try:
        yield party
    finally:
        party.close()


def committed(node: Daemon, more: int) -> dict[str, Any]:
    """Wait until a node has so many more rounds than now; return its status."""
    wanted = node.wait(lambda s: "exchanges_committed" in s, "it")["exchanges_committed"] + more
    return node.wait(lambda s: s["exchanges_committed"] >= wanted, f"{more} rounds more")


def test_who_wakes_up_after_a_night_is_back_at_once(party: Party, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITE)
    slept = tmp_path / "slept"
    slept.write_text("0")
    first = party.join("creator")
    other = party.join("other", via=first)
    laptop = party.join("laptop", via=first, PYTHONPATH=str(tmp_path), SLEPT=str(slept))
    for node in (first, other, laptop):
        committed(node, ROUNDS)
    before = laptop.status()

    # The daemon stops last and goes on first: of its worker nothing is there that it could read.
    pids = [before["worker_pid"], laptop.pid]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        first.wait(lambda s: s["peers_alive"] == 1, "the others see that it is gone")
        committed(first, ROUNDS)
    finally:
        slept.write_text(str(NIGHT_S))
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)

    laptop.wait(lambda s: s["peers_connected"] == 2, "both peers again", 15.0)
    after = committed(laptop, ROUNDS)
    assert after["worker_pid"] == before["worker_pid"]
    assert after["worker_restarts"] == 0
    assert after["alarm"] == ""
    assert "the worker is silent since_s=288" in laptop.log  # and some seconds more
