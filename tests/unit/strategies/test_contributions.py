"""What a node's part of a mean counts: its tokens since the last one, and less for what is old."""

import random

import pytest
import torch

from swarmnode.strategies.base import (
    Context,
    Exchange,
    Intent,
    Meta,
    Received,
    StepInfo,
    Strategy,
    TaskFacts,
)
from swarmnode.strategies.contributions import Contributions, pair_shares, staleness_weight
from swarmnode.strategies.diloco import DiLoCo
from swarmnode.strategies.noloco import NoLoCo
from swarmnode.strategies.rounds import Rounds
from swarmnode.strategies.streaming import Streaming
from swarmnode.tensor.layout import Layout


def test_what_is_older_counts_less():
    assert [staleness_weight(s) for s in (0, 3, 8)] == [1.0, 0.5, pytest.approx(1 / 3)]


def test_tokens_count_from_the_view_of_the_last_mean_on():
    it = Contributions()
    for _ in range(5):
        it.note_step(100)
    it.begin(0)
    assert it.weight(0) == 500
    it.note_step(100)  # learnt while the mean is under way: it is in the next one
    it.merged(0)
    assert it.weight(0) == 100


def test_what_aborts_counts_in_the_next_mean():
    it = Contributions()
    it.note_step(100)
    it.begin(0)
    it.note_step(100)  # nothing came of it
    it.begin(0)
    assert it.weight(0) == 200
    it.merged(0)
    it.merged(0)
    assert it.weight(0) == 1  # above 0, as a weight must be


def test_fragments_count_each_for_itself():
    it = Contributions()
    it.note_step(60)
    it.begin(0)
    it.merged(0)
    it.note_step(40)
    assert [it.weight(fragment, 2) for fragment in (0, 1)] == [40, 100]


def test_what_is_from_before_the_others_went_on_counts_less():
    it = Contributions()
    it.note_step(600)
    it.note_missed(6)
    assert it.weight(0, n_fragments=2) == pytest.approx(300)
    it.begin(0)
    it.merged(0)
    it.note_step(600)
    assert it.weight(0, n_fragments=2) == pytest.approx(600)
    it.note_missed(-3)  # to a shorter lineage, of which most are
    assert it.weight(0, n_fragments=2) == pytest.approx(600)


def test_the_shares_of_a_pair_are_the_same_from_both_sides() -> None:
    assert pair_shares(300.0, 300.0) == (0.5, 0.5)
    assert pair_shares(300.0, 100.0) == pytest.approx((0.75, 0.25))
    assert pair_shares(1.0, 1e18) == pytest.approx((1 / 9, 8 / 9))
    for own, theirs in ((3.0, 7.0), (1e-300, 1.0), (5e-324, 1e18)):
        assert pair_shares(own, theirs) == pair_shares(theirs, own)[::-1]


PAIRS = {
    "noloco": (NoLoCo, {"every": 8}),
    "streaming": (Streaming, {"every": 8, "meet": "pair", "fragments": 1, "reference": False}),
}


@pytest.mark.parametrize("name", PAIRS)
def test_of_a_pair_each_counts_by_its_tokens_and_both_move_alike(name: str) -> None:
    make, settings = PAIRS[name]
    two = [begun(make(settings, torch.zeros(640))) for _ in range(2)]
    intents = []
    for node, tokens in zip(two, (30, 10), strict=True):
        node.x.copy_(torch.randn(640, generator=torch.Generator().manual_seed(tokens)))
        *_, due = [node.after_step(StepInfo(n, float(n), 1.0, 0.1, tokens)) for n in range(1, 9)]
        intents.append(due[0])
    assert [intent.weight for intent in intents] == [240, 80]
    sent = [views_of(node, intent) for node, intent in zip(two, intents, strict=True)]
    mean = -(0.75 * sent[0]["delta"] + 0.25 * sent[1]["delta"])
    for own, other in ((0, 1), (1, 0)):
        meta = [Meta(8, 0, 0.0, weight=intents[i].weight) for i in (own, other)]
        copy = {name: view.clone() for name, view in sent[other].items()}
        got = {bytes(32): Received(copy, meta[1])}
        two[own].apply(Exchange(intents[own], meta[0], sent[own], got, steps_since=0))
    torch.testing.assert_close(two[0].phi, two[0].config.beta * mean)
    assert torch.equal(two[0].phi, two[1].phi)
    assert [node.contributions.weight(0) for node in two] == [1, 1], "it is given"


