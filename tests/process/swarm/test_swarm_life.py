"""Swarms of real nodes: everyone leaves and some come back, late ones begin where it is now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from swarmnode.processes.worker_tools import run_offline
from tests.kits.daemon_kit import Daemon, swarmnode
from tests.process.life_kit import (
    FIRST_STEPS,
    FRESH_LOSS,
    Party,
    forget,
    interrupt,
    offer,
    on_disk,
    wait_copy,
)

LEARNT = 0.9 * FRESH_LOSS
NEAR = 1.02


@pytest.fixture
def party(tmp_path: Path) -> Iterator[Party]:
    party = Party(tmp_path)
    try:
        yield party
    finally:
        party.close()


def train_until_learnt(nodes: list[Daemon]) -> float:
    """Return the loss once all have learnt something; they are paused then."""
    for node in nodes:
        node.wait(lambda s: s["eval_loss"] and s["eval_loss"] < LEARNT, "something learnt")
    for node in nodes:
        node.ask("/pause")
    paused = [node.wait(lambda s: s["state"] == "paused", "paused") for node in nodes]
    return max(float(status["eval_loss"]) for status in paused)


def go_on(*nodes: Daemon) -> None:
    """Resume them: a pause by hand outlasts the daemon."""
    for node in nodes:
        node.wait(lambda s: s["state"] == "paused", "still paused")
        node.ask("/resume")


def first_loss(node: Daemon) -> float:
    """Return the loss of a node that was told to stop at its first evaluation."""
    status = node.wait(lambda s: s["state"] == "stopped", "the first evaluation")
    return float(status["eval_loss"])


def test_a_swarm_that_everyone_left_goes_on_from_one_disk_and_from_a_keeper(party: Party) -> None:
    creator = party.join("creator")
    other = party.join("other", via=creator)
    keeper = party.keeper("keeper", via=creator)
    loss = train_until_learnt([creator, other])
    furthest = max((creator, other), key=lambda node: int(node.status()["step"]))
    wait_copy(keeper, offer(furthest))
    creator.ask("/snapshot")
    interrupt(creator, other)

    steps = creator_steps(creator) + FIRST_STEPS
    alone = party.join("creator", "--steps", str(steps))
    go_on(alone)
    assert first_loss(alone) < NEAR * loss
    interrupt(alone)

    forget(creator, other)
    late = party.join("late", "--steps", str(FIRST_STEPS), via=keeper)
    assert first_loss(late) < NEAR * loss
    assert "training on cpu" in late.log
    assert "libtorch" not in Path(f"/proc/{keeper.pid}/maps").read_text()


def creator_steps(node: Daemon) -> int:
    """Return how far the newest snapshot on a disk is."""
    return max(int(path.stem.split("-")[1]) for path in on_disk(node).snapshots.iterdir())


@pytest.mark.slow
def test_what_four_trained_goes_on_with_seven(party: Party) -> None:
    creator = party.join("creator")
    four = [creator, *(party.join(f"node{i}", via=creator) for i in range(3))]
    loss = train_until_learnt(four)
    for node in four:
        node.ask("/snapshot")
    steps = {node.home: creator_steps(node) for node in four}
    interrupt(*four)

    creator.start()
    for node in four[1:]:
        node.start()
    go_on(*four)
    newcomers = [party.join(f"new{i}", "--steps", str(FIRST_STEPS), via=creator) for i in range(3)]
    for node in newcomers:
        assert first_loss(node) < NEAR * loss
    for node in four:
        status = node.wait(
            lambda s: s["eval_loss"] and s["peers_alive"] == 6 and s["exchanges_applied"] > 0,
            "all seven, and an exchange",
        )
        assert status["eval_loss"] < NEAR * loss
        assert status["step"] > steps[node.home]


@pytest.mark.slow
def test_a_keepers_copy_loads_under_other_settings(party: Party, tmp_path: Path) -> None:
    """What is on its disk is a snapshot like any other, for a machine that has torch."""
    creator = party.join("creator", "--device", "cpu", SWARMNODE_THREADS="1")
    keeper = party.keeper("keeper", via=creator)
    loss = train_until_learnt([creator])
    name = offer(creator)
    wait_copy(keeper, name)
    found = run_offline("evaluate", str(on_disk(keeper).blobs / name / "data"))
    assert found["models"][0]["loss"] == pytest.approx(loss, rel=NEAR - 1)
    exported = swarmnode(creator.home, "export", str(tmp_path / "out"), "--json").json
    assert run_offline("evaluate", str(tmp_path / "out"))["models"][0]["step"] == exported["step"]
