"""What goes into an exchange core and what comes out of it.

A *slot* is the shell's number for the memory behind a snapshot. The core holds
a slot from the moment an exchange is offered or accepted until the effect
``Commit`` or ``Abort`` names it again: exactly one of the two, exactly once.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.outcomes import Outcome
from swarmnode.wire.gossip import Message


class Role(enum.StrEnum):
    """Who made the offer."""

    INITIATOR = "initiator"
    RESPONDER = "responder"


@dataclass(frozen=True)
class Snapshot:
    """What a node has to give. ``key`` must not depend on anything that is not compared."""

    slot: int
    key: bytes  # 32-byte digest of strategy, settings, layout and codec
    tag: str
    fragment: int
    round: int
    n_chunks: int
    step: int
    tokens: int
    # Partners further apart than this do not exchange; part of what ``key`` digests.
    round_skew_max: int | None = None


# --- events ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Available:
    """A fresh snapshot can be given to whoever offers; replaces the one before.

    ``transfer_limit_s`` bounds the transfer if we respond. A commit takes back what
    became available before it.
    """

    snapshot: Snapshot
    transfer_limit_s: float


@dataclass(frozen=True)
class Unavailable:
    """The snapshot is no longer to be offered or accepted with; not for one in an exchange."""


@dataclass(frozen=True)
class Begin:
    """Offer the available snapshot to ``candidates``, one after the other."""

    candidates: tuple[PeerId, ...]
    transfer_limit_s: float


@dataclass(frozen=True)
class Received:
    """A message of an authenticated peer."""

    peer: PeerId
    message: Message


@dataclass(frozen=True)
class LocalDone:
    """All chunks of the partner are merged and all of ours are sent."""

    xid: bytes


@dataclass(frozen=True)
class LocalFailed:
    """Our side cannot go on: bad payload, non-finite values, the worker went away."""

    xid: bytes
    why: str


@dataclass(frozen=True)
class PeerLost:
    """The session with this peer ended, or could not be opened."""

    peer: PeerId


Event = Available | Unavailable | Begin | Received | LocalDone | LocalFailed | PeerLost


# --- effects -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Send:
    """On the stream of the exchange if it is open, else as a control message.

    Without a session only a StatusQuery is worth a dial; the rest may be dropped.
    """

    peer: PeerId
    message: Message


@dataclass(frozen=True)
class StartTransfer:
    """Stream our chunks, merge theirs; answer with LocalDone or LocalFailed."""

    xid: bytes
    peer: PeerId
    role: Role
    slot: int
    peer_round: int
    peer_step: int
    peer_tokens: int


@dataclass(frozen=True)
class MergeChunk:
    """The chunk just received is to be merged. Without this effect its payload is dropped."""

    xid: bytes
    index: int


@dataclass(frozen=True)
class Commit:
    """Hand the result to the worker."""

    xid: bytes
    slot: int


@dataclass(frozen=True)
class Abort:
    """The slot goes back untouched. ``xid`` is that of the last attempt."""

    xid: bytes
    slot: int
    why: str


@dataclass(frozen=True)
class Finished:
    """One line of history. ``reason`` is empty for commits; ``by_peer``: the peer gave it."""

    xid: bytes
    peer: PeerId
    role: Role
    outcome: Outcome
    reason: str
    by_peer: bool
    in_doubt: bool
    started: float
    ended: float


Effect = Send | StartTransfer | MergeChunk | Commit | Abort | Finished
