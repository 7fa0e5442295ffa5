"""Real nodes on machines that fail them: wrong clocks, disks that forget, lie or are full."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarmnode.config import Paths
from tests.kits.daemon_kit import Daemon, swarmnode, wait_until
from tests.process.life_kit import Party, ended, flip_bit, interrupt, on_disk, peer_of

YEAR_S = 365 * 86_400


@pytest.fixture
def party(tmp_path: Path) -> Iterator[Party]:
    party = Party(tmp_path)
    try:
        yield party
    finally:
        party.close()


def wrong_clock(folder: Path, by_s: int) -> dict[str, str]:
    """Return an environment in which the wall clock is wrong, as far as Python can tell."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        f"import time\nright = time.time\ntime.time = lambda: right() + {by_s}\n"
    )
    return {"PYTHONPATH": str(folder)}


def test_a_clock_a_year_ahead_is_told_so_and_harms_no_peer(party: Party) -> None:
    creator = party.join("creator")
    keeper = party.keeper("keeper", via=creator)
    early = wrong_clock(party.folder / "year-ahead", YEAR_S)
    ahead = party.join("ahead", "--role", "monitor", via=creator, **early)
    status = ahead.wait(lambda s: s["alarm"], "the alarm")
    assert (
        "this machine's clock is 365 days ahead of that of its neighbours: check which is right"
        in status["alarm"]
    )
    assert "ALARM" in swarmnode(ahead.home, "status").out
    step = creator.wait_training()["step"]
    creator.wait_training(step + 100)
    for node in (creator, keeper):
        assert node.status()["peers_alive"] == 2
        # Asked before they had heard each other, they may have wondered.
        node.wait(lambda s: s["alarm"] == "", "no alarm")


@pytest.mark.parametrize("at", [0.0, 0.5], ids=["its-first-byte", "a-record"])
def test_a_bit_in_the_journal_costs_nothing_that_neighbours_know(party: Party, at: float) -> None:
    creator = party.join("creator", "--role", "monitor")
    member = party.join("member", "--role", "monitor", via=creator)
    member.wait(lambda s: s["peers_alive"] == 1, "the creator")
    wait_until(lambda: same_state(creator, member), "the same state")
    member.kill()
    flip_bit(on_disk(member).journal, at)
    member.start()
    wait_until(lambda: same_state(creator, member), "the same state")
    assert "the journal of the shared state was damaged; neighbours bring back" in member.log
    assert creator.status()["peers_alive"] == 1


def same_state(one: Daemon, other: Daemon) -> bool:
    prints = [node.status().get("state_fingerprint") for node in (one, other)]
    return prints[0] == prints[1] and bool(prints[0])


def test_a_bit_in_the_newest_snapshot_costs_what_came_after_the_one_before(party: Party) -> None:
    node = party.join("creator")
    node.wait_training()
    node.ask("/snapshot")
    # A snapshot is named after its step: one of the same step takes the place of the one before.
    (before,) = on_disk(node).snapshots.glob("snapshot-*.safetensors")
    node.wait_training(int(before.stem.split("-")[1]) + 1)
    node.ask("/snapshot")
    os.kill(node.status()["worker_pid"], signal.SIGKILL)  # else it saves what came since
    node.signal(signal.SIGKILL)
    kept = sorted(on_disk(node).snapshots.glob("snapshot-*.safetensors"))
    assert len(kept) == 2
    flip_bit(kept[1], 0.9)
    node.start()
    step = int(kept[0].stem.split("-")[1])
    wait_until(lambda: node.log.count("training on cpu") == 2, "training again")
    assert f"training on cpu, from step {step:,} on" in node.log
    worker = on_disk(node).worker_log.read_text()
    assert f"{kept[1].name} is damaged" in worker, worker
    assert "trying the one before it" in worker


SPOILT = {
    "link": ("link", "is damaged (.*): join once by the link instead of the name"),
    "manifest": ("manifest", r"(was tampered with|is damaged) \(.*\): remove it and join again"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_bit_in_what_says_which_swarm_it_is_ends_with_a_line(party: Party, name: str) -> None:
    node = party.join("creator", "--role", "monitor")
    node.wait(lambda s: s["state"] == "serving", "the node")
    interrupt(node)
    file, expected = SPOILT[name]
    flip_bit(getattr(on_disk(node), file), 0.7)
    code, line = ended(party.join("creator", "--role", "monitor"))
    assert code != 0
    assert re.search(expected, line), line


def test_bits_in_what_only_helps_cost_nothing(party: Party) -> None:
    creator = party.join("creator", "--role", "monitor")
    member = party.join("member", "--role", "monitor", via=creator)
    member.wait(lambda s: s["peers_connected"] and s["dht_contacts"], "the creator")
    interrupt(member)
    paths = Paths(member.home)
    for path in (paths.contacts, paths.boot_epoch):
        flip_bit(path)
    member.start()
    member.wait(lambda s: s["peers_connected"] == 1, "the creator again")


def test_a_bit_in_the_key_ends_with_a_line_and_the_file_stays(party: Party) -> None:
    node = party.join("creator", "--role", "monitor")
    node.wait(lambda s: s["state"] == "serving", "the node")
    interrupt(node)
    path = Paths(node.home).node_key
    flip_bit(path)
    damaged = path.read_bytes()
    node.start()
    code, line = ended(node)
    assert code != 0
    assert "the secret key" in line
    assert "is damaged" in line
    assert "move it away to go on under a new key" in line
    assert path.read_bytes() == damaged


@contextlib.contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """Give a folder a disk of its own, if we may."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"cannot mount a disk here (root): {getattr(error, 'stderr', '') or error}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True, timeout=10)


def fill(path: Path) -> None:
    """Write a file until nothing more fits on its disk."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for size_bytes in (65536, 4096, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size_bytes)):
                    pass


@pytest.mark.slow
def test_a_full_disk_stops_nothing_and_nothing_is_lost(party: Party) -> None:
    creator = party.join("creator")
    creator.wait_training()
    with small_disk(party.folder / "small", 8_000_000) as home:
        node = party.join("small", via=creator)
        try:
            node.wait_training()
            node.ask("/snapshot")
            ballast = home / "ballast"
            fill(ballast)
            answer = swarmnode(home, "export", str(party.folder / "export"))
            assert answer.code == 1
            assert "no space left" in answer.line
            alarmed = node.wait(
                lambda s: (
                    "no snapshot can be written" in s["alarm"]
                    and "the shared state is not written down" in s["alarm"]
                ),
                "both alarms",
            )
            node.wait(
                lambda s: (
                    s["step"] > alarmed["step"] + 100
                    and s["exchanges_applied"] > alarmed["exchanges_applied"] + 1
                ),
                "training and exchanges",
            )
            assert node.status()["worker_restarts"] == 0
            ballast.unlink()
            step = node.ask("/snapshot")["step"]
            node.wait(lambda s: s["alarm"] == "", "the end of the alarm")
            creator.wait(lambda _: said_steps(creator, node) >= step, "what it could not say")
            node.signal(signal.SIGKILL)
            node.start()
            node.wait_training(step)
        finally:
            node.kill()


def said_steps(node: Daemon, of: Daemon) -> int:
    """Return how many steps a node has heard that another one took."""
    peer = str(peer_of(of))
    return int(next((p["step"] for p in node.peers() if p["peer"] == peer), 0))
