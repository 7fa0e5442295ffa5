"""What the worker process writes, line by line in the format that its owner asked for.

Its descriptors lead to ``worker.log``, whoever writes to them. In JSON that goes for what a task or
a library prints, too; only what native code prints stays as it is.
"""

from __future__ import annotations

import io
import logging
import sys

from swarmnode.log_format import LogFormat, LogLevel, formatter_of

# What a program prints without ever ending a line is cut into lines of this length.
_LINE_CHARACTERS_MAX = 4096


def begin_log(log_format: LogFormat = "text", level: LogLevel = "info") -> None:
    """Write events and warnings to standard error, those of libraries too; the last call counts."""
    handler = logging.StreamHandler(sys.__stderr__)
    handler.setFormatter(formatter_of(log_format))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    if log_format == "json":
        sys.stdout = sys.stderr = Printed()


class Printed(io.TextIOBase):
    """Takes what is printed, and logs each line."""

    def __init__(self) -> None:
        self._log = logging.getLogger("swarmnode.worker")
        self._begun = ""

    def writable(self) -> bool:
        """It is only written to."""
        return True

    def write(self, text: str) -> int:
        """Log the lines that are whole."""
        *lines, self._begun = (self._begun + text).split("\n")
        if len(self._begun) > _LINE_CHARACTERS_MAX:
            lines, self._begun = [*lines, self._begun], ""
        for line in lines:
            if line.strip():
                self._log.info("printed", extra={"fields": {"line": line}})
        return len(text)
