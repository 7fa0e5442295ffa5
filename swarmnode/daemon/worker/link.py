"""A worker as the daemon sees it: what it needs of one, and its messages and slots.

It is a process, or a fake of one::

    async with start_worker(configure) as link:      # sends Configure, and Stop at the end
        message = await link.receive()               # WorkerReady, then whatever comes

A slot that ``SlotReady`` announced is the daemon's until it sends Apply or Release for it. Its two
halves are what the worker gives, and room for what comes.

Messages and slots of one worker, whichever process runs it: a socket, a segment, and their rules.

A worker that breaks the contract has crashed, as far as the daemon is concerned.
"""

from __future__ import annotations

import random
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import trio

from swarmnode import limits
from swarmnode.errors import MalformedMessage, SpecMismatch, WorkerCrashed
from swarmnode.ipc.control import (
    Apply,
    Configure,
    FromWorker,
    PostedIntent,
    Release,
    SlotReady,
    ToWorker,
    WorkerReady,
    decode_from_worker,
    encode_message,
)
from swarmnode.ipc.segment import Owner, Segment, StaleSlot


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


_READ_BYTES = 64 * limits.KIB
_LENGTH_BYTES = 4


class WorkerWire:
    """The daemon's end. Owns: the stream; borrows the segment."""

    def __init__(self, stream: trio.SocketStream, segment: Segment) -> None:
        self._stream = stream
        self._segment = segment
        self._inbox = bytearray()
        self._payload_numel = 0
        self.is_sending = False  # also for ever, if a message was cut off

    async def send(self, message: ToWorker) -> None:
        """Send a message; see ``WorkerLink``."""
        if isinstance(message, Apply | Release):
            self._segment.hand_over(message.slot, message.generation, Owner.WORKER)
        self.is_sending = True
        try:
            await self._stream.send_all(encode_message(message))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # it has died: receive() says so, with the reason
        self.is_sending = False

    async def receive(self) -> FromWorker | None:
        """Return the next message, or None when there will be no more.

        Raises:
            WorkerCrashed: it broke the contract.
        """
        while len(self._inbox) < (end := self._next_end()):
            try:
                data = await self._stream.receive_some(_READ_BYTES)
            except trio.BrokenResourceError:
                return None
            if not data:
                return None
            self._inbox += data
        body = bytes(self._inbox[_LENGTH_BYTES:end])
        del self._inbox[:end]
        try:
            message = decode_from_worker(body)
            self._check(message)
        except (MalformedMessage, SpecMismatch, StaleSlot) as error:
            raise WorkerCrashed(f"the worker broke the contract: {error}") from error
        return message

    def slot_view(self, slot: int, generation: int) -> memoryview:
        """Return the bytes of a slot that is the daemon's; see ``WorkerLink``."""
        self._segment.check(slot, generation, Owner.DAEMON)
        return self._segment.slot_view(slot)

    async def aclose(self) -> None:
        """Hang up."""
        await self._stream.aclose()

    def reclaim(self) -> None:
        """Take all slots away from a worker that is gone."""
        self._segment.reclaim_all()

    def _next_end(self) -> int:
        """Return where the first message in the inbox ends, or the most that is worth reading."""
        if len(self._inbox) < _LENGTH_BYTES:
            return _LENGTH_BYTES
        length = int.from_bytes(self._inbox[:_LENGTH_BYTES], "little")
        return _LENGTH_BYTES + min(length, limits.MESSAGE_BYTES_MAX)

    def _check(self, message: FromWorker) -> None:
        """Check what a message says against the segment. Raises SpecMismatch, StaleSlot."""
        if isinstance(message, WorkerReady):
            self._segment.map()
            self._payload_numel = message.payload_numel
            said = (2 * message.payload_numel, message.slots)
            if said != (self._segment.numel, self._segment.slots):
                raise SpecMismatch(f"the segment differs from what {message} says")
        elif isinstance(message, PostedIntent):
            if message.numel > self._payload_numel:
                raise SpecMismatch(
                    f"an intent of {message.numel} numbers, half a slot has {self._payload_numel}"
                )
        elif isinstance(message, SlotReady):
            self._segment.check(message.slot, message.generation, Owner.DAEMON)
