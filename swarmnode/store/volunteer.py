"""What outlives a restart of what a volunteer gives: a pause by hand, the month's traffic, totals.

Totals are what one node gave to its swarms over all its lives, in ``totals.json`` of its home.
``mark`` is the step of the model, and its tokens, up to which they have counted. A snapshot
is older than the last step before a crash: what is trained again up to the mark is not counted
twice.
"""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import msgspec

from swarmnode import limits
from swarmnode.errors import CorruptRecord
from swarmnode.protocol.volunteer import ManualPause
from swarmnode.store.files import read_file, storage_errors, sync_directory, write_atomic
from swarmnode.wire.records import Count

# Months that are remembered: a clock that was wrong for a day must not forget the right one.
_QUOTA_MONTHS_KEPT = 3
# A file of one pause, or of a few months.
_VOLUNTEER_FILE_BYTES_MAX = 4 * limits.KIB

_log = logging.getLogger("swarmnode.store")


def save_pause(path: Path, pause: ManualPause | None) -> None:
    """Remember a pause, or that there is none. Raises StorageError."""
    if pause is None:
        with storage_errors(path, "remove"):
            path.unlink(missing_ok=True)
            sync_directory(path.parent)
        return
    words = {"until_unix_s": pause.until_unix_s, "length_s": pause.length_s}
    write_atomic(path, json.dumps(words).encode())


def load_pause(path: Path) -> ManualPause | None:
    """Return the pause that is in force.

    A file that cannot be read means one without an end: only its owner ends a pause.
    """
    try:
        words = _load(path)
    except FileNotFoundError:
        return None
    except CorruptRecord as error:
        _log.warning("a pause without an end, its file is damaged: %s", error)
        return ManualPause()
    until, length = words.get("until_unix_s"), words.get("length_s")
    if _is_number(until) and _is_number(length):
        return ManualPause(until, length)
    return ManualPause()


class TrafficLedger:
    """Bytes of each month, such as ``2026-11``; of a few months only."""

    def __init__(self, path: Path) -> None:
        """Read what was counted before; a damaged file begins at nothing, and says so."""
        self._path = path
        self._months: dict[str, int] = {}
        self._is_saved = True
        try:
            words = _load(path)
        except FileNotFoundError:
            return
        except CorruptRecord as error:
            _log.warning("this month's traffic is counted from 0: %s", error)
            return
        counted = {month: count for month, count in words.items() if _is_number(count)}
        self._months = {month: int(count) for month, count in counted.items()}

    def add(self, month: str, n_bytes: int) -> int:
        """Count, and return what the month has so far."""
        self._is_saved = self._is_saved and not n_bytes
        self._months[month] = self._months.get(month, 0) + n_bytes
        return self._months[month]

    def save(self) -> None:
        """Write down what has come since the last time. Raises StorageError."""
        if self._is_saved:
            return
        kept = sorted(self._months.items())[-_QUOTA_MONTHS_KEPT:]
        write_atomic(self._path, json.dumps(dict(kept)).encode())
        self._is_saved = True


def _load(path: Path) -> dict[str, Any]:
    raw = read_file(path, bytes_max=_VOLUNTEER_FILE_BYTES_MAX)
    try:
        words = json.loads(raw)
    except ValueError as error:
        raise CorruptRecord(f"{path}: expected JSON", path=str(path)) from error
    if not isinstance(words, dict):
        raise CorruptRecord(f"{path}: expected a JSON object", path=str(path))
    return words


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= 0


# A home that was in more swarms keeps the sum over all, and those that it gave most.
TOTALS_SWARMS_MAX = 1000
# TOTALS_SWARMS_MAX entries of 64 characters and six numbers.
TOTALS_FILE_BYTES_MAX = limits.MIB


class Mark(msgspec.Struct, frozen=True):
    """How far the model of this node is."""

    step: Count = 0
    tokens: Count = 0


class Totals(msgspec.Struct, frozen=True):
    """What was given: to one swarm, or to all."""

    steps: Count = 0
    tokens: Count = 0
    exchanges_committed: Count = 0
    sent_bytes: Count = 0
    received_bytes: Count = 0
    trained_s: float = 0.0

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.steps + other.steps,
            self.tokens + other.tokens,
            self.exchanges_committed + other.exchanges_committed,
            self.sent_bytes + other.sent_bytes,
            self.received_bytes + other.received_bytes,
            self.trained_s + other.trained_s,
        )


class SwarmTotals(msgspec.Struct, frozen=True):
    """Of one swarm, with the mark up to which steps are counted."""

    given: Totals = Totals()
    mark: Mark = Mark()


class Book(msgspec.Struct, frozen=True):
    """The whole file; ``all`` counts swarms too that are no longer listed."""

    all: Totals = Totals()
    swarms: dict[str, SwarmTotals] = msgspec.field(default_factory=dict)


def load_totals(path: Path) -> Book:
    """Return what was saved; a damaged file is set aside, and counting begins at 0.

    Raises:
        StorageError: the system does not let us read it, or set it aside.
    """
    try:
        return msgspec.json.decode(read_file(path, bytes_max=TOTALS_FILE_BYTES_MAX), type=Book)
    except FileNotFoundError:
        return Book()
    except (CorruptRecord, msgspec.DecodeError, UnicodeDecodeError) as error:
        aside = path.with_name(f"{path.name}.damaged")
        with storage_errors(path, "set aside"):
            path.replace(aside)
        _log.warning("totals are counted from 0, the damaged file is now %s: %s", aside, error)
        return Book()


def save_totals(path: Path, book: Book) -> None:
    """Write it down; when this returns it survives a power failure. Raises StorageError."""
    most = sorted(book.swarms.items(), key=lambda item: item[1].given.trained_s, reverse=True)
    kept = dict(most[:TOTALS_SWARMS_MAX])
    write_atomic(path, msgspec.json.encode(Book(book.all, kept)))
