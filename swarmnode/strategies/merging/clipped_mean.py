"""The mean of vectors, none of which is longer than most of them are.

Source: A. Sarfi, B. Thérien, J. Lidin, E. Belilovsky, "Communication efficient LLM pre-training
with SparseLoCo", 2025, and the authors' code: the norm of each peer's values is brought down to the
median over the peers of the round, never up. A peer that sends a message a thousand times too long
then has the weight of one member, as long as fewer than half of them do.

Deviations: the norm is that of the whole message, in their code of each tensor of it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from swarmnode.strategies.merging.mixing import Mix, Round


def clipped_mean(about: Round) -> tuple[Mix, ...]:
    """Return Σ w clip(x) / Σ w. Of an even number the lower one in the middle is the median."""
    coefficients = np.array([about.weights]) * clipping(about.norms)
    return (Mix(coefficients, (sum(about.weights),)),)


def clipping(norms: NDArray[np.float64], bound: float | None = None) -> NDArray[np.float64]:
    """Return what brings each of some norms down to a bound, and none up: [n], 0 to 1.

    ``bound``: None: their median, of an even number the lower one in the middle.
    """
    if bound is None:
        bound = float(np.sort(norms)[(len(norms) - 1) // 2])
    return np.array([bound / norm if norm > bound else 1.0 for norm in norms])
