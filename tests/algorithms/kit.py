"""What the tests of algorithms share beside the arenas of the laboratory: figures, known bugs."""

from __future__ import annotations

import math

import torch

from swarmnode.strategies.pair_average import PairAverage
from swarmnode.testing.lab import setups
from swarmnode.testing.lab.faults import Faults

torch.set_num_threads(1)  # its vectors are small, and the tests run beside each other

# More seeds than one tell a lucky run from a right one; they take minutes.
SEEDS = [1]


def decay(arena, begin, end):
    """Return the rate at which the variance between nodes decays from ``begin`` to ``end``."""
    arena.run(begin)
    before = arena.consensus()
    arena.run(end - begin)
    return math.log(before / arena.consensus()) / (end - begin)


def digits(strategy, settings, *, n=16, **options):
    """Return an arena that trains digits with momentum SGD, lr 0.05."""
    return setups.digits(strategy, settings, n=n, optimizer=setups.momentum_sgd, **options)


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