def test_a_round_without_a_partner_counts_less_and_is_in_the_next() -> None:
    node = begun(NoLoCo({"every": 8}, torch.zeros(640)))
    for n in range(1, 17):
        found = node.after_step(StepInfo(n, float(n), 1.0, 0.1, 10))
        if n == 8:
            node.on_abort(found[0], "no peer came before the next round")
    assert found[0].weight == pytest.approx(160 / 2**0.5)


def begun(node: Strategy) -> Strategy:
    layout = Layout.of([("w", (node.x.numel(),), "float32")])
    node.start(Context(bytes(32), 7, random.Random(1), layout, (bytes(32),), TaskFacts("any")))
    return node


def views_of(node: Strategy, intent: Intent) -> dict[str, torch.Tensor]:
    found = {}
    for view in intent.views:
        found[view.name] = torch.empty(view.numel)
        node.view(intent, view.name, found[view.name])
    return found


def moments(rounds, steps, calls=()):
    """Return the steps at which something is due, where ``calls`` are the steps with a call."""
    found = []
    for step in range(1, steps + 1):
        if step in calls:
            rounds.call()
        found += [step] if rounds.due(step) else []
    return found


def test_a_call_brings_the_next_moment_forward_and_the_rest_with_it():
    assert moments(Rounds(32, 2), 64) == [16, 32, 48, 64]
    assert moments(Rounds(32, 2), 64, calls=(20,)) == [16, 20, 36, 52]
    assert moments(Rounds(32, 2), 64, calls=(10, 20)) == [10, 20, 36, 52]


def test_a_call_waits_for_an_eighth_of_the_steps():
    assert moments(Rounds(64), 140, calls=(1,)) == [8, 72, 136]


def test_a_round_that_was_called_before_it_was_whole_is_none_to_be_refused():
    rounds = Rounds(64, 2)
    assert moments(rounds, 6, calls=(1,)) == [4]
    assert int(rounds.state[1]) < 0
    assert Rounds(64, 2).refusal(rounds.state) is None
    assert Rounds(64, 2).refusal(torch.tensor([0, -65, 64]))


def test_the_called_fragments_come_in_their_order():
    rounds = Rounds(32, 2)
    found = []
    for step in range(1, 41):
        if step % 8 == 0:
            rounds.call()
        found += rounds.due(step)
    assert found == [(1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]


def node():
    x = torch.zeros(4)
    strategy = DiLoCo({"every": 8}, x)
    strategy.on_membership((b"a", b"b"))
    return strategy


def test_a_call_counts_for_the_mean_that_this_node_stands_behind():
    strategy = node()
    strategy.on_call(3)
    assert not strategy.after_step(StepInfo(1, 1.0, 0.0, 0.1, tokens=50))
    strategy.on_call(0)
    (intent,) = strategy.after_step(StepInfo(2, 2.0, 0.0, 0.1, tokens=50))
    strategy.view(intent, "delta", torch.zeros(4))
    assert strategy.weight(intent) == 100
    mean = {"delta": torch.zeros(4)}
    strategy.apply(Exchange(intent, Meta(2, 100, 2.0), mean, {}, 0, mean, (b"a", b"b")))
    assert strategy.weight(intent) == 1
    assert int(strategy.lineage[0]) == 1


def test_what_was_left_behind_counts_in_no_fragment_and_what_is_learnt_then_counts_whole() -> None:
    it = Contributions()
    it.note_step(60)
    it.note_missed(4)
    it.begin(0)
    it.note_step(10)
    it.drop(2)
    it.merged(0)  # what was on its way is of before
    assert [it.weight(fragment, 2) for fragment in (0, 1)] == [1, 1]
    it.note_step(40)
    assert [it.weight(fragment, 2) for fragment in (0, 1)] == [40, 40]
    it.note_missed(6)
    assert [it.weight(fragment, 2) for fragment in (0, 1)] == [20, 20]
