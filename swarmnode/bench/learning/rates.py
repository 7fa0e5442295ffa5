"""Learning rates: what baselines try, and what a swarm of so many members takes.

Averaging the models of n nodes lowers the noise as a batch n times larger would, and a larger batch
bears a larger rate. Measured over this task (docs/development.md, ``bench learning``): about the
square root of n, with a bound.
"""

from __future__ import annotations

import math

TASK_LR = 6e-3  # that of bytes-lm, for one node

_AROUND = (0.5, 1.0, 2.0)
_FACTOR_MAX = 4.0


def lr_factor(n_members: int) -> float:
    """Return by how much a swarm of so many takes larger steps than one node alone."""
    return min(math.sqrt(n_members), _FACTOR_MAX)


def baseline_lrs(n_nodes: int) -> list[float]:
    """Return the three rates of which a baseline has the best: around what the rule says."""
    return [TASK_LR * lr_factor(n_nodes) * part for part in _AROUND]
