"""What exchanges of every kind need of the worker: slots, lent for one intent at a time.

::

    intent -> IntentHandler.intent_posted
    borrow -> BufferLease -> apply | give_back     or   NoLease -> drop

The trainer is the lessor. Kinds of exchange know no worker, and the trainer knows no network.

Questions to the worker about merges, and its answers; see ``worker/exchange/merges.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import trio

from swarmnode.errors import DeadlineExceeded, WorkerError
from swarmnode.ipc.control import (
    GiveShare,
    MergeFailed,
    MergeWeighed,
    Partner,
    PostedIntent,
    ShareGiven,
    ToWorker,
    WeighMerge,
)
from swarmnode.tensor.magnitude import UNKNOWN, Scale


class NoLease(WorkerError):
    """The worker does not lend: the message begins with a code of ``wire/exchange/gossip.py``."""


@dataclass(frozen=True, eq=False)
class BufferLease:
    """A slot of the worker, as it was at local step ``step``; until it is applied or given back.

    Attributes:
        own: writable bytes of the own views: float32 [intent.numel], in their order.
        room: writable bytes for what comes, of the same size; of a gathering all that there is.
        weights: how large the worker's weights are.
    """

    intent: PostedIntent
    slot: int
    generation: int
    own: memoryview
    room: memoryview
    step: int
    tokens: int
    weights: Scale = UNKNOWN


class Lessor(Protocol):
    """Lends slots. Every lease ends in exactly one apply or give_back."""

    async def borrow(
        self, intent: PostedIntent, partner: Partner | None = None, round_number: int | None = None
    ) -> BufferLease:
        """Return a slot with the views of ``intent``, taken at the next step boundary.

        Args:
            intent: one that the worker made, an answer too.
            partner: who offered or accepted; None in a group.
            round_number: the partner's, for an answer.

        Cancelled, it gives back what still comes. Checkpoint: yes.

        Raises:
            NoLease: the worker refuses or has gone, or the intent has been replaced.
        """

    def apply(
        self,
        lease: BufferLease,
        xid: bytes,
        partner: Partner | None = None,
        present: tuple[bytes, ...] = (),
    ) -> bool:
        """Let the worker merge a committed exchange; False if the worker of the lease is gone."""

    def give_back(self, lease: BufferLease, why: str) -> None:
        """End a lease of which nothing came. Nothing happens if its worker is gone."""

    def drop(self, intent: PostedIntent, why: str) -> None:
        """Tell the worker that nothing came of an intent that no slot was lent for."""


class IntentHandler(Protocol):
    """One kind of exchange."""

    def intent_posted(self, intent: PostedIntent) -> None:
        """Serve this intent as soon as can be; it replaces one of the same tag and fragment."""

    def worker_gone(self) -> None:
        """Forget every intent and lease: their worker is dead."""

    def partners_changed(self) -> None:
        """There may be a peer to exchange with."""


Answer = ShareGiven | MergeWeighed | MergeFailed


class MergeDesk:
    """Asks one thing at a time.

    Args:
        post: sends to the worker. It may raise WorkerError and Overloaded.
    """

    def __init__(self, post: Callable[[ToWorker], None]) -> None:
        self._post = post
        self._requests = 0
        self._waiting: trio.MemorySendChannel[Answer] | None = None

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
        if answer.request == self._requests and self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            waiting.send_nowait(answer)

    def worker_gone(self) -> None:
        """It died: no answer comes."""
        self.take(MergeFailed(self._requests, "the worker died over it"))

    def _next(self) -> int:
        self._requests += 1
        return self._requests

    async def _ask(self, message: GiveShare | WeighMerge, deadline_s: float) -> Answer:
        send, receive = trio.open_memory_channel[Answer](1)
        self._waiting = send
        self._post(message)
        with trio.move_on_after(deadline_s):
            answer = await receive.receive()
            if isinstance(answer, MergeFailed):
                raise WorkerError(f"no merge: {answer.message}")
            return answer
        self._waiting = None
        raise DeadlineExceeded("waiting for the worker to merge models", deadline_s)
