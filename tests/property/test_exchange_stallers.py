"""One member of six holds up exchanges in every way it can: the others hardly notice."""

from __future__ import annotations

import functools
import math
import random
from typing import get_args

import pytest

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.conduct import ConductTable
from swarmnode.protocol.gossip.exchange import ExchangeCore
from swarmnode.protocol.gossip.patience import Patience
from tests.property.models.staller_world import MakeCore, Phase, World

WARM_S, WATCHED_S = 20.0, 240.0
PHASES: tuple[Phase, ...] = get_args(Phase)
EVERY_S = 0.8


class _Forgetful(ConductTable):
    """A mutant: what peers did is nothing to it."""

    def is_avoided(self, peer: PeerId, now: float) -> bool:
        return False

    def may_hold(self, peer: PeerId, now: float) -> bool:
        return True

    def is_admitted(self, peer: PeerId, round_number: int, now: float) -> bool:
        return True


class _Endless(Patience):
    """A mutant: it waits as long as the limits of the worst network say."""

    def answer_s(self, peer: PeerId) -> float:
        return limits.EXCHANGE_OFFER_S

    def transfer_s(self, peer: PeerId, transfer_limit_s: float) -> float:
        return math.inf

    def decision_s(self, peer: PeerId) -> float:
        return limits.EXCHANGE_DECISION_S_MAX


def undefended(peer: PeerId, key: bytes, rng: random.Random, _: Patience) -> ExchangeCore:
    """Return a core with both mutations."""
    return ExchangeCore(peer, key, rng, _Endless(_Forgetful()))


def share_left(
    phase: Phase, fragments: int, make_core: MakeCore = ExchangeCore, warm_s: float = WARM_S
) -> float:
    """Return which part of their commits the honest nodes keep under an attack."""
    world = World(fragments=fragments, every_s=EVERY_S, make_core=make_core)
    world.run(warm_s)
    world.attack(phase)
    world.run(WATCHED_S)
    return world.commits(since_s=warm_s) / commits_in_peace(fragments)


@functools.cache
def commits_in_peace(fragments: int) -> int:
    world = World(fragments=fragments, every_s=EVERY_S)
    world.run(WARM_S + WATCHED_S)
    return world.commits(since_s=WARM_S)


@pytest.mark.parametrize("fragments", [1, 4])
@pytest.mark.parametrize("phase", PHASES)
def test_four_fifths_of_the_commits_are_left_under_any_stall(phase: Phase, fragments: int) -> None:
    assert share_left(phase, fragments) >= 0.8


@pytest.mark.parametrize("phase", PHASES)
def test_a_stall_that_begins_before_anything_was_measured_ends_as_well(phase: Phase) -> None:
    assert share_left(phase, 1, warm_s=0.0) >= 0.8


def test_where_merges_add_up_a_partner_that_is_silent_after_ready_holds_up_nothing() -> None:
    """All begin with the attacker there, and half a minute is watched: the doubt lasts for most."""
    kept = {}
    for adds_up in (True, False):
        world = World(fragments=1, every_s=EVERY_S, adds_up=adds_up)
        world.attack("ready")
        world.run(30.0)
        kept[adds_up] = world.commits(since_s=0.0)
    peace = World(fragments=1, every_s=EVERY_S)
    peace.run(30.0)
    assert kept[True] >= 0.8 * peace.commits(since_s=0.0)
    assert kept[False] < 0.5 * peace.commits(since_s=0.0)


@pytest.mark.parametrize("phase", PHASES)
def test_without_patience_and_memory_the_same_stall_is_seen(phase: Phase) -> None:
    assert share_left(phase, 1, undefended) < 0.8


@pytest.mark.parametrize("fragments", [1, 4])
def test_a_sleeper_costs_the_others_a_second_once_and_is_back_with_its_first_word(
    fragments: int,
) -> None:
    world = World(fragments=fragments, every_s=EVERY_S / 2)
    world.run(WARM_S)
    sleeper = world.honest[2]
    world.freeze(sleeper)
    world.run(60)
    gaps = world.gaps_s(WARM_S, sleeper)
    assert gaps[int(0.95 * len(gaps))] <= 1.0
    woke_s = world.now
    world.thaw(sleeper)
    world.run(10)
    others = [world.nodes[peer] for peer in world.honest if peer != sleeper]
    assert sum(at > woke_s for at in world.nodes[sleeper].commits_s) >= 10
    assert not any(node.conduct.is_avoided(sleeper, world.now) for node in others)
