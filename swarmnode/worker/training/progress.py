"""Where the swarm is, as its worker knows it between two tellings of the daemon."""

from __future__ import annotations

import time
from collections.abc import Callable

from swarmnode import limits
from swarmnode.ipc.control import SwarmProgress
from swarmnode.ipc.lr_schedule import Horizon


class SwarmCount:
    """Counts the tokens of the whole swarm: own ones exactly, the others' at the pace last told.

    What it returns never falls, so that no schedule goes back: where it was ahead, it waits.

    Attributes:
        is_known: whether the daemon has said anything yet.
        horizon: where training ends.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.is_known = False
        self.horizon = Horizon()
        self._now = now
        self._told = SwarmProgress(0.0, 0.0, 0, 0, 1.0)
        self._told_at_s = 0.0
        self._furthest = 0.0

    def tell(self, message: SwarmProgress) -> None:
        """Take what the daemon says."""
        self.is_known = True
        self.horizon = Horizon(message.target_tokens, message.resumed_tokens)
        self._told, self._told_at_s = message, self._now()

    def tokens(self, own_tokens: int) -> float:
        """Return how far the swarm is, with what this worker has trained itself."""
        told = self._told
        since_s = min(self._now() - self._told_at_s, limits.SWARM_PROGRESS_AHEAD_S)
        others = told.others_tokens + told.others_per_s * since_s if self.is_known else 0.0
        self._furthest = max(self._furthest, others + own_tokens + told.lost_tokens)
        return self._furthest

    def members(self, tokens: float) -> float:
        """Return how many train where the swarm is at ``tokens``: of one that comes, a part."""
        told = self._told
        since = max(0.0, tokens - told.at_tokens)
        return told.members + min(1.0, told.members_per_token * since)

    def is_at_target(self, own_tokens: int) -> bool:
        """Whether all that was to be trained has been, by what members have really said."""
        counted = self._told.others_counted + own_tokens + self._told.lost_tokens
        return self.horizon.is_reached(counted)
