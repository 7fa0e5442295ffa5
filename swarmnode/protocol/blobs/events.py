"""What goes into a fetch and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from swarmnode.ids import PeerId

# --- events ------------------------------------------------------------------------------


@dataclass(frozen=True)
class HolderFound:
    """This peer says that it holds these chunks; may be said again when it has more."""

    peer: PeerId
    have: bytes  # bit i % 8 of byte i // 8


@dataclass(frozen=True)
class HolderLost:
    """The session with this peer ended."""

    peer: PeerId


@dataclass(frozen=True)
class Heard:
    """This peer is at work: parts of a chunk came, or one of its chunks waits for our disk."""

    peer: PeerId


@dataclass(frozen=True)
class ChunkArrived:
    """A chunk came whole; ``leaf`` is the hash of what came, not what its holder says it is."""

    peer: PeerId
    index: int
    leaf: bytes
    size_bytes: int
    proof: tuple[bytes, ...]


@dataclass(frozen=True)
class ChunkRefused:
    """The holder does not send this chunk now, or not any more."""

    peer: PeerId
    index: int
    reason: Literal["busy", "absent"]


@dataclass(frozen=True)
class ChunkStored:
    """The store has written a chunk that it was told to."""

    index: int


Event = HolderFound | HolderLost | Heard | ChunkArrived | ChunkRefused | ChunkStored


# --- effects -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """Ask this peer for this chunk."""

    peer: PeerId
    index: int


@dataclass(frozen=True)
class Cancel:
    """Another holder was faster, or the peer was dropped: what it still sends is not wanted."""

    peer: PeerId
    index: int


@dataclass(frozen=True)
class Store:
    """The chunk that just arrived is right: write it, then say ChunkStored."""

    peer: PeerId
    index: int


@dataclass(frozen=True)
class Drop:
    """Ask this peer for nothing of this blob again. ``lied``: it broke a rule, penalise it."""

    peer: PeerId
    lied: bool
    why: str


@dataclass(frozen=True)
class Completed:
    """Every chunk is stored."""


Effect = Request | Cancel | Store | Drop | Completed
