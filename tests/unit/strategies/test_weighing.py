"""What a strategy shows its guard of a pair, what it asks it, and where it has one."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from swarmnode.strategies.base import (
    Context,
    Exchange,
    Intent,
    Kind,
    Meeting,
    Meta,
    Offer,
    Received,
    Sent,
    StepInfo,
    TaskFacts,
)
from swarmnode.strategies.context import LossAt
from swarmnode.strategies.merging.safe_merge import SafeMerge
from swarmnode.strategies.merging.slot import ACCEPTED, Pair, Verdict
from swarmnode.strategies.outer import learnt
from swarmnode.strategies.pair_average import PairAverage
from swarmnode.strategies.registry import build_strategy
from swarmnode.strategies.streaming import Streaming
from swarmnode.strategies.weighing import WeighsPairs
from swarmnode.tensor.layout import Layout

ME, PEER = b"m" * 32, b"p" * 32
NUMEL = 256
HALF = Verdict(share=0.5)
STREAMING: dict[str, Any] = {"meet": "pair", "every": 8, "fragments": 2, "overlap": 0}


class Guard(SafeMerge):
    """Accepts half of everything, bans nobody but who is told, and notes what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs: list[Pair] = []
        self.gone: list[str] = []
        self.banned: set[tuple[bytes, int]] = set()

    def is_banned(self, peer: bytes, round_number: int) -> bool:
        return (peer, round_number) in self.banned

    def weigh(self, pair: Pair) -> Verdict:
        self.pairs.append(pair)
        return HALF

    def aborted(self, topic: str) -> None:
        self.gone.append(topic)


def begun(
    name: str, weighs: bool = True, probe: LossAt | None = None, **settings: Any
) -> WeighsPairs:
    generator = torch.Generator().manual_seed(3)
    strategy = build_strategy(name, settings, torch.randn(NUMEL, generator=generator))
    assert isinstance(strategy, WeighsPairs)
    strategy.start(
        Context(
            self_id=ME,
            seed=0,
            rng=random.Random(0),
            layout=Layout.of([("w", (NUMEL,), "float32")]),
            members=(ME, PEER),
            facts=TaskFacts("any"),
            probe=probe,
            weighs=weighs,
            loss_trivial=2.5,
        )
    )
    return strategy


def guarded(name: str, probe: LossAt | None = None, **settings: Any) -> tuple[WeighsPairs, Guard]:
    strategy = begun(name, probe=probe, **settings)
    strategy.guard = guard = Guard()
    return strategy, guard


def after(strategy: WeighsPairs, steps: range) -> list[Intent]:
    """Return what so many steps make due, each of which adds one to a parameter."""
    found: list[Intent] = []
    for step in steps:
        strategy.x[step] += 1.0
        found += strategy.after_step(StepInfo(step, float(step), 1.0, 0.1))
    return found


def exchange(intent: Intent, their_steps: int = 8) -> Exchange:
    generator = torch.Generator().manual_seed(5)
    own, theirs = (
        {view.name: torch.randn(view.numel, generator=generator) for view in intent.views}
        for _ in range(2)
    )
    meta = Meta(8, 8, 8.0)
    got = {PEER: Received(theirs, replace(meta, steps=their_steps))}
    return Exchange(intent, meta, own, got, 0)


# --- where there is one ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings", "has_guard"),
    [
        ("pair-average", {}, True),
        ("pair-average", {"merge": "variance-corrected"}, False),
        ("noloco", {}, True),
        ("noloco", {"merge": "variance-corrected"}, False),
        ("streaming", STREAMING, True),
        ("streaming", {"meet": "group"}, False),
    ],
)
def test_pairs_of_models_that_began_together_are_weighed_where_the_swarm_says_so(
    name: str, settings: dict[str, Any], has_guard: bool
) -> None:
    strategy = begun(name, **settings)
    assert (strategy.guard is not None) == has_guard
    assert strategy.began_apart == (settings.get("merge") == "variance-corrected")
    assert begun(name, weighs=False, **settings).guard is None


