"""A worker as the daemon sees it: what it needs of one, and its messages and slots.

It is a process, or a fake of one::

    async with start_worker(configure) as link:      # sends Configure, and Stop at the end
        message = await link.receive()               # WorkerReady, then whatever comes

A slot that ``SlotReady`` announced is the daemon's until it sends Apply or Release for it. Its two
halves are what the worker gives, and room for what comes.

Messages and slots of one worker, whichever process runs it: a socket, a segment, and their rules.

A worker that breaks the contract has crashed, as far as the daemon is concerned.

Questions to a worker that it answers, which are those about merges, are here as well, and what its
silence means.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import trio

from swarmnode import limits
from swarmnode.errors import (
    DeadlineExceeded,
    MalformedMessage,
    SpecMismatch,
    WorkerCrashed,
    WorkerError,
)
from swarmnode.ipc.control import (
    Apply,
    Configure,
    FromWorker,
    GiveShare,
    MergeFailed,
    MergeWeighed,
    PostedIntent,
    Progress,
    Release,
    ShareGiven,
    SlotReady,
    ToWorker,
    WeighMerge,
    WorkerFailed,
    WorkerReady,
    decode_from_worker,
    encode_message,
)
from swarmnode.ipc.segment import Owner, Segment, StaleSlot

# Of a worker that has not said why it ends; its kind is none of FAILURE_KINDS.
SAID_NOTHING = WorkerFailed(kind="", message="")
_LONGEST_KEPT = 2  # of a worker's pauses


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
        """Return the bytes of a slot that is the daemon's: [2, payload_numel] numbers, writable.

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

    def next_pause_s(self, now: float) -> float:
        """Take a restart from the budget: the seconds to wait, infinite if it is spent."""
        window_begin = now - limits.WORKER_RESTARTS_WINDOW_S
        self._restarts = [when for when in self._restarts if when > window_begin]
        recent = len(self._restarts)
        if recent >= limits.WORKER_RESTARTS_MAX:
            return math.inf
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
        self._payload_numel, self._value_bytes = 0, 4
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

    async def receive(self) -> FromWorker:
        """Return the next message.

        Raises:
            trio.EndOfChannel: there will be no more.
            WorkerCrashed: it broke the contract.
        """
        while len(self._inbox) < (end := self._next_end()):
            try:
                data = await self._stream.receive_some(_READ_BYTES)
            except trio.BrokenResourceError:
                data = b""  # it has died, which is no other end than hanging up
            if not data:
                raise trio.EndOfChannel
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
            self._value_bytes = message.value_bytes
            words = message.value_bytes // 4  # a segment counts in float32
            said = (2 * words * message.payload_numel, message.slots)
            if said != (self._segment.numel, self._segment.slots):
                raise SpecMismatch(f"the segment differs from what {message} says")
        elif isinstance(message, PostedIntent):
            if message.numel > self._payload_numel:
                raise SpecMismatch(
                    f"an intent of {message.numel} numbers, half a slot has {self._payload_numel}"
                )
            if any(view.value_bytes != self._value_bytes for view in message.views):
                raise SpecMismatch(
                    f"an intent of other numbers than those of {self._value_bytes} bytes in slots"
                )
        elif isinstance(message, SlotReady):
            self._segment.check(message.slot, message.generation, Owner.DAEMON)


Answer = ShareGiven | MergeWeighed | MergeFailed


