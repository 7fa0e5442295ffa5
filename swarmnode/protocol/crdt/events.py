"""What goes into the core of the shared state and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from swarmnode.ids import PeerId
from swarmnode.protocol.crdt.cells import CellStatistics
from swarmnode.protocol.crdt.document import RegisterContent, SetKey
from swarmnode.wire.crdt import Message, Proof, SnapshotClaim
from swarmnode.wire.swarm import Signed

# --- events ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Update:
    """We say something about ourselves; what is not named stays as it is.

    Leases and claims with 0 seconds are taken back, and verdicts that are neutral. Counters and
    maxima are totals, and never fall.
    """

    leases: Mapping[SetKey, int] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    registers: Mapping[str, RegisterContent] = field(default_factory=dict)
    maxima: Mapping[str, int] = field(default_factory=dict)
    snapshots: Mapping[bytes, SnapshotClaim] = field(default_factory=dict)
    verdicts: Mapping[bytes, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Restored:
    """What the journal held, in its order; before anything else is handled."""

    records: tuple[Signed, ...]


class Persisted(msgspec.Struct, frozen=True):
    """Our own record of that sequence is on disk, synced: now others may see it."""

    sequence: int


@dataclass(frozen=True)
class NeighbourUp:
    """A session with this peer is open."""

    peer: PeerId


@dataclass(frozen=True)
class NeighbourDown:
    """The last session with this peer is gone."""

    peer: PeerId


class Received(msgspec.Struct, frozen=True):
    """A message of an authenticated neighbour."""

    peer: PeerId
    message: Message


@dataclass(frozen=True)
class ClockSet:
    """The wall clock of this machine was set."""

    wall_unix_s: float


Event = Update | Restored | Persisted | NeighbourUp | NeighbourDown | Received | ClockSet

# --- effects -----------------------------------------------------------------------------


class Send(msgspec.Struct, frozen=True):
    """To a neighbour; may be dropped if its session is gone."""

    peer: PeerId
    message: Message


class Persist(msgspec.Struct, frozen=True):
    """Append to the journal. With ``sequence``: ours; say Persisted once it is synced."""

    record: Signed
    sequence: int | None = None


class Changed(msgspec.Struct, frozen=True):
    """The part of this author changed in the named sets, counters, registers and maxima."""

    author: PeerId
    names: frozenset[str]


@dataclass(frozen=True)
class Ban:
    """This author signed two histories; the proof convinces every node."""

    author: PeerId
    proof: Proof


@dataclass(frozen=True)
class Penalise:
    """This neighbour sent what no honest node passes on."""

    peer: PeerId
    why: str


@dataclass(frozen=True)
class KeyElsewhere:
    """Another node signs with our key: two nodes run on one copied key."""

    epoch: int
    sequence: int


Effect = Send | Persist | Changed | Ban | Penalise | KeyElsewhere


@dataclass(frozen=True)
class StateStatistics:
    """Sizes now, and counts since the core was made. Every key is from a closed set."""

    authors: int
    bans: int
    held_bytes: int
    neighbours: int
    types: Mapping[str, CellStatistics]
    # what became of the records received, by verdict
    records_total: Mapping[str, int]
    own_sequence: int
    # messages sent, by their tag
    messages_total: Mapping[str, int]
    records_sent_total: int
    # the median of the neighbours' wall clocks minus ours; None: none has said
    clock_skew_s: float | None
