"""Logs on the standard library: one event a line, as text for people or as JSON.

An event is a fixed sentence plus named fields. Layers below this one log with
``logging.getLogger(__name__).warning("peer refused", extra={"fields": {"peer": peer}})``;
above it, :func:`get_logger` spares the nesting. Logger and sentence are the key of an event. Where
the sentence has places for values (``"port %d is mapped"``), JSON has it as it stands in the code,
and beside it the ``message``.

Text from peers ends up in fields, in tracebacks, and in what other libraries log. It cannot
forge a line or a terminal sequence: what is not plain is quoted or replaced, and the lines of a
traceback are indented.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TextIO

from swarmnode import limits

ROOT_LOGGER = "swarmnode"
LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

_LEVELS = {
    logging.DEBUG: "debug",
    logging.INFO: "info",
    logging.WARNING: "warning",
    logging.ERROR: "error",
}
_PLAIN_CHARACTERS = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/+@%*,[]~…"
)


class EventLogger:
    """``log.info("peer joined", peer=peer_id, rtt_s=0.03)``: any field name is allowed."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, event: str, /, **fields: Any) -> None:
        """For whoever looks for a fault."""
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
    """Return a logger whose calls take fields as keywords; ``name`` is usually ``__name__``."""
    return EventLogger(logging.getLogger(name))


def configure_logging(
    log_format: LogFormat = "text", level: LogLevel = "info", stream: TextIO | None = None
) -> None:
    """Send the events of this process to ``stream`` (standard error); the last call counts."""
    handler = _OurHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logger = logging.getLogger(ROOT_LOGGER)
    for earlier in [known for known in logger.handlers if isinstance(known, _OurHandler)]:
        logger.removeHandler(earlier)
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    # What other libraries log goes through the same door; without this it would be printed raw.
    other = _OurHandler(stream or sys.stderr)
    other.setLevel(logging.WARNING)
    other.setFormatter(handler.formatter)
    logging.lastResort = other


class TextFormatter(logging.Formatter):
    """``2026-03-01T12:00:00Z info    net.http: request failed path=/peers status=500``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, followed by the traceback if there is one."""
        name = record.name.removeprefix(ROOT_LOGGER + ".")
        parts = [
            f"{_timestamp(record)} {record.levelname.lower():<7} {name}: {_event(record)}",
            *(f"{key}={_quoted(value)}" for key, value in _fields(record).items()),
        ]
        line = " ".join(parts)
        if not record.exc_info:
            return line
        # Whatever an exception says, only an event begins at the left edge.
        traceback = _traceback(record).splitlines()
        return "\n".join([line, *(f"    {_printable(text)}" for text in traceback)])


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, event, and the fields beside them."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line; a field cannot replace one of the fixed keys."""
        event = {
            **{key: _json_value(value) for key, value in _fields(record).items()},
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": _printable(str(record.msg)),
        }
        if record.args:
            event["message"] = _bounded(_event(record))
        if record.exc_info:
            event["traceback"] = _traceback(record)
        return json.dumps(event)


def log_counts() -> dict[str, int]:
    """Return how many events this process has written, by level."""
    return dict(_OurHandler.written)


class _OurHandler(logging.StreamHandler[TextIO]):
    """Told apart from handlers that others (a test runner) put on our logger."""

    written: ClassVar[Counter[str]] = Counter()  # by level; one process has one log

    def emit(self, record: logging.LogRecord) -> None:
        """Write it, and count it."""
        self.written[_LEVELS.get(record.levelno, "error")] += 1
        super().emit(record)


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = getattr(record, "fields", {})
    return fields


def _event(record: logging.LogRecord) -> str:
    return _printable(record.getMessage())


def _timestamp(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _traceback(record: logging.LogRecord) -> str:
    """Return the traceback, or its end if it is long: there stands what happened."""
    assert record.exc_info is not None
    text = logging.Formatter().formatException(record.exc_info)
    return text[-limits.LOG_TRACEBACK_CHARACTERS_MAX :]


def _printable(text: str) -> str:
    """Return one line that moves no cursor."""
    return "".join(char if char.isprintable() else " " for char in text)


def _json_value(value: Any) -> Any:
    """Keep what JSON has a type for; NaN and infinity are not JSON."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return _bounded(value)


def _quoted(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else _bounded(value)
    return text if text and _PLAIN_CHARACTERS.issuperset(text) else json.dumps(text)


def _bounded(value: Any) -> str:
    text = value.hex() if type(value) is bytes else str(value)
    if len(text) <= limits.LOG_VALUE_CHARACTERS_MAX:
        return text
    return text[: limits.LOG_VALUE_CHARACTERS_MAX] + "…"
