"""What each neighbour is known to have, so that nothing is sent to it twice.

Kept for STATE_RESEND_S, and of STATE_KNOWN_PER_NEIGHBOUR_MAX authors at most: a fresh record
is passed on within a moment, and whatever is older shows in the listings of both sides. What
falls out too early costs one record that is sent once more.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from swarmnode import limits
from swarmnode.ids import PeerId

# Versions that a neighbour is known to have, so that they are not sent again; the most recent.
_STATE_KNOWN_PER_NEIGHBOUR_MAX = 1024

Version = tuple[int, int]  # (epoch, sequence)


class _Known(NamedTuple):
    version: Version
    noted_at: float
    is_sent: bool  # by us; else it came from them


@dataclass
class Neighbour:
    """One peer that a session is open with."""

    peer: PeerId
    clock_skew_s: float | None = None  # its wall clock minus ours
    _known: OrderedDict[PeerId, _Known] = field(default_factory=OrderedDict)
    _asked: OrderedDict[PeerId, tuple[Version, float]] = field(default_factory=OrderedDict)

    def has(self, author: PeerId, version: Version) -> bool:
        """Whether it has that record, or it is on the way to it."""
        known = self._known.get(author)
        return known is not None and known.version >= version

    def is_on_the_way(self, author: PeerId, version: Version, now: float) -> bool:
        """Whether we sent that record so lately that a listing may not know of it yet."""
        known = self._known.get(author)
        if known is None or known.version < version:
            return False
        return known.is_sent and now - known.noted_at < limits.STATE_RESEND_S

    def note_received(self, author: PeerId, version: Version, now: float) -> None:
        """It sent us that record."""
        if not self.has(author, version):
            self._note(author, _Known(version, now, is_sent=False))

    def note_sent(self, author: PeerId, version: Version, now: float) -> None:
        """We send it that record."""
        self._note(author, _Known(version, now, is_sent=True))

    def may_ask(self, author: PeerId, version: Version, now: float) -> bool:
        """Whether to ask it for what follows ``version``: once in a while is enough."""
        asked = self._asked.pop(author, None)
        again = asked is None or asked[0] != version or now - asked[1] >= limits.STATE_RESEND_S
        self._asked[author] = (version, now) if again or asked is None else asked
        if len(self._asked) > _STATE_KNOWN_PER_NEIGHBOUR_MAX:
            self._asked.popitem(last=False)
        return again

    def _note(self, author: PeerId, known: _Known) -> None:
        entries = self._known
        entries.pop(author, None)
        entries[author] = known
        since = known.noted_at - limits.STATE_RESEND_S
        while entries[oldest := next(iter(entries))].noted_at < since or (
            len(entries) > _STATE_KNOWN_PER_NEIGHBOUR_MAX
        ):
            del entries[oldest]
