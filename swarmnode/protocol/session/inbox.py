"""Inbox: bytes that came for one stream and were not consumed yet.

Bytes reach a reader in one of two ways::

    no one waits     record -> piece in the inbox -> reader's buffer    (one copy)
    a reader waits   record -> reader's buffer, lent to the inbox       (none)

The first is also taken while pieces lie here, so the order never changes.
"""

from __future__ import annotations

from collections import deque

from swarmnode import limits
from swarmnode.protocol.session.buffers import BufferPool

# Small pieces are joined up to this size: a peer that sends single bytes
# must not make us keep an object for each.
_JOIN_BYTES_MAX = limits.DATA_INLINE_BYTES_MAX


class Inbox:
    """Holds pieces in order. Its size is bounded by the credit that the peer was given."""

    __slots__ = ("_filled", "_lent", "_offset", "_pieces", "_pool", "_reserved", "unread_bytes")

    def __init__(self, pool: BufferPool) -> None:
        self._pool = pool
        self._pieces: deque[bytearray] = deque()
        self._offset = 0  # consumed bytes of the first piece
        self._lent: memoryview | None = None
        self._filled = 0  # bytes of the lent buffer that are written
        self._reserved: bytearray | None = None
        self.unread_bytes = 0

    def append(self, data: memoryview) -> None:
        """Keep a copy of ``data``."""
        pieces = self._pieces
        if pieces and len(pieces[-1]) + len(data) <= _JOIN_BYTES_MAX:
            pieces[-1] += data
        else:
            pieces.append(bytearray(data))
        self.unread_bytes += len(data)

    def destination(self, n_bytes: int) -> memoryview:
        """Return where the next ``n_bytes`` belong; they count from :meth:`commit` on."""
        lent = self._lent
        if lent is not None and not self._pieces and len(lent) - self._filled >= n_bytes:
            self._reserved = None
            return lent[self._filled : self._filled + n_bytes]
        self._reserved = self._pool.get(n_bytes)
        return memoryview(self._reserved)

    def commit(self, n_bytes: int) -> int:
        """Keep what was written to the last destination; return how much a reader has at once."""
        if self._reserved is None:
            self._filled += n_bytes
            return n_bytes
        self._pieces.append(self._reserved)
        self._reserved = None
        self.unread_bytes += n_bytes
        return 0

    def waits_for_more(self) -> bool:
        """Whether a lent buffer has room left and nothing lies here to fill it with."""
        return self._lent is not None and not self._pieces and self._filled < len(self._lent)

    def lend(self, buffer: memoryview) -> None:
        """Let coming bytes be written to ``buffer`` until :meth:`take_back`."""
        assert self._lent is None
        self._lent = buffer
        self._filled = 0

    def take_back(self) -> int:
        """End the lease; return how many bytes were written."""
        filled, self._lent, self._filled = self._filled, None, 0
        return filled

    def read_into(self, buffer: memoryview) -> int:
        """Copy what is here and fits; return how many bytes."""
        written = 0
        while self._pieces and written < len(buffer):
            with memoryview(self._pieces[0]) as piece:
                part = piece[self._offset : self._offset + len(buffer) - written]
                buffer[written : written + len(part)] = part
                written += len(part)
                self._advance(len(part), len(piece))
                part.release()
        self.unread_bytes -= written
        return written

    def take(self) -> memoryview:
        """Return the first piece, the caller's from now on; empty if there is none."""
        if not self._pieces:
            return memoryview(b"")
        piece = memoryview(self._pieces.popleft())[self._offset :]
        self._offset = 0
        self.unread_bytes -= len(piece)
        return piece

    def take_whole(self, n_bytes: int) -> memoryview | None:
        """Return the first piece, as :meth:`take` does, if it is exactly the next ``n_bytes``."""
        if not self._pieces or self._offset or len(self._pieces[0]) != n_bytes:
            return None
        return self.take()

    def clear(self) -> None:
        """Forget everything that was not consumed."""
        self._pieces.clear()
        self._offset = 0
        self.unread_bytes = 0

    def _advance(self, n_bytes: int, piece_bytes: int) -> None:
        self._offset += n_bytes
        if self._offset == piece_bytes:
            self._pieces.popleft()
            self._offset = 0
