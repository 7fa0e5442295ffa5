"""A disk that forgets: what was not synced is lost, reordered or torn, and any call may fail.

A recorder (`tests/kits/disk_recorder.py`) stands under `os` and `open` for one folder: the calls
are made on a real folder, and
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

import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# A small write has blocks of so many bytes, a large one so many blocks.
_BLOCK_BYTES = 16
_BLOCKS_MAX = 16
ROOT_NODE = 0

_OPEN, _CLOSE, _WRITE = os.open, os.close, os.write
_LINK, _MKDIR = os.link, os.mkdir


@dataclass(frozen=True)
class NodeMade:
    """A file, or a folder, that has no name yet."""

    node: int
    mode: int
    is_folder: bool = False
    data: bytes = b""


@dataclass(frozen=True)
class BytesWritten:
    node: int
    offset: int
    data: bytes


@dataclass(frozen=True)
class FileResized:
    node: int
    size_bytes: int


@dataclass(frozen=True)
class ModeChanged:
    """At once on the disk, where a later sync than what it stands for would be noticed."""

    node: int
    mode: int


@dataclass(frozen=True)
class NamesChanged:
    """All of these names at once: (folder, name) to a node, or to None, which removes it."""

    names: tuple[tuple[tuple[int, str], int | None], ...]


@dataclass(frozen=True)
class NodeSynced:
    node: int
    is_good: bool = True


@dataclass(frozen=True)
class Told:
    """What the program under test has just said, or is about to try."""

    fact: Any


Event = NodeMade | BytesWritten | FileResized | ModeChanged | NamesChanged | NodeSynced | Told


@dataclass
class _Pending:
    """A change; ``is_durable`` once a sync that came after it has succeeded."""

    event: BytesWritten | FileResized | NamesChanged
    is_durable: bool = False
    is_doomed: bool = False  # by a sync that failed: the next one does not bring it to the disk

    def sync(self, is_good: bool) -> None:
        if is_good:
            self.is_durable = self.is_durable or not self.is_doomed
        elif not isinstance(self.event, NamesChanged):
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
        self.nodes = {ROOT_NODE: root}
        self.tree: dict[tuple[int, str], int] = {}
        self._base: dict[tuple[int, str], int] = {}
        self._names: list[_Pending] = []

    def apply(self, event: Event) -> None:
        """Let one more thing happen."""
        match event:
            case NodeMade():
                data = bytearray(event.data), bytearray(event.data)
                self.nodes[event.node] = _Node(event.mode, event.is_folder, *data)
            case BytesWritten() | FileResized():
                node = self.nodes[event.node]
                node.pending.append(_Pending(event))
                _change(node.now, event)
            case ModeChanged():
                self.nodes[event.node].mode = event.mode
            case NamesChanged():
                self._names.append(_Pending(event))
                _rename(self.tree, event)
            case NodeSynced():
                self._sync(event)

    def _sync(self, event: NodeSynced) -> None:
        node = self.nodes[event.node]
        for each in self._names if node.is_folder else node.pending:
            if not isinstance(each.event, NamesChanged) or any(
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
        folders = [(ROOT_NODE, "")]
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
    if isinstance(event, FileResized):
        _resize(data, event.size_bytes)
        return
    _resize(data, max(len(data), event.offset))
    data[event.offset : event.offset + len(event.data)] = event.data


def _resize(data: bytearray, size_bytes: int) -> None:
    del data[size_bytes:]
    data.extend(bytes(size_bytes - len(data)))


def _change_in_part(data: bytearray, event: Any, rng: random.Random, likely: float) -> None:
    """Keep some blocks of a write; the size of the file may have come before them."""
    if isinstance(event, FileResized):
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
            _change(data, BytesWritten(event.node, start, piece))
        start = stop
