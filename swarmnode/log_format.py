"""How an event of a log is written: one line, as text for people or as JSON for machines.

Daemon and worker write alike. Text from peers ends up in fields, in tracebacks, and in what other
libraries log. It cannot forge a line or a terminal sequence: what is not plain is quoted or
replaced, and the lines of a traceback are indented.
"""

from __future__ import annotations

import json
import logging
import math
import re
import time
from collections.abc import Mapping
from typing import Any, Literal

from swarmnode import limits

# One value in a log line: text from a peer may not fill the log.
LOG_VALUE_CHARACTERS_MAX = 1024
# A traceback of Trio through several nurseries is long; its end says what happened.
LOG_TRACEBACK_CHARACTERS_MAX = 16 * limits.KIB

ROOT_LOGGER = "swarmnode"
LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

_PLAIN_CHARACTERS = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/+@%*,[]~…"
)
# Or a line of a traceback, which belongs to the event before it.
_TEXT_EVENT = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]{12}Z [a-z]+ +\S|    ", re.ASCII)


def formatter_of(log_format: LogFormat) -> logging.Formatter:
    """Return what makes a line of a record."""
    return JsonFormatter() if log_format == "json" else TextFormatter()


def event_line(log_format: LogFormat, name: str, level: int, event: str) -> str:
    """Return the line of an event that is printed and not logged."""
    record = logging.makeLogRecord(
        {"name": name, "levelno": level, "levelname": logging.getLevelName(level), "msg": event}
    )
    return formatter_of(log_format).format(record)


def is_event(log_format: LogFormat, line: str) -> bool:
    """Whether another process has written this line as this one would: it needs no wrapping."""
    if not line.isprintable():
        return False
    if log_format == "text":
        return bool(_TEXT_EVENT.match(line))
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(event, dict) and event.keys() >= {"time", "level", "event"}


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
    return text[-LOG_TRACEBACK_CHARACTERS_MAX:]


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
    if len(text) <= LOG_VALUE_CHARACTERS_MAX:
        return text
    return text[:LOG_VALUE_CHARACTERS_MAX] + "…"
