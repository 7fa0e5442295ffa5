"""The only way to the disk: durable writes, bounded reads, the lock on a home, the history.

What is written here is either there whole after a crash or not there at all: temporary file,
``fsync``, rename, ``fsync`` of the directory. The history is the exception: it is appended to
without ``fsync``, so a power failure may cost its last lines, and never more than that.

All calls block for as long as the disk does; a Trio caller uses a thread where that matters.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from swarmnode import limits
from swarmnode.errors import ConfigError, CorruptRecord, Refused, StorageError, StorageFull

# One exchange is about 300 bytes: 16 MiB is a day of one exchange every 1.5 s, and a second
# such file is kept.
_HISTORY_FILE_BYTES_MAX = 16 * limits.MIB
HISTORY_LINE_BYTES_MAX = 64 * limits.KIB
# A temporary file this old was left by a crash: nothing that we write takes an hour.
STALE_TEMPORARY_S = 3600.0

_TEMPORARY_SUFFIX = ".swarmnode-tmp"
# The mode of a directory whose name may be lost yet, as its maker was killed before the sync: who
# finds it syncs it. For one user's directory the sticky bit means nothing; macOS drops it.
_NOT_YET_DURABLE = 0o1700
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def make_private_dir(path: Path) -> None:
    """Make a directory that only its owner can enter; one that exists keeps its mode.

    What is made survives a power failure: else what is synced in it could be nowhere.

    Raises:
        StorageError: It cannot be made, or something else has this name.
    """
    with storage_errors(path, "make the directory"):
        if path.is_dir() and not _is_marked(path):
            return
        make_private_dir(path.parent)
        path.mkdir(mode=_NOT_YET_DURABLE, exist_ok=True)
        with undone(path.rmdir):  # or the next caller finds it, and does not sync its name
            sync_directory(path.parent)
        if _is_marked(path):
            path.chmod(0o700)


def _is_marked(path: Path) -> bool:
    return path.stat().st_mode & 0o7777 == _NOT_YET_DURABLE


def read_file(path: Path, *, bytes_max: int, secret: bool = False) -> bytes:
    """Return a whole file.

    Raises:
        FileNotFoundError: There is none.
        ConfigError: It is ``secret`` and others than its owner can use it.
        CorruptRecord: It is larger than anything that we write there.
        StorageError: The system does not let us.
    """
    with storage_errors(path, "read", may_be_absent=True), path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode & 0o777
        if secret and mode & 0o077:
            raise ConfigError(
                f"the secret file {path} can be used by others (mode {mode:04o}): chmod 600 {path}"
            )
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise CorruptRecord(
            f"{path}: expected at most {bytes_max} bytes, this file is larger", path=str(path)
        )
    return data


def write_atomic(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace a file; when this returns, the new content survives a power failure.

    Raises:
        StorageFull: No space is left; the old content is there, or the new one.
        StorageError: The system does not let us; the same.
    """
    with storage_errors(path, "write"), _written_temporary(path, data, mode) as temporary:
        temporary.replace(path)
        sync_directory(path.parent)


def write_new(path: Path, data: bytes) -> bool:
    """Like :func:`write_atomic`, but never replace: return False if the file exists already.

    Either way what is there survives a power failure.
    """
    with storage_errors(path, "write"), _written_temporary(path, data, 0o600) as temporary:
        try:
            path.hardlink_to(temporary)
        except FileExistsError:
            sync_directory(path.parent)  # which of two was first may not have come so far
            return False
        with undone(path.unlink):  # or the next caller finds it, and takes it for durable
            sync_directory(path.parent)
    return True


class IncomingFile:
    """A file that arrives piece by piece; it appears at its path only when it is complete."""

    def __init__(self, path: Path) -> None:
        """Begin to write beside ``path``. Raises StorageError."""
        self._path = path
        self._temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{_TEMPORARY_SUFFIX}")
        with storage_errors(path, "write"):
            self._fd = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)

    def write(self, data: memoryview) -> None:
        """Append. Raises StorageFull, StorageError."""
        with storage_errors(self._path, "write"):
            write_all(self._fd, data)

    def commit(self) -> None:
        """Make it durable and visible. Raises StorageFull, StorageError."""
        with storage_errors(self._path, "write"):
            os.fsync(self._fd)
            self._temporary.replace(self._path)
            sync_directory(self._path.parent)

    def __enter__(self) -> IncomingFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
        with contextlib.suppress(OSError):  # it has its name, or a later start removes it
            self._temporary.unlink()


