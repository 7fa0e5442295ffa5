"""Requests and their deadlines, and what a search or a publication makes of the answers."""

from __future__ import annotations

import hashlib

import pytest

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.dht import events
from swarmnode.protocol.dht.keys import AddressGroups, blob_key, number_of
from swarmnode.protocol.dht.lookup import Lookup
from swarmnode.protocol.dht.operations import (
    CHECK,
    DHT_SLOW_S_INITIAL,
    FindOperation,
    GetOperation,
    Operation,
    PublishOperation,
    Requests,
    RoundTrips,
)
from swarmnode.wire import dht as wire
from swarmnode.wire.dht import Contact
from swarmnode.wire.swarm import Signed
from tests.unit.protocol.dht.dht_kit import (
    RULES,
    UNIX_S,
    contact,
    identity,
    opened,
    peer_record,
    provider_record,
    signed_record,
)

BLOB = hashlib.sha256(b"blob").digest()
KEY = blob_key(BLOB)
TARGET = number_of(KEY)
GONE_S = limits.DHT_GONE_S


def nearest(count: int) -> list[Contact]:
    """Return the contacts of peers from 1 on, the closest to KEY first."""
    contacts = [contact(number) for number in range(1, count + 1)]
    return sorted(contacts, key=lambda each: number_of(each.peer) ^ TARGET)


def make_lookup(contacts: list[Contact], *, paths: int = 1, k: int = 20, alpha: int = 3) -> Lookup:
    own = number_of(identity(0).peer_id)
    return Lookup(TARGET, own, contacts, AddressGroups(), paths=paths, k=k, alpha=alpha)


def ask_all(lookup: Lookup) -> list[PeerId]:
    asked = []
    while (asks := lookup.next_contact()) is not None:
        asked.append(PeerId(asks.peer))
    return asked


# --- round trips and requests ------------------------------------------------------------


def test_slow_is_the_mean_and_four_deviations() -> None:
    trips = RoundTrips()
    assert trips.slow_after_s() == DHT_SLOW_S_INITIAL
    trips.measured(0.4)  # mean 0.4, deviation 0.2
    assert trips.slow_after_s() == pytest.approx(1.2)
    trips.measured(0.8)  # an eighth of 0.4 more; deviation 0.25
    assert trips.slow_after_s() == pytest.approx(1.45)
    trips.measured(0.05)  # an eighth of 0.4 less; deviation 0.2875
    assert trips.slow_after_s() == pytest.approx(1.55)


def test_slow_is_between_fixed_bounds() -> None:
    quick, late = RoundTrips(), RoundTrips()
    quick.measured(0.0)
    assert quick.slow_after_s() == limits.DHT_SLOW_S_MIN
    late.measured(60.0)
    assert late.slow_after_s() == limits.DHT_SLOW_S_MAX


def test_a_request_is_slow_and_then_gone() -> None:
    requests = Requests()
    assert requests.next_deadline() is None
    assert requests.due(1e9) == []
    request = requests.open(contact(1), 7, wire.Pong, 5.0)
    assert (request.peer, request.contact) == (identity(1).peer_id, contact(1))
    assert (request.operation, request.expects, request.sent_at) == (7, wire.Pong, 5.0)
    assert len(requests) == 1
    slow_at = 5.0 + DHT_SLOW_S_INITIAL
    assert requests.next_deadline() == slow_at
    assert requests.due(slow_at - 0.001) == []
    assert requests.due(slow_at) == [request]
    assert requests.is_open(request)
    assert requests.due(slow_at) == []
    assert requests.next_deadline() == 5.0 + GONE_S
    assert requests.due(5.0 + GONE_S - 0.001) == []
    assert requests.due(5.0 + GONE_S) == [request]
    assert not requests.is_open(request)
    assert len(requests) == 0
    assert requests.next_deadline() is None
    assert requests.answered(request.peer, request.id, 20.0) is None


def test_a_request_whose_whole_time_went_by_unseen_is_named_once() -> None:
    requests = Requests()
    request = requests.open(contact(1), CHECK, wire.Pong, 0.0)
    later = requests.open(contact(2), CHECK, wire.Pong, GONE_S - DHT_SLOW_S_INITIAL)
    assert requests.due(GONE_S) == [request, later]
    assert [requests.is_open(each) for each in (request, later)] == [False, True]


def test_an_answer_belongs_to_the_peer_that_was_asked() -> None:
    requests = Requests()
    one, two = (requests.open(contact(number), CHECK, wire.Pong, 4.0) for number in (1, 2))
    assert 0 < one.id < two.id
    assert requests.answered(two.peer, one.id, 5.0) is None
    assert requests.failed(two.peer, one.id) is None
    assert requests.failed(one.peer, 99) is None
    assert len(requests) == 2
    assert requests.answered(one.peer, one.id, 4.5) is one
    assert requests.answered(one.peer, one.id, 4.5) is None
    assert requests.round_trips.slow_after_s() == pytest.approx(1.5)
    assert requests.failed(two.peer, two.id) is two
    assert requests.failed(two.peer, two.id) is None
    assert requests.next_deadline() is None


