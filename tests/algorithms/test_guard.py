"""What is implausibly large is refused and counts on neither side; nothing honest ever is."""

import itertools

import pytest
import torch

from swarmnode.strategies.registry import build_strategy
from swarmnode.strategies.topology import build_graph
from swarmnode.testing.lab.arena import Arena
from swarmnode.testing.lab.digits import Digits
from swarmnode.testing.lab.faults import Faults, Outage
from swarmnode.testing.lab.tasks import Adam, Sgd, Walk

torch.set_num_threads(1)
NODES, STEPS = 6, 120
STRATEGIES = {
    "streaming": {"meet": "pair"},
    "streaming-groups": {},
    "noloco": {"every": 16},
    "diloco": {"every": 16},
    "pair-average": {"every": 8},
    "a2cid2": {},
}
# A newcomer with a snapshot, and one that was away for most of the run.
CHURN = Faults(loss=0.1, latency=0.5, outages=(Outage(1, 30, 45), Outage(2, 20, 90)))


# One way of meeting each, in the everyday suite; all with `-m slow`.
EVERYDAY = {("streaming", 1), ("diloco", 1), ("pair-average", 1)}
EVERYDAY |= {("streaming", "3e38"), ("diloco", "3e38"), ("pair-average", "norm times 1,000")}


def some_slow(cases):
    return [
        case if case in EVERYDAY else pytest.param(*case, marks=pytest.mark.slow) for case in cases
    ]


def arena(name, seed, task=None, faults=CHURN, optimizer=None):
    task = Digits(NODES, seed, dirichlet=0.5) if task is None else task
    optimizer = Adam(task.x, 0.003) if optimizer is None else optimizer
    settings, word = STRATEGIES[name], name.removesuffix("-groups")
    return Arena(
        task,
        lambda x: build_strategy(word, settings, x),
        graph=build_graph("ring", NODES) if word == "a2cid2" else None,
        optimizer=optimizer,
        seed=seed,
        faults=faults,
        codec="Q8B64",
    )


def begin_late(it, number):
    """Let a node lose all it has and begin from the seed, as a node without a snapshot does."""
    it.crash(number)
    it.task.x[number].copy_(it.first[number])
    old = it.nodes[number]
    node = it.nodes[number] = it._build(number, old.speed, life=old.life + 1)
    it._start(node)
    it._tell_members()


@pytest.mark.parametrize(("name", "seed"), some_slow(itertools.product(STRATEGIES, [1, 2])))
def test_nothing_honest_is_refused(name, seed):
    it = arena(name, seed)
    it.first = it.task.x.clone()
    it.run(STEPS * 0.8)
    begin_late(it, 3)
    it.run(STEPS * 0.4)
    assert it.tally.exchanges > 2
    assert it.tally.refused == 0


@pytest.mark.parametrize("name", ["pair-average", "noloco", "streaming", "diloco"])
def test_nothing_honest_is_refused_where_a_model_begins_with_zeros(name):
    task = Walk(NODES, 64, 1, dtype=torch.float32)
    task.x.zero_()
    it = arena(name, 1, task, optimizer=Sgd(task.x, 0.1))
    it.run(80)
    assert it.tally.exchanges > 2
    assert it.tally.refused == 0


LIES = {
    "3e38": lambda out: out.fill_(3e38),
    "1e30": lambda out: out.fill_(1e30),
    "one huge value": lambda out: out[0].fill_(1e30),
    "norm times 1,000": lambda out: out.mul_(1000),
}


def poison(node, lie):
    honest_view = node.strategy.view

    def view(intent, name, out):
        honest_view(intent, name, out)
        lie(out)

    node.strategy.view = view


@pytest.mark.parametrize(("name", "lie"), some_slow(itertools.product(STRATEGIES, LIES)))
def test_what_is_implausibly_large_is_refused_and_counted(name, lie):
    it = arena(name, 1, faults=Faults())
    it.run(40)
    poison(it.nodes[NODES - 1], LIES[lie])
    it.run(40)
    assert it.tally.refused > 0
    honest = it.task.x[: NODES - 1]
    assert float(honest.abs().max()) < 10, "nothing of it has come into any honest model"
