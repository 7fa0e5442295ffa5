"""Learning rates: what baselines try, and what a swarm of so many members takes."""

from __future__ import annotations

from swarmnode.ipc.lr_schedule import MEMBERS_EXPONENT, MEMBERS_MAX, members_factor
from swarmnode.wire.recipe import Recipe

TASK_LR = 6e-3  # that of bytes-lm, for one node

# Measured on sources of Python over 1,200 steps: one node alone at .003, .006, .012 comes to 2.219,
# 2.199, 2.180; data parallelism of four at .006, .012 to 1.817, 1.786. So both have the best of
# these, whatever the number of nodes.
BASELINE_LRS = (TASK_LR, 2 * TASK_LR, 4 * TASK_LR)

_RECIPE = Recipe(members_exponent=MEMBERS_EXPONENT, members_max=MEMBERS_MAX)


def swarm_lr(n_members: int) -> float:
    """Return the highest learning rate of a swarm of so many, by the rule of real swarms."""
    return TASK_LR * members_factor(_RECIPE, n_members)
