"""A journal: records appended one after the other, that survive a crash at any moment.

::

    file    = magic (16 bytes), record*
    record  = length u32, sequence u64, crc32 u32, payload        little-endian
    crc32   over length, sequence and payload; sequence counts from 1 without gaps

What was synced is there after a crash. The rest may be there or not, and the first record
that is not exactly what was written ends the journal: everything from there on is saved
beside it as ``NAME.torn-N`` (the last few) and cut off, never guessed at; a file that is none
from its first byte is set aside whole. A crash can only
tear what was not synced; a bad record before that is a dying disk, and is named as damage.

:meth:`Journal.rotate` writes a new generation that holds a snapshot instead of the history:
temporary file, fsync, rename, fsync of the directory. There is one valid file at any moment.

An fsync that fails is final: the kernel may have dropped the pages and would report success
the next time (Rebello et al., "Can applications recover from fsync failures?", 2020). The
journal refuses everything from then on; a new start reads what is really there. A full disk
is not: the half-written record is cut off again and the next append may work.

All calls block for as long as the disk does; a Trio caller uses a thread where that matters.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from swarmnode import limits
from swarmnode.errors import Refused, StorageError
from swarmnode.store.files import (
    make_private_dir,
    read_file,
    storage_errors,
    sync_directory,
    write_all,
    write_atomic,
)

# One record of a journal: the largest is a record of shared state and its framing.
JOURNAL_RECORD_BYTES_MAX = 64 * limits.KIB
# Below this a new generation is not worth its three fsyncs.
JOURNAL_ROTATE_BYTES_MIN = 1 * limits.MIB

_MAGIC = b"swarmnode-jrnl\x01\n"
_HEADER = struct.Struct("<IQI")
_TORN_KEPT = 3


@dataclass(frozen=True)
class Recovery:
    """What was found when a journal was opened."""

    records: tuple[bytes, ...]
    cut_bytes: int = 0  # of the tail that was cut off
    saved_as: Path | None = None  # where that tail is now
    reason: str = ""  # what was wrong with its first record


@dataclass(frozen=True)
class JournalStatistics:
    """Sizes now, and counts since it was opened."""

    size_bytes: int
    records: int
    synced_records: int
    rotations_total: int


class Journal:
    """An open journal. One process has it open at a time; the kernel sees to that."""

    def __init__(self, path: Path) -> None:
        """Open or make it, cut a torn tail off, and read what it holds (``recovered``).

        Raises:
            CorruptRecord: the file is larger than a journal becomes.
            Refused: another process has it open.
            StorageFull, StorageError: the disk does not let us.
        """
        self._path = path
        self._failed = False
        self._rotations = self._size_bytes = self._synced_bytes = self._records = self._synced = 0
        self._fd = -1
        make_private_dir(path.parent)
        self._lock = _take_lock(path)
        with ExitStack() as undo:
            undo.callback(self.close)
            data = self._read()
            payloads, end, reason = _parse(data)
            self.recovered = self._cut(data, payloads, end, reason)
            self._open(records=len(payloads))
            # What we found may have been only in the kernel's memory, and so may its name.
            self.sync()
            with storage_errors(path, "sync"):
                sync_directory(path.parent)
            undo.pop_all()

    def let_go(self) -> None:
        """Hold what was recovered no longer: it may be megabytes, and was taken in."""
        self.recovered = Recovery(())

    def append(self, payload: bytes) -> int:
        """Write one record; return its sequence. Durable only after :meth:`sync`.

        Raises:
            StorageFull: no space is left; nothing of the record remains.
            StorageError: the payload or the journal is too large, or the disk failed.
        """
        self._check_usable()
        record = _frame(self._records + 1, payload)
        if self._size_bytes + len(record) > limits.JOURNAL_BYTES_MAX:
            raise StorageError(
                f"{self._path}: a journal has at most {limits.JOURNAL_BYTES_MAX} bytes: "
                "it must be rotated before it gets there"
            )
        with storage_errors(self._path, "append to"):
            try:
                write_all(self._fd, record)
            except OSError:
                self._take_back()
                raise
        self._records += 1
        self._size_bytes += len(record)
        return self._records

    def sync(self) -> int:
        """Make all that was appended durable; return the last sequence: it is acknowledged.

        Raises:
            StorageError: the disk failed; the journal takes no more.
        """
        self._check_usable()
        with storage_errors(self._path, "sync"):
            try:
                os.fsync(self._fd)
            except OSError:
                self._failed = True
                # Processes still read it, and no later fsync brings it to the disk: the next
                # start would take it for durable.
                with suppress(OSError):
                    os.ftruncate(self._fd, self._synced_bytes)
                raise
        self._synced, self._synced_bytes = self._records, self._size_bytes
        return self._synced

    def needs_rotation(self, snapshot_bytes: int) -> bool:
        """Whether it has grown to four times what a snapshot would take."""
        return self._size_bytes > max(JOURNAL_ROTATE_BYTES_MIN, 4 * snapshot_bytes)

    def rotate(self, payloads: Iterable[bytes]) -> None:
        """Begin a new generation that holds these records, all of them durable.

        Raises:
            StorageFull, StorageError: the old generation goes on; if the new one was in
                place already and could not be made durable or opened, the journal is closed.
        """
        self._check_usable()
        parts = [_MAGIC]
        parts += [_frame(sequence, payload) for sequence, payload in enumerate(payloads, start=1)]
        data = b"".join(parts)
        if len(data) > limits.JOURNAL_BYTES_MAX:
            raise StorageError(
                f"{self._path}: a snapshot of {len(data)} bytes, "
                f"at most {limits.JOURNAL_BYTES_MAX} are allowed"
            )
        try:
            write_atomic(self._path, data)
            old = self._fd
            self._open(records=len(parts) - 1)
            os.close(old)
        except StorageError:
            self._failed = not self._is_in_place()
            raise
        self._rotations += 1

    def statistics(self) -> JournalStatistics:
        """Return sizes and counts."""
        return JournalStatistics(self._size_bytes, self._records, self._synced, self._rotations)

    def close(self) -> None:
        """Let go of the file. What was not synced may or may not survive a power failure."""
        for fd in (self._fd, self._lock):
            if fd >= 0:
                os.close(fd)
        self._fd = self._lock = -1

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- inside -----------------------------------------------------------------------------

    def _read(self) -> bytes:
        try:
            return read_file(self._path, bytes_max=limits.JOURNAL_BYTES_MAX)
        except FileNotFoundError:
            write_atomic(self._path, _MAGIC)
            return _MAGIC

    def _cut(self, data: bytes, payloads: tuple[bytes, ...], end: int, reason: str) -> Recovery:
        """Save what follows ``end`` aside and cut it off, in this order."""
        if end < len(_MAGIC):
            saved_as = _save_aside(self._path, data)
            write_atomic(self._path, _MAGIC)
            return Recovery((), len(data), saved_as, reason)
        if end == len(data):
            return Recovery(payloads)
        saved_as = _save_aside(self._path, data[end:])
        with storage_errors(self._path, "cut"):
            fd = os.open(self._path, os.O_WRONLY)
            try:
                os.ftruncate(fd, end)  # made durable before anything is said of it
            finally:
                os.close(fd)
        return Recovery(payloads, len(data) - end, saved_as, reason)

    def _open(self, *, records: int) -> None:
        with storage_errors(self._path, "open"):
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND)
            try:
                size_bytes = os.fstat(fd).st_size
            except OSError:
                os.close(fd)
                raise
        self._fd, self._size_bytes, self._synced_bytes = fd, size_bytes, size_bytes
        self._records = self._synced = records

    def _is_in_place(self) -> bool:
        """Whether what we append to is still what a restart will read."""
        try:
            return os.path.samestat(os.fstat(self._fd), self._path.stat())
        except OSError:
            return False

    def _take_back(self) -> None:
        """Cut off what an append that failed has left; if even that fails, stop."""
        try:
            os.ftruncate(self._fd, self._size_bytes)
        except OSError:
            self._failed = True

    def _check_usable(self) -> None:
        if self._failed or self._fd < 0:
            raise StorageError(
                f"{self._path}: the journal is closed"
                + (" because the disk failed: restart to read what is there" * self._failed)
            )


def _frame(sequence: int, payload: bytes) -> bytes:
    if len(payload) > JOURNAL_RECORD_BYTES_MAX:
        raise StorageError(
            f"a journal record has at most {JOURNAL_RECORD_BYTES_MAX} bytes, "
            f"this one has {len(payload)}"
        )
    return _HEADER.pack(len(payload), sequence, _checksum(sequence, payload)) + payload


def _checksum(sequence: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(struct.pack("<IQ", len(payload), sequence)))


def _parse(data: bytes) -> tuple[tuple[bytes, ...], int, str]:
    """Return the payloads, where the valid part ends (exclusive), and what is wrong there."""
    if not data.startswith(_MAGIC):
        return (), 0, f"expected a journal of swarmnode, the file begins with {data[:16]!r}"
    payloads: list[bytes] = []
    end = len(_MAGIC)
    while end < len(data):
        if len(data) - end < _HEADER.size:
            return tuple(payloads), end, "the file ends within a header"
        length, sequence, checksum = _HEADER.unpack_from(data, end)
        if length > JOURNAL_RECORD_BYTES_MAX:
            return tuple(payloads), end, f"a record of {length} bytes"
        start = end + _HEADER.size
        if length > len(data) - start:
            return tuple(payloads), end, "the file ends within a record"
        payload = data[start : start + length]
        if _checksum(sequence, payload) != checksum:
            return tuple(payloads), end, f"the checksum of record {len(payloads) + 1} is wrong"
        if sequence != len(payloads) + 1:
            reason = f"record {sequence} where {len(payloads) + 1} was expected"
            return tuple(payloads), end, reason
        payloads.append(payload)
        end = start + length
    return tuple(payloads), end, ""


def _save_aside(path: Path, tail: bytes) -> Path:
    """Keep the last few tails for a person who wants to know what happened."""
    with storage_errors(path, "read beside"):
        taken = sorted(path.parent.glob(f"{path.name}.torn-*"), key=_torn_number)
    number = _torn_number(taken[-1]) + 1 if taken else 1
    saved_as = path.with_name(f"{path.name}.torn-{number}")
    write_atomic(saved_as, tail)
    with storage_errors(path, "clean beside"):
        for old in taken[: max(0, len(taken) + 1 - _TORN_KEPT)]:
            old.unlink(missing_ok=True)
    return saved_as


def _torn_number(path: Path) -> int:
    number = path.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def _take_lock(path: Path) -> int:
    """Lock a file beside the journal: the journal itself is replaced when it is rotated."""
    lock = path.with_name(path.name + ".lock")
    with storage_errors(lock, "open"):
        fd = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        with storage_errors(lock, "lock"):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except StorageError as error:
        os.close(fd)
        if isinstance(error.__cause__, BlockingIOError):
            raise Refused(f"another process has the journal {path} open: stop it first") from error
        raise
    return fd
