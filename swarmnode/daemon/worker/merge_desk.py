"""Questions to the worker about merges, and its answers; see ``worker/exchange/merges.py``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import trio

from swarmnode.errors import DeadlineExceeded, WorkerError
from swarmnode.ipc.control import (
    GiveShare,
    MergeFailed,
    MergeWeighed,
    ShareGiven,
    ToWorker,
    WeighMerge,
)

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
