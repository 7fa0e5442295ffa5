"""The records that we keep for others, bounded per author, per subject, per key and in all.

A record stays for its time to live from when we got it; getting it again does not prolong
that, only a newer one does. When the store is full, what is farthest from our id makes room:
a flood of records from anywhere costs us those that others are closer to.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from dataclasses import dataclass

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.dht.keys import number_of
from swarmnode.protocol.dht.records import OpenRecord
from swarmnode.wire.dht import StoreOutcome
from swarmnode.wire.swarm import Signed

_Slot = tuple[PeerId, bytes]  # author and subject


@dataclass(slots=True, frozen=True)
class _Held:
    opened: OpenRecord
    expires_at: float


class RecordStore:
    """See the module's text."""

    def __init__(self, self_id: PeerId) -> None:
        self._self_number = number_of(self_id)
        self._keys: dict[bytes, dict[_Slot, _Held]] = {}
        self._authors: Counter[PeerId] = Counter()
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
            if self._is_limited(key, held, opened) or not self._make_room(key):
                return "full"
            self._count += 1
            self._authors[opened.author] += 1
            if key not in self._keys:
                insort(self._distances, number_of(key) ^ self._self_number)
        ttl_s = min(opened.record.ttl_s, limits.DHT_RECORD_TTL_S_MAX)
        self._keys.setdefault(key, {})[slot] = _Held(opened, now + ttl_s)
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
        if self._authors[opened.author] >= limits.DHT_RECORDS_PER_AUTHOR_MAX:
            return True
        if not opened.shares(key):
            return False
        same = sum(subject == opened.subject for _, subject in held)
        return same >= limits.DHT_RECORDS_PER_SUBJECT_MAX

    def _make_room(self, key: bytes) -> bool:
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
        author, _ = slot
        self._authors[author] -= 1
        if not self._authors[author]:
            del self._authors[author]
        if not self._keys[key]:
            del self._keys[key]
            del self._distances[bisect_left(self._distances, number_of(key) ^ self._self_number)]
