"""Hybrid logical clock: wall time that never runs backwards along cause and effect.

Source: Kulkarni, Demirbas, Madappa, Avva, Leone, "Logical physical clocks", 2014. A stamp is
(milliseconds of Unix time, tick); what follows from a stamp has a greater one. It is shown
and orders events for a person to read. Nothing is decided by it, but for one thing: a stamp
further ahead than STATE_CLOCK_AHEAD_S is refused, or one broken clock would drag all others
along.
"""

from __future__ import annotations

from typing import NamedTuple

from swarmnode import limits


class Stamp(NamedTuple):
    """When something was said."""

    wall_ms: int
    tick: int


class HybridClock:
    """One node's clock; ``now`` is monotonic seconds, as everywhere in the cores."""

    def __init__(self, wall_unix_s: float, now: float) -> None:
        self._offset_s = wall_unix_s - now
        self._last = Stamp(0, 0)

    def set_wall(self, wall_unix_s: float, now: float) -> None:
        """The machine's clock was set: go by it from now on."""
        self._offset_s = wall_unix_s - now
        if self.is_ahead(self._last, now):
            self._last = Stamp(0, 0)  # or all peers would refuse us until that date

    def wall_ms(self, now: float) -> int:
        """Return Unix milliseconds."""
        return max(0, int((now + self._offset_s) * 1000))

    def is_ahead(self, stamp: Stamp, now: float) -> bool:
        """Whether the stamp is of a clock that is broken, if ours is not."""
        return stamp.wall_ms > self.wall_ms(now) + limits.STATE_CLOCK_AHEAD_S * 1000

    def next(self, now: float) -> Stamp:
        """Return a stamp greater than all that were made or observed here."""
        self._last = max(Stamp(self.wall_ms(now), 0), _after(self._last))
        return self._last

    def observe(self, stamp: Stamp, now: float) -> None:
        """A stamp was received: ours come after it.

        But for one in the second half of what is allowed: followed to the edge, our own
        stamps would be refused wherever a clock is a little behind ours.
        """
        if stamp.wall_ms <= self.wall_ms(now) + limits.STATE_CLOCK_AHEAD_S * 500:
            self._last = max(self._last, stamp)


def _after(stamp: Stamp) -> Stamp:
    if stamp.tick < limits.STATE_CLOCK_TICKS_MAX:
        return Stamp(stamp.wall_ms, stamp.tick + 1)
    return Stamp(stamp.wall_ms + 1, 0)
