"""The lab itself: what it refuses, how it shapes traffic, what it leaves behind."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kits.daemon_kit import is_alive, wait_until
from tests.lab import namespaces
from tests.lab.natlab import ROOT, NatLab, Site
from tests.lab.plain import round_trips_ms
from tests.lab.shaper import Lane, Shape, Shaper

LATE_MS = 15  # on a machine that is busy with other things


@pytest.mark.parametrize("text", ["round-cone", "symmetric+fast", "none*2", "symmetric*9", ""])
def test_a_type_that_is_unknown_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"types|modifiers|clients"):
        Site.parse(text)


@pytest.mark.parametrize("delay_ms", [0, 20, 40])
def test_delay_applies_to_each_direction_of_an_uplink(able: None, delay_ms: int) -> None:
    """A round trip takes two delays to a public host; four to another site, by way of the core."""
    with NatLab(["symmetric", "none"], shape=Shape(delay_ms=delay_ms)) as lab:
        (to_core,) = round_trips_ms(lab, ["c0"], "pub0", 7000)
        (to_site,) = round_trips_ms(lab, ["c0"], "c1", 7000)
    assert to_core == pytest.approx(2 * delay_ms, abs=LATE_MS)
    assert to_site == pytest.approx(4 * delay_ms, abs=LATE_MS)


def test_frames_keep_their_order_and_their_rate() -> None:
    reader, writer = os.pipe()
    shaper = Shaper(Shape(delay_ms=10, jitter_ms=50, rate_mbit=1), random.Random(1))
    lane = Lane(writer)
    for number in range(8):  # of 1 ms each
        shaper.take(lane, bytes([number]) * 125, 0.0)
    shaper.deliver(0.0099)
    os.set_blocking(reader, False)
    with pytest.raises(BlockingIOError):
        os.read(reader, 4096)
    shaper.deliver(0.068)
    assert os.read(reader, 4096)[::125] == bytes(range(8))
    assert shaper.wait_s(0.068) is None
    for _ in range(200):  # twice what the queue in front of the rate holds
        shaper.take(lane, bytes(125), 1.0)
    shaper.deliver(2.0)
    assert len(os.read(reader, 65536)) == pytest.approx(100 * 125, rel=0.02)
    os.close(reader)
    os.close(writer)


def test_a_share_of_frames_is_lost() -> None:
    reader, writer = os.pipe()
    shaper = Shaper(Shape(loss_percent=10), random.Random(1))
    for _ in range(1000):
        shaper.take(Lane(writer), b"x", 0.0)
    shaper.deliver(0.0)
    assert 850 < len(os.read(reader, 4096)) < 950
    os.close(reader)
    os.close(writer)


def test_what_a_killed_run_left_is_removed(able: None) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    # Of names that no other lab's beginning looks for: tests run side by side.
    prefix = f"{namespaces.PREFIX}left"
    left, own = f"{prefix}{ended.pid}-r0", f"{prefix}{os.getpid()}-r0"
    try:
        for name in (left, own):
            namespaces.run("ip", "netns", "add", name)
        sleeper = subprocess.Popen(["ip", "netns", "exec", left, "sleep", "600"])
        while Path(f"/proc/{sleeper.pid}/comm").read_text().strip() != "sleep":
            os.sched_yield()
        namespaces.remove_leftovers(prefix)
        assert sleeper.wait(5.0) < 0
        assert namespaces.existing(left) == []
        assert namespaces.existing(own) == [own]
    finally:
        for name in (left, own):
            namespaces.remove(name)


def test_programs_on_hosts_end_with_a_run_that_is_killed(able: None) -> None:
    code = """
import sys
from tests.lab.natlab import NatLab
with NatLab([]) as lab:
    print(lab.popen("pub0", ["sleep", "600"]).pid, flush=True)
    sys.stdin.read()
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as killed:
        assert killed.stdout is not None
        sleeper = int(killed.stdout.readline())
        comm = Path(f"/proc/{sleeper}/comm")  # before it is `sleep` it may not be tied to us yet
        wait_until(lambda: comm.read_text() == "sleep\n", "the start of the program", 10.0)
        killed.kill()
        killed.wait()
    try:
        wait_until(lambda: not is_alive(sleeper), "the end of what it had started", 10.0)
    finally:
        namespaces.remove_leftovers()
