"""DiLoCo and NoLoCo on plain vectors: what they post, and what becomes of what comes."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch

from swarmnode.errors import ConfigError
from swarmnode.strategies.base import (
    Context,
    Exchange,
    Intent,
    Kind,
    Meeting,
    Meta,
    Received,
    Selector,
    Sent,
    StepInfo,
    Strategy,
    TaskFacts,
)
from swarmnode.strategies.diloco import DiLoCo
from swarmnode.strategies.noloco import NoLoCo
from swarmnode.strategies.outer import gamma_bound
from swarmnode.strategies.registry import check_strategy
from swarmnode.tensor.layout import Layout

IDS = tuple(bytes([n]) * 32 for n in (1, 2, 3, 4))
NUMEL = 4
META = Meta(8, 80, 8.0)


def context(n: int = 2) -> Context:
    layout = Layout.of([("w", (NUMEL,), "float32")])
    return Context(IDS[0], 7, random.Random(1), layout, IDS[:n], TaskFacts("any"))


def after(strategy: Strategy, steps: range, tokens: int = 10) -> list[Intent]:
    found: list[Intent] = []
    for step in steps:
        found += strategy.after_step(StepInfo(step, float(step), 1.0, 0.1, tokens))
    return found


def diloco(n: int = 2, **settings: Any) -> DiLoCo:
    strategy = DiLoCo({"every": 4, "lr": 1.0, "momentum": 0.0, **settings}, torch.zeros(NUMEL))
    strategy.start(context(n))
    return strategy


def mean_of(
    intent: Intent, mean: float, sent: float, present: tuple[bytes, ...] = IDS[:2]
) -> Exchange:
    own, all_of_them = ({"delta": torch.full((NUMEL,), each)} for each in (sent, mean))
    return Exchange(intent, META, own, {}, 0, mean=all_of_them, present=present)


def view_of(strategy: Strategy, intent: Intent, name: str) -> torch.Tensor:
    out = torch.full((NUMEL,), torch.nan)
    strategy.view(intent, name, out)
    return out


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (DiLoCo, {"every": 100, "lr": 0.7, "momentum": 0.9, "eager": False, "merge": "sybil-mean"}),
        (NoLoCo, {"every": 50, "momentum": 0.5, "beta": 0.7, "gamma": 0.7, "merge": "mean"}),
    ],
)
def test_what_is_not_said_is_what_the_page_says(
    strategy: type[Strategy], expected: dict[str, Any]
) -> None:
    assert msgspec.to_builtins(strategy.parse({})) == expected


# --- DiLoCo ---------------------------------------------------------------------------------------


def test_a_mean_is_of_all_members_behind_the_same_means() -> None:
    strategy = diloco()
    (intent,) = after(strategy, range(1, 5))
    assert replace(intent, sketch=None) == Intent(
        Kind.GROUP,
        1,
        (strategy.whole("delta"),),
        tag="outer",
        selector=Selector.ALL,
        base_version=bytes(16),
        lineage=0,
        merge="mean",
    )
    strategy.x.copy_(torch.tensor([0.0, 1.0, -2.0, 0.5]))
    assert view_of(strategy, intent, "delta").tolist() == [0, -1, 2, -0.5]
    assert strategy.weight(intent) == 40
    strategy.apply(mean_of(intent, 1.0, 1.0))
    (following,) = after(strategy, range(5, 9))
    assert (following.round, following.lineage) == (2, 1)
    assert following.base_version != intent.base_version
    assert DiLoCo.meeting(strategy.config) == Meeting(Kind.GROUP, 4, (Sent(is_difference=True),))
    assert {*strategy.buffers()} == {"phi", "b", "lineage", "rounds"}


def test_where_pairs_are_weighed_the_mean_is_by_the_rule_of_the_settings() -> None:
    strategy = diloco(merge="trimmed-mean")
    strategy.start(replace(context(), weighs=True))
    (intent,) = after(strategy, range(1, 5))
    assert intent.merge == "trimmed-mean"


def test_what_a_node_learnt_meanwhile_and_what_the_codec_left_out_stay_in_the_fast_weights() -> (
    None
):
    strategy = diloco(lr=0.5)
    (intent,) = after(strategy, range(1, 5))
    strategy.x.fill_(-2.0)
    view_of(strategy, intent, "delta")
    strategy.x.sub_(1.0)
    strategy.apply(mean_of(intent, mean=4.0, sent=1.75))
    assert strategy.phi.tolist() == [-2.0] * NUMEL
    assert strategy.x.tolist() == [-2.0 - 1.0 - 0.25] * NUMEL


def test_a_mean_of_slow_weights_that_it_left_moves_nothing_and_the_next_may_follow() -> None:
    strategy = diloco()
    (intent,) = after(strategy, range(1, 5))
    strategy.lineage[0] = 5
    strategy.apply(mean_of(intent, 3.0, 1.0))
    assert not strategy.phi.any()
    assert not strategy.x.any()
    assert strategy.lineage[0] == 5
    (following,) = after(strategy, range(5, 9))
    assert following.lineage == 5


def test_where_no_node_adds_anything_slow_weights_go_on_by_their_momentum() -> None:
    strategy = diloco(lr=0.5, momentum=0.5)
    phi, momentum = torch.tensor([1.0, 2.0]), torch.tensor([4.0, -8.0])
    found = strategy.coasted(phi, momentum)
    assert found.tolist() == [0.5, 3.0]  # φ − lr μ² b
    assert (phi.tolist(), momentum.tolist()) == ([1, 2], [4, -8])


# --- eagerly --------------------------------------------------------------------------------------


def test_only_where_it_waits_a_snapshot_is_read_in_passing() -> None:
    assert diloco().reads_in_passing
    assert not diloco(eager=True).reads_in_passing


def test_eager_steps_count_on_one_share_among_all_members() -> None:
    strategy = diloco(4, eager=True)
    strategy.x.fill_(-8.0)
    (intent,) = after(strategy, range(1, 5))
    assert strategy.weight(intent) == 1.0
    assert strategy.phi.tolist() == [-2.0] * NUMEL
    assert strategy.x.tolist() == [-2.0] * NUMEL
    assert view_of(strategy, intent, "delta").tolist() == [8.0] * NUMEL
    strategy.apply(mean_of(intent, mean=3.0, sent=8.0, present=IDS))
    assert strategy.x.tolist() == [-2.0] * NUMEL, "it counts in the next round"
    strategy.on_membership(IDS[:2])
    strategy.x.fill_(-4.0)
    after(strategy, range(5, 9))
    assert strategy.phi.tolist() == [-2.0 - 2.0 / 2 - (3.0 - 8.0 / 4)] * NUMEL


def test_after_a_round_that_came_to_nothing_an_eager_node_sends_what_both_have_learnt() -> None:
    strategy = diloco(eager=True)
    strategy.x.fill_(-2.0)
    (first,) = after(strategy, range(1, 5))
    strategy.on_abort(first, "nobody came")
    strategy.x.sub_(3.0)
    *questions, second = after(strategy, range(5, 9))
    assert [each.kind for each in questions] == [Kind.PULL]
    assert strategy.phi.tolist() == [-1.0] * NUMEL, "no step without the others' share"
    strategy.on_abort(questions[0], "no peer gave catch-up")
    assert view_of(strategy, second, "delta").tolist() == [3.0] * NUMEL


def test_an_eager_node_that_goes_on_waits_for_a_mean_before_it_steps() -> None:
    begun, resumed = diloco(eager=True), diloco(eager=True)
    resumed.lineage[0] = 3
    resumed.start(context())
    for strategy in (begun, resumed):
        strategy.x.fill_(-2.0)
        after(strategy, range(1, 5))
    assert begun.phi.tolist() == [-1.0] * NUMEL
    assert not resumed.phi.any()


def test_before_it_knows_of_members_an_eager_node_is_one_alone() -> None:
    strategy = DiLoCo({"every": 1, "lr": 1.0, "momentum": 0.0, "eager": True}, torch.zeros(NUMEL))
    strategy.x.fill_(-2.0)
    after(strategy, range(1, 2))
    assert strategy.phi.tolist() == [-2.0] * NUMEL


# --- NoLoCo ---------------------------------------------------------------------------------------


def noloco(**settings: Any) -> NoLoCo:
    strategy = NoLoCo({"every": 4, **settings}, torch.zeros(NUMEL))
    strategy.start(context())
    return strategy


def test_a_pair_sends_what_it_learnt_and_its_slow_weights() -> None:
    strategy = noloco()
    (intent,) = after(strategy, range(1, 5))
    assert intent == Intent(
        Kind.PAIR,
        1,
        (strategy.whole("delta"), strategy.whole("phi")),
        tag="outer",
        weight=40.0,
    )
    strategy.phi.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert view_of(strategy, intent, "phi").tolist() == [1, 2, 3, 4]
    strategy.x.fill_(1.0)
    assert view_of(strategy, intent, "delta").tolist() == [0, 1, 2, 3]
    assert strategy.payload_numel() == intent.numel == 2 * NUMEL
    assert strategy.reads_in_passing
    meeting = NoLoCo.meeting(strategy.config)
    assert meeting == Meeting(Kind.PAIR, 4, (Sent(is_difference=True), Sent()))
    assert {*strategy.buffers()} == {"phi", "m", "rounds"}


def met(intent: Intent) -> Exchange:
    """Return a meeting of equal weights: own Δ of 2, the other's of 4; φ of 0 and of 1."""
    own, theirs = (
        {"delta": torch.full((NUMEL,), delta), "phi": torch.full((NUMEL,), phi)}
        for delta, phi in ((2.0, 0.0), (4.0, 1.0))
    )
    return Exchange(intent, META, own, {IDS[1]: Received(theirs, META)}, 0)


