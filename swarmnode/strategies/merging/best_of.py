"""The better of two means, by the loss on a public probe.

Source: measured for swarmnode. Clipping to the median norm fails where f members agree on a
direction, nearest neighbour mixing with a trimmed mean where honest members differ much; an attack
on both at once is hard to find. Twenty members with uneven shares of digits, four of them hostile,
eight attacks: each alone falls by 5 to 49 points on one of them, the better of the two by 1.6 at
most. The probe is the task's, the same for all members; a loss that private data gives would refuse
those whose data differ.

Candidates that are as good as each other, within TIE of the loss, are none of the probe's business:
it is computed in float32, and machines differ in its last bits. Then it is the second one, as it is
without a probe.

In a group the member that makes a part of the mean has no other one. It tries either candidate
alone, on the slow weights that all members have: for steps as small as a part of one round, what
the parts do to the loss adds up. Nothing more travels for it than without.

A trial is two evaluations, and a probe of 128 examples takes as long as a local step or two. So
there is one in TRIAL_STEPS local steps on average, 2 % of them, at moments that no other member
knows; in between the last one counts. An attack that changes its ways is found out by one member
after the other, each for the parts that it makes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from swarmnode.strategies.merging.clipped_mean import clipped_mean
from swarmnode.strategies.merging.mixing import Mix, Round
from swarmnode.strategies.merging.nnm import nnm_trimmed

Vector = TypeVar("Vector")  # of torch, which this module does not import

TIE = 1e-3
TRIAL_STEPS = 128
_WITHOUT_PROBE = 1  # the last of two


def best_of(about: Round) -> tuple[Mix, ...]:
    """Return both candidates; one where they are the same, since too few came."""
    if not about.n_hostile_max:
        return nnm_trimmed(about)
    return (*clipped_mean(about), *nnm_trimmed(about))


def better(first_loss: float, second_loss: float) -> int:
    """Return which of two candidates is taken, 0 or 1. A loss that is no number loses."""
    return int(not first_loss < second_loss - TIE * abs(second_loss))


class Trials:
    """The trials of one node, and what the last of them said. ``rng``: this node's own."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._due_step = rng.randrange(TRIAL_STEPS)
        self._best = _WITHOUT_PROBE

    def prefer(
        self,
        step: int,
        candidates: Sequence[Vector],
        loss_of: Callable[[Vector], float],
    ) -> int:
        """Return the number of the candidate that is taken after local step ``step``.

        ``loss_of``: of the model that would come of a candidate; called twice, or not at all.
        """
        if step >= self._due_step:
            self._due_step = step + self._rng.randrange(TRIAL_STEPS // 2, 3 * TRIAL_STEPS // 2)
            first, second = (loss_of(candidate) for candidate in candidates)
            self._best = int(not first < second)  # a loss that is no number loses
        return self._best
