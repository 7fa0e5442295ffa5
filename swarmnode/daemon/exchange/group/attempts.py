"""Which attempt at a mean members make: the same one for all who stand behind the same mean.

A run that came to nothing cannot be had again, so the next one has another name: its attempt is
part of it, where runs of no lineage have the round. A node counts on when a run of its own ends in
vain, and when a peer calls to a later one; so all meet in the highest that any of them has reached.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarmnode.ipc.control import PostedIntent
from swarmnode.protocol.gossip.group_events import group_id
from swarmnode.wire.exchange.group import Enlist

# How far one call moves a node on: an attempt a second for twelve days. Without a bound a liar
# would count it up to the last number that a message can hold.
_AHEAD_MAX = 2**20
# Times that calls may begin the wait for others anew, for one intent: a liar must not prolong it.
_RESTARTS_MAX = 4


@dataclass
class Attempts:
    """Of one kind of mean; ``key`` is that of all exchanges."""

    key: bytes
    intent: PostedIntent
    number: int = 0
    _count: int = 0  # means behind this node
    _restarts_left: int = _RESTARTS_MAX

    @property
    def gid(self) -> bytes:
        """The name of the run that this node makes or is to make."""
        return self._gid(self.number)

    def post(self, intent: PostedIntent) -> None:
        """Take the next intent: on with the same mean, or another one from the beginning."""
        topic = (intent.fragment, intent.base_version)
        if topic != (self.intent.fragment, self.intent.base_version):
            self.number = 0
        self.intent, self._restarts_left = intent, _RESTARTS_MAX
        self._count = intent.lineage or 0

    def committed(self) -> None:
        """One more mean is behind this node."""
        self._count += 1

    def failed(self) -> None:
        """The run ended in vain: the next one has another name."""
        self.number += 1

    def follow(self, call: Enlist) -> bool:
        """Go on to the attempt that a peer calls to; return whether it is a later one at this mean.

        What it says counts only if the run's name agrees.
        """
        is_later = self.number < call.attempt <= self.number + _AHEAD_MAX
        if not is_later or not self._restarts_left or self._gid(call.attempt) != call.gid:
            return False
        self.number = call.attempt
        self._restarts_left -= 1
        return True

    def is_ahead_of(self, call: Enlist) -> bool:
        """Whether who calls lacks means that are behind this node."""
        return call.lineage is not None and call.lineage < self._count

    def is_level_with(self, call: Enlist) -> bool:
        """Whether who calls is at this node's mean, as far as is known without its worker."""
        return call.lineage is not None and call.lineage >= self._count

    def _gid(self, number: int) -> bytes:
        intent = self.intent
        return group_id(self.key, intent.tag, intent.fragment, number, intent.base_version)
