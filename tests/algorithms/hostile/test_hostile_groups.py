"""Two of eight members turn what they have learnt around: groups and gatherings with rules."""

import dataclasses
import random
from typing import get_args

import pytest
import torch

from swarmnode.errors import ConfigError
from swarmnode.strategies.base import Context, Intent, Kind, StepInfo, TaskFacts, View
from swarmnode.strategies.diloco import DiLoCo
from swarmnode.strategies.exchanges import Message
from swarmnode.strategies.merging.best_of import TRIAL_STEPS, Trials
from swarmnode.strategies.merging.rules import find_rule
from swarmnode.strategies.merging.slot import GroupMerge, aggregate
from swarmnode.strategies.sparse import Sparse
from swarmnode.strategies.streaming import Streaming
from swarmnode.tensor.layout import Layout
from swarmnode.testing.lab.arena import Arena
from swarmnode.testing.lab.attacks.impostors import LyingMembers
from swarmnode.testing.lab.tasks import Sgd, Walk
from tests.algorithms.outer_kit import digits

RULES = get_args(GroupMerge)

N, HOSTILE = 8, 2
SPARSE = {"every": 20, "kept": 256}
BEST = {"merge": "best-of"}


def among(strategy, factor):
    """Return what makes strategies, of which the first HOSTILE send ``factor`` times the truth.

    They know what is true: one that took its own lie for what it had learnt would move away by it,
    say more each round, and soon be refused for its size.
    """

    class Hostile(strategy):
        def view(self, intent, name, out):
            super().view(intent, name, out)
            if intent.kind is not Kind.PULL:
                out.mul_(factor)

        def applying(self, exchange):
            if exchange.intent.kind is not Kind.PULL:
                sent = {name: part / factor for name, part in exchange.sent.items()}
                exchange = dataclasses.replace(exchange, sent=sent)
            return super().applying(exchange)

    made = []

    def make(settings, x):
        made.append((Hostile if len(made) < HOSTILE else strategy)(settings, x))
        return made[-1]

    return make


def honest_accuracy(strategy, settings, factor, *, guarded=True, steps=160):
    arena, _ = digits(among(strategy, factor), settings, n=N, steps=steps, guarded=guarded)
    return arena.task.measure(arena.task.x[0], range(HOSTILE, N))["local_accuracy"]


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        (Streaming, {}),
        (Streaming, BEST),
        (DiLoCo, {"every": 20}),
        (DiLoCo, BEST | {"every": 20}),
        (Sparse, SPARSE),
    ],
)
def test_those_who_turn_their_changes_around_do_no_harm(strategy, settings):
    assert honest_accuracy(strategy, settings, -10.0) > 0.9


@pytest.mark.parametrize(
    ("strategy", "settings"), [(Streaming, {}), (Sparse, SPARSE | {"merge": "mean"})]
)
def test_without_a_rule_they_ruin_it(strategy, settings):
    guarded = strategy is Sparse  # a mean without a clip is none of the source's
    assert honest_accuracy(strategy, settings, -10.0, guarded=guarded) < 0.6


@pytest.mark.parametrize("settings", [{}, BEST])
def test_a_rule_costs_nothing_among_honest_members(settings):
    with_rule = honest_accuracy(Streaming, settings, 1.0)
    without = honest_accuracy(Streaming, {"merge": "mean"}, 1.0)
    assert with_rule > without - 0.01


# --- the same old update, again and again ------------------------------------------------------


class Valley(Walk):
    """Steep in some directions and flat in most, as models are, and the same for all nodes.

    All agree: at first on the steep directions, in which nothing is left to do soon, then on the
    flat ones. So the first update is at right angles to later ones, and longer.
    """

    def __init__(self, n: int) -> None:
        super().__init__(n, numel=8192, seed=1, noise=0.03, dtype=torch.float32)
        self.x[:] = self.x[0].clone()
        order = torch.randperm(self.x.shape[1], generator=torch.Generator().manual_seed(1))
        self._curvatures = torch.logspace(-2, 0, self.x.shape[1])[order]

    def gradients(self, nodes):
        noise = super().gradients(nodes)[1]
        return self.losses(nodes), self._curvatures * self.x[list(nodes)] + noise

    def losses(self, nodes):
        return (self._curvatures * self.x[list(nodes)].square()).sum(1) / 2


