"""Slow weights in a lineage: what is asked and when, and what becomes of means and answers."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from swarmnode import limits
from swarmnode.strategies.base import (
    Context,
    Exchange,
    Intent,
    Kind,
    Meeting,
    Message,
    Meta,
    Offer,
    Received,
    Selector,
    Sent,
    StepInfo,
    Strategy,
    TaskFacts,
    View,
)
from swarmnode.strategies.catch_up import ANY_LINEAGE, lineage_version
from swarmnode.strategies.context import LossAt
from swarmnode.strategies.contributions import staleness_weight
from swarmnode.strategies.lineage import CATCH_UP, InLineage, lengthened
from swarmnode.strategies.merging.best_of import TRIAL_STEPS
from swarmnode.strategies.registry import build_strategy
from swarmnode.strategies.sparse import Sparse
from swarmnode.strategies.streaming import Streaming
from swarmnode.tensor.codec import get_codec
from swarmnode.tensor.layout import Layout

ME, PEER, THIRD = (bytes([n]) * 32 for n in range(3))
META = Meta(0, 0, 0.0)
NUMEL = 640
GROUP: dict[str, Any] = {"every": 8, "fragments": 2, "momentum": 0.5}
PAIR: dict[str, Any] = {"every": 8, "fragments": 2, "meet": "pair", "overlap": 0}


def context(numel: int = NUMEL, probe: LossAt | None = None, *, weighs: bool = False) -> Context:
    layout = Layout.of([("w", (numel,), "float32")])
    rng, facts = random.Random(1), TaskFacts("any")
    return Context(ME, 1, rng, layout, (ME, PEER), facts, probe=probe, weighs=weighs)


def streaming(x: torch.Tensor | None = None, **settings: Any) -> Streaming:
    node = Streaming(settings, torch.zeros(NUMEL) if x is None else x)
    node.start(context(len(node.x)))
    return node


def sparse(numel: int = NUMEL, probe: LossAt | None = None, **settings: Any) -> Sparse:
    node = Sparse(settings, torch.zeros(numel))
    node.start(context(numel, probe, weighs=probe is not None))
    return node


def after(node: Strategy, step: int, tokens: int = 10) -> Sequence[Intent]:
    return node.after_step(StepInfo(step, float(step), 1.0, 0.1, tokens))


def due(node: Strategy, steps: range) -> list[tuple[int, Intent]]:
    return [(step, intent) for step in steps for intent in after(node, step)]


def views_of(node: Strategy, intent: Intent) -> dict[str, torch.Tensor]:
    found = {view.name: torch.full((view.numel,), torch.nan) for view in intent.views}
    for name, out in found.items():
        node.view(intent, name, out)
    return found


def merge(node: Strategy, intent: Intent, means: Mapping[str, torch.Tensor] | None = None) -> None:
    """Let a mean of two come, of zeros unless it is said."""
    sent = views_of(node, intent)
    mean = means or {name: torch.zeros_like(view) for name, view in sent.items()}
    node.apply(Exchange(intent, META, sent, {}, 0, mean=mean, present=(ME, PEER)))


def answered(
    node: Strategy,
    place: Sequence[float],
    base_version: bytes | None = None,
    peer: bytes = PEER,
    **vectors: float,
) -> None:
    """Let a peer give its slow weights, each of one number only."""
    (intent,) = node.answers()
    if base_version is not None:
        intent = replace(intent, base_version=base_version)
    views = {view.name: torch.zeros(view.numel) for view in intent.views}
    for name, value in vectors.items():
        views[name].fill_(value)
    views["place"].copy_(torch.tensor(place))
    node.apply(Exchange(intent, META, {}, {peer: Received(views, META)}, 0))


def at(node: Strategy, count: int, hashed: int = 9) -> None:
    """Put a node behind so many means, as a snapshot would have it."""
    node.buffers()["lineage"].copy_(torch.tensor([count, hashed]))


def version(count: int, hashed: int) -> bytes:
    return lineage_version(torch.tensor([count, hashed]))


# --- what is asked for, and when ------------------------------------------------------------------


def test_means_are_of_the_fragments_in_turn_and_one_at_a_time() -> None:
    node = streaming(**GROUP)
    ((step, first),) = due(node, range(1, 9))
    assert step == 4
    assert replace(first, sketch=None) == Intent(
        Kind.GROUP,
        0,
        (View("delta", "E3M0", 0, NUMEL // 2),),
        tag="outer",
        fragment=1,
        selector=Selector.ALL,
        base_version=version(0, 0),
        lineage=0,
        weight=40.0,
        merge="mean",
    )
    merge(node, first)
    ((step, second),) = due(node, range(9, 13))
    assert (step, second.fragment, second.lineage, second.round) == (9, 0, 1, 1)
    assert second.base_version == lineage_version(node.lineage)
    merge(node, second)
    ((step, third),) = due(node, range(13, 17))
    assert (step, third.fragment, third.lineage) == (13, 1, 2), "due since step 12"


def test_settings_reach_what_is_asked_for() -> None:
    x = torch.arange(NUMEL, dtype=torch.float32)
    node = streaming(x, **GROUP, gamma=0.5, overlap=3, merge="flag")
    reference = hashlib.sha256(x.numpy().tobytes()).digest()
    node.start(context(weighs=True))
    ((_, intent),) = due(node, range(1, 5))
    assert intent.views == (
        View("delta", "E3M0", 0, NUMEL // 2),
        View("phi", "Q8B64", 0, NUMEL // 2),
    )
    assert (intent.merge, intent.apply_after_steps) == ("flag", 3)
    assert intent.base_version == reference[:16] + version(0, 0)
    assert torch.equal(node.buffers()["reference"], x)


def test_a_pair_is_of_the_fragment_whose_turn_it_is_by_the_step() -> None:
    x = torch.ones(NUMEL)
    node = streaming(x.clone(), **PAIR, merge="mean")
    found = due(node, range(1, 17))
    assert [(step, each.fragment, each.round) for step, each in found] == [
        (4, 1, 0),
        (8, 0, 1),
        (12, 1, 1),
        (16, 0, 2),
    ]
    assert found[0][1] == Intent(
        Kind.PAIR,
        0,
        (View("delta", "E3M0", 0, NUMEL // 2), View("phi", "Q8B64", 0, NUMEL // 2)),
        tag="outer",
        fragment=1,
        selector=Selector.MATCHING,
        base_version=hashlib.sha256(x.numpy().tobytes()).digest(),
        weight=40.0,
    )
    assert node.answers() == ()


def test_a_vector_too_short_for_all_fragments_has_fewer() -> None:
    node = streaming(torch.zeros(64), **{**PAIR, "fragments": 4})
    assert [(step, each.fragment) for step, each in due(node, range(1, 17))] == [(8, 0), (16, 0)]


@pytest.mark.parametrize("make", [streaming, sparse])
def test_a_call_is_for_who_stands_behind_the_same_means(make: Any) -> None:
    node = make(every=64, **({"fragments": 1} if make is streaming else {}))
    at(node, 3, hashed=9)
    node.on_call(9)
    assert due(node, range(1, 9)) == []
    node.on_call(3)
    ((step, intent),) = due(node, range(9, 17))
    assert (step, intent.lineage) == (9, 3)


def test_a_mean_of_a_fragment_counts_the_tokens_since_the_last_one_of_it() -> None:
    node = streaming(**GROUP)
    ((_, first),) = due(node, range(1, 5))
    merge(node, first)
    ((_, second),) = due(node, range(5, 9))
    assert (second.weight, node.weight(first), node.weight(second)) == (80.0, 40.0, 80.0)


def test_a_pair_that_comes_to_nothing_is_a_round_missed() -> None:
    node = streaming(**PAIR)
    ((_, first),) = due(node, range(1, 5))
    views_of(node, first)
    node.on_abort(first, "nobody came")
    ((_, second),) = due(node, range(5, 9))
    assert second.weight == pytest.approx(80 * staleness_weight(1 / 2))
    group = streaming(**GROUP)
    ((_, mean),) = due(group, range(1, 5))
    group.on_abort(mean, "too few")
    assert group.weight(mean) == 40.0


@pytest.mark.parametrize("make", [streaming, sparse])
def test_after_a_rest_a_peer_is_asked_for_what_is_further(make: Any) -> None:
    node = make(every=4)
    at(node, 3, hashed=9)
    assert not [each for _, each in due(node, range(1, 3)) if each.kind is Kind.PULL]
    node.on_resume()
    assert [e for _, e in due(node, range(3, 4)) if e.kind is Kind.PULL] == [node.answers()[0]]


@pytest.mark.parametrize("make", [streaming, sparse])
def test_after_a_mean_that_came_to_nothing_a_peer_is_asked_for_its_slow_weights(make: Any) -> None:
    node = make(every=4)
    at(node, 3, hashed=9)
    ((_, mean),) = due(node, range(1, 5))
    node.on_abort(replace(mean, base_version=b"another"), "of a lineage that it left")
    assert due(node, range(5, 7)) == []
    node.on_abort(mean, "too few")
    (question,) = [each for _, each in due(node, range(7, 8)) if each.kind is Kind.PULL]
    assert question == node.answers()[0]
    node.on_stray()
    assert [each for _, each in due(node, range(8, 20)) if each.kind is Kind.PULL] == []
    node.on_abort(question, "none gave it")
    (again,) = [each for _, each in due(node, range(20, 22)) if each.kind is Kind.PULL]
    assert again == replace(question, base_version=ANY_LINEAGE), "it was told that it is stray"


def test_the_question_is_for_all_that_members_have_alike() -> None:
    settings: list[tuple[Strategy, tuple[str, ...]]] = [
        (streaming(**GROUP), ("phi", "m")),
        (sparse(), ("phi",)),
        (sparse(momentum=0.5), ("phi", "b")),
    ]
    for node, names in settings:
        at(node, 3, hashed=9)
        whole = tuple(View(name, "RAW32", 0, NUMEL) for name in names)
        assert node.answers() == (
            Intent(
                Kind.PULL,
                3,
                (*whole, View("place", "RAW32", 0, 3, is_scaled=False)),
                tag=CATCH_UP,
                selector=Selector.NEIGHBOUR,
                base_version=version(3, 9),
            ),
        )


@pytest.mark.parametrize("make", [streaming, sparse])
def test_who_is_as_far_as_a_node_is_not_given_its_slow_weights(make: Any) -> None:
    node = make()
    at(node, 3, hashed=9)

    def is_given(base_version: bytes, tag: str = CATCH_UP) -> bool:
        intent = Intent(Kind.PULL, 3, tag=tag, base_version=base_version)
        return node.accept(Offer(PEER, intent, META)) is None

    assert is_given(ANY_LINEAGE)
    assert is_given(version(2, 99))
    assert is_given(version(3, 8))
    assert not is_given(version(3, 9)), "it would come to the same"
    assert not is_given(version(3, 10))
    assert not is_given(version(4, 0))
    assert is_given(version(3, 9), "outer"), "what is no catch-up"


def test_the_answer_is_what_a_node_has() -> None:
    drawn = torch.randn(3, NUMEL, generator=torch.Generator().manual_seed(1))
    node = streaming(**GROUP)
    node.x.copy_(drawn[0])
    node.phi.copy_(drawn[1])
    node.m.copy_(drawn[2])
    other = sparse(momentum=0.5)
    other.e.fill_(3.0)
    other.phi.copy_(drawn[1])
    other.buffers()["b"].copy_(drawn[2])
    for each, momentum in ((node, "m"), (other, "b")):
        at(each, 3, hashed=9)
        each.rounds.go_to(7)
        given = views_of(each, each.answers()[0])
        assert torch.equal(given["phi"], drawn[1])
        assert torch.equal(given[momentum], drawn[2])
        assert given["place"].tolist() == [3.0, 9.0, 7.0]


def test_a_slot_has_room_for_a_fragment_and_for_the_whole_of_a_catch_up() -> None:
    assert streaming(**GROUP).payload_numel() == 2 * NUMEL + 3
    assert streaming(**PAIR).payload_numel() == NUMEL
    assert sparse(numel=100_000).payload_numel() >= 100_000 + 3


@pytest.mark.parametrize("numel", [1, 7, 5000])
def test_a_slot_has_room_for_the_messages_of_all_members(numel: int) -> None:
    node = sparse(numel=numel, kept=512)
    chunk_bytes = get_codec("TK2K512").payload_bytes(numel)
    assert node.payload_numel() * 4 >= limits.GATHER_MEMBERS_MAX * chunk_bytes
    assert node.payload_numel() * 4 < limits.GATHER_MEMBERS_MAX * (chunk_bytes + 64) + 4


# --- which candidate is taken ---------------------------------------------------------------------


def test_without_a_probe_it_is_the_last_candidate() -> None:
    node, intent = streaming(**GROUP), Intent(Kind.GROUP, 0)
    candidates = [torch.zeros(3), torch.ones(3)]
    assert [node.prefer(intent, 0, candidates[:n]) for n in (1, 2)] == [0, 1]


@pytest.mark.parametrize(("name", "rate"), [("streaming", 0.5), ("diloco", 0.25)])
def test_a_part_of_a_mean_is_tried_in_its_own_place_once_for_each_trial(
    name: str, rate: float
) -> None:
    tried: list[torch.Tensor] = []

    def probe(x: torch.Tensor) -> float:
        tried.append(x)
        return -float(x.sum())

    x = torch.arange(NUMEL, dtype=torch.float32)
    settings = {"fragments": 2, "beta": rate} if name == "streaming" else {"lr": rate}
    node = build_strategy(name, settings, x)
    node.start(context(probe=probe))
    after(node, TRIAL_STEPS)
    part, begin = [torch.full((20,), 2.0), torch.full((20,), 4.0)], 60
    intent = Intent(Kind.GROUP, 0, fragment=1 if name == "streaming" else 0)
    assert [node.prefer(intent, begin, part) for _ in range(2)] == [0, 0]
    assert len(tried) == 2, "until the next trial the word of the last one holds"
    index = torch.arange(NUMEL)
    if isinstance(node, Streaming):
        index = node.fragments[1].gather(index)
    for found, values in zip(tried, part, strict=True):
        expected = torch.arange(NUMEL, dtype=torch.float32)
        expected[index[begin : begin + 20]] -= rate * values
        assert torch.equal(found, expected)


# --- rounds that grow -----------------------------------------------------------------------------


GROWING: dict[str, Any] = {"every": 8, "fragments": 1, "lengthen": 2}


def next_steps(node: InLineage) -> int:
    """Return the steps of the round after the one that a node is in."""
    begun = int(node.rounds.state[1])
    due(node, range(begun + 1, begun + 1 + int(node.rounds.state[2])))
    return int(node.rounds.state[2])


def test_a_node_that_goes_on_has_rounds_as_long_as_its_lineage_has_them() -> None:
    longest = 9 * limits.ROUND_LONGER_MAX  # and half as long again with each mean before that
    for count, steps in ((0, 9), (2, 9), (3, 13), (4, 20), (5, 30), (10**6, longest)):
        node = Streaming(GROWING | {"every": 9}, torch.zeros(NUMEL))
        at(node, count, hashed=4)
        node.start(context())
        assert next_steps(node) == steps


def test_a_pacer_fits_the_round_that_grows_from_there() -> None:
    node = streaming(**GROWING)
    at(node, 5)
    node.set_round_steps(4)
    assert next_steps(node) == lengthened(4, 5, 2) > 4


def test_after_a_mean_the_round_is_as_long_as_so_many_members_have_it() -> None:
    node = streaming(**GROWING)
    at(node, 6)
    ((_, intent),) = due(node, range(1, 9))
    merge(node, intent)
    assert next_steps(node) == lengthened(8, 7, 2, n_members=2)
    assert lengthened(8, 7, 2, 2) != lengthened(8, 7, 2) != lengthened(8, 6, 2)


def test_who_takes_over_a_lineage_takes_its_long_rounds_with_it() -> None:
    node = streaming(**GROWING)
    answered(node, [7, 1, 7])
    assert next_steps(node) == lengthened(8, 7, 2) > 8


def test_rounds_of_a_snapshot_may_have_grown_and_no_further() -> None:
    longest = 8 * limits.ROUND_LONGER_MAX
    node = streaming(**GROWING)
    for steps, is_fine in ((longest, True), (longest + 1, False)):
        why = node.check_received({"rounds": torch.tensor([3, 0, steps])})
        assert (why is None) is is_fine


# --- a snapshot -----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [streaming, sparse])
def test_of_a_snapshot_its_rounds_and_its_lineage_are_judged(make: Any) -> None:
    node = make()
    rounds, lineage = node.buffers()["rounds"].clone(), torch.tensor([5.0, 7.0])
    assert node.check_received({}) is None
    assert node.check_received({"rounds": rounds, "lineage": lineage}) is None
    why = node.check_received({"rounds": rounds - 1, "lineage": lineage})
    assert "rounds: expected" in str(why)
    for wrong in (lineage - 6, lineage + 0.5):
        why = node.check_received({"rounds": rounds, "lineage": wrong})
        assert "of a lineage: expected" in str(why)


def test_buffers_are_what_a_node_goes_on_with() -> None:
    shapes = {"phi": (NUMEL,), "m": (NUMEL,), "rounds": (3,)}
    for node, expected in (
        (streaming(**GROUP), shapes | {"lineage": (2,)}),
        (streaming(**GROUP, gamma=0.5), shapes | {"lineage": (2,), "reference": (NUMEL,)}),
        (streaming(**GROUP, gamma=0.5, reference=False), shapes | {"lineage": (2,)}),
        (streaming(**PAIR), shapes | {"reference": (NUMEL,)}),
        (streaming(**PAIR, gamma=0.0), shapes),
        (sparse(), {"phi": (NUMEL,), "e": (NUMEL,), "lineage": (2,), "rounds": (3,)}),
    ):
        assert {name: tuple(each.shape) for name, each in node.buffers().items()} == expected
    assert {*sparse(momentum=0.5).shipped()} == {"phi", "b", "lineage", "rounds"}
    diloco = build_strategy("diloco", {}, torch.zeros(8)).buffers()
    assert {*diloco} == {"phi", "b", "lineage", "rounds"}


def test_who_joins_sparse_begins_where_all_are() -> None:
    node = sparse(momentum=0.5)
    node.x.fill_(9.0)
    received = {name: torch.full_like(node.buffers()[name], 2.0) for name in node.shipped()}
    node.join(received)
    for name in node.shipped():
        assert torch.equal(node.buffers()[name], received[name])
    assert torch.equal(node.x, received["phi"])


def test_metrics_are_norms_and_what_was_refused() -> None:
    group, pair, gathers = streaming(**GROUP), streaming(**PAIR), sparse()
    for node in (group, pair):
        node.m.fill_(0.0)[:2] = torch.tensor([3.0, 4.0])
        node.phi.fill_(0.0)[0] = 5.0
        node.x.fill_(0.0)[0] = 2.0
    norms = {"momentum_norm": 5.0, "delta_norm": 3.0}
    assert pair.metrics() == norms
    gathers.e[:2] = torch.tensor([3.0, 4.0])
    answered(group, [-1, 0, 0])
    answered(gathers, [-1, 0, 0])
    assert group.metrics() == norms | {"catch_ups_refused": 1.0}
    assert gathers.metrics() == {"residual_norm": 5.0, "catch_ups_refused": 1.0}


# --- answers that come ----------------------------------------------------------------------------


def test_who_is_behind_takes_over_slow_weights_under_its_own_steps() -> None:
    node = streaming(**GROUP)
    at(node, 3, hashed=9)
    ((_, mean),) = due(node, range(1, 5))
    views_of(node, mean)
    node.phi.fill_(1.0)
    node.x.fill_(1.5)
    answered(node, [5, 2, 8], phi=4.0, m=0.25)
    assert torch.equal(node.phi, torch.full((NUMEL,), 4.0))
    assert torch.equal(node.x, torch.full((NUMEL,), 4.5))
    assert torch.equal(node.m, torch.full((NUMEL,), 0.25))
    assert node.lineage.tolist() == [5.0, 2.0]
    assert node.rounds.number == 8
    ((step, following),) = due(node, range(5, 6))
    assert (step, following.lineage) == (5, 5), "what was on its way is let go, and has to be sent"
    assert following.weight == pytest.approx(50 * staleness_weight(2 / 2))
    merge(node, mean, {"delta": torch.ones(NUMEL // 2)})
    assert torch.equal(node.phi, torch.full((NUMEL,), 4.0)), "of slow weights that it left"
    assert due(node, range(6, 9)) == [], "and the new one is still on its way"


def test_who_is_as_far_keeps_its_slow_weights_and_goes_on_in_the_later_round() -> None:
    for make, base_version in ((streaming, None), (sparse, None), (streaming, ANY_LINEAGE)):
        node = make(every=8)
        at(node, 5, hashed=9)
        node.rounds.go_to(6)
        for place in ([5, 9, 4], [5, 9, 8]):
            answered(node, place, base_version, phi=3.0)
        if base_version is None:
            answered(node, [4, 10, 7], phi=3.0)
        assert not node.phi.any()
        assert not node.x.any()
        assert node.lineage.tolist() == [5.0, 9.0]
        assert node.rounds.number == 8


@pytest.mark.parametrize("make", [streaming, sparse])
def test_a_stray_node_goes_back_to_where_most_are(make: Any) -> None:
    node = make(every=8)
    at(node, 5, hashed=9)
    node.rounds.go_to(6)
    answered(node, [2, 1, 3], phi=1.0)
    assert (node.lineage.tolist(), node.rounds.number) == ([5.0, 9.0], 6), "it did not ask for any"
    answered(node, [2, 1, 3], ANY_LINEAGE, phi=1.0)
    assert (node.lineage.tolist(), node.rounds.number) == ([2.0, 1.0], 3)
    assert torch.equal(node.phi, torch.ones(NUMEL))
    assert torch.equal(node.x, torch.ones(NUMEL))
    answered(node, [2, 1, 2], ANY_LINEAGE, phi=2.0)
    assert node.rounds.number == 3
    assert torch.equal(node.phi, torch.ones(NUMEL))


@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_what_is_learnt_after_a_mean_was_due_survives_whole(gamma: float) -> None:
    """What was learnt while it was on its way and not late is mixed with the slow weights."""
    settings = {"every": 8, "fragments": 1, "overlap": 2, "local_share": 0.25, "gamma": gamma}
    node = streaming(**settings, beta=1.0, reference=False)
    node.x.fill_(1.0)
    ((_, intent),) = due(node, range(1, 9))
    sent = views_of(node, intent)
    for step, learnt in ((9, 1.0), (10, 1.0), (11, 4.0)):
        node.x.add_(learnt)
        assert due(node, range(step, step + 1)) == []
    mean = {name: view - 8.0 * (name == "delta") for name, view in sent.items()}
    node.apply(Exchange(intent, META, sent, {}, 3, mean=mean, present=(ME, PEER)))
    assert torch.equal(node.phi, torch.full((NUMEL,), 9.0))
    assert torch.equal(node.x, torch.full((NUMEL,), 0.25 * 3.0 + 0.75 * 9.0 + 4.0))


def judged(x: torch.Tensor) -> float:
    return float((x - 0.5).square().sum())


def test_where_own_steps_would_do_harm_beside_what_came_they_are_left() -> None:
    """0.1 alone is as good as 0.9 is; their sum is worse, and their difference would be better."""
    for probe, x in ((judged, 0.9), (None, 1.0)):
        node = Streaming(GROUP, torch.zeros(64))
        node.start(context(64, probe, weighs=True))
        after(node, 1, tokens=500)
        node.x.fill_(0.1)
        answered(node, [5, 1, 5], phi=0.9)
        assert torch.allclose(node.x, torch.full((64,), x))
        weight = 1.0 if probe else 500 * staleness_weight(5 / 2)
        assert node.weight(Intent(Kind.GROUP, 0)) == pytest.approx(weight)


@pytest.mark.parametrize("nesterov", [False, True])
def test_slow_weights_coast_as_far_as_their_momentum_carries_them(nesterov: bool) -> None:
    node = streaming(**GROUP, nesterov=nesterov)
    phi, momentum = torch.tensor([1.0, 2.0]), torch.tensor([0.5, -1.0])
    found = node.coasted(phi, momentum)
    assert found.tolist() == ([1.125, 1.75] if nesterov else [1.25, 1.5])
    assert momentum.tolist() == [0.5, -1.0]


def test_an_eager_node_that_takes_nothing_over_keeps_the_share_of_others() -> None:
    ends = []
    for place in (None, [0, 0, 9], [-1, 0, 0], [5, 1, 5]):
        node = build_strategy(
            "diloco", {"every": 1, "eager": True, "momentum": 0.0}, torch.zeros(8)
        )
        node.start(context(8))
        (intent,) = after(node, 1)
        merge(node, intent, {"delta": torch.full((8,), -2.0)})
        if place is not None:
            answered(node, place)
        after(node, 2)
        ends.append(float(node.buffers()["phi"][0]))
    assert ends == [pytest.approx(1.4), pytest.approx(1.4), pytest.approx(1.4), 0.0]


@pytest.mark.parametrize("how", ["it comes late", "it comes to nothing"])
def test_the_end_of_a_mean_that_was_left_takes_nothing_from_the_eager_one_on_its_way(
    how: str,
) -> None:
    node = build_strategy("diloco", {"every": 1, "eager": True, "momentum": 0.0}, torch.zeros(8))
    node.start(context(8))
    (left,) = after(node, 1)
    sent = views_of(node, left)
    answered(node, [5, 1, 5])
    node.x.add_(1.0)
    (now,) = after(node, 2)
    if how == "it comes late":
        mean = {"delta": torch.ones(8)}
        node.apply(Exchange(left, META, sent, {}, 0, mean=mean, present=(ME, PEER)))
    else:
        node.on_abort(left, "no peer came before the next round")
    assert torch.equal(views_of(node, now)["delta"], torch.full((8,), -1.0))


# --- sparse ---------------------------------------------------------------------------------------


def gathered(intent: Intent, sent: torch.Tensor, *messages: torch.Tensor) -> Exchange:
    """Return one in which this node's message came first, where it did."""
    present = (ME, PEER, THIRD)[: len(messages)]
    read = [Message(author, _reading(m)) for author, m in zip(present, messages, strict=True)]
    own = {"message": sent.clone()}
    return Exchange(intent, META, own, {}, 0, present=present, messages=tuple(read))


