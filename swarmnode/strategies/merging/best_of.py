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
"""

from __future__ import annotations

from swarmnode.strategies.merging.clipped_mean import clipped_mean
from swarmnode.strategies.merging.mixing import Mix, Round
from swarmnode.strategies.merging.nnm import nnm_trimmed

TIE = 1e-3


def best_of(about: Round) -> tuple[Mix, ...]:
    """Return both candidates; one where they are the same, since too few came."""
    if not about.n_hostile_max:
        return nnm_trimmed(about)
    return (*clipped_mean(about), *nnm_trimmed(about))


def better(first_loss: float, second_loss: float) -> int:
    """Return which of two candidates is taken, 0 or 1. A loss that is no number loses."""
    return int(not first_loss < second_loss - TIE * abs(second_loss))
