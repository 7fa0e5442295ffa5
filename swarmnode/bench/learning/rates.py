"""Learning rates: what baselines try, and what a swarm of so many members takes.

Averaging the models of n nodes lowers the noise as a batch n times larger would, and a larger batch
bears a larger rate: about the square root of n, with a bound.
"""

from __future__ import annotations

import math

TASK_LR = 6e-3  # that of bytes-lm, for one node

# Measured on sources of Python over 1,200 steps: one node alone at .003, .006, .012 comes to 2.219,
# 2.199, 2.180; data parallelism of four at .006, .012 to 1.817, 1.786. So both have the best of
# these, whatever the number of nodes.
BASELINE_LRS = (TASK_LR, 2 * TASK_LR, 4 * TASK_LR)

_FACTOR_MAX = 4.0


def lr_factor(n_members: int) -> float:
    """Return by how much a swarm of so many takes larger steps than one node alone."""
    return min(math.sqrt(n_members), _FACTOR_MAX)
