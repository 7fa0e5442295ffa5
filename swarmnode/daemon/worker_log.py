"""The file that takes a worker's output: bounded, and read for the last line of a crash.

The worker writes to it directly, so its output survives the daemon; the daemon cuts it
back to its tail now and then.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from swarmnode import limits

_LAST_LINE_BYTES = 4 * limits.KIB
_LINE_CHARACTERS_MAX = 300


class WorkerLog:
    """Owns: a descriptor of the file, opened for appending."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._begin_bytes = os.fstat(self.fd).st_size

    def cut(self) -> None:
        """Keep only the tail of a file that has grown too large."""
        size = os.fstat(self.fd).st_size
        if size <= limits.WORKER_LOG_BYTES_MAX:
            return
        tail = os.pread(self.fd, limits.WORKER_LOG_KEPT_BYTES, size - limits.WORKER_LOG_KEPT_BYTES)
        os.ftruncate(self.fd, 0)
        with contextlib.suppress(OSError):  # a disk so full that even the tail has no room
            os.write(self.fd, tail)
        self._begin_bytes = 0

    def last_line(self) -> str:
        """Return the last line that is not empty, written since this object was made."""
        size = os.fstat(self.fd).st_size
        begin = max(self._begin_bytes, size - _LAST_LINE_BYTES)
        text = os.pread(self.fd, max(0, size - begin), begin).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1][:_LINE_CHARACTERS_MAX] if lines else ""

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.fd)