class MergeDesk:
    """Asks the worker about merges, one thing at a time; see ``worker/exchange/merges.py``.

    Args:
        post: sends to the worker. It may raise WorkerError and Overloaded.
    """

    def __init__(self, post: Callable[[ToWorker], None]) -> None:
        self._post = post
        self._requests = 0
        self._waiting: dict[int, trio.MemorySendChannel[Answer]] = {}  # by request

    async def give_share(self, rule: str, path: Path, deadline_s: float) -> ShareGiven:
        """Have the worker write its share of a merge.

        Raises:
            WorkerError: there is no worker, it could not, or it died over it.
            DeadlineExceeded: it took longer than ``deadline_s``.
        """
        answer = await self._ask(GiveShare(self._next(), rule, str(path)), deadline_s)
        assert isinstance(answer, ShareGiven), answer
        return answer

    async def weigh(
        self, rule: str, path: Path, n: int, folder: Path | None, deadline_s: float
    ) -> MergeWeighed:
        """Have the worker make the merged model; ``path`` is the mean over ``n`` shares.

        Raises:
            WorkerError, DeadlineExceeded: as above.
        """
        where = str(folder) if folder is not None else ""
        message = WeighMerge(self._next(), rule, str(path), n, where)
        answer = await self._ask(message, deadline_s)
        assert isinstance(answer, MergeWeighed), answer
        return answer

    def take(self, answer: Answer) -> None:
        """The worker answers."""
        if answer.request in self._waiting:
            self._waiting.pop(answer.request).send_nowait(answer)

    def worker_gone(self) -> None:
        """It died: no answer comes."""
        for request in list(self._waiting):
            self.take(MergeFailed(request, "the worker died over it"))

    def _next(self) -> int:
        self._requests += 1
        return self._requests

    async def _ask(self, message: GiveShare | WeighMerge, deadline_s: float) -> Answer:
        send, receive = trio.open_memory_channel[Answer](1)
        self._waiting = {message.request: send}
        self._post(message)
        with trio.move_on_after(deadline_s):
            answer = await receive.receive()
            if isinstance(answer, MergeFailed):
                raise WorkerError(f"no merge: {answer.message}")
            return answer
        self._waiting.clear()
        raise DeadlineExceeded("waiting for the worker to merge models", deadline_s)


class SilenceWatch:
    """Notices a worker that takes no steps, as it says nothing; once for each silence.

    One that hangs is ended after WORKER_SILENCE_S, and that has to be long, as what is ended loses
    the steps since its last snapshot. Long before that the others should know: who is said to train
    counts in the majority that a round needs, and is waited for.

    What takes long and comes again is no silence: between two steps a worker may look at a probe,
    or have its owner's code do so. The second longest pause of its life so far is what it is
    known to take; the longest alone may have been a silence.

    Where the daemon stood still itself, nothing came of its worker either: that is one, too, and
    tells nothing of what its worker takes, however often a machine is suspended.

    Args:
        on_silent: told for how many seconds nothing was said.
    """

    def __init__(self, on_silent: Callable[[float], None]) -> None:
        self._on_silent = on_silent
        self._heard_at = 0.0
        self._due_at = math.inf  # the next look
        self.worker_gone()

    def worker_gone(self) -> None:
        """The next worker has said nothing yet."""
        self._is_silent = self._has_stood_still = False
        self._allowed_s = math.inf  # until it is past its first, slow step
        self._longest_s = [0.0] * _LONGEST_KEPT

    def heard(self, progress: Progress) -> bool:
        """It lives, and says how long its steps take: return whether that ends a silence."""
        self._look()
        was_silent, self._is_silent = self._is_silent, False
        now = trio.current_time()
        if math.isfinite(self._allowed_s) and not self._has_stood_still:
            heapq.heappushpop(self._longest_s, now - self._heard_at)
        self._heard_at, self._has_stood_still = now, False
        if not math.isnan(progress.loss):
            usual_s = max(progress.step_time_s, self._longest_s[0])
            self._allowed_s = max(limits.WORKER_QUIET_S, limits.WORKER_QUIET_STEPS * usual_s)
        return was_silent

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self._due_at = trio.current_time() + limits.WORKER_PROGRESS_S
            await trio.sleep_until(self._due_at)
            self._look()

    def _look(self) -> None:
        now = trio.current_time()
        self._has_stood_still |= now - self._due_at > limits.WORKER_QUIET_S
        since_s = now - self._heard_at
        if since_s > self._allowed_s and not self._is_silent:
            self._is_silent = True
            self._on_silent(since_s)
