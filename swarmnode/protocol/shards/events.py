"""What goes into the core of the shards and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from swarmnode.ids import PeerId
from swarmnode.protocol.shards.words import Shard

# --- events ------------------------------------------------------------------------------


@dataclass(frozen=True)
class View:
    """What the shared state and the failure detector say now; takes the place of the last one.

    Attributes:
        members: those that are alive and train, ourselves included.
        claims: shard to all that claim it; the dead may be among them.
        done: epoch to the shards that any member has trained, bit i for shard i.
        mine: the same of our own registers, those of an earlier life included.
    """

    members: frozenset[PeerId]
    claims: Mapping[Shard, frozenset[PeerId]]
    done: Mapping[int, int]
    mine: Mapping[int, int]


@dataclass(frozen=True)
class WorkerUp:
    """The worker takes shards from now on: it has started, or goes on after a rest."""


@dataclass(frozen=True)
class WorkerGone:
    """The worker has died and will be back: what it trained begins anew then."""


@dataclass(frozen=True)
class Rest:
    """Nothing is trained until WorkerUp, as while paused: others may have our shards."""


@dataclass(frozen=True)
class Finished:
    """The worker has trained a shard to its end."""

    shard: Shard


Event = View | WorkerUp | WorkerGone | Rest | Finished

# --- effects -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Say:
    """Write this into our part of the shared state, in one record; 0 seconds take a claim back."""

    leases: Mapping[tuple[str, str], int]
    registers: Mapping[str, str]


@dataclass(frozen=True)
class Assign:
    """The worker trains this after what it was assigned before."""

    shard: Shard


@dataclass(frozen=True)
class Withdraw:
    """The worker forgets this shard, wherever in it it is."""

    shard: Shard


Effect = Say | Assign | Withdraw


@dataclass(frozen=True)
class ShardStatistics:
    """Counters since the core was made, and where it is."""

    epoch: int  # the oldest that is open
    claims: int
    finished_total: int
    # claims lost to a rival, or to a member that had trained the shard already
    lost_total: int
