"""How many local steps a node takes in a round, so that stragglers do not hold the others up.

A round lasts as long as the fastest live member needs for the most steps; every other member takes
as many as fit, and at least the fewest::

    steps = clip(floor(round_s / own step_s), fewest, most)         round_s = most · min step_s

Sources: B. Liu et al., "Asynchronous Local-SGD training for language modeling", 2024 (DyLU);
Z. Li et al., "FedCompass", 2024 (the bounds on steps). Deviation: no server plans; each node fits
itself to what all members say of their speed. A lie costs at most what the bounds allow: no node
takes fewer than the fewest steps. What a node with fewer steps counts: strategies/contributions.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from swarmnode import limits
from swarmnode.errors import ConfigError

# So many local steps tell how long one takes. Where workers share cores ten steps vary twofold; the
# fastest of the moment, as it was when it said so, would shorten the rounds of all others to a
# third, and each round costs its bytes.
_STEPS_MEASURED = 64
# A call is heard when a local step ends: one step of the slowest, which may take a quarter longer.
_CALL_STEPS = 1.25


class Pacer:
    """Measures this node's steps and fits its rounds to those of the others."""

    def __init__(self, most: int, fewest: int) -> None:
        """``most``, ``fewest``: local steps of a round. Raises ConfigError: not 1 to most."""
        if not 1 <= fewest <= most:
            raise ConfigError(f"expected 1 <= fewest <= most steps, got {fewest} and {most}")
        self.most, self._fewest = most, fewest
        self.step_s = 0.0  # a smoothed measure; 0: no step yet
        self._n_measured = 0

    def note_step(self, seconds: float) -> None:
        """Take note of a local step."""
        self._n_measured = min(self._n_measured + 1, _STEPS_MEASURED)
        self.step_s += (seconds - self.step_s) / self._n_measured

    def round_s(self, peers_step_s: Iterable[float]) -> float:
        """Return how long a round is to last; ``peers_step_s`` as they say, 0: unknown."""
        known = [step_s for step_s in (self.step_s, *peers_step_s) if step_s > 0]
        return self.most * min(known, default=0.0)

    def steps(self, peers_step_s: Iterable[float]) -> int:
        """Return the local steps of this node's next round."""
        if not self.step_s:
            return self.most
        # A step that just fits may be measured a hair too long.
        fitting = math.floor(self.round_s(peers_step_s) / self.step_s * (1 + 1e-9))
        return min(max(fitting, self._fewest), self.most)

    def call_s(self, peers_step_s: Iterable[float]) -> float:
        """Return how long a member that is called may take to come: a step of the slowest.

        No longer than for one that needs 1 / PACING_FEWEST_SHARE times as long for a step as the
        fastest: a slower one comes when it can. 0: no step is known.
        """
        known = [step_s for step_s in (self.step_s, *peers_step_s) if step_s > 0]
        slowest = min(known, default=0.0) / limits.PACING_FEWEST_SHARE
        return _CALL_STEPS * min(max(known, default=0.0), slowest)

    def told_steps(self, peers_step_s: Iterable[float]) -> int:
        """Return them as the worker is told: all, if it can take PACING_EQUAL_SHARE of them."""
        steps = self.steps(peers_step_s)
        return self.most if steps >= limits.PACING_EQUAL_SHARE * self.most else steps


def pacer_of(round_steps: int) -> Pacer:
    """Return the pacer of rounds that have so many steps by the settings, at least one."""
    return Pacer(round_steps, max(1, int(limits.PACING_FEWEST_SHARE * round_steps)))
