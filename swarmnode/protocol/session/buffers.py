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
    """Hands out byte arrays of exact sizes; keeps at most RECYCLED_BUFFERS_MAX of them."""

    __slots__ = ("_buffers",)

    def __init__(self) -> None:
        self._buffers: list[bytearray] = []

    def get(self, n_bytes: int) -> bytearray:
        """Return a buffer of ``n_bytes`` with undefined content; drop it when done."""
        if not RECYCLED_BUFFER_BYTES_MIN <= n_bytes <= limits.RECYCLED_BUFFER_BYTES_MAX:
            return bytearray(n_bytes)
        buffers = self._buffers
        for index in range(len(buffers)):
            if len(buffers[index]) == n_bytes and _references(buffers, index) == _FREE:
                return buffers[index]
        if len(buffers) >= _RECYCLED_BUFFERS_MAX:
            del buffers[0]
        buffers.append(bytearray(n_bytes))
        return buffers[-1]


def _references(buffers: list[bytearray], index: int) -> int:
    return sys.getrefcount(buffers[index])


# What the interpreter counts for a buffer that only its list refers to: versions differ.
_FREE = _references([bytearray(1)], 0)
