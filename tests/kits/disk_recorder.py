"""Stands under `os` and `open` for one folder: writes down what is changed, and lets calls fail."""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarmnode.testing.disk import (
    ROOT_NODE,
    BytesWritten,
    Disk,
    Event,
    FileResized,
    ModeChanged,
    NamesChanged,
    NodeMade,
    NodeSynced,
    Told,
)

_OPEN, _CLOSE, _WRITE, _PWRITE = os.open, os.close, os.write, os.pwrite
_LINK, _MKDIR, _CHMOD = os.link, os.mkdir, os.chmod
_BUILTIN_OPEN = builtins.open


DEATH = 0  # instead of what a call fails with: the process is killed before it


class Killed(BaseException):
    """The process under test is no more: nothing that it still tries reaches the disk."""


@dataclass(frozen=True)
class Fault:
    """The ``nth`` call that can fail like this does; all after it, too, if it ``lasts``."""

    nth: int
    code: int
    lasts: bool = False


# What a full disk refuses: the rest needs no space.
_GROWS = frozenset({"create", "write", "fsync", "rename", "mkdir"})


class Recorder:
    """Writes down what happens in a folder while it is :meth:`attached`."""

    def __init__(self, root: Path, fault: Fault | None = None) -> None:
        """Take what is in ``root`` as durable."""
        self.events: list[Event] = []
        self.calls = 0  # that could have failed
        self.has_failed = False  # any of them, healed or not
        self.disk = Disk()
        self._fault = fault
        self._is_full = False
        self._root = f"{root}/"
        self._fds: dict[int, int] = {}
        self._take(root, ROOT_NODE)
        for event in self.events:
            self.disk.apply(event)
        for number, node in [*self.disk.nodes.items()]:
            if node.is_folder:
                self._say(NodeSynced(number))
        self.n_taken = len(self.events)  # the first of them, of what was there

    @property
    def is_faulty(self) -> bool:
        """Whether a call has failed."""
        return self._fault is not None and self.calls >= self._fault.nth

    def heal(self) -> None:
        """Let all calls succeed from now on."""
        self._fault = None
        self._is_full = False

    def tell(self, fact: Any) -> None:
        """Note what the program under test says, between what it does."""
        self.events.append(Told(fact))

    @contextmanager
    def attached(self) -> Iterator[Recorder]:
        """Stand under `os` and `open`."""
        places: list[tuple[Any, str, Callable[..., Any]]] = [
            (os, name, call) for name, call in self._calls().items()
        ]
        places += [(io, "open", self._open_file), (builtins, "open", self._open_file)]
        before = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
        try:
            for owner, name, call in places:
                setattr(owner, name, call)
            yield self
        finally:
            for owner, name, call in before:
                setattr(owner, name, call)

    # --- inside -----------------------------------------------------------------------------

    def _take(self, folder: Path, number: int) -> None:
        for path in sorted(folder.iterdir()):
            node = len(self.events) + 1
            data = b"" if path.is_dir() else path.read_bytes()
            mode = path.stat().st_mode & 0o777
            self.events.append(NodeMade(node, mode, path.is_dir(), data))
            self.events.append(NamesChanged((((number, path.name), node),)))
            if path.is_dir():
                self._take(path, node)

    def _say(self, event: Event) -> None:
        self.events.append(event)
        self.disk.apply(event)

    def _make(self, at: tuple[int, str], mode: int, *, is_folder: bool = False) -> int:
        node = len(self.events) + 1
        self._say(NodeMade(node, mode, is_folder))
        self._say(NamesChanged(((at, node),)))
        return node

    def _may_fail(self, kind: str) -> None:
        """Count a call. Raises OSError, Killed: it is the one that fails."""
        fault = self._fault
        if fault is not None and fault.code == errno.ENOSPC and kind not in _GROWS:
            return
        self.calls += 1
        lasts = fault is not None and (fault.lasts or fault.code == DEATH)
        if fault is not None and (self.calls == fault.nth or (lasts and self.calls > fault.nth)):
            self.has_failed = True
            if fault.code == DEATH:
                raise Killed
            raise OSError(fault.code, os.strerror(fault.code))

    def _find(self, path: Any, dir_fd: int | None = None) -> tuple[int, str] | None:
        """Return the folder and the name that a path is, None if it is elsewhere."""
        if isinstance(path, int):
            return None
        text = os.fsdecode(path)
        folder = ROOT_NODE
        if dir_fd is not None:
            if dir_fd not in self._fds:
                return None
            folder = self._fds[dir_fd]
        elif f"{text}/".startswith(self._root):
            text = text[len(self._root) :]
        else:
            return None
        *outer, name = text.rstrip("/").split("/")
        for each in outer:
            folder = self.disk.tree.get((folder, each), -1)
        return folder, name

    def _calls(self) -> dict[str, Callable[..., Any]]:
        changing: dict[str, Callable[..., Any]] = {
            "open": self._open,
            "close": self._close,
            "write": self._write,
            "pwrite": self._pwrite,
            "sendfile": _Refused(os.sendfile, self._fds),
            "truncate": self._resizing(os.truncate),
            "ftruncate": self._resizing(os.ftruncate),
            "posix_fallocate": self._allocate,
            "fsync": self._fsync,
            "fdatasync": self._fsync,
            "replace": self._renaming(os.replace),
            "rename": self._renaming(os.rename),
            "link": self._link,
            "unlink": self._removing(os.unlink),
            "remove": self._removing(os.remove),
            "rmdir": self._removing(os.rmdir),
            "mkdir": self._mkdir,
            "chmod": self._chmod,
        }
        looking = ("read", "pread", "preadv", "stat", "lstat", "fstat", "scandir", "listdir")
        return changing | {name: self._looking(getattr(os, name)) for name in looking}

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        at = self._find(path, dir_fd)
        if at is None:
            return _OPEN(path, flags, mode, dir_fd=dir_fd)
        known = ROOT_NODE if at == (ROOT_NODE, "") else self.disk.tree.get(at)
        self._may_fail("create" if flags & os.O_CREAT and known is None else "open")
        fd = _OPEN(path, flags, mode, dir_fd=dir_fd)
        node = self._make(at, mode) if known is None else known
        self._fds[fd] = node
        if flags & os.O_TRUNC:
            self._say(FileResized(node, 0))
        return fd

    def _open_file(self, path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if self._find(path) is None:
            return _BUILTIN_OPEN(path, mode, *arguments, **options)
        assert "b" in mode, "stores read and write bytes"
        raw = _File(self._open(os.fspath(path), _FLAGS[mode], 0o666), mode)
        return io.BufferedReader(raw) if mode == "rb" else io.BufferedWriter(raw)

    def _close(self, fd: int) -> None:
        self._fds.pop(fd, None)
        _CLOSE(fd)

    def _write(self, fd: int, data: Any) -> int:
        if fd not in self._fds:
            return _WRITE(fd, data)
        data = self._room_for(data)
        offset = os.lseek(fd, 0, 1)  # where it is
        if _is_appending(fd):
            offset = len(self.disk.nodes[self._fds[fd]].now)
        n_bytes = _WRITE(fd, data)
        self._say(BytesWritten(self._fds[fd], offset, bytes(data[:n_bytes])))
        return n_bytes

    def _pwrite(self, fd: int, data: Any, offset: int) -> int:
        if fd not in self._fds:
            return _PWRITE(fd, data, offset)
        data = self._room_for(data)
        n_bytes = _PWRITE(fd, data, offset)
        self._say(BytesWritten(self._fds[fd], offset, bytes(data[:n_bytes])))
        return n_bytes

    def _room_for(self, data: Any) -> memoryview:
        """Return what of it is written: a full disk takes a half first. Raises OSError."""
        view = memoryview(data).cast("B")
        try:
            self._may_fail("write")
        except OSError as error:
            if error.errno != errno.ENOSPC or len(view) < 2 or self._is_full:
                raise
            self._is_full = True
            return view[: len(view) // 2]
        if self._is_full:
            self._is_full = False
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return view

    def _resizing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def resize(file: Any, size_bytes: int) -> None:
            node = self._fds.get(file) if isinstance(file, int) else None
            if node is not None:
                is_larger = size_bytes > len(self.disk.nodes[node].now)
                self._may_fail("write" if is_larger else "cut")
                self._say(FileResized(node, size_bytes))
            call(file, size_bytes)

        return resize

    def _allocate(self, fd: int, offset: int, size_bytes: int) -> None:
        node = self._fds.get(fd)
        if node is not None:
            self._may_fail("write")
            size_bytes = max(offset + size_bytes, len(self.disk.nodes[node].now))
            self._say(FileResized(node, size_bytes))
            offset = 0
        os.ftruncate(fd, offset + size_bytes)

    def _fsync(self, fd: int) -> None:
        node = self._fds.get(fd)
        if node is None:
            return
        try:
            self._may_fail("fsync")
        except OSError:
            self._say(NodeSynced(node, is_good=False))
            raise
        self._say(NodeSynced(node))

    def _renaming(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def rename(old: Any, new: Any) -> None:
            before, after = self._find(old), self._find(new)
            if before is None or after is None:
                call(old, new)
                return
            self._may_fail("rename")
            call(old, new)
            node = self.disk.tree[before]
            if self.disk.tree.get(after) != node:  # links of one file: nothing happens
                self._say(NamesChanged(((before, None), (after, node))))

        return rename

    def _link(self, old: Any, new: Any) -> None:
        before, after = self._find(old), self._find(new)
        if before is None or after is None:
            _LINK(old, new)
            return
        self._may_fail("create")
        _LINK(old, new)
        self._say(NamesChanged(((after, self.disk.tree[before]),)))

    def _removing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def remove(path: Any, *, dir_fd: int | None = None) -> None:
            at = self._find(path, dir_fd)
            if at is not None:
                self._may_fail("remove")
            call(path, dir_fd=dir_fd)
            if at is not None:
                self._say(NamesChanged(((at, None),)))

        return remove

    def _mkdir(self, path: Any, mode: int = 0o777) -> None:
        at = self._find(path)
        if at is not None:
            self._may_fail("mkdir")
        _MKDIR(path, mode)
        if at is not None:
            self._make(at, mode, is_folder=True)

    def _chmod(self, path: Any, mode: int, **options: Any) -> None:
        at = self._find(path)
        if at is not None:
            self._may_fail("chmod")
        _CHMOD(path, mode, **options)
        if at is not None:
            self._say(ModeChanged(self.disk.tree[at], mode))

    def _looking(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def look(what: Any = ".", *arguments: Any, **options: Any) -> Any:
            known = what in self._fds if isinstance(what, int) else self._find(what) is not None
            if known:
                self._may_fail("read")
            return call(what, *arguments, **options)

        return look


_FLAGS = {
    "rb": os.O_RDONLY,
    "wb": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    "xb": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
}


def after_death(home: Path, nth: int, work: Callable[[], object]) -> Recorder:
    """Let a process do some work in ``home``, which is made, and die before its nth call.

    Returns: the healed disk, for the process that comes next.
    """
    home.mkdir()
    recorder = Recorder(home, Fault(nth, DEATH))
    with recorder.attached(), suppress(Killed):
        work()
    recorder.heal()
    return recorder


def _is_appending(fd: int) -> bool:
    return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND)


class _Refused:
    """Copies within the kernel: what copies falls back to reading and writing."""

    def __init__(self, call: Callable[..., int], fds: dict[int, int]) -> None:
        self._call, self._fds = call, fds

    def __call__(self, out_fd: int, *arguments: Any) -> int:
        if out_fd in self._fds:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return self._call(out_fd, *arguments)


class _File(io.RawIOBase):
    """A file that `open` returns, whose calls are those of `os`."""

    def __init__(self, fd: int, mode: str) -> None:
        self._fd, self._is_read = fd, mode == "rb"
        self.name = fd  # what copies within the kernel say when they fail

    def fileno(self) -> int:
        return self._fd

    def readable(self) -> bool:
        return self._is_read

    def writable(self) -> bool:
        return not self._is_read

    def seekable(self) -> bool:
        return self._is_read

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return os.lseek(self._fd, offset, whence)

    def readinto(self, buffer: Any) -> int:
        data = os.read(self._fd, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def write(self, data: Any) -> int:
        return os.write(self._fd, data)

    def close(self) -> None:
        if not self.closed:
            super().close()
            os.close(self._fd)