def test_what_a_guard_knows_stays_when_members_change() -> None:
    strategy = begun("pair-average")
    before = strategy.guard
    assert before is not None
    strategy.start(strategy.ctx)
    assert strategy.guard is before


def test_what_is_weighed_by_no_guard_is_accepted() -> None:
    strategy = begun("pair-average", weighs=False, every=4)
    (intent,) = after(strategy, range(1, 5))
    assert strategy.weigh(exchange(intent)) is ACCEPTED
    guarded_one, guard = guarded("pair-average", every=4)
    pulled = replace(exchange(intent), intent=replace(intent, kind=Kind.PULL))
    assert guarded_one.weigh(pulled) is ACCEPTED
    assert not guard.pairs
    assert guarded_one.weigh(exchange(intent)) is HALF


# --- what it is asked -----------------------------------------------------------------------------


def test_a_peer_that_is_banned_in_this_round_is_refused() -> None:
    strategy, guard = guarded("pair-average", every=4)
    (intent,) = after(strategy, range(1, 5))
    offer = Offer(PEER, intent, Meta(4, 4, 4.0))
    guard.banned = {(PEER, 1)}
    assert str(strategy.accept(offer)).startswith("other: banned for a while")
    assert strategy.accept(replace(offer, peer=ME)) is None
    after(strategy, range(5, 9))
    assert strategy.accept(offer) is None, "in the next one it is not"
    assert begun("pair-average", weighs=False).accept(offer) is None


def test_what_aborts_is_no_more_under_way_for_the_guard() -> None:
    strategy, guard = guarded("streaming", **STREAMING)
    for intent in after(strategy, range(1, 9)):
        strategy.on_abort(intent, "no peer came")
    assert guard.gone == ["outer/1", "outer/0"]


