"""Sealing and opening of records: what is signed, what a chain of them proves; digests of heads.

The hash of a record is that of its signed bytes, and each record names the hash of the one
before it. So a signature on the newest is a signature on the whole history, and an author
that shows two histories has signed the proof of it.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

from swarmnode import limits
from swarmnode.errors import AuthenticationFailed, LimitExceeded, VersionMismatch
from swarmnode.ids import PEER_ID_BYTES, PeerId
from swarmnode.protocol.crdt.actors import Actor
from swarmnode.protocol.crdt.clock import Stamp
from swarmnode.protocol.crdt.document import Delta
from swarmnode.protocol.identity import Signer, Verify
from swarmnode.wire.crdt import Head, Proof, Range, StateRecord
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

    @property
    def head(self) -> Head:
        """What others compare with theirs while this is the newest of its author."""
        return Head(bytes(self.actor.peer), self.actor.epoch, self.record.sequence, self.hash)

    @property
    def weighed(self) -> Weighed:
        """The head with what it adds to digests."""
        return weigh(self.head)

    @property
    def delta(self) -> Delta:
        """What it writes into the document; not kept: it is larger than all else of a record."""
        return Delta.of(self.actor, self.record)

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


_DIGITS = "0123456789abcdef"
_ID_DIGITS = 2 * PEER_ID_BYTES
_MASK = (1 << 256) - 1


class Weighed(NamedTuple):
    """A head, and what it adds to the sum of a range."""

    head: Head
    weight: int


def weigh(head: Head) -> Weighed:
    """Return a head with its weight: what two replicas that know it both add."""
    body = head.peer + head.epoch.to_bytes(8, "big") + head.sequence.to_bytes(8, "big") + head.hash
    return Weighed(head, int.from_bytes(hashlib.sha256(body).digest(), "big"))


class RangeIndex:
    """Heads by peer id, with digests of ranges: two replicas find what differs without listing all.

    A range is all peers whose id begins with some hexadecimal digits; its fingerprint is the sum,
    modulo 2^256, of the hashes of its heads. A sum can be kept up to date in O(1) and does not
    depend on order (Bellare and Micciancio, "A new paradigm for collision-free hashing:
    incrementality at reduced cost", 1997). Ids are hashes, so ranges are about equally full.

    Reconciliation in the manner of Meyer, "Range-based set reconciliation", 2023: equal
    fingerprints end it, short ranges are listed, long ones are split into sixteen.

    Sums are kept of all heads, and of those whose ids have the same first byte.

    Cost: O(1) a change but for a new or lost id, 16 additions at most a range of one digit or
    two, O(n / 256) a deeper one.
    """

    def __init__(self) -> None:
        self._held: dict[bytes, Weighed] = {}
        self._ids: list[bytes] = []  # the same, sorted
        self._total = 0
        self._totals: dict[int, int] = {}  # by the first byte

    def get(self, peer: bytes) -> Head | None:
        """Return the head of a peer."""
        held = self._held.get(peer)
        return None if held is None else held.head

    def put(self, weighed: Weighed) -> None:
        """Set or replace the head of a peer."""
        peer = weighed.head.peer
        held = self._held.get(peer)
        if held is None:
            insort(self._ids, peer)
            self._count(peer, weighed.weight)
        else:
            self._count(peer, weighed.weight - held.weight)
        self._held[peer] = weighed

    def remove(self, peer: bytes) -> None:
        """Drop the head of a peer, if there is one."""
        held = self._held.pop(peer, None)
        if held is not None:
            del self._ids[bisect_left(self._ids, peer)]
            self._count(peer, -held.weight)

    def digest(self, prefix: str) -> Range:
        """Return number and fingerprint of a range."""
        first, end = self._bounds(prefix)
        total = self._sum(prefix, first, end) & _MASK if first < end else 0
        return Range(prefix, end - first, total.to_bytes(32, "big"))

    def heads(self, prefix: str) -> list[Head]:
        """Return the heads of a range in id order."""
        first, end = self._bounds(prefix)
        held = self._held
        return [held[peer].head for peer in self._ids[first:end]]

    def split(self, prefix: str) -> tuple[Range, ...]:
        """Return the sixteen parts of a range."""
        return tuple(self.digest(prefix + digit) for digit in _DIGITS)

    def __len__(self) -> int:
        return len(self._ids)

    def _bounds(self, prefix: str) -> tuple[int, int]:
        """Return where a range begins and ends among the ids."""
        if not prefix:
            return 0, len(self._ids)
        if prefix[-1] == "\n":  # which the pattern of the wire lets through: no id begins so
            return 0, 0
        lowest = bytes.fromhex(prefix.ljust(_ID_DIGITS, "0"))
        highest = bytes.fromhex(prefix.ljust(_ID_DIGITS, "f"))
        return bisect_left(self._ids, lowest), bisect_right(self._ids, highest)

    def _sum(self, prefix: str, first: int, end: int) -> int:
        """Return the sum of a range: it is kept, or added up of the parts that are."""
        if not prefix:
            return self._total
        get = self._totals.get
        if len(prefix) == 1:
            lowest = int(prefix + "0", 16)
            return sum(get(byte, 0) for byte in range(lowest, lowest + 16))
        if len(prefix) == 2:
            return get(int(prefix, 16), 0)
        held = self._held
        return sum(held[peer].weight for peer in self._ids[first:end])

    def _count(self, peer: bytes, weight_more: int) -> None:
        self._total = (self._total + weight_more) & _MASK
        total = (self._totals.get(peer[0], 0) + weight_more) & _MASK
        if total:
            self._totals[peer[0]] = total
        else:
            self._totals.pop(peer[0], None)
