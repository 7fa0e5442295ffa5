"""Sketches of slow weights: the same of the same, and what a liar changes shows."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from swarmnode.protocol.gossip.sketches import TOLERANCE
from swarmnode.strategies.base import (
    Context,
    Exchange,
    Intent,
    Kind,
    Meta,
    Received,
    StepInfo,
    TaskFacts,
)
from swarmnode.strategies.catch_up import ANY_LINEAGE, SAMPLE_ELEMS, sketch
from swarmnode.strategies.diloco import DiLoCo
from swarmnode.strategies.lineage import InLineage
from swarmnode.strategies.merging.pieces import PIECE_ELEMS
from swarmnode.strategies.streaming import Streaming
from swarmnode.tensor.layout import Layout

META = Meta(0, 0, 0.0)
ME, PEER = (bytes([n]) * 32 for n in range(2))
NUMEL = 64


def drawn(numel: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def projection(weights: torch.Tensor, place: bytes = b"here") -> float:
    found = sketch(weights, place)
    assert found is not None
    return found[0]


def test_a_sketch_is_as_published() -> None:
    """proto/swarm.md says how it is made: members of two versions compare theirs."""
    found = sketch(torch.arange(1, 9, dtype=torch.float32), bytes(16))
    assert found == (18.0, pytest.approx(204**0.5))
    many = torch.arange(3 * SAMPLE_ELEMS + 5, dtype=torch.float32) % 1000
    assert sketch(many, bytes([8]) * 16) == (-281446.0, pytest.approx(147548.39288857064))


@pytest.mark.parametrize("numel", [1, 7, 1000, 3 * SAMPLE_ELEMS + 5])
def test_the_same_weights_have_the_same_and_others_another(numel: int) -> None:
    weights = drawn(numel)
    assert sketch(weights, b"here") == sketch(weights.clone(), b"here")
    assert projection(weights + 1.0) != projection(weights)
    assert projection(weights.double()) == pytest.approx(projection(weights))


@pytest.mark.parametrize("numel", [1000, 3 * SAMPLE_ELEMS])
def test_a_difference_of_a_twentieth_is_seen_within_a_few_places(numel: int) -> None:
    """In any direction, the weights' own included."""
    weights = drawn(numel)
    for other in (weights * 1.05, weights + 0.05 * drawn(numel, 1), weights + 0.05):
        seen = 0
        for number in range(100):
            found = sketch(weights, b"%d" % number)
            assert found is not None
            seen += abs(projection(other, b"%d" % number) - found[0]) > TOLERANCE * found[1]
        assert seen >= 90


def test_what_is_prepared_for_one_place_is_seen_at_the_next() -> None:
    weights = drawn(5 * SAMPLE_ELEMS)
    changed = weights.clone()
    first = next(n for n in range(5) if projection_of_class(weights, n) == projection(weights))
    for number in range(5):
        if number != first:
            changed[number::5] *= -1
    assert projection(changed) == projection(weights)
    apart = [projection(changed, b"%d" % n) != projection(weights, b"%d" % n) for n in range(40)]
    assert sum(apart) > 20


def projection_of_class(weights: torch.Tensor, number: int) -> float:
    """Return what the sketch is if all but every fifth element are nothing."""
    alone = torch.zeros_like(weights)
    alone[number::5] = weights[number::5]
    return projection(alone)


def test_rounding_is_no_difference() -> None:
    weights = drawn(200_000)
    for number in range(20):
        found = sketch(weights, b"%d" % number)
        rounded = sketch(weights * (1 + 1e-5 * drawn(200_000, 2)), b"%d" % number)
        assert found is not None
        assert rounded is not None
        assert abs(found[0] - rounded[0]) < 0.1 * TOLERANCE * found[1]


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_no_numbers_have_none(value: float) -> None:
    weights = torch.zeros(4)
    weights[2] = value
    assert sketch(weights, b"here") is None


# --- in strategies --------------------------------------------------------------------------------


def started(node: InLineage) -> Any:
    layout = Layout.of([("w", (node.x.numel(),), "float32")])
    rng, facts = random.Random(1), TaskFacts("any")
    node.start(Context(ME, 1, rng, layout, (ME, PEER), facts))
    return node


def streaming(numel: int = NUMEL) -> Any:
    return started(Streaming({"every": 4, "fragments": 1}, drawn(numel)))