def _reading(values: torch.Tensor) -> Any:
    return lambda: iter([values.clone()])


def test_a_sparse_round_is_asked_of_all_with_the_codec_for_so_many_elements() -> None:
    for kept, codec in ((32, "TK2K32"), (64, "TK2"), (128, "TK2K128"), (512, "TK2K512")):
        node = sparse(every=4, kept=kept)
        at(node, 3, hashed=9)
        ((step, intent),) = due(node, range(1, 9))
        assert step == 4
        assert intent == Intent(
            Kind.GATHER,
            1,
            (View("message", codec, 0, NUMEL),),
            tag="sparse",
            selector=Selector.ALL,
            base_version=version(3, 9),
            lineage=3,
        )
        assert Sparse.meeting(node.config) == Meeting(
            Kind.GATHER, 4, (Sent(codec, is_difference=True),)
        )


def test_a_sparse_round_is_applied_once_and_the_next_may_follow() -> None:
    node = sparse(every=4, lr=1.0, decay=1.0, own_share=0.5, merge="mean")
    node.x.fill_(-1.0)
    ((_, intent),) = due(node, range(1, 5))
    sent = views_of(node, intent)["message"]
    assert torch.equal(sent, torch.ones(NUMEL))
    came = gathered(intent, 0.75 * sent, 0.75 * sent, torch.full((NUMEL,), 0.75))
    node.apply(came)
    assert torch.equal(node.phi, torch.full((NUMEL,), -0.75))
    assert torch.equal(node.e, torch.full((NUMEL,), 0.25))
    assert torch.equal(node.x, torch.full((NUMEL,), -0.875)), "it holds half of what it has to send"
    before = node.lineage.clone()
    assert int(before[0]) == 1
    node.apply(came)
    assert torch.equal(node.lineage, before)
    assert [step for step, _ in due(node, range(5, 13))] == [8]


