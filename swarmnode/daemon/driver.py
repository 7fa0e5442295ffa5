"""The one Trio driver that runs every sans-IO core.

A core is fed with :meth:`CoreDriver.feed` from any task; its effects are
handed to ``carry_out`` in order before ``feed`` returns. ``carry_out`` must
not wait: what takes time is started in a nursery by the one who passed it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import trio

from swarmnode.protocol.core import Core

EventT = TypeVar("EventT")
EffectT = TypeVar("EffectT")


class CoreDriver(Generic[EventT, EffectT]):
    """Feeds one core, carries out its effects, and keeps its one timer."""

    def __init__(
        self,
        core: Core[EventT, EffectT, Any],
        carry_out: Callable[[EffectT], None],
        *,
        now: Callable[[], float],
    ) -> None:
        self._core = core
        self._carry_out = carry_out
        self._now = now
        self._wake = trio.Event()
        self._draining = False

    def feed(self, event: EventT) -> None:
        """Hand one event to the core and carry out what follows."""
        self._core.handle(event, self._now())
        self._drain()
        self._wake.set()

    async def run(self) -> None:
        """Keep the core's deadlines until cancelled."""
        self._drain()
        while True:
            deadline = self._core.next_deadline()
            seconds = math.inf if deadline is None else deadline - self._now()
            with trio.move_on_after(max(0.0, seconds)):
                await self._wake.wait()
            self._wake = trio.Event()
            now = self._now()
            deadline = self._core.next_deadline()
            if deadline is not None and deadline <= now:
                self._core.handle_deadline(now)
            self._drain()

    def _drain(self) -> None:
        if self._draining:
            return  # an effect fed the core again: the loop below takes its effects too
        self._draining = True
        try:
            while effects := self._core.poll_effects():
                for effect in effects:
                    self._carry_out(effect)
        finally:
            self._draining = False
