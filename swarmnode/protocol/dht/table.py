"""The routing table: the peers that we may ask, at most k for each length of common prefix.

An entry is a peer that has answered us; a full bucket keeps the peers that it has, as one that
has been there for long stays longest (Maymounkov and Mazières, Kademlia, 2.2 and 2.4). A peer
that answers when there is no room waits behind the bucket and takes the place of the next one
that does not answer ``DHT_UNANSWERED_MAX`` requests in a row.

Invariants: no bucket above k; never ourselves; of one network (see ``keys``) at most
``DHT_GROUP_BUCKET_MAX`` in a bucket and ``DHT_GROUP_TABLE_MAX`` in the table, waiters not
counted. A request that we get proves nothing: peers that ask but never answer stay out.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.dht.keys import KEY_BITS, AddressGroups, number_of
from swarmnode.wire.dht import Contact


class Added(enum.Enum):
    """What became of a contact that answered."""

    NEW = "new"
    KNOWN = "known"
    WAITING = "waiting"  # no room; it is next
    LIMITED = "limited"  # enough of its network are here
    SELF = "self"


@dataclass(slots=True, eq=False)
class Entry:
    """One contact that has answered."""

    contact: Contact
    number: int
    group: str | None
    seen_at: float
    failures: int = 0


@dataclass(slots=True)
class Bucket:
    """Contacts at distances in [2^i, 2^(i+1)), the one heard of least lately first."""

    entries: list[Entry] = field(default_factory=list)
    waiting: list[Entry] = field(default_factory=list)  # the latest last
    refreshed_at: float = 0.0

    def has_room(self) -> bool:
        return len(self.entries) < limits.DHT_BUCKET_CONTACTS


class RoutingTable:
    """See the module's text. Distances and targets are ints (``keys.number_of``)."""

    def __init__(self, self_id: PeerId, groups: AddressGroups) -> None:
        self.self_number = number_of(self_id)
        self._groups = groups
        self._buckets: dict[int, Bucket] = {}
        self._entries: dict[int, Entry] = {}
        self._group_sizes: dict[str, int] = {}
        self._near: int | None = None  # as far as our k neighbours go; None: they have changed

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, number: int) -> bool:
        return number in self._entries

    def get(self, number: int) -> Entry | None:
        """Return the entry of a peer, if it has one."""
        return self._entries.get(number)

    def entries(self) -> Iterator[Entry]:
        """Yield every entry, in the order of arrival."""
        return iter(self._entries.values())

    def buckets(self) -> dict[int, Bucket]:
        """Return the buckets by index. Read them, never change them from outside."""
        return self._buckets

    def bucket_index(self, number: int) -> int:
        """Return the bucket that a key belongs to; -1 is our own id."""
        return (self.self_number ^ number).bit_length() - 1

    def closest(self, target: int, count: int, *, only_healthy: bool = False) -> list[Entry]:
        """Return up to ``count`` entries, nearest first; healthy ones answered last time.

        Cost: O(n log n) of about 20 log2(N) entries; 20 µs for 200.
        """
        entries = self._entries
        order = sorted(entries, key=target.__xor__)
        if not only_healthy:
            return [entries[number] for number in order[:count]]
        chosen: list[Entry] = []
        for number in order:
            entry = entries[number]
            if entry.failures == 0:
                chosen.append(entry)
                if len(chosen) == count:
                    break
        return chosen

    def is_near(self, number: int) -> bool:
        """Whether a peer, known or not, is among the k closest to us."""
        own = self.self_number
        if self._near is None:
            distances = sorted(map(own.__xor__, self._entries))
            k = limits.DHT_BUCKET_CONTACTS
            self._near = distances[k - 1] if len(distances) >= k else 1 << KEY_BITS
        return number ^ own <= self._near

    def wants(self, number: int) -> bool:
        """Whether a stranger is worth a check: it is not here, and there is room for it."""
        if number == self.self_number or number in self._entries:
            return False
        bucket = self._buckets.get(self.bucket_index(number))
        return bucket is None or bucket.has_room() or not bucket.waiting

    def answered(self, contact: Contact, now: float, observed: str = "") -> Added:
        """Take in a peer that has just answered.

        Args:
            observed: the address that the answer came from, if it is known: what a peer
                says of its own addresses may be chosen to get around the limits.
        """
        number = number_of(contact.peer)
        if number == self.self_number:
            return Added.SELF
        group = self._groups.group(observed or contact.addresses[0])
        index = self.bucket_index(number)
        bucket = self._buckets.setdefault(index, Bucket())
        known = self._entries.get(number)
        if known is not None:
            if known.group == group:
                bucket.entries.remove(known)
                bucket.entries.append(known)
                known.contact, known.seen_at, known.failures = contact, now, 0
                return Added.KNOWN
            self._remove(known)  # it moved; its new network may have no room
        entry = Entry(contact, number, group, now)
        bucket.waiting = [other for other in bucket.waiting if other.number != number]
        if not self._group_has_room(bucket, group):
            return Added.LIMITED
        if not bucket.has_room():
            bucket.waiting.append(entry)
            del bucket.waiting[: -limits.DHT_REPLACEMENTS_MAX]
            return Added.WAITING
        self._insert(bucket, entry)
        return Added.NEW if known is None else Added.KNOWN

    def unanswered(self, number: int) -> Entry | None:
        """Count a request without an answer; return the entry if it is gone now."""
        entry = self._entries.get(number)
        if entry is None:
            return None
        entry.failures += 1
        if entry.failures < limits.DHT_UNANSWERED_MAX:
            return None
        self._remove(entry)
        bucket = self._buckets[self.bucket_index(number)]
        while bucket.waiting and bucket.has_room():
            waiter = bucket.waiting.pop()
            if self._group_has_room(bucket, waiter.group):
                self._insert(bucket, waiter)
        return entry

    def least_recently_seen(self) -> Entry | None:
        """Return the entry that has been silent longest."""
        heads = [bucket.entries[0] for bucket in self._buckets.values() if bucket.entries]
        return min(heads, key=lambda entry: entry.seen_at, default=None)

    # --- inside -------------------------------------------------------------------------

    def _group_has_room(self, bucket: Bucket, group: str | None) -> bool:
        if group is None:
            return True
        in_bucket = sum(entry.group == group for entry in bucket.entries)
        in_table = self._group_sizes.get(group, 0)
        return in_bucket < limits.DHT_GROUP_BUCKET_MAX and in_table < limits.DHT_GROUP_TABLE_MAX

    def _insert(self, bucket: Bucket, entry: Entry) -> None:
        assert entry.number != self.self_number
        bucket.entries.append(entry)
        self._entries[entry.number] = entry
        self._near = None
        if entry.group is not None:
            self._group_sizes[entry.group] = self._group_sizes.get(entry.group, 0) + 1

    def _remove(self, entry: Entry) -> None:
        self._buckets[self.bucket_index(entry.number)].entries.remove(entry)
        del self._entries[entry.number]
        self._near = None
        if entry.group is not None:
            self._group_sizes[entry.group] -= 1
            if not self._group_sizes[entry.group]:
                del self._group_sizes[entry.group]
