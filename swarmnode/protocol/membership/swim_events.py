"""What goes into the failure detector and what comes out of it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import msgspec

from swarmnode.ids import PeerId
from swarmnode.wire.swim import Message


class MemberState(enum.StrEnum):
    """What we hold of a member. Alive and suspect ones are live."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    DEAD = "dead"
    LEFT = "left"


# --- events ------------------------------------------------------------------------------


class Received(msgspec.Struct, frozen=True):
    """A message of an authenticated peer."""

    peer: PeerId
    message: Message


@dataclass(frozen=True)
class Contact:
    """Tell this peer all we know and ask for the same: a seed, or a session that just opened."""

    peer: PeerId


@dataclass(frozen=True)
class SendFailed:
    """Nothing can be sent to this peer now: no session, and no way to open one.

    ``carriers``: members that have a session with it, as far as is known: they are asked first.
    """

    peer: PeerId
    carriers: tuple[PeerId, ...] = ()


@dataclass(frozen=True)
class Leave:
    """We leave: say so, and do nothing any more. ``reason`` is for people.

    There is no time to dial any member: those that we can ``reach`` at once are told first.
    """

    reason: str
    reach: frozenset[PeerId] = frozenset()


Event = Received | Contact | SendFailed | Leave


# --- effects -----------------------------------------------------------------------------


class Send(msgspec.Struct, frozen=True):
    """By the best way there is, relays included; SendFailed if there is none."""

    peer: PeerId
    message: Message


@dataclass(frozen=True)
class Changed:
    """A member is new (``was`` is None), in another state, or back with a higher epoch."""

    peer: PeerId
    was: MemberState | None
    state: MemberState
    epoch: int
    reason: str = ""  # of a member that left


@dataclass(frozen=True)
class KeyConflict:
    """Another node signs with our key: a copied key file, or our disk is a restored backup."""

    epoch: int
    incarnation: int


Effect = Send | Changed | KeyConflict


@dataclass(frozen=True)
class SwimStatistics:
    """Gauges first, then counters since the core was made."""

    alive: int
    suspect: int
    dead: int
    left: int
    incarnation: int
    health_score: int
    rumours: int
    probes_total: int
    probes_failed_total: int
    suspected_total: int
    died_total: int
    refuted_total: int  # doubts about ourselves
    stalls_total: int
    table_full_total: int


@dataclass
class Tally:
    """The counters while they count."""

    probes: int = 0
    probes_failed: int = 0
    suspected: int = 0
    died: int = 0
    refuted: int = 0
    table_full: int = 0

    def statistics(
        self,
        states: list[MemberState],
        incarnation: int,
        health_score: int,
        rumours: int,
        stalls: int,
    ) -> SwimStatistics:
        """Return them with the states of all members, and what else a core counts."""
        return SwimStatistics(
            alive=states.count(MemberState.ALIVE),
            suspect=states.count(MemberState.SUSPECT),
            dead=states.count(MemberState.DEAD),
            left=states.count(MemberState.LEFT),
            incarnation=incarnation,
            health_score=health_score,
            rumours=rumours,
            probes_total=self.probes,
            probes_failed_total=self.probes_failed,
            suspected_total=self.suspected,
            died_total=self.died,
            refuted_total=self.refuted,
            stalls_total=stalls,
            table_full_total=self.table_full,
        )