def test_the_hash_of_a_sparse_lineage_is_over_members_and_slow_weights() -> None:
    hashes = set()
    for values in (1.0, 2.0):
        for others in (1, 2):
            node = sparse(every=1)
            (intent,) = after(node, 1)
            views_of(node, intent)
            message = torch.full((NUMEL,), values)
            node.apply(gathered(intent, message, *[message] * (1 + others)))
            hashes.add(float(node.lineage[1]))
    assert len(hashes) == 4


def test_the_probe_of_a_sparse_round_sees_the_model_that_would_come_of_it() -> None:
    tried: list[torch.Tensor] = []

    def probe(x: torch.Tensor) -> float:
        tried.append(x.clone())
        return float(len(tried))

    node = sparse(probe=probe, every=1, lr=2.0)
    node.phi.fill_(0.5)
    (intent,) = after(node, 1)
    views_of(node, intent)
    same = torch.ones(NUMEL)
    messages = [Message(bytes([n]) * 32, _reading(same)) for n in range(4)]
    node.apply(
        Exchange(intent, META, {"message": same}, {}, 0, present=(), messages=tuple(messages))
    )
    assert len(tried) == 2
    for x in tried:
        assert torch.allclose(x, torch.full((NUMEL,), 0.5 - 2.0))


def test_who_takes_over_sparse_slow_weights_drops_what_it_has_to_send() -> None:
    node = sparse(every=4, own_share=0.5)
    ((_, mean),) = due(node, range(1, 5))
    views_of(node, mean)
    node.phi.fill_(1.0)
    node.e.fill_(0.5)
    node.x.fill_(1.0)  # a quarter further than where its steps began
    answered(node, [5, 2, 8], phi=4.0)
    assert torch.equal(node.phi, torch.full((NUMEL,), 4.0))
    assert torch.equal(node.x, torch.full((NUMEL,), 4.25))
    assert not node.e.any()
    assert (node.lineage.tolist(), node.rounds.number) == ([5.0, 2.0], 8)
    ((step, following),) = due(node, range(5, 6))
    assert (step, following.lineage) == (5, 5), "what was on its way is let go, and has to be sent"
    node.apply(gathered(mean, torch.ones(NUMEL), torch.ones(NUMEL)))
    assert torch.equal(node.phi, torch.full((NUMEL,), 4.0))


