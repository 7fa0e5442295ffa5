"""One member of six holds up group means in every way it can: the others hardly notice."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.round_patience import RoundPatience
from tests.kits.hostile.rounds import ROUND_STALLS
from tests.property.models.round_staller_world import Stall, World

WARM_S, WATCHED_S = 20.0, 240.0
STALLS: tuple[Stall, ...] = (*ROUND_STALLS, "dragged")
# A round that is often, and one whose interval is longer than what a roll stays open at the least.
EVERY_S = (1.0, 4.0)


class _Endless(RoundPatience):
    """A mutant: it waits as long as the limits of the worst network say, and forgets."""

    def limit_s(self, transfer_s: float, least_s: float = 0.0) -> float:
        return transfer_s

    def waited_for(
        self, members: tuple[PeerId, ...], self_id: PeerId, now: float
    ) -> tuple[PeerId, ...]:
        return members


def share_left(
    stall: Stall, every_s: float, make_patience: Callable[[], RoundPatience] = RoundPatience
) -> float:
    """Return which part of their means the honest members keep under an attack."""
    world = World(every_s=every_s, make_patience=make_patience)
    world.run(WARM_S)
    world.attack(stall)
    world.run(WATCHED_S)
    return world.commits(since_s=WARM_S) / commits_in_peace(every_s)


@functools.cache
def commits_in_peace(every_s: float) -> int:
    world = World(every_s=every_s)
    world.run(WARM_S + WATCHED_S)
    return world.commits(since_s=WARM_S)


@pytest.mark.parametrize("every_s", EVERY_S)
@pytest.mark.parametrize("stall", STALLS)
def test_four_fifths_of_the_means_are_left_under_any_stall(stall: Stall, every_s: float) -> None:
    assert share_left(stall, every_s) >= 0.8


@pytest.mark.parametrize("stall", ["flush", "share", "sum", "prepared"])
def test_without_patience_and_memory_the_same_stall_is_seen(stall: Stall) -> None:
    assert share_left(stall, 1.0, _Endless) < 0.8


@pytest.mark.parametrize("every_s", [0.5, 2.0])
def test_a_wait_that_one_of_them_ends_first_all_of_them_charge_for(every_s: float) -> None:
    """On a fast network its word ends the wait of all: the staller has it once, not once a member.

    Rolls are opened by one member after the other, so that one of them always is the first.
    """
    world = World(every_s=every_s, seed=2, delay_s=0.001)
    world.run(WARM_S)
    in_peace = world.commits(since_s=WARM_S / 2) / (WARM_S / 2)
    world.attack("enlist")
    world.run(60.0)
    assert world.commits(since_s=WARM_S) / 60.0 >= 0.85 * in_peace


class _Unasked(World):
    """A mutant: that a member is waited for is no reason to ask whether it is there."""

    def _ask_alive(self, member: object, peer: PeerId) -> None:
        pass


def gaps_beside_a_frozen_one(make: type[World], every_s: float = 0.4) -> list[float]:
    """Return the gaps of the others over the first 20 s, whenever in a round it stops."""
    gaps_s: list[float] = []
    for moment in range(3):
        world = make(every_s=every_s, seed=1 + moment)
        world.run(WARM_S + moment * every_s / 3)
        world.freeze(world.honest[-1])
        began_s = world.now
        world.run(20.0)
        gaps_s += world.gaps_s(began_s)
    return sorted(gaps_s)


def test_a_frozen_member_costs_the_others_one_gap_of_two_seconds_at_the_most() -> None:
    gaps_s = gaps_beside_a_frozen_one(World)
    assert gaps_s[int(0.95 * len(gaps_s))] <= 1.0
    assert gaps_s[-1] <= 2.5
    without_s = gaps_beside_a_frozen_one(_Unasked)
    assert without_s[int(0.95 * len(without_s))] > 2.0


def test_an_honest_member_whose_steps_are_long_stays_in_nearly_every_mean() -> None:
    world = World(every_s=8.0, slow_s=2.0)
    world.run(WARM_S + WATCHED_S)
    slow, *others = (len(world.members[peer].commits_s) for peer in world.honest)
    assert slow >= 0.8 * max(others)
    assert max(others) >= 0.8 * WATCHED_S / world.every_s
