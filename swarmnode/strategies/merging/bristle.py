"""Bristle's prioritizer: the nearest vectors, and a few of the others by chance.

Source: J. Verbraeken, M. de Vos, J. Pouwelse, "Bristle: decentralized federated learning in
Byzantine, non-i.i.d. environments", 2021. A node ranks what it has by the distance to its own, and
takes the 20 nearest (exploitation) and 5 random ones of the rest (exploration), so that it learns
from those, too, whose data differ from its own.

Deviations: of fewer than 25 the paper would take all; here it takes half of those who came as the
nearest, itself among them, and a quarter as many again by chance. What the paper then does class by
class, with a test set that the node trusts, needs labels, which a loss has not: it is left out, and
the vectors that were taken are brought down to their median length instead. As with MoNNA the own
vector in a group is that of the member that makes the part.
"""

from __future__ import annotations

import random

import numpy as np

from swarmnode.strategies.merging.clipped_mean import clipped_mean
from swarmnode.strategies.merging.mixing import Mix, Round

_EXPLORED_SHARE = 0.25  # 5 of 20


def bristle(about: Round) -> tuple[Mix, ...]:
    """Return the clipped mean of those that were taken."""
    n_near = max(1, about.n // 2)
    near = about.nearest(about.own, n_near)
    rest = [number for number in range(about.n) if number not in near]
    n_explored = min(len(rest), round(_EXPLORED_SHARE * n_near))
    taken = sorted([*near, *random.Random(about.seed).sample(rest, n_explored)])
    kept = Round(about.gram[taken][:, taken], tuple(about.weights[each] for each in taken))
    (mix,) = clipped_mean(kept)
    coefficients = np.zeros((1, about.n))
    coefficients[:, taken] = mix.coefficients
    return (Mix(coefficients, mix.divisors),)
