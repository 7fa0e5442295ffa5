"""The records of an exchange, and what a strategy does that says nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from swarmnode.errors import ConfigError
from swarmnode.strategies.base import Offer, Strategy
from swarmnode.strategies.context import Context, StepInfo, TaskFacts
from swarmnode.strategies.exchanges import (
    Exchange,
    Intent,
    Kind,
    Message,
    Meta,
    Received,
    Selector,
    Sent,
    View,
)
from swarmnode.strategies.installed import InstalledStrategy, installed_strategies
from swarmnode.tensor.layout import Layout

ME, PEER, THIRD = (bytes([n]) * 32 for n in (2, 5, 9))
META, THEIRS = Meta(1, 10, 1.0), Meta(2, 20, 2.0)
WORST = float("inf"), float("nan")


def exchange() -> Exchange:
    return Exchange(
        Intent(Kind.PAIR, 3),
        META,
        {"x": torch.tensor([1.0, 2.0, 3.0, 4.0]), "y": torch.zeros(4)},
        {PEER: Received({"x": torch.tensor([3.0, 2.0, 1.0, -4.0]), "y": torch.ones(4)}, THEIRS)},
        steps_since=7,
        mean={"x": torch.tensor([2.0, 2.0, 2.0, 0.0])},
        present=(ME, PEER),
    )


def lists(views: Any) -> dict[str, list[float]]:
    return {name: view.tolist() for name, view in views.items()}


# --- views and intents ----------------------------------------------------------------------------


def test_an_intent_has_as_many_elements_as_its_views_together() -> None:
    views = View("a", "", 2, 5), View("b", "Q8B64", 0, 10)
    assert [view.numel for view in views] == [3, 10]
    assert Intent(Kind.GROUP, 1, views).numel == 13
    assert Intent(Kind.LOG, 1).numel == 0


def test_what_an_intent_does_not_say_is_a_whole_vector_to_be_merged_at_once() -> None:
    intent = Intent(Kind.PAIR, 1)
    assert (intent.fragment, intent.selector) == (0, Selector.MATCHING)
    assert (intent.apply_after_steps, intent.group_size_max) == (0, 0)
    assert (intent.round_skew_max, intent.lineage) == (None, None)
    assert (intent.base_version, intent.record) == (b"", b"")
    assert (intent.weight, intent.merge, intent.tag) == (1.0, "mean", "gossip")
    assert View("x", "", 0, 1).is_scaled, "numbers that are no weights are said to be none"
    assert Meta(1, 1, 1.0).weight == 1.0
    assert Sent() == Sent("", is_difference=False)


def test_without_more_said_a_step_has_a_token_and_no_pair_is_weighed() -> None:
    assert StepInfo(1, 1.0, 1.0, 0.1).tokens == 1
    ctx = begun().ctx
    assert not ctx.weighs
    assert ctx.life == 0
    assert (ctx.probe, ctx.topology, ctx.loss_trivial) == (None, None, None)


def test_a_message_is_read_whole_of_its_parts() -> None:
    def parts() -> Iterator[torch.Tensor]:
        yield torch.tensor([1.0, 2.0])
        yield torch.tensor([3.0])

    message = Message(PEER, parts)
    for _ in range(2):
        assert message.read().tolist() == [1, 2, 3]


# --- exchanges ------------------------------------------------------------------------------------


def test_the_partner_is_the_one_other_node() -> None:
    whole = exchange()
    assert whole.partner is whole.got[PEER]


def test_a_part_has_these_elements_of_all_views_in_the_same_memory() -> None:
    whole = exchange()
    part = whole.part(slice(1, 3))
    assert lists(part.sent) == {"x": [2, 3], "y": [0, 0]}
    assert lists(part.partner.views) == {"x": [2, 1], "y": [1, 1]}
    assert lists(part.mean) == {"x": [2, 2]}
    assert part.partner.meta == THEIRS
    assert (part.intent, part.meta, part.steps_since) == (whole.intent, META, 7)
    part.partner.views["x"].fill_(9.0)
    assert whole.partner.views["x"].tolist() == [3, 9, 9, -4]


def test_what_is_mapped_is_each_view_and_nothing_else() -> None:
    doubled = exchange().mapped(lambda view: 2 * view)
    assert lists(doubled.sent) == {"x": [2, 4, 6, 8], "y": [0, 0, 0, 0]}
    assert lists(doubled.partner.views) == {"x": [6, 4, 2, -8], "y": [2, 2, 2, 2]}
    assert lists(doubled.mean) == {"x": [4, 4, 4, 0]}
    assert doubled.partner.meta == THEIRS
    assert doubled.present == (ME, PEER)


def test_what_is_clipped_is_as_much_nearer_to_the_own_views() -> None:
    whole = exchange()
    whole.clip(0.25)
    assert whole.partner.views["x"].tolist() == [1.5, 2, 2.5, 2]
    assert whole.partner.views["y"].tolist() == [0.25] * 4
    assert whole.sent["x"].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("worst", WORST)
def test_of_what_counts_not_at_all_nothing_is_left(worst: float) -> None:
    whole = exchange()
    whole.partner.views["x"][1] = worst
    whole.clip(0.0)
    assert lists(whole.partner.views) == lists(whole.sent)


def test_what_counts_whole_keeps_each_bit() -> None:
    whole = exchange()
    whole.sent["x"].fill_(1e8)
    theirs = whole.partner.views["x"].copy_(torch.tensor([0.1, 0.2, 0.3, 1e-8])).clone()
    whole.clip(1.0)
    assert torch.equal(whole.partner.views["x"], theirs)


def test_the_difference_is_from_the_own_view_to_the_partners() -> None:
    assert exchange().difference("x").tolist() == [2, 0, -2, -8]


# --- a strategy that says nothing else ------------------------------------------------------------


class Plain(Strategy):
    name = "plain"
    dtype = torch.float32

    def view(self, intent: Intent, name: str, out: torch.Tensor) -> None:
        out.copy_(self.x)

    def apply(self, exchange: Exchange) -> None:
        self.x.add_(exchange.difference("x"))


def begun() -> Plain:
    strategy = Plain({}, torch.zeros(4))
    layout = Layout.of([("w", (4,), "float32")])
    facts = TaskFacts("any")
    strategy.start(Context(PEER, 1, random.Random(0), layout, (ME, PEER, THIRD), facts))
    return strategy


def test_what_is_not_said_is_what_suits_most() -> None:
    strategy = begun()
    (intent, kept) = Intent(Kind.PAIR, 1, (strategy.whole("x"),)), strategy.x.clone()
    assert intent.views == (View("x", "", 0, 4),)
    assert strategy.whole("x", "Q8B64") == View("x", "Q8B64", 0, 4)
    assert strategy.payload_numel() == 4
    assert list(strategy.after_step(StepInfo(1, 1.0, 1.0, 0.1))) == []
    assert list(strategy.finalize()) == []
    assert list(strategy.answers()) == []
    assert strategy.metrics() == strategy.buffers() == {}
    assert strategy.accept(Offer(ME, intent, META)) is None
    assert strategy.clock_rate() == 0.0
    assert strategy.pace() == 1.0
    assert strategy.log_round() == 0
    assert torch.equal(strategy.x, kept)


def test_views_and_merges_have_one_piece() -> None:
    strategy, out = begun(), torch.full((4,), 9.0)
    intent = Intent(Kind.PAIR, 1, (strategy.whole("x"),))
    assert list(strategy.viewing(intent, "x", out)) == []
    assert not out.any()
    assert list(strategy.applying(exchange())) == []
    assert strategy.x.tolist() == [2, 0, -2, -8]


def test_parameters_of_another_kind_of_float_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"strategy plain: expected parameters of torch\.f"):
        Plain({}, torch.zeros(4, dtype=torch.float64))


def test_a_node_stands_where_its_id_is_among_the_members() -> None:
    assert begun().ctx.index == 1


def test_a_task_is_convex_where_it_is_known_how_much() -> None:
    assert TaskFacts("any", strong_convexity=0.5).is_convex
    assert not TaskFacts("any", smoothness=2.0).is_convex


# --- what is installed ----------------------------------------------------------------------------


def test_a_strategy_that_names_its_kinds_of_exchange_never_wants_others() -> None:
    some = InstalledStrategy("some", 1, "module:Some", ("pair", "pull"))
    assert [some.may_want(kind) for kind in ("pair", "pull", "group")] == [True, True, False]
    assert InstalledStrategy("any", 1, "module:Any").may_want("group")
    assert installed_strategies()["one-byte"].may_want("log")
    streaming = installed_strategies()["streaming"]
    assert [streaming.may_want(kind) for kind in ("pair", "group", "log")] == [True, True, False]
