"""A log in one file of bounded size: ``node.log``, and the older ``node.log.1``.

For whoever has no journal that does it: a service of macOS, a container, ``nohup``. Nothing is
synced: a power failure may cost the last lines.
"""

from __future__ import annotations

import os
from pathlib import Path

from swarmnode import limits
from swarmnode.errors import ConfigError

# `log_file`: a node writes 20 to 28 MB a month, so that two of these files, as many as there are at
# most, hold at least the last two weeks.
_LOG_FILE_BYTES_MAX = 16 * limits.MIB


class LogFile:
    """Takes whole events, as the stream of a handler; never raises once it is open.

    Owns: a descriptor.
    """

    def __init__(self, path: Path, *, bytes_max: int = _LOG_FILE_BYTES_MAX) -> None:
        """Open for appending. Raises ConfigError: it cannot be, and its owner chose it."""
        self._path = path
        self._bytes_max = bytes_max
        self._lost = 0
        try:
            self._fd = self._open()
        except OSError as error:
            raise ConfigError(
                f"log_file: cannot write to {path}: {error.strerror}: name a file in a folder that"
                " this user may write to"
            ) from error

    def write(self, text: str) -> None:
        """Append one event, to a new file if this one is full.

        A disk that is full or failing costs events, which are counted, and not the node.
        """
        if self._lost:
            text = f"{self._lost} events before this one could not be written\n{text}"
        data = text.encode("utf-8", "replace")
        try:
            if self._size_bytes and self._size_bytes + len(data) > self._bytes_max:
                self._rotate()
            os.write(self._fd, data)
        except OSError:
            self._lost += 1
            return
        self._lost = 0
        self._size_bytes += len(data)

    def flush(self) -> None:
        """Do nothing: it is written."""

    def close(self) -> None:
        """Stop writing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, 0o600)
        self._size_bytes = os.fstat(descriptor).st_size
        return descriptor

    def _rotate(self) -> None:
        self._path.replace(self._path.with_name(self._path.name + ".1"))
        full, self._fd = self._fd, self._open()
        os.close(full)
