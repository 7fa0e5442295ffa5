"""The probe under way, and the probes that we make for others."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmnode.ids import PeerId


@dataclass
class Probe:
    """One member that we wait for. It is judged when the period ends."""

    seq: int
    target: PeerId
    helpers_at: float  # when to ask helpers
    helpers_asked: bool = False
    helpers: set[PeerId] = field(default_factory=set)
    nacks: set[PeerId] = field(default_factory=set)

    @property
    def n_silent_helpers(self) -> int:
        return len(self.helpers) - len(self.nacks)

    def may_ack(self, peer: PeerId) -> bool:
        """Whether an ack from this peer counts: the word of others does not."""
        return peer == self.target or peer in self.helpers

    def take_nack(self, peer: PeerId) -> None:
        """Note that a helper is there though it does not reach the target."""
        if peer in self.helpers:
            self.nacks.add(peer)


@dataclass
class Relay:
    """A ping that we sent for another member."""

    requester: PeerId
    seq: int  # the requester's
    target: PeerId
    give_up_at: float
