"""When a machine may be used: windows of the week in local time.

::

    mon-fri 22:00-07:00     begins on each of these days; this one ends on the next
    sat,sun                 all day
    12:30-13:30             every day

What counts is what a clock on the wall shows. So a window has an hour less in the night when
the clock goes forward, and one more when it goes back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

from swarmnode.errors import ConfigError

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY_MINUTES = 24 * 60
_WEEK_MINUTES = 7 * _DAY_MINUTES
_TIMES = re.compile(r"(\d{1,2}):(\d{2})-(\d{1,2}):(\d{2})")
_PRECISION_S = 1.0


@dataclass(frozen=True)
class Window:
    """From minute ``start`` of the week on, for ``length`` minutes."""

    start: int
    length: int

    def has(self, minute: int) -> bool:
        """Whether a minute of the week lies in it; it may go on over the end of Sunday."""
        return (minute - self.start) % _WEEK_MINUTES < self.length


@dataclass(frozen=True)
class WeeklySchedule:
    """The windows of a week; none at all means always."""

    windows: tuple[Window, ...] = ()

    def is_open(self, unix_s: float, zone: tzinfo | None = None) -> bool:
        """Whether ``unix_s`` lies in a window; without a ``zone`` that of this machine."""
        local = datetime.fromtimestamp(unix_s, zone)
        minute = local.weekday() * _DAY_MINUTES + local.hour * 60 + local.minute
        return not self.windows or any(window.has(minute) for window in self.windows)

    def next_change(self, unix_s: float, zone: tzinfo | None = None) -> float | None:
        """Return when it opens if it is closed, or closes if it is open; None: never."""
        was_open, before = self.is_open(unix_s, zone), unix_s
        for after in self._edges_after(unix_s, zone):
            if self.is_open(after, zone) != was_open:
                return self._bisect(before, after, zone)
            before = after
        return None

    def _edges_after(self, unix_s: float, zone: tzinfo | None) -> list[float]:
        """Return when windows begin and end within the next eight days, in order."""
        today = datetime.fromtimestamp(unix_s, zone).replace(
            hour=0, minute=0, second=0, microsecond=0
        )
        edges = {w.start for w in self.windows} | {w.start + w.length for w in self.windows}
        of_day = {edge % _DAY_MINUTES for edge in edges} | {0}
        found = set()
        for days in range(9):
            for minutes in of_day:
                local = today + timedelta(days=days, minutes=minutes)
                # The clock shows a time twice in the night when it goes back.
                found |= {local.replace(fold=fold).timestamp() for fold in (0, 1)}
        return sorted(edge for edge in found if edge > unix_s)

    def _bisect(self, before: float, after: float, zone: tzinfo | None) -> float:
        """Return the moment of a change: where the clock jumps it is at no edge of a window."""
        was_open = self.is_open(before, zone)
        if self.is_open(after - _PRECISION_S, zone) == was_open:
            return after
        while after - before > _PRECISION_S:
            middle = (before + after) / 2
            if self.is_open(middle, zone) == was_open:
                before = middle
            else:
                after = middle
        return float(round(after))


def parse_schedule(entries: tuple[str, ...]) -> WeeklySchedule:
    """Read the windows of a week.

    Raises:
        ConfigError: an entry is none; the message says what was expected.
    """
    return WeeklySchedule(tuple(window for entry in entries for window in _parse_entry(entry)))


def _parse_entry(entry: str) -> list[Window]:
    words = entry.lower().split()
    if not 1 <= len(words) <= 2:
        raise _error(entry, "days, times, or both")
    times = words.pop() if _looks_like_times(words[-1]) else ""
    days = _parse_days(words[0], entry) if words else list(range(7))
    start, length = _parse_times(times, entry) if times else (0, _DAY_MINUTES)
    return [Window(day * _DAY_MINUTES + start, length) for day in days]


def _looks_like_times(word: str) -> bool:
    return ":" in word or word[:1].isdigit()


def _parse_days(text: str, entry: str) -> list[int]:
    days: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        for name in (first, last) if dash else (first,):
            if name not in _DAYS:
                raise _error(entry, f"days out of {', '.join(_DAYS)}, not {name[:20]!r}")
        begin, end = _DAYS.index(first), _DAYS.index(last if dash else first)
        days += [(begin + offset) % 7 for offset in range((end - begin) % 7 + 1)]
    return days


def _parse_times(text: str, entry: str) -> tuple[int, int]:
    found = _TIMES.fullmatch(text)
    if found is None:
        raise _error(entry, f"times as HH:MM-HH:MM, not {text[:20]!r}")
    hour, minute, end_hour, end_minute = map(int, found.groups())
    start, end = hour * 60 + minute, end_hour * 60 + end_minute
    if max(minute, end_minute) > 59 or start >= _DAY_MINUTES or end > _DAY_MINUTES:
        raise _error(entry, f"times from 00:00 to 24:00, not {text[:20]!r}")
    if start == end:
        raise _error(entry, f"two different times, not {text[:20]!r}; all day needs none")
    return start, (end - start) % _DAY_MINUTES or _DAY_MINUTES


def _error(entry: str, expected: str) -> ConfigError:
    return ConfigError(
        f"schedule: expected {expected} in {entry[:80]!r}; entries look like"
        ' "mon-fri 22:00-07:00", "sat,sun" or "12:30-13:30"'
    )
