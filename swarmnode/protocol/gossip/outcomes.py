"""How exchanges ended: the memory behind STATUS, and against replays.

Commits and aborts are bounded apart, so that a flood of offers that come to
nothing never pushes out a commit. Aborts may be forgotten at no risk: a peer that
is told ``unknown`` aborts too (presumed abort, Mohan and Lindsay 1983).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from swarmnode import limits
from swarmnode.errors import InvariantViolation
from swarmnode.ids import PeerId
from swarmnode.wire.exchange.gossip import StatusOutcome

# Per kind of outcome: 13 commits a second for EXCHANGE_OUTCOME_KEEP_S; about 1 MiB each.
EXCHANGE_OUTCOMES_MAX = 8192


class Outcome(enum.StrEnum):
    """How an exchange ended on this node. Declined: it never got past the offer."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    DECLINED = "declined"


def status_of(known: Outcome | None) -> StatusOutcome:
    """Return what a caller is told; None: there is no trace of it."""
    if known is None:
        return "unknown"
    return "committed" if known is Outcome.COMMITTED else "aborted"


@dataclass
class _Entry:
    ended: float
    disputed: bool = False


_Entries = dict[tuple[PeerId, bytes], _Entry]  # in order of ``ended``


class OutcomeTable:
    """Outcomes by (partner, exchange id), kept for EXCHANGE_OUTCOME_KEEP_S."""

    def __init__(self) -> None:
        self._committed: _Entries = {}
        self._aborted: _Entries = {}

    def record(self, peer: PeerId, xid: bytes, *, committed: bool, now: float) -> None:
        """Keep an outcome. The first one stands: another one later is a bug of ours."""
        mine, other = self._committed, self._aborted
        if not committed:
            mine, other = other, mine
        key = (peer, xid)
        if key in other:
            raise InvariantViolation(f"exchange {xid.hex()} ended twice, and differently")
        mine.setdefault(key, _Entry(now))
        _prune(self._committed, now)
        _prune(self._aborted, now)

    def lookup(self, peer: PeerId, xid: bytes) -> Outcome | None:
        """Return COMMITTED or ABORTED, or None where nothing is known."""
        key = (peer, xid)
        if key in self._committed:
            return Outcome.COMMITTED
        return Outcome.ABORTED if key in self._aborted else None

    def dispute(self, peer: PeerId, xid: bytes) -> bool:
        """Note that the partner ended it the other way; True the first time for each."""
        key = (peer, xid)
        entry = self._committed.get(key) or self._aborted.get(key)
        if entry is None or entry.disputed:
            return False
        entry.disputed = True
        return True

    def __len__(self) -> int:
        return len(self._committed) + len(self._aborted)


def _prune(entries: _Entries, now: float) -> None:
    while entries:
        oldest = next(iter(entries))
        expired = entries[oldest].ended + limits.EXCHANGE_OUTCOME_KEEP_S < now
        if not expired and len(entries) <= EXCHANGE_OUTCOMES_MAX:
            return
        del entries[oldest]