def test_a_deadline_goes_with_its_request() -> None:
    requests = Requests()
    first = requests.open(contact(1), CHECK, wire.Pong, 0.0)
    requests.open(contact(2), CHECK, wire.Pong, 1.0)
    requests.failed(first.peer, first.id)
    assert requests.next_deadline() == 1.0 + DHT_SLOW_S_INITIAL


# --- a search for peers ------------------------------------------------------------------


def test_a_search_tells_whom_it_found_and_what_it_cost() -> None:
    contacts = nearest(2)
    operation = FindOperation(KEY, make_lookup(contacts), 5)
    assert not operation.wants_records
    assert not operation.is_finished()
    for each in ask_all(operation.lookup):
        operation.lookup.answered(each, ())
    assert operation.is_finished()
    assert operation.effect() == events.PeersFound(5, KEY, tuple(contacts), 1, 1, 2)
    assert Operation(KEY, make_lookup(contacts)).effect() is None


# --- a search for records ----------------------------------------------------------------


def make_get(n_peers: int = 3, *, quorum: int = 0, paths: int = 1) -> GetOperation:
    lookup = make_lookup(nearest(n_peers), paths=paths, alpha=n_peers)
    return GetOperation(KEY, lookup, 5, quorum)


def give(get: GetOperation, peer: PeerId, *records: Signed) -> None:
    get.answered(peer, records, RULES, UNIX_S)
    get.lookup.answered(peer, ())


def test_the_newest_record_of_each_author_is_kept() -> None:
    get = make_get()
    assert get.wants_records
    old, new, other = (
        signed_record(author, provider_record(BLOB, sequence))
        for author, sequence in ((50, 1), (50, 2), (51, 1))
    )
    one, two, three = ask_all(get.lookup)
    give(get, one, new)
    give(get, two, old, other)
    give(get, three)
    assert get.is_finished()
    found = get.effect()
    assert isinstance(found, events.RecordsFound)
    assert [each.signed for each in found.records] == [new, other]
    assert (found.command, found.key, found.holders) == (5, KEY, 2)
    assert (found.contacts, found.hops, found.rounds, found.asked) == (tuple(nearest(3)), 1, 1, 3)
    get.take(opened(50, KEY, provider_record(BLOB, 3)))
    get.take(opened(50, KEY, provider_record(BLOB, 2)))
    assert {each.record.sequence for each in get.newest.values()} == {3, 1}


def test_who_gave_bad_records_only_holds_none() -> None:
    get = make_get()
    good = signed_record(50, provider_record(BLOB))
    forged = Signed(good.body, good.public_key, bytes(64))
    foreign = signed_record(50, peer_record())
    one, two, three = ask_all(get.lookup)
    give(get, one, forged, foreign)
    assert (get.holders, get.rejected) == (0, ["forged", "malformed"])
    give(get, two, forged, good)
    assert (get.holders, get.rejected) == (1, ["forged", "malformed", "forged"])
    give(get, three, good)
    assert get.holders == 2


def test_a_record_that_came_before_is_checked_once_and_another_signature_again() -> None:
    checked = []

    def verify(public_key: bytes, domain: str, body: bytes, signature: bytes, *, what: str) -> None:
        checked.append(body)
        RULES.verify(public_key, domain, body, signature, what=what)

    rules = type(RULES)(RULES.network_id, verify)
    get = make_get()
    record = signed_record(50, provider_record(BLOB))
    older = signed_record(50, provider_record(BLOB, 0))
    swapped = Signed(older.body, older.public_key, record.signature)
    for peer, records in zip(ask_all(get.lookup), ((record,), (record,), (swapped,)), strict=True):
        get.answered(peer, records, rules, UNIX_S)
    assert checked == [record.body, older.body]
    assert (get.holders, get.rejected) == (2, ["forged"])


def test_so_many_records_are_remembered_as_checked_as_honest_peers_can_give() -> None:
    n_checked = 0

    def verify(public_key: bytes, domain: str, body: bytes, signature: bytes, *, what: str) -> None:
        nonlocal n_checked
        n_checked += 1

    rules = type(RULES)(RULES.network_id, verify)
    get = make_get()
    most = limits.DHT_RECORDS_PER_KEY_MAX * limits.DHT_BUCKET_CONTACTS
    records = tuple(
        signed_record(50, provider_record(BLOB, sequence)) for sequence in range(most + 1)
    )
    one, two, _ = ask_all(get.lookup)
    get.answered(one, records, rules, UNIX_S)
    assert n_checked == most + 1
    get.answered(two, records, rules, UNIX_S)
    assert n_checked == most + 2, "the last is checked each time"
    assert get.holders == 2