def test_a_late_round_of_weights_that_were_left_takes_nothing_from_the_one_on_its_way() -> None:
    node = sparse(every=1, lr=1.0, merge="mean")
    (late,) = after(node, 1)
    views_of(node, late)
    answered(node, [5, 2, 5], phi=4.0)
    (now,) = after(node, 2)
    views_of(node, now)
    ones = torch.ones(NUMEL)
    node.apply(gathered(late, ones, ones, ones))
    assert torch.equal(node.phi, torch.full((NUMEL,), 4.0))
    node.apply(gathered(now, ones, ones, ones))
    assert torch.equal(node.phi, torch.full((NUMEL,), 3.0))
    assert int(node.lineage[0]) == 6


# --- settings -------------------------------------------------------------------------------------


def test_meetings_say_what_is_sent() -> None:
    delta = Sent("E3M0", is_difference=True)
    group, pair = Streaming.parse(GROUP), Streaming.parse(PAIR)
    apart = Streaming.parse(PAIR | {"reference": False})
    assert Streaming.meeting(group) == Meeting(Kind.GROUP, 8, (delta,))
    phi = Sent("Q8B64", is_difference=True)
    assert Streaming.meeting(pair) == Meeting(Kind.PAIR, 8, (delta, phi))
    assert Streaming.meeting(apart) == Meeting(Kind.PAIR, 8, (delta, Sent("Q8B64")))


