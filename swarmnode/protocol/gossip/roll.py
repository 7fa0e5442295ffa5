"""The roll of a run: which members have come, before its first view, and when it is closed."""

from __future__ import annotations

from collections.abc import Iterable

from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.group_events import Begin, has_majority


class Roll:
    """Opened when this member begins the run.

    Attributes:
        came: the members that have, this one among them.
    """

    def __init__(self, begin: Begin, self_id: PeerId, now: float) -> None:
        self.came = {self_id}
        self._begin = begin
        self._opened_at = self._last_at = now
        self._quorum_at: float | None = None  # when a majority of the electorate had come

    def add(self, peer: PeerId, now: float) -> None:
        """A member has come."""
        self.came.add(peer)
        self._last_at = now
        if self._quorum_at is None and has_majority(self._begin.electorate, self.came):
            self._quorum_at = now

    def remove(self, peer: PeerId) -> None:
        """A member is gone."""
        self.came.discard(peer)

    def is_complete(self, members: Iterable[PeerId]) -> bool:
        """Whether all of these have come."""
        return self.came >= set(members)

    def waited_s(self, now: float) -> float:
        """Return for how long it has been open for none but those that are missing."""
        return now - self._last_at

    @property
    def closes_at(self) -> float:
        """When it is closed without those who are missing."""
        begin = self._begin
        closes_at = self._opened_at + begin.enlist_s
        if not begin.quorum_s:
            return closes_at
        if self._quorum_at is None:  # waiting costs nothing, and alone nothing comes of it
            return max(closes_at, self._opened_at + begin.quorum_s)
        return max(closes_at, self._quorum_at + begin.enlist_s / 2)
