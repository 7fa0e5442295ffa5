"""Records of membership: what each peer says of itself, signed, and lists of those."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from swarmnode.wire.records import Address, Count, Digest, PublicKeyBytes, ShortText
from swarmnode.wire.swarm import Signed

PeerState = Literal["starting", "syncing", "training", "paused", "stopped", "failed", "left"]


class PeerStatus(msgspec.Struct, frozen=True):
    """How far a peer is; self-reported, so it is shown and never believed."""

    state: PeerState
    step: Count = 0
    tokens: Count = 0
    exchanges: Count = 0
    loss: float | None = None
    eval_loss: float | None = None


class PeerRecord(msgspec.Struct, frozen=True):
    """What a peer says of itself; the body of a :class:`Signed`.

    ``(boot_epoch, sequence)`` orders the records of one peer: the epoch is on
    disk before it is used, so a restarted peer is always newer than before.
    """

    network_id: Digest
    public_key: PublicKeyBytes
    addresses: Annotated[tuple[Address, ...], Meta(max_length=8)]
    role: Literal["trainer"]
    version: ShortText
    boot_epoch: Count
    sequence: Count
    status: PeerStatus


class PeerList(msgspec.Struct, frozen=True):
    """Request and answer of the service ``peers/1``: everything each side knows."""

    records: Annotated[tuple[Signed, ...], Meta(max_length=256)]


class SnapshotHeader(msgspec.Struct, frozen=True):
    """First message on a stream of ``snapshot/1``; that many bytes of safetensors follow."""

    step: Annotated[int, Meta(ge=0, lt=10**12)]
    size_bytes: Annotated[int, Meta(ge=1, le=2**50)]
