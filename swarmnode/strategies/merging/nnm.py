"""Nearest neighbour mixing: each vector is replaced by the mean of those nearest to it.

Source: Y. Allouah, S. Farhadkhani, R. Guerraoui, N. Gupta, R. Pinot, J. Stephan, "Fixing by mixing:
a recipe for optimal Byzantine ML under heterogeneity", 2023: x_i becomes the mean of the n − f
vectors nearest to it, itself among them, then any robust rule follows. With the trimmed mean it
stands up to less than half of the members, and loses as little as can be where their data differ.

Deviations: f is a quarter of those who came, since none knows how many are hostile. Means within a
neighbourhood are by weight. Of three or less none is dropped: all of it is then the plain mean.
"""

from __future__ import annotations

import numpy as np

from swarmnode.strategies.merging.clipped_mean import clipping
from swarmnode.strategies.merging.mixing import Mix, Round, mixtures


def nnm(about: Round) -> tuple[Mix, ...]:
    """Return the mean of all mixtures, none of them longer than their median.

    Mixing leaves a vector that is far from all others nearly as it was.
    """
    mix = mixtures(about.weights, _neighbourhoods(about))
    means = mix.coefficients / np.array(mix.divisors)[:, None]
    products = means[:, :, None] * means[:, None, :] * about.gram
    # Never below 0 by more than what float64 loses where vectors cancel each other.
    squares = np.add.reduce(np.add.reduce(products, axis=2), axis=1)
    shares = clipping(np.sqrt(np.maximum(squares, 0.0)))
    return (Mix(mix.coefficients * shares[:, None], mix.divisors),)


def nnm_trimmed(about: Round) -> tuple[Mix, ...]:
    """Return the trimmed mean of the mixtures, with f of the largest and of the smallest off.

    As long as no more than f are hostile, no coordinate is further from an honest one than twice
    the largest distance between two honest vectors.
    """
    return (mixtures(about.weights, _neighbourhoods(about), about.n_hostile_max),)


def _neighbourhoods(about: Round) -> list[tuple[int, ...]]:
    if not about.n_hostile_max:
        return [tuple(range(about.n))]
    n_near = about.n - about.n_hostile_max
    return [about.nearest(number, n_near) for number in range(about.n)]
