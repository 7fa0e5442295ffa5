"""The shared segment: tensor slots in memory without a name, mapped by the daemon and its worker.

The daemon creates it empty and hands the descriptor down when it spawns the worker; the
worker gives it its size once the model is built, and seals it, so that no later mistake can
shrink memory under the other side. It has no name: nothing is left after ``kill -9``.

::

    page 0    file header  magic, version, slots, numel, slot_bytes, crc
              slot header  owner, generation, length, crc          (one per slot, 64 bytes)
    page 1..  slot 0, slot 1, ...       float32 [numel] each, page-aligned

A slot has two halves: what the worker sends, and room for what comes (``ipc/control.py``).

There is no lock. A slot belongs to one side, and a message moves it to the other
(``ipc/control.py``); the header is rewritten before the message is sent. A claim raises
the slot's generation, so a side that comes late with an old one is told so (StaleSlot).
Generations start at the machine's monotonic clock: two workers never share one.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import mmap
import os
import secrets
import struct
import time
import zlib

from swarmnode import limits
from swarmnode.errors import SpecMismatch, WorkerError

# One header page names at most this many slots. Four are used: a pair and a group at a time, and
# two that wait for their step; memory that was never touched costs nothing.
SEGMENT_SLOTS_MAX = 32
# 64 GiB of float32: more parameters than one machine trains today, and no overflow.
_SEGMENT_NUMEL_MAX = 16 * 1024 * limits.MIB

_MAGIC = b"swarmseg"
_VERSION = 1
_PAGE_BYTES = 4096
_FLOAT32_BYTES = 4
_FILE_HEADER = struct.Struct("<8sIIQQ")  # magic, version, slots, numel, slot_bytes
_SLOT_HEADER = struct.Struct("<IQQ")  # owner, generation, length in bytes
_CRC = struct.Struct("<I")
_SLOT_HEADER_STRIDE = 64
_SLOT_HEADERS_OFFSET = _PAGE_BYTES - _SLOT_HEADER_STRIDE * SEGMENT_SLOTS_MAX


class Owner(enum.IntEnum):
    """Whose turn it is to touch a slot."""

    WORKER = 1
    DAEMON = 2
    REVOKED = 3  # the worker died: it belongs to neither side


class StaleSlot(WorkerError):
    """A slot is not in the state that a message claims: wrong owner or generation."""


class Segment:
    """One side's view. Owns: its descriptor and its mapping, until :meth:`close`."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.numel = 0
        self.slots = 0
        self._slot_bytes = 0
        self._map: mmap.mmap | None = None

    # --- life ------------------------------------------------------------------------

    @classmethod
    def create(cls) -> Segment:
        """Return an empty segment, to be sized by the worker (daemon)."""
        if hasattr(os, "memfd_create"):
            flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
            return cls(os.memfd_create("swarmnode-slots", flags))
        return cls(_unlinked_memory())

    @classmethod
    def attach(cls, fd: int) -> Segment:
        """Map a segment that has its size. Raises SpecMismatch if it is none of ours."""
        segment = cls(fd)
        segment.map()
        return segment

    @staticmethod
    def size_for(numel: int, slots: int) -> int:
        """Return the size in bytes of a segment with ``slots`` slots of float32 [numel]."""
        return _PAGE_BYTES + slots * _slot_bytes(numel)

    def format(self, numel: int, slots: int) -> None:
        """Size an empty segment, seal and map it; every slot is the worker's (worker)."""
        _check_range(numel, slots)
        size = self.size_for(numel, slots)
        os.ftruncate(self.fd, size)
        _seal(self.fd)
        self._map = mmap.mmap(self.fd, size)
        header = _FILE_HEADER.pack(_MAGIC, _VERSION, slots, numel, _slot_bytes(numel))
        self._map[: len(header) + _CRC.size] = header + _crc(header)
        self.numel, self.slots, self._slot_bytes = numel, slots, _slot_bytes(numel)
        generation = time.monotonic_ns()
        for slot in range(slots):
            self._write(slot, Owner.WORKER, generation)

    def map(self) -> None:
        """Check size and header and map the slots. Raises SpecMismatch."""
        size = os.fstat(self.fd).st_size
        if size < _PAGE_BYTES:
            raise SpecMismatch(f"segment: expected a header page, the file has {size} bytes")
        mapped = mmap.mmap(self.fd, size)
        header = mapped[: _FILE_HEADER.size]
        magic, version, slots, numel, slot_bytes = _FILE_HEADER.unpack(header)
        crc = mapped[_FILE_HEADER.size : _FILE_HEADER.size + _CRC.size]
        if magic != _MAGIC or version != _VERSION or crc != _crc(header):
            mapped.close()
            raise SpecMismatch(f"segment: expected header version {_VERSION}, got {header!r}")
        _check_range(numel, slots)
        wanted = self.size_for(numel, slots)
        # macOS says of shared memory how many of its pages there are, of 16 KiB.
        whole_pages = -(-wanted // mmap.PAGESIZE) * mmap.PAGESIZE
        if slot_bytes != _slot_bytes(numel) or size not in (wanted, whole_pages):
            mapped.close()
            raise SpecMismatch(
                f"segment: {slots} slots of {numel} numbers need "
                f"{wanted} bytes, the file has {size}"
            )
        self._map = mapped
        self.numel, self.slots, self._slot_bytes = numel, slots, slot_bytes

    def close(self) -> None:
        """Give the descriptor back, and the memory too unless a view of it is still lent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        if self._map is not None:
            # A view that is still lent keeps the mapping alive; its last reader frees it.
            with contextlib.suppress(BufferError):
                self._map.close()
            self._map = None

    # --- slots -----------------------------------------------------------------------

    def slot_view(self, slot: int) -> memoryview:
        """Return the bytes of a slot, writable: float32 [numel], castable by ``cast('f')``."""
        self._check_slot(slot)
        start = _PAGE_BYTES + slot * self._slot_bytes
        return memoryview(self._mapped)[start : start + self.numel * _FLOAT32_BYTES]

    def halves(self, slot: int) -> tuple[memoryview, memoryview]:
        """Return the bytes of (own views, room for what comes): float32 [numel // 2] each."""
        view = self.slot_view(slot)
        middle = self.numel // 2 * _FLOAT32_BYTES
        return view[:middle], view[middle : 2 * middle]

    def claim(self, slot: int) -> int:
        """Begin to fill a slot that the worker owns; return its new generation (worker)."""
        owner, generation = self._read(slot)
        if owner != Owner.WORKER:
            raise StaleSlot(f"slot {slot}: expected to own it, it is the {owner.name.lower()}'s")
        self._write(slot, Owner.WORKER, generation + 1)
        return generation + 1

    def hand_over(self, slot: int, generation: int, owner: Owner) -> None:
        """Make the slot ``owner``'s; the message that says so is sent after this."""
        other = Owner.DAEMON if owner is Owner.WORKER else Owner.WORKER
        self.check(slot, generation, other)
        self._write(slot, owner, generation)

    def check(self, slot: int, generation: int, owner: Owner) -> None:
        """Raise StaleSlot unless the slot is ``owner``'s and has this generation."""
        found_owner, found_generation = self._read(slot)
        if (found_owner, found_generation) != (owner, generation):
            raise StaleSlot(
                f"slot {slot}: expected generation {generation} owned by {owner.name.lower()}, "
                f"found {found_generation} owned by {found_owner.name.lower()}"
            )

    def reclaim_all(self) -> None:
        """Take every slot away from a worker that is dead (daemon)."""
        for slot in range(self.slots):
            self._write(slot, Owner.REVOKED, 0)

    # --- headers ---------------------------------------------------------------------

    @property
    def _mapped(self) -> mmap.mmap:
        if self._map is None:
            raise StaleSlot("segment: not mapped; the worker has not built its model, or is gone")
        return self._map

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self.slots:
            raise StaleSlot(f"slot {slot}: this segment has {self.slots}")

    def _read(self, slot: int) -> tuple[Owner, int]:
        self._check_slot(slot)
        start = _SLOT_HEADERS_OFFSET + slot * _SLOT_HEADER_STRIDE
        header = self._mapped[start : start + _SLOT_HEADER.size]
        crc = self._mapped[start + _SLOT_HEADER.size : start + _SLOT_HEADER.size + _CRC.size]
        owner, generation, length = _SLOT_HEADER.unpack(header)
        if crc != _crc(header) or length != self.numel * _FLOAT32_BYTES:
            raise StaleSlot(f"slot {slot}: its header is torn")
        return Owner(owner), generation

    def _write(self, slot: int, owner: Owner, generation: int) -> None:
        header = _SLOT_HEADER.pack(owner, generation, self.numel * _FLOAT32_BYTES)
        start = _SLOT_HEADERS_OFFSET + slot * _SLOT_HEADER_STRIDE
        self._mapped[start : start + len(header) + _CRC.size] = header + _crc(header)


def _check_range(numel: int, slots: int) -> None:
    if not (0 < slots <= SEGMENT_SLOTS_MAX and 0 < numel <= _SEGMENT_NUMEL_MAX):
        raise SpecMismatch(
            f"segment: expected 1 to {SEGMENT_SLOTS_MAX} slots of 1 to "
            f"{_SEGMENT_NUMEL_MAX} numbers, got {slots} of {numel}"
        )


def _slot_bytes(numel: int) -> int:
    return -(-numel * _FLOAT32_BYTES // _PAGE_BYTES) * _PAGE_BYTES


def _unlinked_memory() -> int:
    """Return a descriptor of POSIX shared memory: a file would be written to the disk all the time.

    macOS sets its size once, and neither reads nor writes it but by a mapping; we do no more.
    """
    import _posixshmem  # of multiprocessing.shared_memory, which would keep the name

    name = f"/swarmnode-{secrets.token_hex(8)}"  # macOS takes 31 characters
    fd: int = _posixshmem.shm_open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode=0o600)
    _posixshmem.shm_unlink(name)
    return fd


def _crc(header: bytes) -> bytes:
    return _CRC.pack(zlib.crc32(header))


def _seal(fd: int) -> None:
    """Fix the size for good, so that no access behind the end can kill a process (SIGBUS)."""
    if hasattr(fcntl, "F_ADD_SEALS") and hasattr(os, "memfd_create"):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
