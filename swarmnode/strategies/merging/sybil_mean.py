"""The mean of vectors: those that lie alike share a vote, and those that agree least have least.

Sources: C. Fung, C. J. M. Yoon, I. Beschastnikh, "The limitations of federated learning in sybil
settings" (FoolsGold), 2020: what members learn from data of their own lies at nearly right angles,
and what is sent for one purpose lies alike, so a vector counts the less the more alike others are.
X. Cao, M. Fang, J. Liu, N. Z. Gong, "FLTrust: Byzantine-robust federated learning via trust
bootstrapping", 2021: a vector counts by its cosine with the trusted direction, and for nothing
where it points away. Lengths are clipped as in :mod:`clipped_mean`, to a multiple of the median.

With directions u_i = x_i / ‖x_i‖, cosines c_ij, and ρ their median over all pairs and SPREADS times
their median distance from it, not below 0::

    alike_ij = max(0, (c_ij − ρ) / (1 − ρ))         w_i = 1 / (1 + Σ_{j ≠ i} alike_ij)
    t_i      = cos(x_i, Σ_{j ≠ i} (1 − alike_ij) w_j u_j)   while the least is below −OPPOSED, it is
                                                    left out, and all is computed again, of the rest
    usual    = the median of t, less SPREADS times their median distance from it
    a_i      = t_i / usual, between 0 and 1         1 for all where usual is not above 0
    reach    = min(√(n − f) / 1.2, 2, 8 / √n)       1 at the least; f = ⌊n / 4⌋ may be liars
    s_i      = min(1, reach · median(‖x‖) / ‖x_i‖)  of an even number the larger one in the middle
    result   = Σ a_i w_i s_i x_i / Σ a_i w_i        over those that are left, more than half

Copies of a vector have one vote together, and what points against the sum of the others has none.
Where most agree, what agrees with them far less counts by how much it does: noise, and an old
update that is sent again and again, which is at right angles to new ones and by then as long as
clips let it be. Copies do not agree with each other for this: together with its twin an old update
seems no worse than a member with data of its own. Where honest vectors are at right angles
themselves, or spread as widely as they agree, usual is not above 0, and none is judged by it.

Liars who hide both in noise of their own pay for it with what they push: where honest vectors are
at right angles, f in one direction have f / (2 √(f − 1)) votes for it at the most, 1.2 for four and
2.1 for sixteen, and the others come to √(n − f) of their lengths, which the reach of one is below.
A closer clip is dearer: a member whose data are of its own kind moves further than most while it
learns (up to 6.8 times the median of sixteen, labels by a Dirichlet distribution of 0.5), and a
fast one takes more steps than most in a round. Of four members at speeds of one to eight the first
is 4.5 times as long as the third; as liars are a quarter at most, the larger one in the middle is
that of an honest member, too.

A smaller ρ is dearer as well: honest vectors are alike by chance in short parts, and by their task
early in training, and would have fewer votes than liars who are like none. Where they spread widely
liars hide better: of twenty members eight can stop what the others learn, and a quarter can slow it
down.

Deviations from FoolsGold: the vectors of one round are compared, where the paper adds up those of
all rounds, which no member that makes a part of a mean has. In place of the largest likeness of a
vector the sum of all counts, from ρ on, and no logarithm. From FLTrust: no node is trusted, the
direction is that of all others by their votes, and what agrees nearly as much as most do counts
whole. Of three or less none is told from the others: it is the plain mean.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from swarmnode.strategies.merging.clipped_mean import clipping
from swarmnode.strategies.merging.mixing import Gram, Mix, Round, mean

# In parts of 256 elements, as small models have, one honest vector in forty is as far away.
OPPOSED = 0.35
SPREADS = 3.0  # two standard deviations of what is spread normally
_RHO_MAX = 0.98  # where all vectors are equal none is more alike than the others

_Floats = NDArray[np.float64]


def sybil_mean(about: Round) -> tuple[Mix, ...]:
    """Return the mean by weight and by vote, of clipped vectors. Cost: n³ operations, and again for
    each that is left out."""
    if not about.n_hostile_max:
        return mean(about)
    kept, votes = _elect(about.gram)
    shares = np.zeros(about.n)
    norms = about.norms[kept]
    bound = _reach(about.n, about.n_hostile_max) * float(np.sort(norms)[len(norms) // 2])
    shares[kept] = clipping(norms, bound)
    counts = np.zeros(about.n)
    counts[kept] = votes * np.array(about.weights)[kept]
    return (Mix((counts * shares)[None], (sum(counts.tolist()),)),)


def _reach(n: int, n_hostile: int) -> float:
    """Return how long a vector of ``n`` may be, in medians: 1 to 2."""
    return max(1.0, min(math.sqrt(n - n_hostile) / 1.2, 2.0, 8 / math.sqrt(n)))


def _elect(gram: Gram) -> tuple[list[int], _Floats]:
    """Return which vectors oppose no other ones, more than half of them, and the votes of those."""
    kept = list(range(len(gram)))
    least = len(kept) // 2 + 1
    while True:
        cosines = _cosines(gram[np.ix_(kept, kept)])
        alike = _alike(cosines)
        votes = 1 / np.add.reduce(alike, axis=1)
        agreement = _agreement(cosines, votes * (1 - alike))
        worst = int(np.argmin(agreement))
        if len(kept) == least or agreement[worst] >= -OPPOSED:
            return kept, votes * _credit(agreement)
        del kept[worst]


def _cosines(gram: Gram) -> Gram:
    norms = np.sqrt(np.diagonal(gram))
    lengths = np.where(norms > 0, norms, 1.0)  # what is zero is at right angles to all
    cosines: Gram = gram / (lengths[:, None] * lengths)
    return cosines


def _alike(cosines: Gram) -> Gram:
    """Return how much of each other's vote two vectors share, 0 to 1: [n, n], itself 1."""
    usual, spread = _middle(cosines[np.triu_indices(len(cosines), 1)])
    rho = min(max(usual + SPREADS * spread, 0.0), _RHO_MAX)
    alike: Gram = np.clip((cosines - rho) / (1 - rho), 0.0, 1.0)
    np.fill_diagonal(alike, 1.0)
    return alike


def _agreement(cosines: Gram, others: Gram) -> _Floats:
    """Return the cosine of each vector with the sum of the others' directions: [n].

    ``others``: by which votes, a row for each vector: [n, n].
    """
    sums = np.add.reduce(others[:, None, :] * cosines, axis=2)  # with each of the directions
    squares = np.add.reduce(sums * others, axis=1)
    agreement: _Floats = np.diagonal(sums) / np.sqrt(np.maximum(squares, np.finfo(np.float64).tiny))
    return agreement


def _credit(agreement: _Floats) -> _Floats:
    """Return which share of its vote a vector keeps for how much it agrees: [n], 0 to 1."""
    usual, spread = _middle(agreement)
    least = usual - SPREADS * spread
    if least <= 0:
        return np.ones(len(agreement))
    return np.clip(agreement / least, 0.0, 1.0)


def _middle(values: _Floats) -> tuple[float, float]:
    """Return the median, and the median distance from it; of two in the middle the larger."""
    usual = np.sort(values)[len(values) // 2]
    spread = np.sort(np.abs(values - usual))[len(values) // 2]
    return float(usual), float(spread)
