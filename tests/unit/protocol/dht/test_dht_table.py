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


def fail(table: RoutingTable, contact: Contact, times: int = limits.DHT_UNANSWERED_MAX) -> None:
    for _ in range(times):
        table.unanswered(number_of(contact.peer))


def test_a_bucket_is_as_far_as_the_first_bit_that_differs() -> None:
    table = make_table()
    own = number_of(OWN)
    assert [table.bucket_index(own ^ distance) for distance in (0, 1, 2, 3, 4, FAR)] == [
        -1,
        0,
        1,
        1,
        2,
        255,
    ]


def test_the_closest_are_given_in_order_and_no_more_than_asked_for() -> None:
    table = make_table()
    contacts = [somebody(1 << index) for index in range(5)]
    for each in reversed(contacts):
        table.answered(each, 0.0)
    own = number_of(OWN)
    for count in (1, 3, 5, 9):
        assert [entry.contact for entry in table.closest(own, count)] == contacts[:count]
        healthy = table.closest(own, count, only_healthy=True)
        assert [entry.contact for entry in healthy] == contacts[:count]
    fail(table, contacts[0], 1)
    healthy = table.closest(own, 2, only_healthy=True)
    assert [entry.contact for entry in healthy] == contacts[1:3]
    assert [entry.contact for entry in table.entries()] == contacts[::-1]


def test_as_near_as_our_farthest_neighbour_is_near() -> None:
    table = make_table()
    own = number_of(OWN)
    k = limits.DHT_BUCKET_CONTACTS
    contacts = [somebody(10 * (place + 1) + (1 << 20)) for place in range(k)]
    for each in contacts[:-1]:
        table.answered(each, 0.0)
    assert table.is_near(own ^ ((1 << 256) - 1)), "there is room for anyone"
    table.answered(contacts[-1], 0.0)
    farthest = 10 * k + (1 << 20)
    assert [table.is_near(own ^ (farthest + more)) for more in (-1, 0, 1)] == [True, True, False]
    fail(table, contacts[0])
    assert table.is_near(own ^ (farthest + 1))


def test_a_stranger_is_wanted_where_there_is_room_or_none_waits() -> None:
    table, contacts = full_bucket()
    newcomer, waiter = (number_of(somebody(FAR + 100 + place).peer) for place in range(2))
    assert table.wants(newcomer)
    assert not table.wants(number_of(contacts[0].peer))
    assert table.wants(number_of(somebody(5).peer))
    table.answered(somebody(FAR + 101), 50.0)
    assert not table.wants(newcomer), "one waits already"
    assert not table.wants(waiter)
    fail(table, contacts[0])
    assert table.wants(newcomer), "the one that waited is in"
    assert not table.wants(waiter)


def test_an_answer_brings_an_entry_up_to_date() -> None:
    table, contacts = full_bucket()
    number = number_of(contacts[0].peer)
    fail(table, contacts[0], 1)
    moved = Contact(contacts[0].peer, (*contacts[0].addresses, "192.0.2.1:7337"))
    assert table.answered(moved, 50.0) is Added.KNOWN
    entry = table.get(number)
    assert entry is not None
    assert (entry.contact, entry.seen_at, entry.failures) == (moved, 50.0, 0)
    assert len(table) == limits.DHT_BUCKET_CONTACTS
    assert table.get(1) is None


def test_who_moves_into_a_network_with_room_keeps_its_place() -> None:
    table = make_table()
    first, mover = somebody(FAR, "203.0.113.1:1"), somebody(FAR + 1)
    for each in (first, mover):
        table.answered(each, 0.0)
    moved = Contact(mover.peer, ("203.0.113.2:1",))
    assert table.answered(moved, 1.0) is Added.KNOWN
    assert len(table) == 2
    assert table.answered(somebody(FAR + 2, "203.0.113.3:1"), 1.0) is Added.LIMITED
    back = Contact(mover.peer, ("198.51.100.1:1",))
    assert table.answered(back, 2.0) is Added.KNOWN
    assert table.answered(somebody(FAR + 2, "203.0.113.3:1"), 2.0) is Added.NEW


def test_one_network_gets_its_places_back_one_by_one() -> None:
    table = make_table()
    limit = limits.DHT_GROUP_TABLE_MAX
    crowd = [somebody(1 << place, f"203.0.113.{place}:1") for place in range(200, 202 + limit)]
    assert [table.answered(each, 0.0) for each in crowd[:limit]] == [Added.NEW] * limit
    assert table.answered(crowd[limit], 0.0) is Added.LIMITED
    fail(table, crowd[0])
    assert table.answered(crowd[limit], 0.0) is Added.NEW
    assert table.answered(crowd[limit + 1], 0.0) is Added.LIMITED


def test_waiters_are_the_latest_to_answer_and_each_is_there_once() -> None:
    table, contacts = full_bucket()
    waiters = [somebody(FAR + 100 + place) for place in range(limits.DHT_REPLACEMENTS_MAX + 1)]
    for each in waiters:
        assert table.answered(each, 50.0) is Added.WAITING
    table.answered(waiters[1], 60.0)
    (bucket,) = table.buckets().values()
    assert [each.contact for each in bucket.waiting] == [*waiters[2:], waiters[1]]
    fail(table, contacts[0])
    fail(table, contacts[1])
    assert number_of(waiters[1].peer) in table
    assert number_of(waiters[-1].peer) in table
    assert [each.contact for each in bucket.waiting] == waiters[2:-1]
    assert len(table) == limits.DHT_BUCKET_CONTACTS


def test_a_waiter_whose_network_is_full_by_now_gives_its_turn_to_the_next() -> None:
    table, contacts = full_bucket()
    patient = somebody(FAR + 100)
    crowded = somebody(FAR + 101, "203.0.113.9:1")
    for each in (patient, crowded):
        assert table.answered(each, 50.0) is Added.WAITING
    for index in range(limits.DHT_GROUP_TABLE_MAX):
        table.answered(somebody(1 << index, f"203.0.113.{index}:1"), 50.0)
    fail(table, contacts[0])
    assert number_of(patient.peer) in table
    assert number_of(crowded.peer) not in table


def test_who_is_not_in_the_table_owes_no_answer() -> None:
    table = make_table()
    assert table.unanswered(number_of(somebody(5).peer)) is None
    assert table.least_recently_seen() is None


def test_the_least_recently_seen_is_so_among_all_buckets() -> None:
    table = make_table()
    near, far = somebody(1), somebody(FAR)
    table.answered(far, 5.0)
    table.answered(near, 4.0)
    oldest = table.least_recently_seen()
    assert oldest is not None
    assert oldest.contact == near
    table.answered(near, 6.0)
    oldest = table.least_recently_seen()
    assert oldest is not None
    assert oldest.contact == far
    for each in (near, far):
        fail(table, each)
    assert table.least_recently_seen() is None
