"""Records and messages of the shared state: ``proto/crdt.md`` says what they mean.

A :class:`StateRecord` is the body of a :class:`~swarmnode.wire.swarm.Signed`: one author says
what changed of its own part, or, in a checkpoint, all of it. The messages carry such records
and the digests by which two peers find out which of them the other lacks.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from swarmnode import limits
from swarmnode.wire.records import Count, Digest, Name, PeerIdBytes
from swarmnode.wire.swarm import Signed

Element = Annotated[str, Meta(min_length=1, max_length=260)]
LeaseSeconds = Annotated[int, Meta(ge=0, le=limits.STATE_LEASE_S_MAX)]
Sequence = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Number = Annotated[float, Meta(ge=-1e300, le=1e300)]  # refuses infinities and NaN
RegisterText = Annotated[str, Meta(max_length=256)]
RegisterValue = Number | RegisterText
# A range of peer ids by the first hexadecimal digits that they share; empty: all.
Prefix = Annotated[str, Meta(max_length=64, pattern=r"^[0-9a-f]*$")]
_MANY_NAMES = Meta(max_length=limits.STATE_NAMES_PER_AUTHOR_MAX)


class Lease(msgspec.Struct, frozen=True):
    """An element of a set, for ``ttl_s`` after its author was last heard of; 0 removes it."""

    set: Name
    element: Element
    ttl_s: LeaseSeconds


class SnapshotClaim(msgspec.Struct, frozen=True):
    """Its author holds all chunks of this snapshot; ``ttl_s`` as in a lease."""

    root: Digest
    step: Count
    size_bytes: Count
    ttl_s: LeaseSeconds
    loss: Number | None = None


class PeerVerdict(msgspec.Struct, frozen=True):
    """What its author has measured of a peer, in tenths: 5 is neutral, and takes it back.

    More than that cannot be said: praise costs nothing.
    """

    peer: PeerIdBytes
    tenths: Annotated[int, Meta(ge=0, le=limits.STATE_VERDICT_NEUTRAL)]


class StateRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an author says of itself: a link of its hash chain, and the body of a ``Signed``.

    A checkpoint holds all that the author says and takes the place of every record before
    it; the first record of a boot epoch is one, with ``previous`` all zeros.
    """

    swarm_id: Digest
    epoch: Count
    sequence: Sequence
    previous: Digest
    clock_ms: Count
    clock_tick: Annotated[int, Meta(ge=0, le=limits.STATE_CLOCK_TICKS_MAX)] = 0
    checkpoint: bool = False
    leases: Annotated[tuple[Lease, ...], Meta(max_length=limits.STATE_LEASES_PER_AUTHOR_MAX)] = ()
    counters: Annotated[dict[Name, Count], _MANY_NAMES] = {}
    registers: Annotated[dict[Name, RegisterValue], _MANY_NAMES] = {}
    maxima: Annotated[dict[Name, Count], _MANY_NAMES] = {}
    snapshots: Annotated[
        tuple[SnapshotClaim, ...], Meta(max_length=limits.STATE_SNAPSHOTS_PER_AUTHOR_MAX)
    ] = ()
    verdicts: Annotated[
        tuple[PeerVerdict, ...], Meta(max_length=limits.STATE_VERDICTS_PER_RECORD_MAX)
    ] = ()


class Carried(msgspec.Struct, frozen=True):
    """A record, and how long ago its author was last heard of where it comes from."""

    record: Signed
    age_s: Count


class Head(msgspec.Struct, frozen=True):
    """The newest record of an author that the sender has; sequence 0: none."""

    peer: PeerIdBytes
    epoch: Count
    sequence: Count
    hash: Digest


class Range(msgspec.Struct, frozen=True):
    """All heads of peers whose id begins so: their number, and the sum of their hashes."""

    prefix: Prefix
    n_heads: Count
    fingerprint: Digest


class Proof(msgspec.Struct, frozen=True):
    """Two records, one author, one chain: no honest author signs both."""

    first: Signed
    second: Signed


class StateMessage(msgspec.Struct, frozen=True, tag_field="t"):
    """Base of every message of ``state/1``."""


class Summary(StateMessage, frozen=True, tag="summary"):
    """Compare these ranges with yours; equal ones need no answer."""

    ranges: Annotated[tuple[Range, ...], Meta(min_length=1, max_length=16)]
    clock_ms: Count  # the sender's wall clock, so that a wrong one is noticed


class Listing(StateMessage, frozen=True, tag="listing"):
    """All heads of a range: send what I lack, ask for what you lack."""

    prefix: Prefix
    heads: Annotated[tuple[Head, ...], Meta(max_length=limits.STATE_HEADS_PER_MESSAGE_MAX)]


class Want(StateMessage, frozen=True, tag="want"):
    """What I have of these authors; send what is newer."""

    heads: Annotated[
        tuple[Head, ...], Meta(min_length=1, max_length=limits.STATE_HEADS_PER_MESSAGE_MAX)
    ]


class Push(StateMessage, frozen=True, tag="push"):
    """Records, those of one author in the order of its chain. ``more``: ask again."""

    records: Annotated[
        tuple[Carried, ...], Meta(min_length=1, max_length=limits.STATE_RECORDS_PER_MESSAGE_MAX)
    ]
    more: bool = False


class Proofs(StateMessage, frozen=True, tag="proofs"):
    """Authors that signed two histories; checked by all, believed from none."""

    proofs: Annotated[
        tuple[Proof, ...], Meta(min_length=1, max_length=limits.STATE_PROOFS_PER_MESSAGE_MAX)
    ]


Message = Summary | Listing | Want | Push | Proofs


class Compressed(StateMessage, frozen=True, tag="zstd"):
    """A message of another tag, in one Zstandard frame that states its size."""

    frame: Annotated[bytes, Meta(min_length=1, max_length=limits.MESSAGE_BYTES_MAX)]


Envelope = Message | Compressed  # what travels
