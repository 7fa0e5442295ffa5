"""A home that was backed up and restored elsewhere is the same node, and trains on."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swarmnode.protocol.swarm import Hint
from tests.kits.daemon_kit import LOOPBACK, Daemon, make_home, new_swarm, swarmnode

STEPS = 50  # before the backup
Start = Callable[[Path, str], Daemon]


@pytest.fixture
def start() -> Iterator[Start]:
    """Return what starts a node, which is ended with the test."""
    nodes: list[Daemon] = []

    def started(home: Path, link: str) -> Daemon:
        nodes.append(Daemon(home, link))
        return nodes[-1]

    yield started
    for node in nodes:
        node.kill()


def moved(node: Daemon, target: Path, *, starts: int = 0) -> int:
    """Move a node to another home by a backup; return the step that the backup has.

    It trains on meanwhile, and a while more, and is started so often again, for its neighbours to
    see: then its machine is gone.
    """
    node.wait_training(STEPS)
    node.ask("/snapshot")
    kept = int(node.status()["snapshot_step"])
    file = target.with_suffix(".zip")
    done = swarmnode(node.home, "backup", str(file), "--json")
    assert done.code == 0, done.err
    node.wait_training(kept + STEPS)
    assert node.signal(signal.SIGTERM) == 0
    for _ in range(starts):
        node.start()
        node.wait(lambda s: s["peers_connected"] == 1, "its neighbour")
        assert node.signal(signal.SIGTERM) == 0
    shutil.rmtree(node.home)
    back = swarmnode(target, "restore", str(file), "--json")
    assert back.code == 0, back.err
    assert back.json["swarms"] == ["demo"]
    return kept


def first_step(node: Daemon) -> int:
    """Return from which step on a node began to train."""
    node.wait_training()
    (found,) = re.findall(r"training on .*, from step ([\d,]+) on", node.log)
    return int(found.replace(",", ""))


def test_a_restored_home_trains_on_as_the_same_node(tmp_path: Path, start: Start) -> None:
    swarm = new_swarm()
    identity = make_home(tmp_path / "old", swarm)
    kept = moved(start(tmp_path / "old", "demo"), tmp_path / "new")
    assert kept >= STEPS
    node = start(tmp_path / "new", "demo")
    assert first_step(node) >= kept
    status = node.wait_training(kept + STEPS)
    assert status["peer"] == str(identity.peer_id)
    assert status["tokens"] >= kept


def test_its_swarm_knows_it_again(tmp_path: Path, start: Start) -> None:
    """Its neighbours have heard of later starts than the backup knows."""
    swarm = new_swarm()
    identity = make_home(tmp_path / "other", swarm)
    other = start(tmp_path / "other", "demo")
    link = str(swarm.link(Hint(identity.peer_id, f"{LOOPBACK}:{other.port}")))
    old = start(tmp_path / "old", link)
    peer = old.wait_training()["peer"]
    old.wait(lambda s: s["exchanges_committed"] >= 1, "an exchange")
    kept = moved(old, tmp_path / "new", starts=2)
    before = other.status()["exchanges_applied"]
    node = start(tmp_path / "new", "demo")
    assert first_step(node) >= kept
    other.wait(lambda s: s["exchanges_applied"] > before, "an exchange after the move")
    (known,) = other.peers()
    assert (known["peer"], known["connected"]) == (peer, True)