# A manifest has what its creator said: what it does not say must mean the same for ever.
UNSAID: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "in groups": (
        {},
        {
            "every": 20,
            "lengthen": 0,
            "fragments": 4,
            "overlap": 0,
            "local_share": 0.0,
            "momentum": 0.0,
            "beta": 1.0,
            "gamma": 0.0,
            "nesterov": True,
            "meet": "group",
            "delta_codec": "E3M0",
            "weights_codec": "Q8B64",
            "reference": True,
            "merge": "sybil-mean",
        },
    ),
    "in pairs": (
        {"meet": "pair", "delta_codec": "q4b64"},
        {
            "every": 32,
            "lengthen": 0,
            "fragments": 4,
            "overlap": 2,
            "local_share": 0.5,
            "momentum": 0.5,
            "beta": 0.7,
            "gamma": 0.7,
            "nesterov": False,
            "meet": "pair",
            "delta_codec": "Q4B64",
            "weights_codec": "Q8B64",
            "reference": True,
            "merge": "mean",
        },
    ),
}
OF_SPARSE = {
    "every": 18,
    "kept": 64,
    "lr": 2.0,
    "decay": 0.95,
    "own_share": 0.5,
    "momentum": 0.0,
    "merge": "best-of",
}


def fields(config: Any) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__struct_fields__}


@pytest.mark.parametrize("how", UNSAID)
def test_what_a_manifest_of_streaming_does_not_say_is_what_it_always_was(how: str) -> None:
    said, expected = UNSAID[how]
    assert fields(Streaming.parse(said)) == expected


def test_what_a_manifest_of_sparse_does_not_say_is_what_it_always_was() -> None:
    assert fields(Sparse.parse({})) == OF_SPARSE


def test_only_strategies_whose_merges_allow_it_are_read_in_passing() -> None:
    names = ("streaming", "diloco", "sparse", "one-byte")
    made = {name: build_strategy(name, {}, torch.zeros(8)) for name in names}
    assert [name for name, each in made.items() if each.reads_in_passing] == [*names[:2]]
    assert not any(each.adds_up for each in made.values())