def diloco(**settings: Any) -> Any:
    return started(DiLoCo({"every": 4, **settings}, drawn(NUMEL)))


def mean_due(node: Any) -> Intent:
    due: list[Intent] = []
    for step in range(1, 9):
        due += node.after_step(StepInfo(step, float(step), 1.0, 0.1))
    (intent,) = [each for each in due if each.kind is Kind.GROUP]
    return intent


def answer_of(node: Any, place: list[float], asked: bytes, value: float) -> Exchange:
    (intent,) = node.answers()
    views = {view.name: torch.zeros(view.numel) for view in intent.views}
    views["phi"].fill_(value)
    views["place"].copy_(torch.tensor(place))
    question = Intent(intent.kind, 0, intent.views, tag=intent.tag, base_version=asked)
    return Exchange(question, META, {}, {PEER: Received(views, META)}, 0)


@pytest.mark.parametrize("make", [streaming, diloco])
def test_a_mean_says_what_it_stands_on(make: Any) -> None:
    node = make()
    assert mean_due(node).sketch == sketch(node.phi, node.answers()[0].base_version)


@pytest.mark.parametrize("make", [streaming, diloco])
def test_one_in_doubt_takes_over_what_stands_at_its_own_place(make: Any) -> None:
    node = make()
    node.lineage.copy_(torch.tensor([3, 9]))
    node.on_doubt()
    (asked,) = node.after_step(StepInfo(1, 1.0, 1.0, 0.1))
    assert asked.base_version == ANY_LINEAGE
    learnt = node.x - node.phi
    node.apply(answer_of(node, [3, 9, 3], ANY_LINEAGE, 1.5))
    assert torch.equal(node.phi, torch.full((NUMEL,), 1.5))
    assert torch.allclose(node.x - node.phi, learnt, atol=1e-6)
    assert node.lineage.tolist() == [3, 9]
    assert mean_due(node).sketch == sketch(node.phi, node.answers()[0].base_version)


@pytest.mark.parametrize("make", [streaming, diloco])
def test_one_that_is_in_no_doubt_takes_over_nothing_of_its_own_place(make: Any) -> None:
    node = make()
    node.lineage.copy_(torch.tensor([3, 9]))
    before = node.phi.clone()
    for asked in (node.answers()[0].base_version, ANY_LINEAGE):
        node.apply(answer_of(node, [3, 9, 3], asked, 1.5))
        assert torch.equal(node.phi, before)
    node.on_doubt()
    node.apply(answer_of(node, [2, 1, 2], node.answers()[0].base_version, 1.5))
    assert torch.equal(node.phi, before), "what is less far, asked for by none"
    node.apply(answer_of(node, [3, 9, 3], ANY_LINEAGE, 1.5))
    assert torch.equal(node.phi, before), "an answer was enough"


@pytest.mark.parametrize("make", [streaming, diloco])
def test_a_mean_that_is_on_its_way_is_still_its_own_after_that(make: Any) -> None:
    node = make()
    intent = mean_due(node)
    place = [*node.lineage.tolist(), 1]
    node.on_doubt()
    node.apply(answer_of(node, place, ANY_LINEAGE, 1.5))
    assert node.after_step(StepInfo(9, 9.0, 1.0, 0.1)) == []
    sent = {view.name: torch.zeros(view.numel) for view in intent.views}
    mean = {"delta": torch.full((NUMEL,), 0.5)}
    node.apply(Exchange(intent, META, sent, {}, 0, mean=mean, present=(ME, PEER)))
    assert node.lineage[0] == 1


def test_half_of_what_a_peer_gives_is_no_slow_weights() -> None:
    node = streaming(numel=PIECE_ELEMS + NUMEL)
    taking = node.applying(answer_of(node, [1, 9, 1], ANY_LINEAGE, 1.5))
    next(taking)
    assert node.phi[0] == 1.5
    assert node.phi[-1] != 1.5
    assert mean_due(node).sketch is None
    list(taking)
    (mean,) = node.after_step(StepInfo(20, 20.0, 1.0, 0.1))
    assert mean.sketch == sketch(node.phi, node.answers()[0].base_version)


def test_steps_that_do_not_wait_leave_nothing_to_compare() -> None:
    assert mean_due(diloco(eager=True)).sketch is None
