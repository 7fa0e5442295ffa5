"""What the tests of outer steps share: random walks, and digits under Adam."""

from __future__ import annotations

import pytest
import torch

from swarmnode.testing.lab.arena import Arena
from swarmnode.testing.lab.codecs import RAW
from swarmnode.testing.lab.digits import Digits
from swarmnode.testing.lab.faults import Faults
from swarmnode.testing.lab.tasks import Adam, Sgd, Walk

# One seed each time; the others tell a lucky run from a right one.
SEEDS = pytest.mark.parametrize(
    "seed", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)]
)

ADAM_LR = 1e-2
PLAIN = {"fragments": 1, "overlap": 0, "local_share": 0.0, "delta_codec": "", "weights_codec": ""}


def walk(strategy, settings, *, n=64, lr=0.01, numel=64, seed=1, faults=None, pull=0.0):
    """Return an arena of random walks that start at 0: gradients are N(0, 1) and nothing else."""
    task = Walk(n, numel, seed, noise=1.0, pull=pull)
    task.x.zero_()
    return Arena(
        task,
        lambda x: strategy(settings, x),
        optimizer=Sgd(task.x, lr),
        seed=seed,
        faults=faults or Faults(),
    )


def slow_variance(arena):
    """Return the variance between the slow weights of the nodes, mean over coordinates."""
    phi = torch.stack([node.strategy.phi for node in arena.up])
    return float(phi.var(0, unbiased=True).mean())


def stationary(strategy, settings, rounds=80, **kwargs):
    """Return the variance of slow weights over the second half of so many rounds."""
    arena = walk(strategy, settings, **kwargs)
    every, found = settings["every"], []
    for number in range(rounds):
        arena.run(every)
        if number >= rounds // 2:
            found.append(slow_variance(arena))
    return sum(found) / len(found)


def digits(strategy, settings, *, n=8, steps=600, seed=1, codec=RAW, **kwargs):
    """Train digits with Adam; return the arena and its figures."""
    task = Digits(n, seed)
    arena = Arena(
        task,
        lambda x: strategy(settings, x),
        optimizer=Adam(task.x, ADAM_LR),
        seed=seed,
        codec=codec,
        **kwargs,
    )
    arena.run(steps)
    return arena, arena.measure()
