"""What runs on Trio for every room: sans-IO cores, tasks of a part, several jobs on one stream.

A core is fed with :meth:`CoreDriver.feed` from any task; its effects are
handed to ``carry_out`` in order before ``feed`` returns. ``carry_out`` must
not wait: what takes time is started in a nursery by the caller that passed it.
It may feed the core: such an event is handled after the effects before it.

A part that hears of sessions hears of them before it runs and after it has ended, too. Its
:class:`Tasks` are there from the beginning, and say whether it runs; a nursery would not be.

Several jobs on one stream: the first that fails ends all, and its error comes out as it is.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

import trio

from swarmnode.errors import InvariantViolation, SwarmNodeError
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
        self._sleeps_until = math.inf
        self._events: deque[EventT] = deque()  # bounded: what one batch of effects feeds
        self._is_settling = False

    def feed(self, event: EventT) -> None:
        """Hand one event to the core and carry out what follows.

        Raises what the core raises for it; an event that an effect feeds is handled later.
        """
        self._events.append(event)
        try:
            self._settle()
        finally:
            self._wake_if_needed()

    async def run(self) -> None:
        """Keep the core's deadlines until cancelled."""
        while True:
            deadline = self._core.next_deadline()
            self._sleeps_until = math.inf if deadline is None else deadline
            with trio.move_on_after(max(0.0, self._sleeps_until - self._now())):
                await self._wake.wait()
            self._wake = trio.Event()
            now = self._now()
            deadline = self._core.next_deadline()
            if deadline is not None and deadline <= now:
                self._core.handle_deadline(now)
                self._settle()

    def _wake_if_needed(self) -> None:
        """End the sleep of :meth:`run` if something is due earlier than it knows.

        Most events change nothing about that, and waking costs more than asking.
        """
        if not self._wake.is_set() and not self._is_settling:
            deadline = self._core.next_deadline()
            if deadline is not None and deadline < self._sleeps_until:
                self._wake.set()

    def _settle(self) -> None:
        """Handle waiting events one by one, each after all effects of the one before."""
        if self._is_settling:
            return
        self._is_settling = True
        try:
            self._carry_out_all()
            while self._events:
                self._core.handle(self._events.popleft(), self._now())
                self._carry_out_all()
        finally:
            self._is_settling = False

    def _carry_out_all(self) -> None:
        for effect in self._core.poll_effects():
            self._carry_out(effect)


class Tasks:
    """The tasks of one part of the node.

    Attributes:
        are_open: whether the part runs, and wants new tasks.
    """

    def __init__(self) -> None:
        self.are_open = False
        self._nurseries: list[trio.Nursery] = []  # the newest last; a part runs once at a time

    @asynccontextmanager
    async def open(self) -> AsyncIterator[trio.Nursery]:
        """Let tasks be started until the end of the block, which waits for them as a nursery does.

        So the body of the block lasts as long as the part runs. After it, tasks that go on may
        start others, and nothing else should.
        """
        async with trio.open_nursery() as nursery:
            self._nurseries = [nursery]
            self.are_open = True
            try:
                yield nursery
            finally:
                self.are_open = False

    def start_soon(self, job: Callable[..., Awaitable[Any]], *args: object) -> None:
        """Start a task. Raises InvariantViolation if the part has never run."""
        self._newest().start_soon(job, *args)

    def start_while_open(self, job: Callable[..., Awaitable[Any]], *args: object) -> None:
        """Start a task if the part runs, else drop it.

        For effects of a core: they come as long as it is fed, so also before the part runs and
        while it ends.
        """
        if self.are_open:
            self._newest().start_soon(job, *args)

    async def start(self, job: Callable[..., Awaitable[Any]], *args: object) -> Any:
        """Start a task and return what it reports when it is up, as ``trio.Nursery.start``.

        Raises InvariantViolation if the part has never run. Checkpoint: yes.
        """
        return await self._newest().start(job, *args)

    def _newest(self) -> trio.Nursery:
        if not self._nurseries:
            raise InvariantViolation("expected a part of the node to run before it starts tasks")
        return self._nurseries[-1]


async def run_concurrently(*jobs: Callable[[], Awaitable[None]]) -> None:
    """Run jobs until all of them have ended.

    Raises:
        SwarmNodeError: of the job that failed first; the others are cancelled. A nursery alone
            would wrap it in a group, and every caller would have to unwrap it.
    """
    failures: list[SwarmNodeError] = []
    async with trio.open_nursery() as nursery:

        async def guard(job: Callable[[], Awaitable[None]]) -> None:
            try:
                await job()
            except SwarmNodeError as error:
                failures.append(error)
                nursery.cancel_scope.cancel()

        for job in jobs:
            nursery.start_soon(guard, job)
    if failures:
        raise failures[0]
