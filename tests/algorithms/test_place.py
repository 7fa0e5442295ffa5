"""What a peer answers to a DiLoCo node that is behind: no single answer takes it over."""

import random

import pytest
import torch

from swarmnode.strategies.base import Context, Exchange, Kind, Meta, Received, StepInfo, TaskFacts
from swarmnode.strategies.catch_up import ROUNDS_AHEAD_MAX
from swarmnode.strategies.registry import build_strategy
from swarmnode.tensor.layout import Layout

ME, PEER, THIRD = (bytes([n]) * 32 for n in range(3))
NAN = float("nan")


@pytest.fixture
def node():
    return started()


def started(probe=None):
    strategy = build_strategy("diloco", {"every": 32}, torch.zeros(64))
    strategy.start(context(probe, weighs=True))
    return strategy


def context(probe, **more):
    return Context(
        self_id=ME,
        seed=1,
        rng=random.Random(1),
        layout=Layout.of([("w", (64,), "float32")]),
        members=(ME, PEER, THIRD),
        facts=TaskFacts("t"),
        probe=probe,
        **more,
    )


def answer(node, place, phi=0.3, b=0.0, peer=PEER):
    (intent,) = node.answers()
    views = {
        "phi": torch.full((64,), phi),
        "b": torch.full((64,), b),
        "place": torch.tensor(place, dtype=torch.float32),
    }
    meta = Meta(1, 1, 0.0)
    return Exchange(intent, meta, {}, {peer: Received(views, meta)}, steps_since=0)


def is_as_it_was(node):
    return not (node.x.any() or node.phi.any() or node.lineage.any() or node.rounds.number)


@pytest.mark.parametrize(
    "place",
    [
        [-1.0, 0, 0],
        [3e38, 0, 0],
        [0, 0, 3e38],
        [0, -5.0, 0],
        [NAN, 0, 0],
        [1, 1, NAN],
        [1.5, 1, 2],
        [1, 2.0**24, 1],
        [2**24 - 1, 4711, 0],
        [2**24 - 1, 4711, 2**24 - 1],
        [1, 1, 2**24],
    ],
)
def test_a_place_that_cannot_be_is_refused(node, place, caplog):
    node.apply(answer(node, place))
    assert is_as_it_was(node)
    assert "catch-up is refused: " in caplog.text
    assert node.metrics()["catch_ups_refused"] == 1
    node.apply(answer(node, [5, 1, 5], phi=0.1))
    assert node.phi.eq(torch.tensor(0.1)).all(), "an honest one afterwards counts"


@pytest.mark.parametrize(("phi", "b"), [(3e38, 0.0), (NAN, 0.0), (0.1, 1e30), (0.1, NAN)])
def test_vectors_that_would_ruin_the_model_are_refused(node, phi, b):
    node.apply(answer(node, [5, 1, 5], phi, b))
    assert is_as_it_was(node)


def test_a_refused_peer_is_followed_by_another(node):
    (intent,) = node.answers()
    (mean,) = node.means_due(StepInfo(32, 32.0, 1.0, 0.1))
    node.on_abort(mean, "no other member came")
    for _ in range(3):
        (again,) = node.after_step(StepInfo(1, 1.0, 1.0, 0.1))
        assert again.tag == intent.tag
        node.apply(answer(node, [-1, 0, 0]))
    assert not node.after_step(StepInfo(2, 2.0, 1.0, 0.1)), "three models a round are enough"


def test_other_weights_are_not_taken_over_for_those_of_the_same_place(node):
    node.apply(answer(node, [5, 1, 5], phi=0.1))
    node.apply(answer(node, [5, 1, 5], phi=0.2))
    assert node.phi.eq(torch.tensor(0.1)).all()
    node.apply(answer(node, [5, 2, 5], phi=0.3))
    assert node.phi.eq(torch.tensor(0.3)).all(), "of two as long the one with the larger hash"


