"""When the loop steps: the strategy's time, and the rests that keep a share of the machine.

Time t of a strategy is one unit a local step. Its Poisson clock rings by the time that steps take
at full speed: where a strategy asks for a pace below 1, the node rests between its steps, and more
rings come to each of them. Whatever rings is served between two steps.

The owner may let training have a share of the machine only. On a CPU it is the time of all threads
of this process that counts, whatever they do: steps, merges, evaluation. On a GPU it is the time
that steps take.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator

import torch

from swarmnode import limits
from swarmnode.strategies.parts import ClockPart
from swarmnode.worker.model.device import Device

# Rings of a strategy's clock that are made up for: it rings while an intent waits for a neighbour.
CLOCK_RINGS_MAX = 8

# A worker that uses more than its share rests at once; one that was starved catches up this much.
_CPU_SHARE_BURST_S = 0.5

# Less than this, of the CPU, is not rested for: to look for messages takes a part of a millisecond.
# A rest that pays for each look before the next step is followed by looks, and by no step.
_NO_REST_S = 0.005


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
        self._step_s = self._whole_rest_s = 0.0
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
        self._whole_rest_s = seconds * (1 / pace - 1)
        self._rest_begin_s = self._now()
        self._rest_end_s = self._rest_begin_s + self._whole_rest_s

    def current(self) -> float:
        """Return t, and while the node rests a part of the unit until the next step."""
        rest_s = self.rest_s()
        if not self._whole_rest_s:
            return self.t
        return self.t + 1 - min(1.0, rest_s / self._whole_rest_s)

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
        if not rate or self.rings >= CLOCK_RINGS_MAX:  # a message wakes it before another ring
            return rest_s
        return min(rest_s, self._until_ring / rate * self._step_s)

    def _advance(self, duration: float) -> None:
        """Let the clock ring as often as it does within ``duration``, in steps at full speed."""
        self._until_ring -= self._strategy.clock_rate() * duration
        while self._until_ring <= 0:
            self._until_ring += self._rng.expovariate(1.0)
            self.rings = min(self.rings + 1, CLOCK_RINGS_MAX)


class Pauses:
    """How long the loop is held up between two steps by views and merges, which are in pieces.

    Attributes:
        spent_s: since the last step began.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._began_s = 0.0
        self.spent_s = 0.0
        self._ended_s: list[float] = []

    @contextlib.contextmanager
    def measured(self, *, is_training: bool) -> Iterator[None]:
        """Count what is done within; where no step waits for it, it is no pause."""
        self._began_s = self._now()
        try:
            yield
        finally:
            if is_training:
                self.spent_s += self._now() - self._began_s

    def is_over(self) -> bool:
        """Whether what is done within :meth:`measured` is to wait for the next boundary."""
        return self.spent_s + self._now() - self._began_s >= limits.STEP_PAUSE_S

    def begin_step(self) -> None:
        """The next step begins: what held it up was one pause."""
        if self.spent_s:
            self._ended_s.append(self.spent_s)
        self.spent_s = 0.0

    def take(self) -> list[float]:
        """Return the pauses since this was asked last."""
        ended_s, self._ended_s = self._ended_s, []
        return ended_s


class MachineShare:
    """Says how long to rest so that no more than ``share`` of ``threads`` is used.

    Args:
        threads: what all of it would be; 1 for a GPU.
        by_steps: count the time of steps, not the time of the CPU.
    """

    def __init__(
        self,
        threads: int,
        *,
        by_steps: bool = False,
        cpu_s: Callable[[], float] = time.process_time,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.share = 1.0
        self._threads = 1 if by_steps else threads
        self._by_steps = by_steps
        self._cpu_s, self._now = cpu_s, now
        self._steps_s = 0.0
        self._left_s = 0.0  # of what may be used; negative: more was used
        self._looked_at_s = self._used_s = 0.0

    def keep(self, share: float) -> None:
        """Use at most this share from now on; 1 is all."""
        self.share = min(1.0, share)
        self._left_s = 0.0
        self._looked_at_s, self._used_s = self._now(), self._usage_s()

    def note_step(self, seconds: float) -> None:
        """A step took so long."""
        self._steps_s += seconds

    def rest_s(self) -> float:
        """Return how long not to step; 0: go on."""
        if self.share >= 1:
            return 0.0
        rate = self.share * self._threads
        now, used_s = self._now(), self._usage_s()
        self._left_s += rate * (now - self._looked_at_s) - (used_s - self._used_s)
        self._left_s = min(self._left_s, rate * _CPU_SHARE_BURST_S)
        self._looked_at_s, self._used_s = now, used_s
        return -self._left_s / rate if -self._left_s > _NO_REST_S else 0.0

    def _usage_s(self) -> float:
        return self._steps_s if self._by_steps else self._cpu_s()


def share_of(device: Device) -> MachineShare:
    """Return what keeps a share of the device that training runs on, all of it so far."""
    is_cpu = device.torch_device.type == "cpu"
    return MachineShare(torch.get_num_threads(), by_steps=not is_cpu)
