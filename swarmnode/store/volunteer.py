"""What must outlive a restart of a volunteer's rules: a pause by hand, and the month's traffic."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

from swarmnode import limits
from swarmnode.errors import CorruptRecord
from swarmnode.protocol.volunteer import ManualPause
from swarmnode.store.files import read_file, storage_errors, sync_directory, write_atomic

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

    A file that cannot be read means one without an end: nobody but its owner ends a pause.
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
