"""Memory for received data, used again as soon as no task looks at it any more.

Fresh memory costs more than decrypting into it: the allocator gives large
blocks back to the system, and each new one is faulted in page by page. So a
few are kept, and one is handed out again once nothing else refers to it.
A task that keeps a view of a buffer keeps it out of circulation, so this is as
safe as allocating.
"""

from __future__ import annotations

import sys

from swarmnode import limits

# Two messages and two records that wait, of the size of one record and of one message.
_RECYCLED_BUFFERS_MAX = 6
RECYCLED_BUFFER_BYTES_MIN = 16 * limits.KIB  # smaller ones come from the allocator as fast


class BufferPool:
    """Hands out byte arrays of exact sizes; keeps at most ``buffers_max`` of them.

    For one thread: another one could be given the same buffer.
    """

    __slots__ = ("_buffers", "_buffers_max", "_next")

    def __init__(self, buffers_max: int = _RECYCLED_BUFFERS_MAX) -> None:
        self._buffers: list[bytearray] = []
        self._buffers_max = buffers_max
        self._next = 0  # where to look first: those before are the likeliest to be in use

    def get(self, n_bytes: int) -> bytearray:
        """Return a buffer of ``n_bytes`` with undefined content; drop it when done."""
        if not RECYCLED_BUFFER_BYTES_MIN <= n_bytes <= limits.RECYCLED_BUFFER_BYTES_MAX:
            return bytearray(n_bytes)
        buffers = self._buffers
        for step in range(len(buffers)):
            index = (self._next + step) % len(buffers)
            if len(buffers[index]) == n_bytes and _references(buffers, index) == _FREE:
                self._next = index + 1
                return buffers[index]
        if len(buffers) >= self._buffers_max:
            del buffers[0]
        buffers.append(bytearray(n_bytes))
        return buffers[-1]

    def clear(self) -> None:
        """Give back what is not in use to the system."""
        self._buffers.clear()


def _references(buffers: list[bytearray], index: int) -> int:
    return sys.getrefcount(buffers[index])


# What the interpreter counts for a buffer that only its list refers to: versions differ.
_FREE = _references([bytearray(1)], 0)
