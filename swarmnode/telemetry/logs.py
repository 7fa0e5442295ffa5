"""Logs on the standard library: one event a line, as text for people or as JSON.

An event is a fixed sentence plus named fields. Layers below this one log with
``logging.getLogger(__name__).warning("peer refused", extra={"fields": {"peer": peer}})``;
above it, :func:`get_logger` spares the nesting. Logger and sentence are the key of an event. Where
the sentence has places for values (``"port %d is mapped"``), JSON has it as it stands in the code,
and beside it the ``message``. ``log_format.py`` has how a line is written.
"""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, TextIO

from swarmnode import limits
from swarmnode.errors import ConfigError
from swarmnode.log_format import ROOT_LOGGER, LogFormat, LogLevel, formatter_of, is_event

# `log_file`: a node writes 20 to 28 MB a month, so that two of these files, as many as there are at
# most, hold at least the last two weeks.
_LOG_FILE_BYTES_MAX = 16 * limits.MIB


class LogFile:
    """A log in one file of bounded size: ``node.log``, and the older ``node.log.1``.

    For nodes without a journal that does it: a service of macOS, a container, ``nohup``. Takes
    whole events, as the stream of a handler; never raises once it is open. Nothing is synced: a
    power failure may cost the last lines.

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


_LEVELS = {
    logging.DEBUG: "debug",
    logging.INFO: "info",
    logging.WARNING: "warning",
    logging.ERROR: "error",
}


class EventLogger:
    """``log.info("peer joined", peer=peer_id, rtt_s=0.03)``: any field name is allowed."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, event: str, /, **fields: Any) -> None:
        """For a person who looks for a fault."""
        self._logger.debug(event, extra={"fields": fields})

    def info(self, event: str, /, **fields: Any) -> None:
        """What the owner of a node may want to know."""
        self._logger.info(event, extra={"fields": fields})

    def warning(self, event: str, /, **fields: Any) -> None:
        """Something went wrong that the node deals with."""
        self._logger.warning(event, extra={"fields": fields})

    def error(self, event: str, /, **fields: Any) -> None:
        """Something went wrong that needs a person."""
        self._logger.error(event, extra={"fields": fields})

    def exception(self, event: str, /, **fields: Any) -> None:
        """Like :meth:`error`, with the traceback of the exception being handled."""
        self._logger.error(event, exc_info=True, extra={"fields": fields})


def get_logger(name: str) -> EventLogger:
    """Return a logger whose calls take fields as keywords.

    ``name`` is part of an event's key: that of a package, which stays when its modules change.
    """
    return EventLogger(logging.getLogger(name))


def configure_logging(
    log_format: LogFormat = "text",
    level: LogLevel = "info",
    stream: TextIO | None = None,
    *,
    log_file: str = "",
) -> None:
    """Send the events of this process to a file, a stream or standard error; the last call counts.

    Raises:
        ConfigError: ``log_file`` cannot be written.
    """
    target = LogFile(Path(log_file)) if log_file else stream or sys.stderr
    handler = _OurHandler(target)
    handler.setFormatter(formatter_of(log_format))
    logger = logging.getLogger(ROOT_LOGGER)
    for earlier in [known for known in logger.handlers if isinstance(known, _OurHandler)]:
        logger.removeHandler(earlier)
        earlier.close()
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    # What other libraries log goes through the same handler; without this it would be printed raw.
    other = _OurHandler(target)
    other.setLevel(logging.WARNING)
    other.setFormatter(handler.formatter)
    logging.lastResort = other


def log_everything() -> None:
    """Log what Python would print by itself: warnings, and the error that ends the process."""
    logging.captureWarnings(capture=True)
    warned = logging.getLogger("py.warnings")
    if logging.lastResort is not None:
        warned.handlers[:] = [logging.lastResort]
    sys.excepthook = _log_end


def _log_end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger(ROOT_LOGGER).critical("a bug ended this", exc_info=(kind, error, trace))


def relay_line(log_format: LogFormat, line: str) -> None:
    """Log a line that the worker wrote: as it is if it is an event, else as what was printed."""
    logger = logging.getLogger(ROOT_LOGGER)
    if not is_event(log_format, line):
        logger.getChild("worker").info("printed", extra={"fields": {"line": line}})
        return
    for handler in logger.handlers:
        if isinstance(handler, _OurHandler):
            handler.write_line(line)


def log_counts() -> dict[str, int]:
    """Return how many events this process has written, by level."""
    return dict(_OurHandler.written)


class _OurHandler(logging.StreamHandler[TextIO | LogFile]):
    """Told apart from handlers that others (a test runner) put on our logger."""

    written: ClassVar[Counter[str]] = Counter()  # by level; one process has one log

    def emit(self, record: logging.LogRecord) -> None:
        """Write it, and count it."""
        self.written[_LEVELS.get(record.levelno, "error")] += 1
        super().emit(record)

    def write_line(self, line: str) -> None:
        """Write what is an event already."""
        with self.lock or nullcontext():
            self.stream.write(line + self.terminator)
            self.flush()

    def close(self) -> None:
        """Give up the file, which is ours; a stream belongs to the caller."""
        super().close()
        if isinstance(self.stream, LogFile):
            self.stream.close()
