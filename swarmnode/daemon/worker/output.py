"""The file that takes a worker's output: bounded, and read for the last line of a crash.

The worker writes to it directly, so its output survives the daemon; the daemon cuts it
back to its tail now and then.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from swarmnode import limits

_LAST_LINE_BYTES = 4 * limits.KIB
_LINE_CHARACTERS_MAX = 300


class WorkerLog:
    """Owns: a descriptor of the file, opened for appending.

    ``relay`` takes each line that is written from now on, without its end.
    """

    def __init__(self, path: Path, relay: Callable[[str], None] | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._begin_bytes = self._relayed_bytes = os.fstat(self.fd).st_size
        self._relay = relay

    def look(self) -> None:
        """Pass on what is new, and keep the file small; called now and then, and at the end."""
        if self._relay is not None:
            for line in self._new_lines():
                self._relay(line)
        self.cut()

    def _new_lines(self) -> list[str]:
        """Return the lines that are whole by now; of very many the last ones."""
        size = os.fstat(self.fd).st_size
        begin = max(self._relayed_bytes, size - limits.LOG_RELAYED_BYTES_MAX)
        data = os.pread(self.fd, max(0, size - begin), begin)
        whole, end, _ = data.rpartition(b"\n")
        self._relayed_bytes = begin + len(whole) + len(end)
        if not end and len(data) == limits.LOG_RELAYED_BYTES_MAX:  # one that does not end
            whole, self._relayed_bytes = data, size
        lines = whole.decode(errors="replace").splitlines()
        return [line for line in lines if line.strip()]

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
        self._relayed_bytes = os.fstat(self.fd).st_size

    def last_line(self) -> str:
        """Return the last line that is not empty, written since this object was made."""
        size = os.fstat(self.fd).st_size
        begin = max(self._begin_bytes, size - _LAST_LINE_BYTES)
        text = os.pread(self.fd, max(0, size - begin), begin).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return _words(lines[-1])[:_LINE_CHARACTERS_MAX] if lines else ""

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.fd)


def _words(line: str) -> str:
    """Return what an event in JSON says, or the line as it is."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return line
    if not isinstance(event, dict):
        return line
    said = event.get("traceback") or event.get("line") or event.get("message") or event.get("event")
    return str(said or line).strip().splitlines()[-1]