def test_a_swarm_that_is_far_ahead_is_believed_of_two(node):
    far = ROUNDS_AHEAD_MAX * 5
    for _ in range(2):
        node.apply(answer(node, [far, 7, far]))
        assert is_as_it_was(node), "it can say so as often as it likes"
    node.apply(answer(node, [far + 2, 8, far + 3], phi=0.2, peer=THIRD))
    assert node.phi.eq(torch.tensor(0.2)).all()
    assert node.rounds.number == far + 3


@pytest.mark.parametrize(("phi", "b"), [(-0.5, 0.0), (0.5, 5.0)], ids=["weights", "momentum"])
def test_what_the_public_probe_speaks_against_is_not_taken_over(phi, b, caplog):
    """In range, finite, and ruin: at once, or with the next step of the momentum that came."""

    def probe(x):
        return float((x - 0.5).square().sum())

    node = started(probe)
    node.apply(answer(node, [5, 1, 5], phi, b))
    assert is_as_it_was(node)
    assert "expected a loss on the public probe near 16, got " in caplog.text
    node.apply(answer(node, [5, 1, 5], phi=0.3, b=0.1))
    assert node.phi.eq(torch.tensor(0.3)).all(), "an honest one afterwards counts"

    careless, trusting = started(), started()
    trusting.start(context(probe))  # of a swarm in which nothing is weighed, as none need say
    for each in (careless, trusting):
        each.apply(answer(each, [5, 1, 5], phi, b))
        assert each.phi.eq(torch.tensor(phi)).all(), "without a probe it is taken"


def test_what_one_has_learnt_alone_before_its_first_mean_keeps_it_from_none():
    """The others made the first means without it, and it has come further meanwhile."""
    node = started(probe=lambda x: float((x - 0.5).square().sum()))
    node.x.fill_(0.45)
    node.apply(answer(node, [1, 1, 1], phi=0.2))
    assert node.x.eq(torch.tensor(0.2)).all()
    node.x.fill_(0.45)
    node.apply(answer(node, [2, 1, 2], phi=0.1))
    assert node.phi.eq(torch.tensor(0.2)).all(), "since then worse weights are refused"


def test_steps_that_would_do_harm_beside_those_of_all_others_are_left():
    """From the same place towards the same optimum, alone and with others: the sum is beyond it."""
    node = started(probe=lambda x: float((x - 0.5).square().sum()))
    node.x.fill_(0.05)
    node.apply(answer(node, [1, 1, 1], phi=0.3))
    assert node.x.eq(torch.tensor(0.3) + 0.05).all(), "few of them are kept"
    node.apply(answer(node, [2, 1, 2], phi=0.4))
    torch.testing.assert_close(node.x, torch.full((64,), 0.45), msg="beside newer weights, too")
    node.x.fill_(0.8)
    node.contributions.note_step(4711)
    node.apply(answer(node, [5, 1, 5], phi=0.5))
    assert node.metrics()["catch_ups_refused"] == 0
    assert node.x.eq(0.5).all()
    assert node.rounds.number == 5, "it is back among the others"
    assert node.contributions.weight(0) == 1.0, "what it left is in no weight"


def asked(node, step):
    """Return what a step makes due of catch-ups, of a node whose means all come to nothing."""
    due = node.after_step(StepInfo(step, float(step), 1.0, 0.1))
    for intent in due:
        if intent.kind is Kind.GROUP:
            node.on_abort(intent, "behind: other rounds were made since")
    return [intent for intent in due if intent.kind is Kind.PULL]


def test_an_answer_that_takes_longer_than_a_round_is_not_asked_for_again(node):
    steps = range(1, 400)
    (first,) = [step for step in steps if asked(node, step)]
    assert 32 < first < 64
    node.on_stray()
    assert not asked(node, 401), "that would end the answer that is on its way"
    node.apply(answer(node, [9, 1, 9]))
    assert int(node.lineage[0]) == 9
    assert not asked(node, 402)


def test_one_that_no_peer_answers_asks_again_at_the_next_round(node):
    (pulled,) = [intent for step in range(1, 60) for intent in asked(node, step)]
    node.on_abort(pulled, "no peer gave catch-up")
    assert [step for step in range(60, 120) if asked(node, step)]
