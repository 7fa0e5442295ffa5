"""What the tests of outer steps share: figures of random walks, and digits under Adam."""

from __future__ import annotations

import pytest

from swarmnode.testing.lab import setups
from swarmnode.testing.lab.setups import slow_variance, walk

# One seed each time; the others tell a lucky run from a right one.
SEEDS = pytest.mark.parametrize(
    "seed", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)]
)

PLAIN = {"meet": "pair", "fragments": 1, "overlap": 0, "local_share": 0.0}
PLAIN |= {"delta_codec": "", "weights_codec": ""}


def stationary(strategy, settings, rounds=80, **kwargs):
    """Return the variance of slow weights over the second half of so many rounds."""
    arena = walk(strategy, settings, **kwargs)
    every, found = settings["every"], []
    for number in range(rounds):
        arena.run(every)
        if number >= rounds // 2:
            found.append(slow_variance(arena))
    return sum(found) / len(found)


def digits(strategy, settings, *, n=8, steps=600, **options):
    """Train digits with Adam; return the arena and its figures."""
    arena = setups.digits(strategy, settings, n=n, **options)
    arena.run(steps)
    return arena, arena.measure()
