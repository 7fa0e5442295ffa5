"""A routing table keeps its promises whatever happens to it."""

from __future__ import annotations

import hashlib

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.dht.keys import AddressGroups, key_bytes, number_of
from swarmnode.protocol.dht.table import Added, RoutingTable
from swarmnode.wire.dht import Contact

OWN = PeerId(hashlib.sha256(b"own").digest())

# Few bits and few networks, so that buckets fill and limits are met.
distances = st.one_of(st.integers(0, 80), st.integers(250, 255).map(lambda bit: 1 << bit))
addresses = st.builds(
    "100.64.{}.{}:1".format, st.sampled_from([1, 2, *range(100, 140)]), st.integers(1, 9)
)


class TableMachine(RuleBasedStateMachine):
    """A table, and the answers and silences that a model remembers."""

    @initialize()
    def begin(self) -> None:
        self.table = RoutingTable(OWN, AddressGroups())
        self.now = 0.0
        self.silences: dict[int, int] = {}
        self.seen_at: dict[int, float] = {}

    @rule(distance=distances, address=addresses, pause_s=st.floats(0, 10))
    def answer(self, distance: int, address: str, pause_s: float) -> None:
        self.now += pause_s
        number = number_of(OWN) ^ distance
        was_in = number in self.table
        added = self.table.answered(Contact(key_bytes(number), (address,)), self.now)
        self.silences[number], self.seen_at[number] = 0, self.now
        assert (added is Added.SELF) == (distance == 0)
        assert (number in self.table) == (added in (Added.NEW, Added.KNOWN))
        assert not (was_in and added is Added.NEW)

    @rule(distance=distances)
    def silence(self, distance: int) -> None:
        number = number_of(OWN) ^ distance
        was_in = number in self.table
        evicted = self.table.unanswered(number)
        if was_in:
            self.silences[number] += 1
            is_over = self.silences[number] >= limits.DHT_UNANSWERED_MAX
            assert (evicted is not None) == is_over == (number not in self.table)

    @rule(key=st.integers(0, 2**256 - 1), count=st.integers(0, 30))
    def closest(self, key: int, count: int) -> None:
        found = [entry.number ^ key for entry in self.table.closest(key, count)]
        everybody = sorted(entry.number ^ key for entry in self.table.entries())
        assert found == everybody[:count]

    @invariant()
    def promises_hold(self) -> None:
        in_table: dict[str, int] = {}
        in_buckets = 0
        for index, bucket in self.table.buckets().items():
            numbers = [entry.number for entry in bucket.entries]
            assert len(set(numbers)) == len(numbers) <= limits.DHT_BUCKET_CONTACTS
            assert all(self.table.bucket_index(number) == index for number in numbers)
            assert number_of(OWN) not in numbers
            times = [entry.seen_at for entry in bucket.entries]
            assert len(bucket.waiting) <= limits.DHT_REPLACEMENTS_MAX
            assert not {entry.number for entry in bucket.waiting} & set(numbers)
            in_buckets += len(numbers)
            assert all(time <= self.now for time in times)
            for group in {entry.group for entry in bucket.entries if entry.group}:
                size = sum(entry.group == group for entry in bucket.entries)
                assert size <= limits.DHT_GROUP_BUCKET_MAX
                in_table[group] = in_table.get(group, 0) + size
        assert all(size <= limits.DHT_GROUP_TABLE_MAX for size in in_table.values())
        assert in_buckets == len(self.table) == len(list(self.table.entries()))

    @invariant()
    def nobody_is_in_who_never_answered(self) -> None:
        assert all(entry.number in self.seen_at for entry in self.table.entries())


TestTable = TableMachine.TestCase
TestTable.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
