"""Swarms of real nodes: everyone leaves and some come back, late ones begin where it is now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .daemon_kit import Daemon
from .life_kit import (
    FIRST_STEPS,
    FRESH_LOSS,
    Party,
    forget,
    interrupt,
    offer,
    on_disk,
    wait_copy,
)

LEARNT = 0.8 * FRESH_LOSS
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


def first_loss(node: Daemon) -> float:
    """Return the loss of a node that was told to stop at its first evaluation."""
    status = node.wait(lambda s: s["state"] == "stopped", "the first evaluation")
    return float(status["eval_loss"])


def test_a_swarm_that_everyone_left_goes_on_from_one_disk_and_from_a_keeper(party: Party) -> None:
    creator = party.join("creator")
    other = party.join("other", via=creator)
    keeper = party.keeper("keeper", via=creator)
    loss = train_until_learnt([creator, other])
    wait_copy(keeper, offer(creator))
    interrupt(creator, other)

    steps = creator_steps(creator) + FIRST_STEPS
    alone = party.join("creator", "--steps", str(steps))
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
