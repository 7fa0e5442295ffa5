"""Sealing and opening of records: what is signed, and what a chain of them proves.

The hash of a record is that of its signed bytes, and each record names the hash of the one
before it. So a signature on the newest is a signature on the whole history, and an author
that shows two histories has signed the proof of it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from swarmnode import limits
from swarmnode.errors import AuthenticationFailed, LimitExceeded, VersionMismatch
from swarmnode.ids import PeerId
from swarmnode.protocol.crdt.actors import Actor
from swarmnode.protocol.crdt.clock import Stamp
from swarmnode.protocol.identity import Signer, Verify
from swarmnode.wire.crdt import Head, Proof, StateRecord
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.swarm import Signed

NO_HASH = bytes(32)
_DOMAIN = "state/1"
_FRAMING_BYTES = 128  # key, signature and msgpack around a body


class Read(Protocol):
    """:func:`open_record`, or what reads each record once for many replicas."""

    def __call__(self, signed: Signed, swarm_id: bytes) -> Opened:
        """Return the record; raises what :func:`open_record` does."""


@dataclass(frozen=True)
class Opened:
    """A record that was read, and whose signature may not have been checked yet."""

    signed: Signed
    record: StateRecord
    actor: Actor
    hash: bytes

    @cached_property
    def head(self) -> Head:
        """What others compare with theirs while this is the newest of its author."""
        return Head(bytes(self.actor.peer), self.actor.epoch, self.record.sequence, self.hash)

    @cached_property
    def version(self) -> tuple[int, int]:
        """(epoch, sequence): the greater one of an author is the later one."""
        return (self.actor.epoch, self.record.sequence)

    @property
    def sequence(self) -> int:
        """Position in its author's chain, from 1."""
        return self.record.sequence

    @property
    def stamp(self) -> Stamp:
        """When its author says that it was made."""
        return Stamp(self.record.clock_ms, self.record.clock_tick)

    @property
    def size_bytes(self) -> int:
        """What it costs to hold and to send."""
        return len(self.signed.body) + _FRAMING_BYTES


def seal(record: StateRecord, signer: Signer) -> Opened:
    """Sign a record of our own.

    Raises:
        LimitExceeded: it is larger than other nodes accept.
    """
    body = encode_record(record)
    if len(body) > limits.STATE_RECORD_BYTES_MAX:
        raise LimitExceeded(_too_large(len(body)))
    signed = Signed(body, signer.public_key, signer.sign(_DOMAIN, body))
    return Opened(signed, record, Actor(signer.peer_id, record.epoch), _hash(body))


def open_record(signed: Signed, swarm_id: bytes) -> Opened:
    """Read a record; :func:`check` is the second half, and the dear one.

    Raises:
        LimitExceeded: it is larger than any record may be.
        MalformedMessage: it is no record.
        VersionMismatch: it belongs to another swarm.
    """
    if len(signed.body) > limits.STATE_RECORD_BYTES_MAX:
        raise LimitExceeded(_too_large(len(signed.body)))
    record = decode_record(signed.body, StateRecord)
    if record.swarm_id != swarm_id:
        raise VersionMismatch(
            f"a state record of this swarm ({swarm_id.hex()[:12]}…) was expected, "
            f"this one is of {record.swarm_id.hex()[:12]}…"
        )
    actor = Actor(PeerId.from_public_key(signed.public_key), record.epoch)
    return Opened(signed, record, actor, _hash(signed.body))


def check(opened: Opened, verify: Verify) -> None:
    """Check the signature. Raises AuthenticationFailed."""
    signed = opened.signed
    verify(signed.public_key, _DOMAIN, signed.body, signed.signature, what="state record")


def contradict(first: Opened, second: Opened) -> bool:
    """Whether one honest author cannot have signed both: two histories of one actor."""
    if first.actor != second.actor or first.hash == second.hash:
        return False
    early, late = sorted((first, second), key=lambda opened: opened.sequence)
    if early.sequence == late.sequence:
        return True
    return early.sequence + 1 == late.sequence and late.record.previous != early.hash


def check_proof(proof: Proof, swarm_id: bytes, verify: Verify) -> PeerId:
    """Return the peer whose two histories these are.

    Raises:
        AuthenticationFailed: a signature is forged, or the two do not contradict each other.
        MalformedMessage, LimitExceeded, VersionMismatch: as for :func:`open_record`.
    """
    first = open_record(proof.first, swarm_id)
    second = open_record(proof.second, swarm_id)
    if not contradict(first, second):
        raise AuthenticationFailed(
            "a proof of equivocation: these two records do not contradict each other"
        )
    check(first, verify)
    check(second, verify)
    return first.actor.peer


def _hash(body: bytes) -> bytes:
    return hashlib.sha256(b"swarmnode/state/1\0" + body).digest()


def _too_large(size_bytes: int) -> str:
    return (
        f"a state record has at most {limits.STATE_RECORD_BYTES_MAX} bytes, "
        f"this one has {size_bytes}"
    )