class HomeLock:
    """Held by the one daemon of a home, from construction to :meth:`close`.

    The kernel drops it when the process ends, however it ends.
    """

    def __init__(self, path: Path) -> None:
        """Take the lock, and remove what writers left behind in a crash.

        Raises:
            Refused: Another process holds it; the message names its pid.
            StorageError: The lock file cannot be opened.
        """
        make_private_dir(path.parent)
        with storage_errors(path, "open"):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self._acquire(path)
            with storage_errors(path.parent, "clean"):
                _remove_stale_temporaries(path.parent, now_s=os.fstat(self._fd).st_mtime)
            undo.pop_all()

    def _acquire(self, path: Path) -> None:
        with storage_errors(path, "lock"):
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip()
                raise Refused(
                    f"another swarmnode (pid {holder or 'unknown'}) already runs on this home, "
                    f"{path.parent}: stop it, or choose another with --home"
                ) from error
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode("ascii"), 0)

    def close(self) -> None:
        """Let the next daemon in. The file stays: removing it would race with that one."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> HomeLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class HistoryFile:
    """JSON lines, appended for ever in bounded space: ``path`` and the older ``path.1``."""

    def __init__(self, path: Path, *, bytes_max: int = _HISTORY_FILE_BYTES_MAX) -> None:
        """Open for appending; a line that a crash cut short is closed off, not continued.

        Raises:
            StorageError: The file cannot be opened.
        """
        self._path = path
        self._bytes_max = bytes_max
        self._fd: int
        self._size_bytes: int
        self._open()

    def append(self, entry: Mapping[str, Any]) -> None:
        """Write one line.

        Raises:
            StorageFull: No space is left; nothing of the line remains.
            StorageError: The line is longer than a reader accepts, or the disk fails.
        """
        line = json.dumps(entry, separators=(",", ":"), sort_keys=True).encode("ascii") + b"\n"
        if len(line) > HISTORY_LINE_BYTES_MAX:
            raise StorageError(
                f"{self._path}: a line has at most {HISTORY_LINE_BYTES_MAX} bytes, "
                f"this one has {len(line)}"
            )
        if self._size_bytes and self._size_bytes + len(line) > self._bytes_max:
            self._rotate()
        self._write(line)

    def last(self, most_bytes: int) -> list[dict[str, Any]]:
        """Return the last entries, oldest first; a damaged line is passed over."""
        begin = max(0, self._size_bytes - most_bytes)
        with storage_errors(self._path, "read"):
            lines = os.pread(self._fd, most_bytes, begin).splitlines()
        entries = map(_parse_line, lines[1:] if begin else lines)
        return [entry for entry in entries if entry is not None]

    def close(self) -> None:
        """Stop appending."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        with storage_errors(self._path, "open"):
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            self._size_bytes = os.fstat(self._fd).st_size
            torn = self._size_bytes and os.pread(self._fd, 1, self._size_bytes - 1) != b"\n"
        if torn:
            self._write(b"\n")

    def _rotate(self) -> None:
        full = self._fd
        # Not there: an earlier try moved it, and found no room for a new one.
        with storage_errors(self._path, "rotate"), contextlib.suppress(FileNotFoundError):
            self._path.replace(_older(self._path))
        self._open()
        os.close(full)

    def _write(self, data: bytes) -> None:
        with storage_errors(self._path, "append to"):
            try:
                write_all(self._fd, data)
            except OSError:
                os.ftruncate(self._fd, self._size_bytes)  # a full disk takes half a line first
                raise
        self._size_bytes += len(data)


def read_history(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of a history, oldest first; a damaged line is passed over.

    Raises:
        StorageError: A file is there and cannot be read.
    """
    for part in (_older(path), path):
        with (
            contextlib.suppress(FileNotFoundError),
            storage_errors(part, "read", may_be_absent=True),
            part.open("rb") as file,
        ):
            while line := file.readline(HISTORY_LINE_BYTES_MAX):
                entry = _parse_line(line)
                if entry is not None:
                    yield entry


def _parse_line(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):  # torn by a crash, or zeros that a power failure left
        return None
    return entry if isinstance(entry, dict) else None


def _older(path: Path) -> Path:
    return path.with_name(path.name + ".1")


@contextlib.contextmanager
def _written_temporary(path: Path, data: bytes, mode: int) -> Iterator[Path]:
    """Write and sync a new file beside ``path``; it is gone when the block ends."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{_TEMPORARY_SUFFIX}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        try:
            write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write every byte, however many calls that takes. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def write_at(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write every byte at a place, however many calls that takes. Raises OSError."""
    view = memoryview(data)
    while view:
        n_bytes = os.pwrite(fd, view, offset)
        view, offset = view[n_bytes:], offset + n_bytes


def sync_data(fd: int) -> None:
    """Make what was written durable, and of what a file is only its size. Raises OSError."""
    # macOS has no such call.
    (os.fdatasync if hasattr(os, "fdatasync") else os.fsync)(fd)


def reserve(fd: int, size_bytes: int) -> None:
    """Take room on the disk for a file that has this size. Raises OSError: there is none."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size_bytes)
        return
    free = os.fstatvfs(fd)  # macOS
    if free.f_bavail * free.f_frsize < size_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def sync_directory(path: Path) -> None:
    """Make renames, links and removals in a directory durable. Raises OSError."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def undone(undo: Callable[[], object]) -> Iterator[None]:
    """Take a step back if what must follow it fails."""
    try:
        yield
    except OSError:
        with contextlib.suppress(OSError):
            undo()
        raise


def _remove_stale_temporaries(directory: Path, *, now_s: float) -> None:
    """Remove what a crash left; a recent one may belong to a command that runs right now."""
    for path in directory.glob(f".*{_TEMPORARY_SUFFIX}"):
        with contextlib.suppress(FileNotFoundError):  # such a command has just ended
            if path.lstat().st_mtime < now_s - STALE_TEMPORARY_S:
                path.unlink()


@contextlib.contextmanager
def storage_errors(path: Path, verb: str, *, may_be_absent: bool = False) -> Iterator[None]:
    """Turn what the system says into one line that says what to do."""
    try:
        yield
    except OSError as error:
        if may_be_absent and isinstance(error, FileNotFoundError):
            raise
        if error.errno in _DISK_FULL:
            raise StorageFull(
                f"cannot {verb} {path}: no space is left there ({error.strerror}): "
                "free some, or move the home and set SWARMNODE_HOME"
            ) from error
        raise StorageError(f"cannot {verb} {path}: {error.strerror}") from error
