"""The same members, some of them on thin lines: what they send takes its time, a little at a time.

All payloads that a member sends at once share its uplink, and those that hear from it see bytes
come, as the shell tells its core. What is averaged are four million parameters of a byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from swarmnode.ids import PeerId
from swarmnode.protocol.gossip import group_events as events
from swarmnode.wire.exchange import group as wire
from tests.property.models.round_staller_world import World

# What one that says that its line is thin makes of it: all; nothing; bytes without an end, of
# shares and of sums, or of those to one member only.
Thin = Literal["honest", "silent", "trickles", "withholds sums", "trickles to one"]
MBIT_BYTES_PER_S = 125_000.0
_VECTOR_BYTES = 4_062_500
_TRANSFER_S = 198.0  # as the shell's, for so many parameters
_TICK_S = 0.5


@dataclass
class _Parcel:
    source: PeerId
    target: PeerId
    message: wire.Share | wire.Sum
    left_bytes: float


class ThinWorld(World):
    """See the module. ``lines``: which members have thin ones; the last of all is no honest one."""

    def __init__(self, *, every_s: float, n_thin: int = 0, seed: int = 1) -> None:
        super().__init__(every_s=every_s, seed=seed)
        self.transfer_s = _TRANSFER_S
        self.thin = dict.fromkeys(self.honest[:n_thin], MBIT_BYTES_PER_S)
        self._manner: Thin = "honest"
        self._parcels: dict[PeerId, list[_Parcel]] = {}

    def let_in(self, manner: Thin) -> None:
        """Let one more member in, on a line of 1 Mbit/s."""
        self._manner = manner
        self.thin[self.attacker] = MBIT_BYTES_PER_S
        self.attack("dragged")

    def needs_s(self, n_members: int) -> dict[PeerId, float]:
        """Return what members say that their lines need for a stage of a run of so many."""
        sent_bytes = _VECTOR_BYTES * (n_members - 1) / n_members
        return {peer: sent_bytes / rate for peer, rate in self.thin.items()}

    def send(self, source: PeerId, target: PeerId, message: wire.Message, after_s: float) -> None:
        if source not in self.thin or not isinstance(message, wire.Share | wire.Sum):
            super().send(source, target, message, after_s)
            return
        piece_bytes = _VECTOR_BYTES / len(self.members[source].waits.members)
        parcels = self._parcels.setdefault(source, [])
        if not parcels:
            self._at(self.now + _TICK_S, partial(self._tick, source))
        parcels.append(_Parcel(source, target, message, piece_bytes))

    def _tick(self, source: PeerId) -> None:
        parcels = [
            parcel
            for parcel in self._parcels[source]
            if self.members[parcel.target].running == parcel.message.gid  # else it is refused
        ]
        under_way = {parcel.target: parcel for parcel in reversed(parcels)}  # one to each at a time
        share_bytes = self.thin[source] * _TICK_S / max(1, len(under_way))
        self._parcels[source] = left = []
        for parcel in parcels:
            if under_way[parcel.target] is not parcel:
                left.append(parcel)
                continue
            target, gid = self.members[parcel.target], parcel.message.gid
            manner = self._manner_of(parcel)
            if manner == "honest":
                parcel.left_bytes -= share_bytes
            if parcel.left_bytes <= 0:
                self._hear(target, source, parcel.message)
                continue
            left.append(parcel)
            if manner != "silent":
                self._feed(target, events.Arriving(gid, source))
        if left:
            self._at(self.now + _TICK_S, partial(self._tick, source))

    def _manner_of(self, parcel: _Parcel) -> Thin:
        if parcel.source != self.attacker:
            return "honest"
        if self._manner == "withholds sums":
            return "trickles" if isinstance(parcel.message, wire.Sum) else "honest"
        if self._manner == "trickles to one":
            return "trickles" if parcel.target == self.honest[0] else "honest"
        return self._manner