@pytest.mark.parametrize("quorum", [0, 1, 2, 3])
def test_a_quorum_ends_a_search_when_as_many_gave_one(quorum: int) -> None:
    get = make_get(4, quorum=quorum)
    record = signed_record(50, provider_record(BLOB))
    n_answers = 0
    for peer in ask_all(get.lookup):
        give(get, peer, record)
        n_answers += 1
        if get.is_finished():
            break
    assert n_answers == (quorum or 4)


def test_a_quorum_asks_for_one_on_every_path_as_far_as_it_goes() -> None:
    record = signed_record(50, provider_record(BLOB))
    get = make_get(6, quorum=2, paths=2)
    peers = ask_all(get.lookup)
    first = [peer for peer in peers if get.lookup.path_of(peer) == 0]
    second = [peer for peer in peers if get.lookup.path_of(peer) == 1]
    assert len(first) == len(second) == 3
    for peer in first[:2]:
        give(get, peer, record)
    assert not get.is_finished(), "both are of one path"
    give(get, second[0], record)
    assert get.is_finished()


def test_a_quorum_of_one_asks_for_no_more_paths() -> None:
    get = make_get(6, quorum=1, paths=2)
    give(get, ask_all(get.lookup)[0], signed_record(50, provider_record(BLOB)))
    assert get.is_finished()


def test_a_search_ends_where_a_path_has_none() -> None:
    record = signed_record(50, provider_record(BLOB))
    get = make_get(4, quorum=2, paths=2)
    for peer in ask_all(get.lookup):
        if get.lookup.path_of(peer) == 0:
            give(get, peer, record)
        else:
            assert not get.is_finished()
            give(get, peer)
    assert get.is_finished()
    assert get.holders == 2


# --- a publication -----------------------------------------------------------------------


def make_publish(
    contacts: list[Contact], *, k: int = 20, command: int | None = 5
) -> PublishOperation:
    lookup = make_lookup(contacts, k=k, alpha=len(contacts))
    return PublishOperation(KEY, lookup, command, signed_record(50, provider_record(BLOB)))


def ids(contacts: list[Contact]) -> list[PeerId]:
    return [PeerId(each.peer) for each in contacts]


def test_a_record_goes_to_the_nearest_once_their_surroundings_are_known() -> None:
    contacts = nearest(6)
    publish = make_publish(contacts, k=4)
    asked = ask_all(publish.lookup)
    assert publish.targets() == []
    assert not publish.is_finished()
    for each in asked[: limits.DHT_NEAR_ANSWERS - 1]:
        publish.lookup.answered(each, ())
    assert publish.targets() == []
    publish.lookup.answered(asked[limits.DHT_NEAR_ANSWERS - 1], ())
    assert publish.targets() == contacts[:4]
    assert publish.is_storing
    assert publish.targets() == [], "each is asked once"
    for each in ids(contacts[:3]):
        publish.stored(each, "stored")
    assert not publish.is_finished()
    publish.stored(PeerId(contacts[3].peer), "stored")
    assert publish.is_finished()


def test_where_there_is_no_peer_to_ask_a_publication_is_over() -> None:
    publish = make_publish([])
    assert not publish.is_finished()
    assert publish.targets() == []
    assert publish.is_finished()
    assert publish.effect() == events.Published(5, KEY, 0, 0)


def test_for_who_does_not_answer_the_next_nearest_stands_in() -> None:
    contacts = nearest(4)
    publish = make_publish(contacts, k=2)
    for each in ask_all(publish.lookup):
        publish.lookup.answered(each, ())
    assert publish.targets() == contacts[:2]
    publish.gave_up(PeerId(contacts[0].peer))
    assert publish.targets() == [contacts[2]]
    publish.stored(PeerId(contacts[0].peer), "stored")  # late
    publish.stored(PeerId(contacts[1].peer), "stored")
    assert not publish.is_finished()
    publish.gave_up(PeerId(contacts[2].peer))
    assert publish.is_finished()
    assert publish.effect() == events.Published(5, KEY, 2, 3)


@pytest.mark.parametrize(
    ("outcome", "counts"),
    [("stored", 1), ("held", 1), ("older", 0), ("refused", 0), ("full", 0)],
)
def test_who_holds_a_record_is_a_replica(outcome: wire.StoreOutcome, counts: int) -> None:
    contacts = nearest(1)
    publish = make_publish(contacts)
    publish.lookup.answered(ask_all(publish.lookup)[0], ())
    publish.targets()
    publish.stored(PeerId(contacts[0].peer), outcome)
    assert publish.replicas == counts
    assert publish.is_finished()


def test_a_publication_is_told_once_and_the_repetition_of_our_own_never() -> None:
    publish = make_publish([])
    for number in range(limits.DHT_PUT_REPLICAS):
        assert not publish.is_enough()
        publish.stored(identity(number).peer_id, "stored")
    assert publish.is_enough()
    assert publish.effect() == events.Published(5, KEY, limits.DHT_PUT_REPLICAS, 0)
    assert publish.effect() is None
    assert make_publish([], command=None).effect() is None
