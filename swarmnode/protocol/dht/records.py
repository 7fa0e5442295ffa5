"""Records of the DHT: how they are signed, what is checked before one is believed, where they lie.

A record counts only for the key that it belongs to, only in the network whose id went into
its signature, and only within a day of the dates that it names. A peer that relays one proves
nothing: everything is checked on every node that takes it in. A node keeps records for others,
and signs its own anew before they end.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import Any

import msgspec

from swarmnode import limits
from swarmnode.env import Rng
from swarmnode.errors import (
    AuthenticationFailed,
    ConfigError,
    LimitExceeded,
    MalformedMessage,
    RemoteProtocolError,
)
from swarmnode.ids import PeerId
from swarmnode.protocol import identity
from swarmnode.protocol.dht.keys import blob_key, name_key, number_of, swarm_key_key
from swarmnode.protocol.identity import Signer, Verify
from swarmnode.wire import dht as wire
from swarmnode.wire.dht import Record, StoreOutcome
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

    @property
    def is_of_a_blob(self) -> bool:
        """Whether it says that its author gives a blob."""
        return isinstance(self.record, wire.ProviderRecord)

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


_Slot = tuple[PeerId, bytes]  # author and subject


@dataclass(slots=True, frozen=True)
class _Held:
    opened: OpenRecord
    expires_at: float


@dataclass(slots=True)
class _Author:
    """How many records of one author are held, and the sequence of each that is of a blob.

    In an order of arrival a stranger that repeats old ones would push out what is given now.
    """

    n_records: int = 0
    blobs: dict[bytes, int] = field(default_factory=dict)  # by key


class RecordStore:
    """The records that we keep for others, bounded per author, subject, key and in all.

    A record stays for its time to live from when we got it; getting it again does not prolong
    that, only a newer one does. When the store is full, what is farthest from our id makes room:
    a flood of records from anywhere costs us those that others are closer to. Of what
    an author gives, the newest is kept: one that writes snapshots gives up each of them long
    before its record ends, and takes none back.
    """

    def __init__(self, self_id: PeerId) -> None:
        self._self_number = number_of(self_id)
        self._keys: dict[bytes, dict[_Slot, _Held]] = {}
        self._authors: dict[PeerId, _Author] = {}
        self._distances: list[int] = []  # of the keys, ascending
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def has(self, key: bytes, signed: Signed, now: float) -> bool:
        """Whether exactly this is held, which then needs no checking again."""
        return any(opened.signed == signed for opened in self.get(key, now))

    def put(self, key: bytes, opened: OpenRecord, now: float) -> StoreOutcome:
        """Keep a record that was checked for this key."""
        slot = (opened.author, opened.subject)
        held = self._keys.get(key, {})
        old = held.get(slot)
        if old is not None and old.expires_at > now and not opened.replaces(old.opened):
            return "held" if old.opened.signed == opened.signed else "older"
        if old is None:
            if self._is_limited(key, held, opened) or not self._make_room(key, opened):
                return "full"
            self._count += 1
            self._authors.setdefault(opened.author, _Author()).n_records += 1
            if key not in self._keys:
                insort(self._distances, number_of(key) ^ self._self_number)
        ttl_s = min(opened.record.ttl_s, limits.DHT_RECORD_TTL_S_MAX)
        self._keys.setdefault(key, {})[slot] = _Held(opened, now + ttl_s)
        if opened.is_of_a_blob:
            self._authors[opened.author].blobs[key] = opened.record.sequence
        return "stored"

    def get(self, key: bytes, now: float) -> tuple[OpenRecord, ...]:
        """Return what is held under a key and has not expired."""
        held = self._keys.get(key)
        if not held:
            return ()
        return tuple(each.opened for each in held.values() if each.expires_at > now)

    def sweep(self, now: float) -> None:
        """Forget what has expired."""
        for key in list(self._keys):
            for slot, held in list(self._keys[key].items()):
                if held.expires_at <= now:
                    self._drop(key, slot)

    # --- inside -------------------------------------------------------------------------

    def _is_limited(self, key: bytes, held: dict[_Slot, _Held], opened: OpenRecord) -> bool:
        if len(held) >= limits.DHT_RECORDS_PER_KEY_MAX:
            return True
        if self._author_of(opened).n_records >= limits.DHT_RECORDS_PER_AUTHOR_MAX:
            return True
        if not opened.shares(key):
            return False
        same = sum(subject == opened.subject for _, subject in held)
        return same >= limits.DHT_RECORDS_PER_SUBJECT_MAX

    def _author_of(self, opened: OpenRecord) -> _Author:
        return self._authors.get(opened.author, _Author())

    def _make_room(self, key: bytes, opened: OpenRecord) -> bool:
        blobs = self._author_of(opened).blobs
        if opened.is_of_a_blob and len(blobs) >= limits.DHT_BLOBS_PER_AUTHOR_MAX:
            oldest = min(blobs, key=blobs.__getitem__)
            if opened.record.sequence <= blobs[oldest]:
                return False
            self._drop(
                oldest, next(slot for slot in self._keys[oldest] if slot[0] == opened.author)
            )
        if self._count < limits.DHT_RECORDS_MAX:
            return True
        farthest = self._distances[-1]
        if number_of(key) ^ self._self_number >= farthest:
            return False
        far_key = (farthest ^ self._self_number).to_bytes(32, "big")
        self._drop(far_key, next(iter(self._keys[far_key])))
        return True

    def _drop(self, key: bytes, slot: _Slot) -> None:
        del self._keys[key][slot]
        self._count -= 1
        author = self._authors[slot[0]]
        author.n_records -= 1
        author.blobs.pop(key, None)
        if not author.n_records:
            del self._authors[slot[0]]
        if not self._keys[key]:
            del self._keys[key]
            del self._distances[bisect_left(self._distances, number_of(key) ^ self._self_number)]


_SEQUENCES_PER_BOOT = 2**32
_DraftSlot = tuple[bytes, bytes]  # key and subject


@dataclass(slots=True)
class _Draft:
    record: Record
    unix_offset_s: float
    due_at: float


class Publications:
    """What we publish. A later draft for the same key and subject takes the place."""

    def __init__(self, signer: Signer, rules: RecordRules, boot_epoch: int, rng: Rng) -> None:
        self._signer = signer
        self._rules = rules
        self._sequence = boot_epoch * _SEQUENCES_PER_BOOT
        self._rng = rng
        self._drafts: dict[_DraftSlot, _Draft] = {}
        self._deadlines: list[tuple[float, _DraftSlot]] = []

    def __len__(self) -> int:
        return len(self._drafts)

    def add(self, key: bytes, record: Record, now: float, now_unix_s: float) -> Signed | None:
        """Sign a draft and remember it; None if there are too many.

        Raises:
            ConfigError: the record does not belong under this key.
            LimitExceeded: no node would keep so large a record.
        """
        if key not in keys_of(record, self._signer.peer_id):
            raise ConfigError(f"a {type(record).__name__} cannot be published under this key")
        slot = (key, subject_of(record))
        if slot not in self._drafts and len(self._drafts) >= limits.DHT_PUBLICATIONS_MAX:
            return None
        draft = self._drafts[slot] = _Draft(record, now_unix_s - now, now)
        return self._sign(slot, draft, now)

    def withdraw(self, key: bytes) -> None:
        """Forget every draft for a key."""
        for slot in [slot for slot in self._drafts if slot[0] == key]:
            del self._drafts[slot]

    def hasten(self, now: float) -> None:
        """Let everything be published again now: before, there was hardly a node to keep it."""
        for slot, draft in self._drafts.items():
            self._schedule(slot, draft, now)

    def next_deadline(self) -> float | None:
        """Return when a record is to be published again."""
        while self._deadlines and not self._is_current(*self._deadlines[0]):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def due(self, now: float) -> list[tuple[bytes, Signed]]:
        """Return what is to be published now, signed anew, with its key."""
        due: list[tuple[bytes, Signed]] = []
        while (at := self.next_deadline()) is not None and at <= now:
            _, slot = heapq.heappop(self._deadlines)
            due.append((slot[0], self._sign(slot, self._drafts[slot], now)))
        return due

    def _is_current(self, due_at: float, slot: _DraftSlot) -> bool:
        draft = self._drafts.get(slot)
        return draft is not None and draft.due_at == due_at

    def _sign(self, slot: _DraftSlot, draft: _Draft, now: float) -> Signed:
        self._sequence += 1
        issued_at = max(0, int(now + draft.unix_offset_s))
        record = msgspec.structs.replace(draft.record, sequence=self._sequence, issued_at=issued_at)
        signed = self._rules.sign(record, self._signer)
        self._schedule(slot, draft, now + limits.DHT_REPUBLISH_S * self._rng.uniform(0.75, 1.0))
        return signed

    def _schedule(self, slot: _DraftSlot, draft: _Draft, due_at: float) -> None:
        draft.due_at = due_at
        heapq.heappush(self._deadlines, (due_at, slot))
