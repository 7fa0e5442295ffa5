"""Which of two candidates for a part of a group's mean is better, by the public probe.

Whoever makes a part has no other one. It tries either candidate alone, on the slow weights that all
members have: for steps as small as a part of one round, what the parts do to the loss adds up.
Nothing more travels for it than without.

A trial is two evaluations, and a probe of 128 examples takes as long as a local step or two. So
there is one in TRIAL_STEPS local steps on average, 2 % of them, at moments that no other member
knows; in between the last one counts. An attack that changes its ways is found out by one member
after the other, each for the parts that it makes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch

TRIAL_STEPS = 128
_WITHOUT_PROBE = 1  # the last of two

_LossOf = Callable[[torch.Tensor], float]


class Trials:
    """The trials of one node, and what the last of them said. ``rng``: this node's own."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._due_step = rng.randrange(TRIAL_STEPS)
        self._best = _WITHOUT_PROBE

    def prefer(self, step: int, candidates: Sequence[torch.Tensor], loss_of: _LossOf) -> int:
        """Return the number of the candidate that is taken after local step ``step``.

        ``loss_of``: of the model that would come of a candidate; called twice, or not at all.
        """
        if step >= self._due_step:
            self._due_step = step + self._rng.randrange(TRIAL_STEPS // 2, 2 * TRIAL_STEPS)
            first, second = (loss_of(candidate) for candidate in candidates)
            self._best = int(not first < second)  # a loss that is no number loses
        return self._best
