"""What each neighbour is known to have, so that nothing is sent to it twice.

Bounded: the most recent versions of STATE_KNOWN_PER_NEIGHBOUR_MAX authors. What falls out
costs, at worst, one record that is sent once more.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from swarmnode import limits
from swarmnode.ids import PeerId

Version = tuple[int, int]  # (epoch, sequence)


class _Known(NamedTuple):
    version: Version
    sent_at: float  # by us; -inf: it came from them


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
        return now - known.sent_at < limits.STATE_RESEND_S

    def note_received(self, author: PeerId, version: Version) -> None:
        """It sent us that record."""
        if not self.has(author, version):
            self._note(author, _Known(version, -math.inf))

    def note_sent(self, author: PeerId, version: Version, now: float) -> None:
        """We send it that record."""
        self._note(author, _Known(version, now))

    def may_ask(self, author: PeerId, version: Version, now: float) -> bool:
        """Whether to ask it for what follows ``version``: once in a while is enough."""
        asked = self._asked.pop(author, None)
        again = asked is None or asked[0] != version or now - asked[1] >= limits.STATE_RESEND_S
        self._asked[author] = (version, now) if again or asked is None else asked
        _trim(self._asked)
        return again

    def _note(self, author: PeerId, known: _Known) -> None:
        self._known.pop(author, None)
        self._known[author] = known
        _trim(self._known)


def _trim(
    entries: OrderedDict[PeerId, _Known] | OrderedDict[PeerId, tuple[Version, float]],
) -> None:
    if len(entries) > limits.STATE_KNOWN_PER_NEIGHBOUR_MAX:
        entries.popitem(last=False)
