"""What the tests of algorithms share: arenas in one line, and figures of what they did."""

from __future__ import annotations

import math

import torch

from swarmnode.strategies.pair_average import PairAverage
from swarmnode.strategies.topology import build_graph
from swarmnode.testing.lab.arena import Arena
from swarmnode.testing.lab.digits import Digits
from swarmnode.testing.lab.faults import Faults
from swarmnode.testing.lab.tasks import Sgd, Walk

torch.set_num_threads(1)  # its vectors are small, and the tests run beside each other

# More seeds than one tell a lucky run from a right one; they take minutes.
SEEDS = [1]


def still(strategy, settings, *, n, graph="ring", seed=0, numel=8, dtype=torch.float64, **kwargs):
    """Return an arena in which nothing moves but by exchanges."""
    task = Walk(n, numel, seed, dtype=dtype)
    return Arena(
        task,
        lambda x: strategy(settings, x),
        graph=build_graph(graph, n),
        optimizer=Sgd(task.x, 0.0),
        seed=seed,
        **kwargs,
    )


def decay(arena, begin, end):
    """Return the rate at which the variance between nodes decays from ``begin`` to ``end``."""
    arena.run(begin)
    before = arena.consensus()
    arena.run(end - begin)
    return math.log(before / arena.consensus()) / (end - begin)


def digits(strategy, settings, *, n=16, graph="matching", seed=1, dirichlet=None, **kwargs):
    """Return an arena that trains digits with momentum SGD, lr 0.05."""
    task = Digits(n, seed, dirichlet=dirichlet)
    return Arena(
        task,
        lambda x: strategy(settings, x),
        graph=build_graph(graph, n),
        optimizer=Sgd(task.x, 0.05, momentum=0.9),
        seed=seed,
        **kwargs,
    )


def mean_consensus(arena, begin, end, every=4):
    """Return consensus averaged over the time from ``begin`` to ``end``."""
    arena.run(begin)
    found = []
    for _ in range(begin, end, every):
        arena.run(every)
        found.append(arena.consensus())
    return sum(found) / len(found)


def total(arena, name):
    """Return the sum over nodes of a buffer at this moment: [numel]."""
    arena.flow_all()
    return sum(node.strategy.buffers()[name].double() for node in arena.nodes)


class Overwrite(PairAverage):
    """A known bug: the mean of the snapshots replaces what was learnt meanwhile."""

    def apply(self, exchange):
        self.x.copy_((exchange.sent["x"] + exchange.partner.views["x"]) / 2)


LOSSY = Faults(loss=0.2)
