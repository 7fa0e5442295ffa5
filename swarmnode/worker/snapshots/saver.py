"""When snapshots are taken, and the thread that writes them while training goes on.

One is written at a time. The loop is held up for as long as one copy of the state takes; files,
hashes and ``fsync`` are the thread's, and they run without the interpreter's lock.

Where the strategy allows it, large tensors are not even copied: the thread reads them in passing,
part by part, while local steps go on. So such a snapshot is not of one step but of those that were
taken while it was written, as if each part of the model had been left a few steps earlier or later;
a node that goes on from it draws other batches anyhow. Merges wait meanwhile: slow weights, their
momentum and lineage are of one moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from swarmnode import limits
from swarmnode.errors import StorageError
from swarmnode.ipc.control import SnapshotFailed, SnapshotSaved
from swarmnode.strategies.parts import StatePart
from swarmnode.worker.model.state import TrainState
from swarmnode.worker.snapshots.snapshot import SnapshotStore, Taken

Report = SnapshotSaved | SnapshotFailed


def _nothing() -> None:
    """No merge is under way."""


@dataclass(frozen=True)
class _Written:
    """How a write went, and when it was over."""

    result: Path | StorageError
    ended_s: float


@dataclass(frozen=True)
class _Save:
    """A snapshot that is being written."""

    request: int
    step: int
    began_s: float
    written: Future[_Written]
    in_passing: bool


class Saver:
    """Saves when asked and every so often: the rarer, the longer it takes.

    Owns: one thread; as a context manager it waits for the write that is under way.
    """

    def __init__(
        self,
        store: SnapshotStore,
        send: Callable[[Report], None],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``send`` tells the daemon how a save went; it may raise DaemonGone."""
        self._monotonic = monotonic
        self._store = store
        self._send = send
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="snapshot")
        self._save: _Save | None = None
        self._request = 0  # the newest that no save has begun for; 0: none
        self._tried_step = self._saved_step = 0
        self.write_s = 0.0  # from taking the last one until it was durable
        self.next_s = self._monotonic() + period_s(self.write_s)

    @property
    def is_busy(self) -> bool:
        """Whether a snapshot was asked for, or is being written."""
        return bool(self._request) or self._save is not None

    @property
    def is_reading(self) -> bool:
        """Whether the state is being read in passing: only local steps may change it."""
        save = self._save
        return save is not None and save.in_passing and not save.written.done()

    def wait_read(self) -> None:
        """Return when nothing is read in passing any more."""
        if self._save is not None:
            wait([self._save.written])

    def ask(self, request: int) -> None:
        """Have a snapshot taken as soon as none is being written; it answers all requests."""
        self._request = request

    def save_when_due(
        self,
        state: TrainState,
        strategy: StatePart,
        *,
        last: bool,
        settle: Callable[[], None] = _nothing,
        in_passing: bool = False,
    ) -> None:
        """Say how a write went, and begin another when asked or due; returns at once.

        Args:
            last: there will be no further step; what was learnt since is saved now.
            settle: called before the state is copied, to bring merges to their end.
            in_passing: nothing but local steps will change the state while :attr:`is_reading`.

        Raises:
            DaemonGone: the daemon has closed the channel.
        """
        if self._save is not None:
            if not self._save.written.done():
                return
            self._send(self._end(self._save))
        is_due = self._monotonic() >= self.next_s and state.step != self._saved_step
        if self._request or is_due or (last and state.step != self._tried_step):
            settle()
            self._begin(state, strategy, in_passing=in_passing)

    def finish(self, state: TrainState, strategy: StatePart) -> None:
        """Save a last time, after what is being written, and then say how all that went.

        Raises:
            DaemonGone: the daemon has closed the channel; the snapshot is on disk all the same.
        """
        reports = [] if self._save is None else [self._end(self._save)]
        reports.append(self._end(self._begin(state, strategy, in_passing=True)))
        for report in reports:
            self._send(report)

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._thread.shutdown(wait=True)

    def _begin(self, state: TrainState, strategy: StatePart, *, in_passing: bool) -> _Save:
        request, self._request = self._request, 0
        self._tried_step = state.step
        began_s = self._monotonic()
        written: Future[_Written] = Future()
        try:
            taken = self._store.take(state, strategy, in_passing=in_passing)
        except StorageError as error:
            written.set_result(_Written(error, self._monotonic()))
        else:
            written = self._thread.submit(self._write, taken)
        self._save = _Save(request, state.step, began_s, written, in_passing)
        return self._save

    def _write(self, taken: Taken) -> _Written:
        result: Path | StorageError
        try:
            result = self._store.write(taken)
        except StorageError as error:
            result = error
        return _Written(result, self._monotonic())

    def _end(self, save: _Save) -> Report:
        """Wait for a write; return what to say of it. A full disk does not end training."""
        self._save = None
        written = save.written.result()
        self.write_s = written.ended_s - save.began_s
        self.next_s = save.began_s + period_s(self.write_s)
        if isinstance(written.result, StorageError):
            message = str(written.result)
            return SnapshotFailed(request=save.request, step=save.step, message=message)
        self._saved_step = save.step
        return SnapshotSaved(request=save.request, step=save.step, path=str(written.result))


def period_s(write_s: float) -> float:
    """Return how long after one snapshot the next one begins, if it takes so long to write."""
    wanted_s = max(write_s / limits.SNAPSHOT_TIME_SHARE_MAX, limits.SNAPSHOT_PERIOD_S_MIN)
    return min(wanted_s, limits.SNAPSHOT_PERIOD_S_MAX)