@pytest.mark.parametrize("merge", ["mean", "variance-corrected"])
def test_an_outer_step_moves_slow_weights_and_puts_them_under_what_was_learnt(merge: str) -> None:
    """Of constant tensors both rules make the mean."""
    strategy = noloco(momentum=0.5, beta=0.5, gamma=1.0, merge=merge)
    (intent,) = after(strategy, range(1, 5))
    view_of(strategy, intent, "delta")
    after(strategy, range(5, 6), tokens=7)
    strategy.m.fill_(2.0)
    strategy.x.fill_(-3.0)
    strategy.apply(met(intent))
    moved = 0.5 * 2.0 - 0.5 * 3.0 + 1.0 * 0.5
    assert strategy.m.tolist() == [moved] * NUMEL
    assert strategy.phi.tolist() == [moved] * NUMEL
    assert strategy.x.tolist() == [-3.0 + moved + 2.0] * NUMEL
    assert strategy.metrics() == {"momentum_norm": pytest.approx(moved * NUMEL**0.5)}
    assert strategy.contributions.weight(0) == 7, "what was sent is given"


def test_a_pull_at_the_bound_of_pairs_is_refused() -> None:
    bound = gamma_bound(0.5, 2)
    facts = TaskFacts("any")
    check_strategy("noloco", {"momentum": 0.5, "gamma": bound - 0.001}, facts)
    with pytest.raises(ConfigError, match=r"strategy noloco: expected gamma below 1\.5"):
        check_strategy("noloco", {"momentum": 0.5, "gamma": bound}, facts)
