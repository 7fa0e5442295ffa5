"""Messages and records of the DHT: ``proto/dht.md`` says what each means.

The sender of a message is known from the session, never from a field. A request carries the
addresses under which its sender can be dialled, none if it cannot: only peers with
addresses are ever passed on to others.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from swarmnode import limits
from swarmnode.wire.records import (
    Address,
    Count,
    Digest,
    Name,
    PeerIdBytes,
    PublicKeyBytes,
)
from swarmnode.wire.swarm import Signed

Addresses = Annotated[tuple[Address, ...], Meta(max_length=limits.DHT_ADDRESSES_MAX)]
DialAddresses = Annotated[
    tuple[Address, ...], Meta(min_length=1, max_length=limits.DHT_ADDRESSES_MAX)
]
Ttl = Annotated[int, Meta(ge=1, le=limits.DHT_RECORD_TTL_S_MAX)]
StoreOutcome = Literal["stored", "held", "older", "refused", "full"]


class Contact(msgspec.Struct, frozen=True):
    """A node that may be asked: a hint, whose id is checked when it is dialled."""

    peer: PeerIdBytes
    addresses: DialAddresses


# --- messages ----------------------------------------------------------------------------


class DhtMessage(msgspec.Struct, frozen=True, tag_field="t"):
    """Base of every message; an answer repeats the ``id`` of its request."""

    id: Count


class Ping(DhtMessage, frozen=True, tag="ping"):
    """Are you there?"""

    addresses: Addresses


class Pong(DhtMessage, frozen=True, tag="pong"):
    """Yes."""


class Find(DhtMessage, frozen=True, tag="find"):
    """Whom do you know close to this key, and, if asked, which records do you hold under it?"""

    addresses: Addresses
    key: Digest
    wants_records: bool = False


class Found(DhtMessage, frozen=True, tag="found"):
    """The contacts closest to the key, nearest first, and the records asked for."""

    contacts: Annotated[tuple[Contact, ...], Meta(max_length=limits.DHT_BUCKET_CONTACTS)]
    records: Annotated[tuple[Signed, ...], Meta(max_length=limits.DHT_RECORDS_PER_KEY_MAX)] = ()


class Put(DhtMessage, frozen=True, tag="put"):
    """Keep this record under this key for its time to live."""

    addresses: Addresses
    key: Digest
    record: Signed


class Stored(DhtMessage, frozen=True, tag="stored"):
    """What became of it: ``stored`` now, ``held`` already, ``older`` than what is held, …"""

    outcome: StoreOutcome


Request = Ping | Find | Put
Answer = Pong | Found | Stored
Message = Ping | Pong | Find | Found | Put | Stored


# --- records: the body of a Signed -------------------------------------------------------


class DhtRecord(msgspec.Struct, frozen=True, tag_field="t"):
    """Base of every record.

    ``sequence`` orders what one author says of one thing. A holder keeps a record ``ttl_s``
    from when it got it; ``issued_at`` (Unix seconds) only refuses what is days off.
    """

    sequence: Count
    issued_at: Count
    ttl_s: Ttl
    addresses: Addresses


class PeerRecord(DhtRecord, frozen=True, tag="peer"):
    """Where the author can be dialled; kept under its peer id."""


class SwarmRecord(DhtRecord, frozen=True, tag="swarm"):
    """The author is in this swarm; kept under the swarm's key and under its name.

    ``members`` and ``created_at`` are what the author believes, for a list of swarms; what
    counts is the manifest, which the author gives to each node that dials it.
    """

    swarm_key: PublicKeyBytes
    name: Name
    members: Count
    created_at: Count


class ProviderRecord(DhtRecord, frozen=True, tag="provider"):
    """The author gives this blob to its callers; kept under a key made from its digest."""

    blob: Digest


Record = PeerRecord | SwarmRecord | ProviderRecord
