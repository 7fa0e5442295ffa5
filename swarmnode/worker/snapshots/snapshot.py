"""The snapshots of a node: taken between two steps, written beside them, the newest few kept.

What is in one is the business of ``atoms.py`` beside this; how it gets into a node again, that of
``restore.py``. No state of a random generator is kept: a resumed run seeds itself from its shard
and its step.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import select
import time
from dataclasses import dataclass
from pathlib import Path

from swarmnode import limits
from swarmnode.errors import CorruptRecord, SpecMismatch, StorageError
from swarmnode.strategies.parts import StatePart
from swarmnode.tensor.snapshot_format import (
    FETCHED_NAME,
    About,
    find_snapshots,
    read_header,
    snapshot_name,
)
from swarmnode.worker.model.state import TrainState
from swarmnode.worker.snapshots.atoms import MODEL, about, atoms
from swarmnode.worker.snapshots.restore import load_snapshot
from swarmnode.worker.snapshots.tensorfile import (
    NEVER_LIVE,
    HostBuffer,
    HostCopy,
    storage_errors,
    write_copy,
)

# Copies of smaller tensors are little beside a process, and as they were at one step.
_LIVE_BYTES_MIN = 2**22
# A worker that was told to go saves for as long as WORKER_TERMINATE_S before it is killed.
_SNAPSHOT_LOCK_WAIT_S = 15.0

_log = logging.getLogger(__name__)
_DAMAGED_NAME, _WHY_NAME = "damaged.safetensors", "damaged.txt"
_LOCK_POLL_S = 0.05


@dataclass(frozen=True)
class Taken:
    """The state after one step, in memory of its own."""

    copy: HostCopy
    about: About
    trained: frozenset[str]  # names of the tensors that must be finite


class SnapshotStore:
    """The snapshots in one directory, which no other process may write meanwhile.

    Owns: a lock, which the kernel drops when the process ends, however it ends; and the one
    piece of memory that snapshots are taken into. Where the directory cannot be used, because
    the disk is full for example, each write says so and tries again.
    """

    def __init__(
        self,
        directory: Path,
        *,
        lock_wait_s: float = _SNAPSHOT_LOCK_WAIT_S,
        live_bytes_min: int = _LIVE_BYTES_MIN,
    ) -> None:
        """Take the lock, and remove what a crash left half-written.

        ``live_bytes_min``: of a tensor that is read in passing, where that is allowed.

        Raises:
            StorageError: another worker holds the lock for too long.
        """
        self._directory = directory
        self._live_bytes_min = live_bytes_min
        self._buffer = HostBuffer()
        self.unfit = ""  # why what was fetched from a peer was put aside
        self._lock = -1
        try:
            self._prepare(lock_wait_s)
        except OSError as error:
            _log.warning("cannot use %s: %s", directory, error.strerror)

    def close(self) -> None:
        """Let another worker write here."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> SnapshotStore:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def take(self, state: TrainState, strategy: StatePart, *, in_passing: bool = False) -> Taken:
        """Copy the state; it must be written before the next one is taken.

        Args:
            in_passing: large tensors are not copied, but read while they are written, be it that
                local steps are taken meanwhile; nothing else may change them until then.

        Raises:
            StorageError: it cannot be copied.
        """
        own = atoms(state, strategy)
        whole = state.gathered(own)
        # What is brought together from other processes is a copy already.
        is_live = in_passing and whole is own
        copy = self._buffer.copy(whole, self._live_bytes_min if is_live else NEVER_LIVE)
        trained = frozenset(MODEL + name for name in state.arena.names)
        return Taken(copy, about(state), trained)

    def write(self, taken: Taken) -> Path:
        """Write a snapshot, durable on return, and forget the oldest. May run in any thread.

        Raises:
            StorageFull, StorageError: it was not written; those before it are kept.
        """
        path = self._directory / snapshot_name(taken.about.step)
        with storage_errors(path, "write"):
            self._prepare(lock_wait_s=0.0)
        write_copy(path, taken.copy, taken.about, finite=taken.trained)
        for old in self.paths()[limits.SNAPSHOTS_KEPT :]:
            old.unlink(missing_ok=True)
        return path

    def save(self, state: TrainState, strategy: StatePart) -> Path:
        """Take and write a snapshot. Raises as both do."""
        return self.write(self.take(state, strategy))

    def restore(self, state: TrainState, strategy: StatePart) -> bool:
        """Bring ``state`` to the newest snapshot that is good; False if there is none.

        One that was fetched after our own were written comes first: we were away for long. Our
        own counts go on all the same.

        Raises:
            SpecMismatch: a snapshot of our own is of another model.
            StorageError: the disk fails, and no other snapshot could be read.
        """
        unreadable: StorageError | None = None
        for path in self._fetched_first_if_newer():
            try:
                load_snapshot(path, state, strategy)
                if path.name == FETCHED_NAME:
                    self._restore_counts(state)
            except CorruptRecord as error:
                self._set_aside(path, error)
            except StorageError as error:
                _log.warning("%s; trying the one before it", error)
                unreadable = error
            except SpecMismatch as error:
                if path.name != FETCHED_NAME:
                    raise
                self._set_aside(path, error)  # a peer's mistake is no reason to give up
            else:
                _log.info("going on from %s", path)
                return True
        if unreadable is not None:
            raise unreadable
        return False

    def _fetched_first_if_newer(self) -> list[Path]:
        paths = self.paths()
        fetched = [path for path in paths if path.name == FETCHED_NAME]
        own = [path for path in paths if path.name != FETCHED_NAME]
        if fetched and own and fetched[0].stat().st_mtime > own[0].stat().st_mtime:
            return fetched + own
        return own + fetched

    def _restore_counts(self, state: TrainState) -> None:
        """Take how far we were from our own newest snapshot, whatever its tensors are like."""
        for path in self.paths():
            if path.name == FETCHED_NAME:
                continue
            with contextlib.suppress(CorruptRecord, OSError), path.open("rb") as file:
                told = read_header(file, path).about
                state.step, state.tokens = told.step, told.tokens
                return

    def paths(self) -> list[Path]:
        """Return the snapshots that are there, newest first."""
        return [path for _, path in find_snapshots(self._directory)]

    def _prepare(self, lock_wait_s: float) -> None:
        """Make the directory and take the lock, unless that was done. Raises as both do."""
        if self._lock >= 0:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        # Beside the directory: people look for snapshots inside, and find nothing else.
        beside = self._directory.with_name(self._directory.name + ".lock")
        self._lock = _locked(beside, lock_wait_s)
        for temporary in self._directory.glob("snapshot-*.tmp"):
            temporary.unlink(missing_ok=True)

    def _set_aside(self, path: Path, error: Exception) -> None:
        """Keep the last useless file, and why, for a person to look at, where it counts no more."""
        if path.name == FETCHED_NAME:
            self.unfit = str(error)
        _log.warning("%s; trying the one before it, this one is now %s", error, _DAMAGED_NAME)
        try:
            path.replace(path.with_name(_DAMAGED_NAME))
            path.with_name(_WHY_NAME).write_text(f"{error}\n")
        except OSError as failure:
            _log.warning("cannot rename %s: %s", path, failure.strerror)


def _locked(path: Path, wait_s: float) -> int:
    """Return a descriptor that holds the lock. Raises OSError, StorageError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    until = time.monotonic() + wait_s
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, descriptor)
        while not _try_lock(descriptor):
            if time.monotonic() >= until:
                raise StorageError(
                    f"another worker writes snapshots: it has held {path} for {wait_s:g} s; "
                    "end that one first"
                )
            select.select([], [], [], _LOCK_POLL_S)  # it may be the last one, still saving
        undo.pop_all()
    return descriptor


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True
