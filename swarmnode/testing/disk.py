"""A disk that forgets: what was not synced is lost, reordered or torn, and any call may fail.

A recorder stands under `os` and `open` for one folder: the calls are made on a real folder, and
what they change is written down. Of a prefix of that record, :class:`Disk` makes what a power
failure may leave, as POSIX allows it and no file system promises more:

- of a file, any blocks written since its last ``fsync``, in any order; its size may come first;
- of a folder, any names made, moved and removed since its last ``fsync``; a move is one step;
- after an ``fsync`` of a file that failed, processes go on to read what they wrote, and no later
  ``fsync`` brings it to the disk (Rebello et al., "Can applications recover from fsync failures?",
  2020). That of a folder may be tried again.

Blocks are small, so that small files are torn as large ones are. ``fsync`` itself is not made:
a record of thousands of calls takes no longer than the calls do without a disk.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# A small write has blocks of so many bytes, a large one so many blocks.
_BLOCK_BYTES = 16
_BLOCKS_MAX = 16
_ROOT = 0

_OPEN, _CLOSE, _WRITE, _PWRITE = os.open, os.close, os.write, os.pwrite
_LINK, _MKDIR = os.link, os.mkdir
_BUILTIN_OPEN = builtins.open


@dataclass(frozen=True)
class _Made:
    """A file, or a folder, that has no name yet."""

    node: int
    mode: int
    is_folder: bool = False
    data: bytes = b""


@dataclass(frozen=True)
class _Wrote:
    node: int
    offset: int
    data: bytes


@dataclass(frozen=True)
class _Resized:
    node: int
    size_bytes: int


@dataclass(frozen=True)
class _Named:
    """All of these names at once: (folder, name) to a node, or to None, which removes it."""

    names: tuple[tuple[tuple[int, str], int | None], ...]


@dataclass(frozen=True)
class _Synced:
    node: int
    is_good: bool = True


@dataclass(frozen=True)
class Told:
    """What the program under test has just said, or is about to try."""

    fact: Any


Event = _Made | _Wrote | _Resized | _Named | _Synced | Told


@dataclass
class _Pending:
    """A change; ``is_durable`` once a sync that came after it has succeeded."""

    event: _Wrote | _Resized | _Named
    is_durable: bool = False
    is_doomed: bool = False  # by a sync that failed: the next one does not bring it to the disk

    def sync(self, is_good: bool) -> None:
        if is_good:
            self.is_durable = self.is_durable or not self.is_doomed
        elif not isinstance(self.event, _Named):
            self.is_doomed = not self.is_durable


@dataclass
class _Node:
    mode: int
    is_folder: bool
    now: bytearray
    base: bytearray
    pending: list[_Pending] = field(default_factory=list)


@dataclass(frozen=True)
class Left:
    """What a power failure has left: paths with their nodes, and what these hold."""

    nodes: dict[str, int]
    data: dict[int, tuple[int, bytes | None]]  # mode; None: a folder

    def write_to(self, folder: Path) -> None:
        """Make it in an empty folder."""
        first: dict[int, str] = {}
        for path, node in self.nodes.items():
            mode, data = self.data[node]
            whole = f"{folder}/{path}"
            if data is None:
                _MKDIR(whole, mode)
            elif node in first:
                _LINK(first[node], whole)
            else:
                first[node] = whole
                fd = _OPEN(whole, os.O_WRONLY | os.O_CREAT, mode)
                _WRITE(fd, data)
                _CLOSE(fd)


class Disk:
    """What processes see in a folder, and what of it a power failure would leave."""

    def __init__(self) -> None:
        root = _Node(0o700, is_folder=True, now=bytearray(), base=bytearray())
        self.nodes = {_ROOT: root}
        self.tree: dict[tuple[int, str], int] = {}
        self._base: dict[tuple[int, str], int] = {}
        self._names: list[_Pending] = []

    def apply(self, event: Event) -> None:
        """Let one more thing happen."""
        match event:
            case _Made():
                data = bytearray(event.data), bytearray(event.data)
                self.nodes[event.node] = _Node(event.mode, event.is_folder, *data)
            case _Wrote() | _Resized():
                node = self.nodes[event.node]
                node.pending.append(_Pending(event))
                _change(node.now, event)
            case _Named():
                self._names.append(_Pending(event))
                _rename(self.tree, event)
            case _Synced():
                self._sync(event)

    def _sync(self, event: _Synced) -> None:
        node = self.nodes[event.node]
        for each in self._names if node.is_folder else node.pending:
            if not isinstance(each.event, _Named) or any(
                folder == event.node for (folder, _), _ in each.event.names
            ):
                each.sync(event.is_good)
        while node.pending and node.pending[0].is_durable:
            _change(node.base, node.pending.pop(0).event)
        while self._names and self._names[0].is_durable:
            _rename(self._base, self._names.pop(0).event)

    def forget(self, rng: random.Random, *, names: float, data: float) -> Left:
        """Return what a power failure leaves.

        Args:
            names: how likely a change of a name is kept that was not synced.
            data: the same of a block of a file.
        """
        tree = dict(self._base)
        for each in self._names:
            if each.is_durable or rng.random() < names:
                _rename(tree, each.event)
        children: dict[int, list[tuple[str, int]]] = {}
        for (folder, name), node in tree.items():
            children.setdefault(folder, []).append((name, node))
        left: dict[str, int] = {}
        folders = [(_ROOT, "")]
        for folder, prefix in folders:
            for name, node in children.get(folder, ()):
                left[prefix + name] = node
                if self.nodes[node].is_folder:
                    folders.append((node, f"{prefix}{name}/"))
        return Left(left, {node: self._kept(node, rng, data) for node in left.values()})

    def _kept(self, number: int, rng: random.Random, likely: float) -> tuple[int, bytes | None]:
        node = self.nodes[number]
        if node.is_folder:
            return node.mode, None
        found = bytearray(node.base)
        for each in node.pending:
            if each.is_durable or likely == 1:
                _change(found, each.event)
            elif likely:
                _change_in_part(found, each.event, rng, likely)
        return node.mode, bytes(found)


def _rename(tree: dict[tuple[int, str], int], event: Any) -> None:
    for key, node in event.names:
        if node is None:
            tree.pop(key, None)
        else:
            tree[key] = node


def _change(data: bytearray, event: Any) -> None:
    if isinstance(event, _Resized):
        _resize(data, event.size_bytes)
        return
    _resize(data, max(len(data), event.offset))
    data[event.offset : event.offset + len(event.data)] = event.data


def _resize(data: bytearray, size_bytes: int) -> None:
    del data[size_bytes:]
    data.extend(bytes(size_bytes - len(data)))


def _change_in_part(data: bytearray, event: Any, rng: random.Random, likely: float) -> None:
    """Keep some blocks of a write; the size of the file may have come before them."""
    if isinstance(event, _Resized):
        if rng.random() < likely:
            _change(data, event)
        return
    end = event.offset + len(event.data)
    if rng.random() < likely:
        _resize(data, max(len(data), end))
    block_bytes = max(_BLOCK_BYTES, len(event.data) // _BLOCKS_MAX)
    start = event.offset
    while start < end:
        stop = min(end, start - start % block_bytes + block_bytes)
        if rng.random() < likely:
            piece = event.data[start - event.offset : stop - event.offset]
            _change(data, _Wrote(event.node, start, piece))
        start = stop


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
        self.disk = Disk()
        self._fault = fault
        self._is_full = False
        self._root = f"{root}/"
        self._fds: dict[int, int] = {}
        self._take(root, _ROOT)
        for event in self.events:
            self.disk.apply(event)
        for number, node in [*self.disk.nodes.items()]:
            if node.is_folder:
                self._say(_Synced(number))
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
            self.events.append(_Made(node, mode, path.is_dir(), data))
            self.events.append(_Named((((number, path.name), node),)))
            if path.is_dir():
                self._take(path, node)

    def _say(self, event: Event) -> None:
        self.events.append(event)
        self.disk.apply(event)

    def _make(self, at: tuple[int, str], mode: int, *, is_folder: bool = False) -> int:
        node = len(self.events) + 1
        self._say(_Made(node, mode, is_folder))
        self._say(_Named(((at, node),)))
        return node

    def _may_fail(self, kind: str) -> None:
        """Count a call. Raises OSError: it is the one that fails."""
        fault = self._fault
        if fault is not None and fault.code == errno.ENOSPC and kind not in _GROWS:
            return
        self.calls += 1
        if fault is not None and (
            self.calls == fault.nth or (fault.lasts and self.calls > fault.nth)
        ):
            raise OSError(fault.code, os.strerror(fault.code))

    def _find(self, path: Any, dir_fd: int | None = None) -> tuple[int, str] | None:
        """Return the folder and the name that a path is, None if it is elsewhere."""
        if isinstance(path, int):
            return None
        text = os.fsdecode(path)
        folder = _ROOT
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
        }
        looking = ("read", "pread", "preadv", "stat", "lstat", "fstat", "scandir", "listdir")
        return changing | {name: self._looking(getattr(os, name)) for name in looking}

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        at = self._find(path, dir_fd)
        if at is None:
            return _OPEN(path, flags, mode, dir_fd=dir_fd)
        known = _ROOT if at == (_ROOT, "") else self.disk.tree.get(at)
        self._may_fail("create" if flags & os.O_CREAT and known is None else "open")
        fd = _OPEN(path, flags, mode, dir_fd=dir_fd)
        node = self._make(at, mode) if known is None else known
        self._fds[fd] = node
        if flags & os.O_TRUNC:
            self._say(_Resized(node, 0))
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
        offset = os.lseek(fd, 0, os.SEEK_CUR)
        if _is_appending(fd):
            offset = len(self.disk.nodes[self._fds[fd]].now)
        n_bytes = _WRITE(fd, data)
        self._say(_Wrote(self._fds[fd], offset, bytes(data[:n_bytes])))
        return n_bytes

    def _pwrite(self, fd: int, data: Any, offset: int) -> int:
        if fd not in self._fds:
            return _PWRITE(fd, data, offset)
        data = self._room_for(data)
        n_bytes = _PWRITE(fd, data, offset)
        self._say(_Wrote(self._fds[fd], offset, bytes(data[:n_bytes])))
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
                self._say(_Resized(node, size_bytes))
            call(file, size_bytes)

        return resize

    def _allocate(self, fd: int, offset: int, size_bytes: int) -> None:
        node = self._fds.get(fd)
        if node is not None:
            self._may_fail("write")
            size_bytes = max(offset + size_bytes, len(self.disk.nodes[node].now))
            self._say(_Resized(node, size_bytes))
            offset = 0
        os.ftruncate(fd, offset + size_bytes)

    def _fsync(self, fd: int) -> None:
        node = self._fds.get(fd)
        if node is None:
            return
        try:
            self._may_fail("fsync")
        except OSError:
            self._say(_Synced(node, is_good=False))
            raise
        self._say(_Synced(node))

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
                self._say(_Named(((before, None), (after, node))))

        return rename

    def _link(self, old: Any, new: Any) -> None:
        before, after = self._find(old), self._find(new)
        if before is None or after is None:
            _LINK(old, new)
            return
        self._may_fail("create")
        _LINK(old, new)
        self._say(_Named(((after, self.disk.tree[before]),)))

    def _removing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def remove(path: Any, *, dir_fd: int | None = None) -> None:
            at = self._find(path, dir_fd)
            if at is not None:
                self._may_fail("remove")
            call(path, dir_fd=dir_fd)
            if at is not None:
                self._say(_Named(((at, None),)))

        return remove

    def _mkdir(self, path: Any, mode: int = 0o777) -> None:
        at = self._find(path)
        if at is not None:
            self._may_fail("mkdir")
        _MKDIR(path, mode)
        if at is not None:
            self._make(at, mode, is_folder=True)

    def _looking(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def look(what: Any = ".", *arguments: Any, **options: Any) -> Any:
            known = what in self._fds if isinstance(what, int) else self._find(what) is not None
            if known:
                self._may_fail("read")
            return call(what, *arguments, **options)

        return look


_FLAGS = {"rb": os.O_RDONLY, "wb": os.O_WRONLY | os.O_CREAT | os.O_TRUNC}


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
        return True

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
