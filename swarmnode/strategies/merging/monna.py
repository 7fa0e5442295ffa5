"""MoNNA: the mean of those vectors that are nearest to one's own.

Source: S. Farhadkhani, R. Guerraoui, N. Gupta, L. Hoang, R. Pinot, J. Stephan, "Robust
collaborative learning with linear gradient overhead", 2023: a node waits for n − f vectors, its own
among them, and averages the n − 2 f that are nearest to it.

Deviations: what is compared are pseudo-gradients of many local steps, which stand in for the
momentum of the paper. f is a quarter of those who came. In a group each part of the mean is made
beside the vector of the member that makes it, so all hold the same mean, and a member's data
decides over its part only. It has no meaning in a gathering, where all apply the same rule to the
same messages.
"""

from __future__ import annotations

from swarmnode.strategies.merging.mixing import Mix, Round, mean_of


def monna(about: Round) -> tuple[Mix, ...]:
    """Return the mean of the n − 2 f vectors nearest to the own one, by weight."""
    return (mean_of(about.weights, about.nearest(about.own, about.n - 2 * about.n_hostile_max)),)
