"""Which peers get into a routing table, which stay, and which leave."""

from __future__ import annotations

import ipaddress

import pytest

from swarmnode import limits
from swarmnode.protocol.dht.keys import AddressGroups, number_of
from swarmnode.protocol.dht.table import Added, RoutingTable
from swarmnode.protocol.dht.upkeep import Remembered
from swarmnode.wire.dht import Contact
from tests.unit.protocol.dht.dht_kit import contact_at, identity

OWN = identity(0).peer_id
FAR = 1 << 255


def make_table() -> RoutingTable:
    return RoutingTable(OWN, AddressGroups())


def somebody(distance: int, address: str = "") -> Contact:
    return contact_at(distance, OWN, address or f"100.64.{distance % 251}.1:7337")


def full_bucket() -> tuple[RoutingTable, list[Contact]]:
    table = make_table()
    contacts = [somebody(FAR + place) for place in range(limits.DHT_BUCKET_CONTACTS)]
    for now, contact in enumerate(contacts):
        assert table.answered(contact, float(now)) is Added.NEW
    return table, contacts


def test_we_are_not_in_our_own_table() -> None:
    table = make_table()
    assert table.answered(somebody(0), 0.0) is Added.SELF
    assert len(table) == 0
    assert not table.wants(number_of(OWN))


def test_a_full_bucket_keeps_whom_it_has() -> None:
    table, contacts = full_bucket()
    newcomer = somebody(FAR + 100)
    assert table.answered(newcomer, 50.0) is Added.WAITING
    assert number_of(newcomer.peer) not in table
    assert all(number_of(contact.peer) in table for contact in contacts)


def test_a_waiter_takes_the_place_of_one_that_answers_nothing() -> None:
    table, contacts = full_bucket()
    first, second = somebody(FAR + 100), somebody(FAR + 101)
    table.answered(first, 50.0)
    table.answered(second, 51.0)
    number = number_of(contacts[3].peer)
    for _ in range(limits.DHT_UNANSWERED_MAX - 1):
        assert table.unanswered(number) is None
    evicted = table.unanswered(number)
    assert evicted is not None
    assert evicted.contact == contacts[3]
    assert number not in table
    assert number_of(second.peer) in table, "the latest to answer comes first"
    assert number_of(first.peer) not in table


def test_an_answer_forgives_what_was_not_answered() -> None:
    table, contacts = full_bucket()
    number = number_of(contacts[0].peer)
    for _ in range(10):
        for _ in range(limits.DHT_UNANSWERED_MAX - 1):
            table.unanswered(number)
        table.answered(contacts[0], 60.0)
    assert number in table


def test_the_least_recently_seen_is_the_contact_that_answered_longest_ago() -> None:
    table, contacts = full_bucket()
    table.answered(contacts[0], 100.0)
    oldest = table.least_recently_seen()
    assert oldest is not None
    assert oldest.contact == contacts[1]


def test_waiters_are_bounded() -> None:
    table, _ = full_bucket()
    for place in range(100):
        table.answered(somebody(FAR + 100 + place), 50.0)
    (bucket,) = table.buckets().values()
    assert len(bucket.waiting) == limits.DHT_REPLACEMENTS_MAX


def test_one_network_gets_two_places_in_a_bucket() -> None:
    table = make_table()
    added = [
        table.answered(somebody(FAR + place, f"203.0.113.{place}:1"), 0.0) for place in range(5)
    ]
    assert added == [Added.NEW, Added.NEW, Added.LIMITED, Added.LIMITED, Added.LIMITED]


def test_one_network_gets_ten_places_in_a_table() -> None:
    table = make_table()
    added = [
        table.answered(somebody(1 << index, f"[2001:db8:7:{index}::1]:1"), 0.0)
        for index in range(200, 220)
    ]
    assert added.count(Added.NEW) == limits.DHT_GROUP_TABLE_MAX
    assert added[limits.DHT_GROUP_TABLE_MAX :] == [Added.LIMITED] * 10


def test_a_place_is_free_again_when_its_peer_is_gone() -> None:
    table = make_table()
    contacts = [somebody(FAR + place, f"203.0.113.{place}:1") for place in range(3)]
    for contact in contacts:
        table.answered(contact, 0.0)
    for _ in range(limits.DHT_UNANSWERED_MAX):
        table.unanswered(number_of(contacts[0].peer))
    assert table.answered(contacts[2], 1.0) is Added.NEW


def test_what_counts_is_where_the_answer_came_from() -> None:
    table = make_table()
    claimed = [somebody(FAR + place, f"100.{place}.1.1:1") for place in range(4)]
    added = [table.answered(contact, 0.0, "203.0.113.9:55555") for contact in claimed]
    assert added.count(Added.NEW) == limits.DHT_GROUP_BUCKET_MAX


def test_who_moves_into_a_full_network_loses_its_place() -> None:
    table = make_table()
    for place in range(2):
        table.answered(somebody(FAR + place, f"203.0.113.{place}:1"), 0.0)
    mover = somebody(FAR + 7)
    table.answered(mover, 0.0)
    moved = Contact(mover.peer, ("203.0.113.77:1",))
    assert table.answered(moved, 1.0) is Added.LIMITED
    assert number_of(mover.peer) not in table


def test_loopback_and_ranges_of_a_test_are_exempt() -> None:
    table = RoutingTable(OWN, AddressGroups((ipaddress.ip_network("198.18.0.0/15"),)))
    added = {
        table.answered(somebody(FAR + place, f"198.18.0.{place}:1"), 0.0) for place in range(15)
    }
    assert added == {Added.NEW}


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("203.0.113.7:7337", "203.0.113.0/24"),
        ("tcp://203.0.113.7:7337", "203.0.113.0/24"),
        ("[::ffff:203.0.113.7]:1", "203.0.113.0/24"),
        ("[2001:db8:1:2::3]:7337", "2001:db8:1::/48"),
        ("tcp://[2001:DB8:1:2::3]:7337", "2001:db8:1::/48"),
        ("Node.Example.ORG:7337", "node.example.org"),
        ("127.0.0.1:7337", None),
        ("[::1]:7337", None),
        ("mem:n0", "mem:n0"),
    ],
)
def test_the_group_of_an_address(address: str, group: str | None) -> None:
    assert AddressGroups().group(address) == group


def test_unhealthy_contacts_are_not_passed_on() -> None:
    table, contacts = full_bucket()
    table.unanswered(number_of(contacts[0].peer))
    target = number_of(contacts[0].peer)
    assert table.closest(target, 1)[0].contact == contacts[0]
    assert table.closest(target, 1, only_healthy=True)[0].contact != contacts[0]


def test_one_that_answers_again_is_known_and_stays_the_longest() -> None:
    table, contacts = full_bucket()
    assert table.answered(contacts[0], 50.0) is Added.KNOWN
    (bucket,) = table.buckets().values()
    assert bucket.entries[-1].contact == contacts[0]


def test_of_those_that_are_remembered_the_one_named_longest_ago_leaves_first() -> None:
    remembered = Remembered()
    contacts = [somebody(FAR + place) for place in range(limits.DHT_REMEMBERED_MAX + 1)]
    for contact in contacts[:-1]:
        remembered.add(contact)
    remembered.add(contacts[0])  # named again
    remembered.add(contacts[-1])
    assert remembered.outside(make_table()) == [*contacts[2:-1], contacts[0], contacts[-1]]
