"""What a node's part of a mean counts: the tokens behind it, and less for what is old.

A node learns from so many tokens between two means of the same parameters. Its pseudo-gradient is
what came of them, so it counts by them: a straggler that had time for a quarter of the steps pulls
the mean a quarter as much towards where all began. What aborts stays in the pseudo-gradient of the
next mean, and its tokens in the next weight: a node that is in every k-th mean counts there for all
k, as far as the others' median allows (``fair_weights``).

What was learnt on slow weights that have moved on meanwhile points elsewhere. A contribution that
missed s rounds of means counts (1 + s)^-1/2 of its tokens.

Two nodes that meet as a pair weigh their pseudo-gradients alike (``pair_shares``), from what both
said of themselves with the offer and its answer, so both come to the same. What a pair missed are
its own rounds in which no partner came. Only pseudo-gradients are weighted, which begin at zero
where two met last. Models that are averaged whole (pair-average, and the pull of slow weights) are
not: each local step counts the same in the mean of the swarm already, and only halves keep that
mean where it is.

Sources: A. Douillard et al., "Decoupled DiLoCo", 2026 (weights by tokens, members that come as they
are); B. Liu et al., "Asynchronous Local-SGD training for language modeling", 2024 (1/√(1+s));
Y. Fraboni et al., "A general theory for federated optimization with asynchronous and heterogeneous
clients updates", 2023 (a node that is there in every k-th round counts k times). Deviation: no
weight is above the median of those that meet, for no node can check what a node says of itself; of
two none counts less than GROUP_WEIGHT_MEDIANS_MIN of the other.
"""

from __future__ import annotations

import math

from swarmnode import limits

_WEIGHT_MIN = 1.0  # of a node that has not learnt anything yet: a weight is above 0


def staleness_weight(rounds_behind: float) -> float:
    """Return (1 + s)^-1/2: what a contribution counts that is ``s`` rounds old."""
    return 1 / math.sqrt(1 + rounds_behind)


def pair_shares(own: float, theirs: float) -> tuple[float, float]:
    """Return the shares, together 1, that two weights have in the mean of a pair.

    The partner gets the same two numbers the other way around. The smaller weight counts
    GROUP_WEIGHT_MEDIANS_MIN of the larger one at the least, so a lie gets 8/9 at the most.

    Args:
        own, theirs: above 0.
    """
    largest = max(own, theirs)
    least = limits.GROUP_WEIGHT_MEDIANS_MIN
    weights = [max(least, weight / largest) for weight in (own, theirs)]
    total = sum(weights)
    return weights[0] / total, weights[1] / total


class Contributions:
    """Tokens that a node has learnt from, and not yet given to a mean, by fragment."""

    def __init__(self) -> None:
        self._learnt = self._missed = 0  # since the start: tokens, means of others alone
        self._given: dict[int, tuple[int, int]] = {}  # both as of the last mean of a fragment
        self._viewed: dict[int, tuple[int, int]] = {}  # as of what is on its way

    def note_step(self, tokens: int) -> None:
        """A local step was taken."""
        self._learnt += tokens

    def note_missed(self, n_means: int) -> None:
        """Others had means that this node was not in: slow weights came from a peer with so many.

        In pairs: no partner came.
        """
        self._missed += max(0, n_means)

    def begin(self, fragment: int) -> None:
        """A fragment's pseudo-gradient is taken now."""
        self._viewed[fragment] = self._learnt, self._missed

    def merged(self, fragment: int) -> None:
        """What was taken is in the mean."""
        if fragment in self._viewed:
            self._given[fragment] = self._viewed.pop(fragment)

    def drop(self, n_fragments: int) -> None:
        """What was learnt is in no model any more."""
        self._viewed.clear()
        self._given = dict.fromkeys(range(n_fragments), (self._learnt, self._missed))

    def weight(self, fragment: int, n_fragments: int = 1) -> float:
        """Return what a fragment counts that was taken just now."""
        learnt, missed = self._given.get(fragment, (0, 0))
        rounds_behind = (self._missed - missed) / n_fragments
        return max(_WEIGHT_MIN, (self._learnt - learnt) * staleness_weight(rounds_behind))
