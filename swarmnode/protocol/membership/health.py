"""How much a node trusts its own view: Lifeguard's local health, suspicion times, lost time.

With the probes that say so: of ours, and for others.

Source: Dadgar, Phillips and Currey, "Lifeguard: local health awareness for more
accurate failure detection", 2018. The lived clock is ours: time that this
process did not live through counts against no peer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from swarmnode import limits
from swarmnode.ids import PeerId


@dataclass
class LocalHealth:
    """A score from 0 (well) to SWIM_HEALTH_MAX; probes slow down by ``score + 1``."""

    score: int = 0

    @property
    def multiplier(self) -> int:
        return self.score + 1

    def worsen(self, steps: int = 1) -> None:
        """Note what says that the trouble is ours."""
        assert steps >= 0
        self.score = min(limits.SWIM_HEALTH_MAX, self.score + steps)

    def improve(self) -> None:
        """Note a probe that was answered."""
        self.score = max(0, self.score - 1)


@dataclass(frozen=True)
class SuspicionTimes:
    """How long a suspicion lasts, fixed when it begins."""

    shortest_s: float
    longest_s: float
    confirmations_wanted: int

    @classmethod
    def for_swarm(cls, n_live: int) -> SuspicionTimes:
        """Return the times of a swarm with this many live members, ourselves included."""
        scale = max(1.0, math.log10(max(n_live, 1)))
        shortest_s = limits.SWIM_SUSPICION_PERIODS * scale * limits.SWIM_PERIOD_S
        # With fewer others than could confirm, there is no wait for what cannot come.
        can_confirm = n_live - 2 >= limits.SWIM_CONFIRMATIONS
        return cls(
            shortest_s,
            shortest_s * limits.SWIM_SUSPICION_SPREAD,
            limits.SWIM_CONFIRMATIONS if can_confirm else 0,
        )

    def timeout_s(self, confirmations: int) -> float:
        """Return the time from the start, given how many others confirmed the accusation."""
        if confirmations >= self.confirmations_wanted:
            return self.shortest_s
        share = math.log(confirmations + 1) / math.log(self.confirmations_wanted + 1)
        return self.longest_s - (self.longest_s - self.shortest_s) * share


@dataclass
class LivedClock:
    """Monotonic time less the time in which this process stood still.

    A laptop that slept, a stopped process or a starved core wakes up with every deadline
    passed and a queue full of answers. Without this it would declare the swarm dead.
    """

    lost_s: float = 0.0
    stalls: int = 0

    def lived(self, now: float, due: float | None) -> tuple[float, bool]:
        """Return the lived time at ``now``, and whether a stall was found.

        ``due``, in lived time, is the deadline that the shell knew of. After a stall it lies
        ahead again by SWIM_STALL_GRACE_S, so that what arrived meanwhile is read first.
        """
        lost_s = self.lost_s
        lived = now - lost_s
        if due is None or now < due + lost_s:
            return lived, False
        if lived - due <= limits.SWIM_STALL_S:
            return max(lived, due), False  # rounding may put it just before the deadline
        self.lost_s += lived - due + limits.SWIM_STALL_GRACE_S
        self.stalls += 1
        return now - self.lost_s, True

    def monotonic(self, lived: float) -> float:
        """Return the shell's time of a lived time to come."""
        return lived + self.lost_s


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
