"""Whom a lookup asks next, whose answers it believes, and when it is at its end."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

import pytest

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.dht.keys import AddressGroups, host_of, key_bytes, number_of
from swarmnode.protocol.dht.lookup import Lookup
from swarmnode.wire.dht import Contact

TARGET = 1 << 200
OWN = TARGET ^ (1 << 100)


def at(distance: int, network: int | None = None) -> Contact:
    """Return a peer at this distance from the target; in a network of its own if none is named."""
    place = distance if network is None else network
    return Contact(key_bytes(TARGET ^ distance), (f"100.{place >> 8}.{place & 255}.1:1",))


def peer(distance: int) -> PeerId:
    return PeerId(at(distance).peer)


def make(seeds: Iterable[int], *, paths: int = 1, k: int = 3, alpha: int = 2) -> Lookup:
    contacts = [at(distance) for distance in seeds]
    return Lookup(TARGET, OWN, contacts, AddressGroups(), paths=paths, k=k, alpha=alpha)


def asked(lookup: Lookup) -> list[int]:
    """Ask all that are to be asked now; return their distances."""
    found = []
    while (contact := lookup.next_contact()) is not None:
        found.append(number_of(contact.peer) ^ TARGET)
    return found


def answer(lookup: Lookup, distance: int, *named: int) -> None:
    lookup.answered(peer(distance), [at(each) for each in named])


def distances(contacts: Iterable[Contact]) -> list[int]:
    return [number_of(contact.peer) ^ TARGET for contact in contacts]


def test_the_closest_are_asked_a_few_at_a_time() -> None:
    lookup = make([40, 10, 30, 20])
    assert (lookup.asked, lookup.in_flight, lookup.n_paths) == (0, 0, 1)
    assert asked(lookup) == [10, 20]
    assert (lookup.asked, lookup.in_flight) == (2, 2)
    answer(lookup, 20)
    assert (lookup.asked, lookup.in_flight) == (2, 1)
    assert asked(lookup) == [30]
    answer(lookup, 10)
    assert not lookup.is_finished()
    answer(lookup, 30)
    assert lookup.is_finished(), "the k closest have answered"
    assert asked(lookup) == []
    assert distances(lookup.closest()) == [10, 20, 30]


def test_closer_ones_that_an_answer_names_are_asked_first() -> None:
    lookup = make([40, 50, 60])
    assert asked(lookup) == [40, 50]
    answer(lookup, 40, 5, 70)
    assert asked(lookup) == [5]
    answer(lookup, 50)
    answer(lookup, 5)
    assert lookup.is_finished(), "60 and 70 are not among the closest"
    assert lookup.asked == 3


def test_those_that_are_slow_or_gone_leave_their_places_to_others() -> None:
    lookup = make([10, 20, 30, 40])
    assert asked(lookup) == [10, 20]
    lookup.slow(peer(10))
    assert lookup.in_flight == 1
    assert asked(lookup) == [30]
    lookup.failed(peer(20))
    assert asked(lookup) == [40]
    answer(lookup, 30)
    assert not lookup.is_finished()
    answer(lookup, 40)
    assert lookup.is_finished()
    assert lookup.in_flight == 0
    lookup.failed(peer(10))
    assert lookup.in_flight == 0, "it was counted no more"
    answer(lookup, 10)
    assert distances(lookup.closest()) == [30, 40], "gone is gone"


def test_a_late_answer_takes_its_place_and_counts_as_no_request() -> None:
    lookup = make([10, 20])
    asked(lookup)
    lookup.slow(peer(10))
    answer(lookup, 10, 5)
    assert lookup.in_flight == 1
    assert distances(lookup.closest()) == [10]
    assert asked(lookup) == [5]
    answer(lookup, 10, 6)
    assert asked(lookup) == [], "the second answer of one is not read"
    lookup.slow(peer(10))
    lookup.failed(peer(10))
    assert distances(lookup.closest()) == [10], "an answer is not taken back"


def test_who_was_not_asked_is_not_believed() -> None:
    lookup = make([10, 20, 30])
    assert asked(lookup) == [10, 20]
    answer(lookup, 30, 1)
    lookup.failed(peer(30))
    answer(lookup, 99, 1)
    lookup.slow(peer(99))
    assert lookup.in_flight == 2
    answer(lookup, 10)
    assert asked(lookup) == [30]


def test_we_are_never_asked() -> None:
    lookup = make([OWN ^ TARGET])
    assert asked(lookup) == []
    assert lookup.is_finished()
    assert lookup.closest() == []
    assert (lookup.hops(), lookup.rounds()) == (0, 0)


def test_hops_are_requests_in_a_row() -> None:
    lookup = make([50, 60], alpha=3)
    assert asked(lookup) == [50, 60]
    answer(lookup, 50, 30)
    assert (lookup.hops(), lookup.rounds()) == (1, 1)
    assert asked(lookup) == [30]
    answer(lookup, 30, 20)
    assert asked(lookup) == [20]
    answer(lookup, 20)
    assert (lookup.hops(), lookup.rounds()) == (3, 3), "by way of 50 and 30"
    answer(lookup, 60, 10)
    assert asked(lookup) == [10]
    answer(lookup, 10)
    assert distances(lookup.closest()) == [10, 20, 30]
    assert (lookup.hops(), lookup.rounds()) == (2, 3)


@pytest.mark.parametrize("is_shorter_first", [True, False])
def test_of_two_ways_to_one_that_was_not_asked_the_shorter_counts(is_shorter_first: bool) -> None:
    lookup = make([50, 60], alpha=2, k=4)
    assert asked(lookup) == [50, 60]
    answer(lookup, 50, 10, 45)
    assert asked(lookup) == [10]
    if is_shorter_first:
        answer(lookup, 60, 40)
        answer(lookup, 10, 40)  # by way of 50 and 10
    else:
        answer(lookup, 10, 40)
        answer(lookup, 60, 40)
    assert asked(lookup) == [40, 45]
    answer(lookup, 40)
    answer(lookup, 45)
    assert (lookup.hops(), lookup.rounds()) == (2, 2)


def test_the_way_on_which_one_was_asked_counts_even_if_a_shorter_one_shows() -> None:
    lookup = make([50, 60], alpha=2, k=4)
    assert asked(lookup) == [50, 60]
    answer(lookup, 50, 10)
    assert asked(lookup) == [10]
    answer(lookup, 10, 5)
    assert asked(lookup) == [5]
    answer(lookup, 60, 5)
    answer(lookup, 5)
    assert lookup.hops() == 3


def test_seeds_are_dealt_out_to_paths_and_each_is_asked_on_one() -> None:
    lookup = make([10, 20, 30, 40], paths=3, alpha=3)
    assert lookup.n_paths == 3
    assert asked(lookup) == [10, 20, 30]
    assert [lookup.path_of(peer(each)) for each in (10, 20, 30, 40, 99)] == [0, 1, 2, -1, -1]
    answer(lookup, 20, 5)
    assert asked(lookup) == [5]
    assert lookup.path_of(peer(5)) == 1
    answer(lookup, 30)
    assert not lookup.is_finished()
    answer(lookup, 5)
    answer(lookup, 10)
    assert asked(lookup) == [40], "which the first path knows"
    answer(lookup, 40)
    assert lookup.is_finished()
    assert distances(lookup.closest()) == [5, 10, 20]


@pytest.mark.parametrize(
    ("n_seeds", "paths", "expected"), [(0, 3, 1), (2, 3, 2), (4, 3, 3), (4, 1, 1)]
)
def test_there_are_no_more_paths_than_seeds(n_seeds: int, paths: int, expected: int) -> None:
    assert make(range(1, n_seeds + 1), paths=paths).n_paths == expected


def test_a_path_that_waits_for_fewer_asks_first() -> None:
    lookup = make([10, 20, 30, 40, 50, 60], paths=2, alpha=3)
    assert asked(lookup) == [10, 20, 30]
    answer(lookup, 10)
    answer(lookup, 30)
    assert asked(lookup) == [50, 40]


def test_what_two_paths_know_is_asked_on_one_and_counts_on_both() -> None:
    lookup = make([10, 20], paths=2, k=2)
    assert asked(lookup) == [10, 20]
    answer(lookup, 10, 5)
    assert asked(lookup) == [5]
    answer(lookup, 20, 5)
    assert not lookup.is_near()
    assert not lookup.is_finished()
    answer(lookup, 5)
    assert lookup.path_of(peer(5)) == 0
    assert lookup.is_finished()
    assert lookup.asked == 3


def test_one_that_answered_on_another_path_is_among_the_closest_of_this_one() -> None:
    lookup = make([10, 20], paths=2, k=1)
    assert asked(lookup) == [10, 20]
    answer(lookup, 10, 5)
    assert asked(lookup) == [5]
    answer(lookup, 5)
    answer(lookup, 20, 5, 15)
    assert asked(lookup) == [], "15 is not"
    assert lookup.is_finished()


def test_the_surroundings_are_known_when_the_closest_have_answered() -> None:
    n_near = limits.DHT_NEAR_ANSWERS
    lookup = make(range(10, 10 + 2 * n_near), k=2 * n_near, alpha=2 * n_near)
    asked(lookup)
    for distance in range(10, 10 + n_near):
        assert not lookup.is_near()
        answer(lookup, distance)
    assert lookup.is_near()
    assert not lookup.is_finished()


def test_the_nearest_that_may_answer_are_those_that_are_not_slow_or_gone_or_left_out() -> None:
    lookup = make([10, 20, 30, 40, 50, 60, 70], k=3, alpha=3)
    assert asked(lookup) == [10, 20, 30]
    assert distances(lookup.nearest(())) == [10, 20, 30]
    lookup.slow(peer(10))
    lookup.failed(peer(20))
    answer(lookup, 30)
    assert distances(lookup.nearest({peer(40)})) == [30, 50, 60]


def test_a_lookup_that_is_led_on_ends_when_its_last_request_is_over() -> None:
    most = limits.DHT_LOOKUP_REQUESTS_MAX
    lookup = make([9000, 9001], alpha=2, k=20)
    assert asked(lookup) == [9000, 9001]
    closer = 9000
    for _ in range(most - 2):
        answer(lookup, closer, closer - 1)
        closer -= 1
        assert asked(lookup) == [closer]
        assert not lookup.is_finished()
    answer(lookup, closer, closer - 1)
    assert asked(lookup) == [], "that was the last"
    assert not lookup.is_finished()
    answer(lookup, 9001)
    assert lookup.is_finished()
    assert lookup.asked == most


def test_of_one_network_no_more_are_asked_than_a_table_takes() -> None:
    n_most = limits.DHT_GROUP_TABLE_MAX
    crowd = [at(distance, network=7) for distance in range(1, n_most + 3)]
    lookup = Lookup(TARGET, OWN, [*crowd, at(900)], AddressGroups(), k=50, alpha=50)
    assert asked(lookup) == [*range(1, n_most + 1), 900]
    exempt = [
        Contact(key_bytes(TARGET ^ distance), ("127.0.0.1:1",)) for distance in range(1, n_most + 3)
    ]
    lookup = Lookup(TARGET, OWN, exempt, AddressGroups(), k=50, alpha=50)
    assert asked(lookup) == [*range(1, n_most + 3)]


def test_by_itself_a_lookup_goes_by_the_limits() -> None:
    contacts = [at(distance) for distance in range(1, 60)]
    lookup = Lookup(TARGET, OWN, contacts, AddressGroups())
    assert len(asked(lookup)) == limits.DHT_LOOKUP_PARALLEL
    while not lookup.is_finished():
        for distance in range(1, 60):
            answer(lookup, distance)
        asked(lookup)
    assert len(lookup.closest()) == limits.DHT_BUCKET_CONTACTS
    assert lookup.n_paths == 1


# --- keys and addresses ------------------------------------------------------------------


def test_a_key_and_its_number_are_one() -> None:
    key = bytes(range(32))
    assert key_bytes(number_of(key)) == key
    assert number_of(bytes(31) + b"\1") == 1
    assert key_bytes(1) == bytes(31) + b"\1"


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("192.0.2.1:7337", "192.0.2.1"),
        ("tcp://192.0.2.1:7337", "192.0.2.1"),
        ("[2001:DB8::1]:7337", "2001:db8::1"),
        ("tcp://[2001:DB8::1]:7337", "2001:db8::1"),
        ("Node.Example:7337", "node.example"),
        ("Node.Example", "node.example"),
        ("mem:N0", "mem:n0"),
    ],
)
def test_the_host_of_an_address(address: str, host: str) -> None:
    assert host_of(address) == host


def test_an_address_of_one_kind_is_in_no_network_of_the_other() -> None:
    groups = AddressGroups((ipaddress.ip_network("::/0"),))
    assert groups.group("192.0.2.1:1") == "192.0.2.0/24"
    assert groups.group("[2001:db8::1]:1") is None
    groups = AddressGroups((ipaddress.ip_network("0.0.0.0/0"),))
    assert groups.group("[::ffff:192.0.2.1]:1") is None
    assert groups.group("[2001:db8:7:8::1]:1") == "2001:db8:7::/48"
