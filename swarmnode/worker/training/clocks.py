"""The strategy's time: when it steps, when its Poisson clock rings, and how long it rests.

Time t is one unit a local step. The clock rings by the time that steps take at full speed: where
a strategy asks for a pace below 1, the node rests between its steps, and more rings come to each
of them. Whatever rings is served between two steps.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from swarmnode import limits
from swarmnode.strategies.parts import ClockPart

# Rings of a strategy's clock that are made up for: it rings while an intent waits for a neighbour.
CLOCK_RINGS_MAX = 8


class Clocks:
    """Borrows: the strategy, asked for its rate and its pace after each step.

    Attributes:
        t: local steps since this life of the worker began.
        rings: how often the clock has rung and was not served yet; bounded.
    """

    def __init__(
        self,
        strategy: ClockPart,
        rng: random.Random,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._strategy, self._rng, self._now = strategy, rng, now
        self.t = 0.0
        self.rings = 0
        self._until_ring = rng.expovariate(1.0)  # in units of clock_rate() times time
        self._step_s = 0.0
        self._rest_begin_s = self._rest_end_s = 0.0

    def begin_step(self) -> float:
        """Let time go on by a step; return t."""
        self.t += 1
        return self.t

    def end_step(self, seconds: float) -> None:
        """A step took so long: see how long to rest for it."""
        self._advance(1.0)
        pace = self._strategy.pace()
        self._step_s = seconds
        self._rest_begin_s = self._now()
        self._rest_end_s = self._rest_begin_s + seconds * (1 / pace - 1)

    def rest_s(self) -> float:
        """Return how long to wait before the next step; 0: none. The clock goes on meanwhile."""
        if not self._rest_end_s:
            return 0.0
        now = min(self._now(), self._rest_end_s)
        if now > self._rest_begin_s:
            self._advance((now - self._rest_begin_s) / self._step_s)
        self._rest_begin_s = now
        return self._rest_end_s - now

    def nap_s(self) -> float:
        """Return how long there is nothing to do but to listen: until a step or a ring."""
        rest_s = min(self.rest_s(), limits.WORKER_IDLE_POLL_S)
        rate = self._strategy.clock_rate()
        return min(rest_s, self._until_ring / rate * self._step_s) if rate else rest_s

    def _advance(self, duration: float) -> None:
        """Let the clock ring as often as it does within ``duration``, in steps at full speed."""
        self._until_ring -= self._strategy.clock_rate() * duration
        while self._until_ring <= 0:
            self._until_ring += self._rng.expovariate(1.0)
            self.rings = min(self.rings + 1, CLOCK_RINGS_MAX)
