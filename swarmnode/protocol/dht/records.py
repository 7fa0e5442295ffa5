"""Records of the DHT: how they are signed, and what is checked before one is believed.

A record counts only for the key that it belongs to, only in the network whose id went into
its signature, and only within a day of the dates that it names. Who relays one proves
nothing: everything is checked on every node that takes it in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from swarmnode import limits
from swarmnode.errors import (
    AuthenticationFailed,
    LimitExceeded,
    MalformedMessage,
    RemoteProtocolError,
)
from swarmnode.ids import PeerId
from swarmnode.protocol import identity
from swarmnode.protocol.dht.keys import blob_key, name_key, swarm_key_key
from swarmnode.protocol.identity import Signer, Verify
from swarmnode.wire import dht as wire
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.swarm import Signed


class RecordExpired(RemoteProtocolError):
    """Its time was over more than a day ago, or it was made in the future."""


@dataclass(frozen=True)
class OpenRecord:
    """A record that passed every check."""

    author: PeerId
    record: wire.Record
    signed: Signed

    @property
    def subject(self) -> bytes:
        """What the record is about: two records of one author and subject replace each other."""
        return subject_of(self.record)

    def shares(self, key: bytes) -> bool:
        """Whether other subjects are kept under this key too: swarms of one name."""
        return isinstance(self.record, wire.SwarmRecord) and key == name_key(self.record.name)

    def replaces(self, other: OpenRecord) -> bool:
        """Whether this one is newer; of two with one number, all nodes keep the same."""
        mine, theirs = self.record.sequence, other.record.sequence
        return mine > theirs or (mine == theirs and self.signed.body > other.signed.body)


def subject_of(record: wire.Record) -> bytes:
    """Return what a record says something about."""
    match record:
        case wire.SwarmRecord(swarm_key=swarm_key):
            return b"swarm" + swarm_key
        case wire.ProviderRecord(blob=blob):
            return b"blob" + blob
    return b"peer"


def keys_of(record: wire.Record, author: PeerId) -> tuple[bytes, ...]:
    """Return every key that this record is kept under."""
    match record:
        case wire.SwarmRecord(swarm_key=swarm_key, name=name):
            return swarm_key_key(swarm_key), name_key(name)
        case wire.ProviderRecord(blob=blob):
            return (blob_key(blob),)
    return (bytes(author),)


@dataclass(frozen=True)
class RecordRules:
    """Signs and opens the records of one network.

    Args:
        network_id: 32 bytes; a record signed for another network is a forgery here.
        verify: how signatures are checked. Another one, together with another ``Signer``, is
            for simulations, where a real signature would cost more than all the rest.
    """

    network_id: bytes
    verify: Verify = identity.verify

    @property
    def domain(self) -> str:
        """What signatures of this network's records are made for."""
        return f"dht-record/1/{self.network_id.hex()}"

    def sign(self, record: wire.Record, signer: Signer) -> Signed:
        """Sign a record of ours. Raises LimitExceeded if no node would take it."""
        body = encode_record(record)
        _check_size(body)
        return Signed(body, signer.public_key, signer.sign(self.domain, body))

    def open(self, signed: Signed, key: bytes, now_unix_s: float) -> OpenRecord:
        """Check everything about a record that came for ``key``, the costly last.

        Raises:
            LimitExceeded: it is too large.
            MalformedMessage: it is no record, or not one that belongs under this key.
            RecordExpired: its dates are more than a day off.
            AuthenticationFailed: it is not signed by its author for this network.
        """
        _check_size(signed.body)
        record: wire.Record = decode_record(signed.body, _RECORD)
        author = PeerId.from_public_key(signed.public_key)
        if key not in keys_of(record, author):
            raise MalformedMessage(
                f"expected a record for key {key.hex()[:12]}…, got one of {author.short}…"
                f" that belongs elsewhere"
            )
        self._check_dates(record, now_unix_s)
        self.verify(
            signed.public_key, self.domain, signed.body, signed.signature, what="DHT record"
        )
        return OpenRecord(author, record, signed)

    def _check_dates(self, record: wire.Record, now_unix_s: float) -> None:
        ahead_s = record.issued_at - now_unix_s
        if ahead_s > limits.DHT_CLOCK_SKEW_S:
            raise RecordExpired(
                f"a DHT record was made {ahead_s / 86400:.1f} days in the future:"
                " its author's clock or ours is wrong"
            )
        over_s = -ahead_s - record.ttl_s
        if over_s > limits.DHT_CLOCK_SKEW_S:
            raise RecordExpired(f"a DHT record ended {over_s / 86400:.1f} days ago")


# msgspec reads a union, which mypy does not know as a type.
_RECORD: Any = wire.Record


def _check_size(body: bytes) -> None:
    if len(body) > limits.DHT_RECORD_BYTES_MAX:
        raise LimitExceeded(
            f"a DHT record of {len(body)} bytes, at most {limits.DHT_RECORD_BYTES_MAX} are kept"
        )


def rejection(error: RemoteProtocolError) -> str:
    """Return one word for why a record was refused, for counters."""
    match error:
        case AuthenticationFailed():
            return "forged"
        case LimitExceeded():
            return "oversized"
        case RecordExpired():
            return "expired"
    return "malformed"