@pytest.mark.parametrize(("every", "their_steps"), [(4, 7), (4, 8), (4, 39), (1, 3)])
def test_a_pair_is_shown_with_the_rounds_of_both_by_their_own_count(
    every: int, their_steps: int
) -> None:
    strategy, guard = guarded("pair-average", every=every)
    *_, intent = after(strategy, range(1, 9))
    met = exchange(intent, their_steps)
    strategy.weigh(met)
    (pair,) = guard.pairs
    assert (pair.peer, pair.topic) == (PEER, "gossip/0")
    assert (pair.round, pair.their_round) == (8 // every, their_steps // every)
    assert torch.equal(pair.own, met.sent["x"])
    assert torch.equal(pair.theirs, met.partner.views["x"])
    assert pair.moved == pytest.approx(every**0.5), "one each in so many parameters"
    assert pair.loss_along is None
    assert pair.loss_trivial == 2.5


def test_models_that_are_averaged_are_tried_on_the_way_to_the_peers() -> None:
    asked: list[torch.Tensor] = []

    def probe(x: torch.Tensor) -> float:
        asked.append(x.clone())
        return float(len(asked))

    strategy, guard = guarded("pair-average", probe, every=4)
    (intent,) = after(strategy, range(1, 5))
    met = exchange(intent)
    strategy.weigh(met)
    loss_along = guard.pairs[0].loss_along
    assert loss_along is not None
    found = [loss_along(a) for a in (0.0, 0.5, 1.0, 0.5, 0.0)]
    assert found == [1.0, 2.0, 3.0, 2.0, 1.0], "each is asked for once"
    way = met.partner.views["x"] - met.sent["x"]
    assert torch.equal(asked[0], strategy.x)
    torch.testing.assert_close(asked[1], strategy.x + 0.5 * way)
    torch.testing.assert_close(asked[2], strategy.x + way)


@pytest.mark.parametrize(
    ("name", "settings"), [("noloco", {"every": 8, "beta": 0.5}), ("streaming", STREAMING)]
)
def test_outer_steps_are_tried_by_what_of_a_peer_has_an_effect(
    name: str, settings: dict[str, Any]
) -> None:
    asked: list[torch.Tensor] = []

    def probe(x: torch.Tensor) -> float:
        asked.append(x.clone())
        return 1.0

    strategy, guard = guarded(name, probe, **settings)
    intent = after(strategy, range(1, 9))[0]
    met, c = exchange(intent, their_steps=17), strategy.config
    assert strategy.weigh(met) is HALF
    (pair,) = guard.pairs
    assert pair.topic == f"outer/{intent.fragment}"
    assert (pair.round, pair.their_round) == (1, 2)
    own, theirs = (learnt(views, c.beta, c.gamma) for views in (met.sent, met.partner.views))
    assert torch.equal(pair.own, own)
    assert torch.equal(pair.theirs, theirs)
    assert pair.moved == pytest.approx(float(met.sent["delta"].norm()))
    assert pair.loss_along is not None
    before, expected = strategy.x.clone(), strategy.x.clone()
    pair.loss_along(0.25)
    if isinstance(strategy, Streaming):
        strategy.fragments[intent.fragment].add(expected, theirs - own, alpha=0.25)
    else:
        expected += 0.25 * (theirs - own)
    torch.testing.assert_close(asked[0], expected)
    assert not torch.equal(asked[0], before)
    assert torch.equal(strategy.x, before), "it was only tried"


# --- pair averaging -------------------------------------------------------------------------------


def test_at_random_times_it_answers_and_at_steps_it_does_not() -> None:
    at_random, by_steps = begun("pair-average", every=4, rate=0.5), begun("pair-average", every=4)
    assert not after(at_random, range(1, 9))
    (intent,) = at_random.answers()
    assert intent.views == (at_random.whole("x"),)
    assert at_random.clock_rate() == 0.25
    assert not by_steps.answers()
    assert by_steps.clock_rate() == 0
    assert PairAverage.meeting(at_random.config) == Meeting(Kind.PAIR, 2.0, (Sent(),))
    assert PairAverage.meeting(by_steps.config) == Meeting(Kind.PAIR, 4, (Sent(),))


def test_rounds_are_counted_at_random_times_as_well() -> None:
    strategy, guard = guarded("pair-average", every=4, rate=0.5)
    after(strategy, range(1, 11))
    (intent,) = strategy.answers()
    strategy.weigh(exchange(intent))
    assert guard.pairs[0].round == 2
    assert guard.pairs[0].moved == pytest.approx(2.0)


def test_the_first_who_comes_is_weighed_by_what_the_first_round_moved() -> None:
    strategy, guard = guarded("pair-average", every=4)
    (intent,) = after(strategy, range(1, 5))
    strategy.weigh(exchange(intent))
    assert guard.pairs[0].moved == pytest.approx(2.0)


def test_a_change_of_members_ends_no_round_of_which_the_movement_is_measured() -> None:
    strategy, guard = guarded("pair-average", every=4)
    after(strategy, range(1, 4))
    strategy.start(strategy.ctx)
    (intent,) = after(strategy, range(4, 5))
    strategy.weigh(exchange(intent))
    assert guard.pairs[0].moved == pytest.approx(2.0)


def test_before_a_round_is_over_it_is_not_known_how_far_a_node_moves() -> None:
    strategy, guard = guarded("pair-average", every=4, rate=0.5)
    after(strategy, range(1, 3))
    (intent,) = strategy.answers()
    strategy.weigh(exchange(intent))
    assert (guard.pairs[0].round, guard.pairs[0].moved) == (0, 0.0)


def test_what_came_of_others_is_no_movement_of_its_own() -> None:
    strategy, guard = guarded("pair-average", every=4)
    (first,) = after(strategy, range(1, 5))
    strategy.apply(exchange(first))
    (second,) = after(strategy, range(5, 9))
    strategy.weigh(exchange(second))
    assert guard.pairs[0].moved == pytest.approx(2.0)
