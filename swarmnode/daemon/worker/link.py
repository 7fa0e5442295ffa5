"""What the daemon needs of a worker, whether it is a process or a fake of one.

::

    async with start_worker(configure) as link:      # sends Configure, and Stop at the end
        message = await link.receive()               # WorkerReady, then whatever comes

A slot that ``SlotReady`` announced is the daemon's until it sends Apply or Release for it. Its two
halves are what the worker gives, and room for what comes.
"""

from __future__ import annotations

import random
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from swarmnode import limits
from swarmnode.ipc.control import Configure, FromWorker, ToWorker


class WorkerLink(Protocol):
    """One running worker. One task sends, one receives."""

    @property
    def pid(self) -> int | None:
        """The process, if it is one."""

    async def send(self, message: ToWorker) -> None:
        """Send a message; Apply and Release make their slot the worker's.

        A worker that has gone is reported by :meth:`receive` only. Checkpoint: yes.

        Raises:
            StaleSlot: the slot of an Apply or Release is not the daemon's.
        """

    async def receive(self) -> FromWorker:
        """Return the next message. Checkpoint: yes.

        Raises:
            WorkerCrashed: the process has ended; the message says why.
            WorkerHung: it was silent for too long, and has been ended.
        """

    def slot_view(self, slot: int, generation: int) -> memoryview:
        """Return the bytes of a slot that is the daemon's: float32 [2, payload_numel], writable.

        The memory stays valid, if meaningless, when the worker dies.

        Raises:
            StaleSlot: the slot is the worker's, or has been claimed again since.
        """


class StartWorker(Protocol):
    """Starts a worker; it is told ``configure`` first and Stop when the block is left."""

    def __call__(self, configure: Configure) -> AbstractAsyncContextManager[WorkerLink]:
        """Return the context that the worker lives in."""


class RestartBudget:
    """How long to wait before another worker is started, and when to stop trying.

    Exponential backoff with full jitter; a few deaths in a short time spend the budget.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._restarts: list[float] = []

    def next_pause_s(self, now: float) -> float | None:
        """Take a restart from the budget: the seconds to wait, or None if it is spent."""
        window_begin = now - limits.WORKER_RESTARTS_WINDOW_S
        self._restarts = [when for when in self._restarts if when > window_begin]
        recent = len(self._restarts)
        if recent >= limits.WORKER_RESTARTS_MAX:
            return None
        self._restarts.append(now)
        ceiling_s = min(limits.WORKER_BACKOFF_S_MAX, limits.WORKER_BACKOFF_S_MIN * 2**recent)
        return self._rng.uniform(0, ceiling_s)
