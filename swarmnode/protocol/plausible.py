"""What members say of themselves, bounded by what the others say, before anything is made of it.

Each number that a member says of itself is its own word: how many steps it took, how far the swarm
is, its loss, the time of a step. A liar says what it likes, so that none of them enters a sum, a
maximum, a mean or a schedule as it is. While fewer than half of those that say something lie:

===========  ======================================================================================
a mark       how far the swarm is: the furthest word, but that of a member that claims more than
             twice the (lower) median counts as the median
a count      of one author in a sum: at most COUNT_TIMES_MAX marks of the swarm's steps, and no more
             tokens a step than TOKENS_TIMES_MAX medians
a time       at least a STEP_TIMES_MAX-th of the median, and at most so many of it
a loss       within LOSS_SPREADS_MAX of the median, in the usual distance of honest ones from it
===========  ======================================================================================

The factors are what honest members differ by, so that they are bounded in nothing: the fastest
accelerator takes a hundred steps while a laptop takes one. What a lie can do then is what a hundred
fast members could.

Of a snapshot, a step above the bound of a mark counts for nothing. :class:`FirstMinute` sees
whether a newcomer began well.

Source: the median and the median absolute deviation, Huber and Ronchetti, "Robust statistics",
2009, chapters 1 and 5: half of all values must be moved to move them without bound.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from statistics import median, median_low
from typing import TypeVar

MARK_TIMES_MAX = 2
COUNT_TIMES_MAX = 100
TOKENS_TIMES_MAX = 16  # batches of uneven members differ by that
STEP_TIMES_MAX = 8.0  # as PACING_FEWEST_SHARE: faster ones change no round
LOSS_SPREADS_MAX = 10.0
# Members that have just begun all say the same: no step is that small.
_COUNT_FREE = 10_000
# Losses that agree to the last digit are still losses: a tenth of one is no lie.
_LOSS_SPREAD_MIN = 0.05

# Old snapshots of honest members catch up meanwhile: they train, and are averaged with others.
START_JUDGED_S = 30.0
# Of a loss beyond the median of the others: a worse one is no lag.
_START_SHARE_MAX = 1.0
_START_LOSS_MIN = 0.1  # losses near zero differ by much more than a share

NameT = TypeVar("NameT", bound=Hashable)


def bounded_mark(said: int, middle: int) -> int:
    """Return how far a claim counts, beside the median of all."""
    return said if said <= MARK_TIMES_MAX * middle else middle


def claimed_step(said: int, middle: int) -> int:
    """Return how far a snapshot counts that is said to be so far: an absurd one, not at all."""
    return said if said <= MARK_TIMES_MAX * middle else 0


def middle_of(said: Iterable[int]) -> int:
    """Return the lower median of those that say something at all, 0: none does."""
    return median_low(sorted(each for each in said if each > 0) or [0])


def mark(said: Iterable[int]) -> int:
    """Return how far the swarm is, by what each member says of that."""
    every = list(said)
    middle = middle_of(every)
    return max((bounded_mark(each, middle) for each in every), default=0)


def total_steps(steps: Mapping[NameT, int], swarm_step: int) -> int:
    """Return the steps of all authors together; ``swarm_step``: the mark of the swarm's."""
    return sum(bounded_steps(steps, swarm_step).values())


def bounded_steps(steps: Mapping[NameT, int], swarm_step: int) -> dict[NameT, int]:
    """Return what counts of each author's steps."""
    most = max(_COUNT_FREE, COUNT_TIMES_MAX * swarm_step)
    return {author: min(each, most) for author, each in steps.items()}


def total_tokens(tokens: Mapping[NameT, int], steps: Mapping[NameT, int], swarm_step: int) -> int:
    """Return the tokens of all authors together; one that has some and says no steps has none."""
    counted = bounded_steps(steps, swarm_step)
    a_step = [tokens.get(author, 0) / each for author, each in steps.items() if each > 0]
    most_a_step = TOKENS_TIMES_MAX * median_low(sorted(a_step) or [0.0])
    return sum(
        min(each, int(most_a_step * counted.get(author, 0))) for author, each in tokens.items()
    )


def bounded_times(said_s: Mapping[NameT, float]) -> dict[NameT, float]:
    """Return the times of a step that count."""
    if not said_s:
        return {}
    middle = median_low(said_s.values())
    low, high = middle / STEP_TIMES_MAX, middle * STEP_TIMES_MAX
    return {name: min(max(each, low), high) for name, each in said_s.items()}


def bounded_losses(said: Sequence[float]) -> list[float]:
    """Return the losses that count, in their order."""
    if len(said) < 3:
        return list(said)  # of two none knows which one lies
    middle = median(said)
    spread = max(median(abs(each - middle) for each in said), _LOSS_SPREAD_MIN)
    low, high = middle - LOSS_SPREADS_MAX * spread, middle + LOSS_SPREADS_MAX * spread
    return [min(max(each, low), high) for each in said]


class FirstMinute:
    """Whether a newcomer that began with the model of a peer does as well as its neighbours.

    It is looked at once, START_JUDGED_S after its first probe. Fewer than two neighbours that say a
    loss prove nothing.
    """

    def __init__(self) -> None:
        self._judged_at = math.inf
        self._has_begun = False

    def begin(self) -> None:
        """The worker begins with another model."""
        self._judged_at, self._has_begun = math.inf, True

    def complaint(self, own: float, others: Sequence[float], now: float) -> str:
        """Return what is wrong with the model that it began with, "" if nothing is, or not yet."""
        if not self._has_begun or math.isnan(own):
            return ""
        self._judged_at = min(self._judged_at, now + START_JUDGED_S)
        if now < self._judged_at or len(others) < 2:
            return ""
        self._has_begun = False
        middle = median(others)
        spread = median(abs(each - middle) for each in others)
        most = middle + max(
            _START_SHARE_MAX * abs(middle), LOSS_SPREADS_MAX * spread, _START_LOSS_MIN
        )
        if own <= most:
            return ""
        return f"expected a probe loss like that of the others, {middle:.4g}, got {own:.4g}"