def loss_in_the_valley(attack):
    task = Valley(N)
    settings = {"every": 4, "fragments": 1}
    arena = Arena(task, lambda x: Streaming(settings, x), optimizer=Sgd(task.x, 0.2), guarded=True)
    lying = LyingMembers(arena, [attack] * HOSTILE, lambda x: Streaming(settings, x))
    arena.impostors = lying
    arena.run(100)
    return float(task.losses(range(N - HOSTILE)).mean())


def test_an_old_update_that_is_sent_again_and_again_does_little():
    assert loss_in_the_valley("stale") < 1.08 * loss_in_the_valley("none")


# --- who decides -------------------------------------------------------------------------------


def test_trials_come_at_moments_of_the_nodes_own_and_their_word_holds_in_between():
    trials, asked = Trials(random.Random(1)), []

    def loss_of(candidate):
        asked.append(step)
        return float(candidate.sum())

    candidates = [torch.zeros(3), torch.ones(3)]
    found = []
    for step in range(0, 20 * TRIAL_STEPS, 5):
        found.append(trials.prefer(step, candidates, loss_of))
    first = found.index(0)
    assert set(found[:first]) <= {1}, "until the first trial it is the last candidate"
    assert set(found[first:]) == {0}
    assert 14 <= len(asked) / 2 <= 30


def test_a_loss_that_is_no_number_is_not_preferred():
    trials = Trials(random.Random(1))
    losses = iter([float("nan"), 5.0])
    assert trials.prefer(TRIAL_STEPS, [torch.zeros(1)] * 2, lambda _: next(losses)) == 1


@pytest.mark.parametrize("strategy", [Streaming, DiLoCo])
def test_a_part_is_tried_where_it_belongs(strategy):
    tried = []

    def probe(x):
        tried.append(x)
        return float(x.square().sum())

    node = strategy({}, torch.zeros(1000))
    layout = Layout.of([("x", (1000,), "float32")])
    node.start(
        Context(b"1" * 32, 0, random.Random(0), layout, (b"1" * 32,), TaskFacts("x"), None, probe)
    )
    node.after_step(StepInfo(TRIAL_STEPS, 1.0, 0.0, 0.1))
    intent = Intent(Kind.GROUP, 0, (View("delta", "", 0, 200),))
    assert node.prefer(intent, 10, [torch.full((20,), 2.0), torch.full((20,), 1.0)]) == 1
    assert [int((x != 0).sum()) for x in tried] == [20, 20]
    assert all((x <= 0).all() for x in tried), "a mean is taken off"
    assert not node.phi.any()


def test_the_probe_takes_the_better_aggregate_of_messages():
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(8, 50, generator=generator)
    messages = [Message(bytes([i]), lambda i=i: iter([values[i].clone()])) for i in range(8)]
    without = aggregate(find_rule("best-of"), messages)
    assert torch.equal(without, aggregate(find_rule("nnm-trimmed"), messages))
    clipped = aggregate(find_rule("clipped-mean"), messages)
    chosen = aggregate(find_rule("best-of"), messages, lambda x: float((x - clipped).norm()))
    assert torch.equal(chosen, clipped)


@pytest.mark.parametrize("rule", ["trimmed-mean", "monna", "bristle"])
def test_rules_of_coordinates_and_of_own_vectors_are_refused_for_sparse_messages(rule):
    with pytest.raises(ConfigError, match="merge"):
        Sparse({"merge": rule}, torch.zeros(10))


@pytest.mark.parametrize("rule", sorted(RULES))
def test_every_rule_may_be_chosen_for_groups(rule):
    config = Streaming.parse({"merge": rule})
    Streaming.check(config, TaskFacts("x"))
    DiLoCo.parse({"merge": rule})


def test_a_rule_for_many_is_refused_in_pairs():
    config = Streaming.parse({"meet": "pair", "merge": "best-of"})
    with pytest.raises(ConfigError, match="meet group"):
        Streaming.check(config, TaskFacts("x"))
