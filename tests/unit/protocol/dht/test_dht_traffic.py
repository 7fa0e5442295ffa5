"""What one DHT core asks, answers, counts and remembers, message by message."""

from __future__ import annotations

import hashlib

import pytest

from swarmnode import limits
from swarmnode.errors import RemoteProtocolError
from swarmnode.ids import PeerId
from swarmnode.protocol.dht import events
from swarmnode.protocol.dht.core import DHT_CHECKS_MAX, DHT_OPERATIONS_MAX, DhtCore
from swarmnode.protocol.dht.keys import blob_key, number_of
from swarmnode.protocol.dht.operations import DHT_SLOW_S_INITIAL
from swarmnode.wire import dht as wire
from swarmnode.wire.swarm import Signed
from tests.unit.protocol.dht.dht_kit import (
    answer,
    contact,
    contact_at,
    identity,
    make_core,
    only,
    provider_record,
    sends,
    signed_record,
)

ADDRESSES = ("192.0.2.9:7337",)
BLOB = hashlib.sha256(b"blob").digest()
KEY = blob_key(BLOB)


def peer(number: int) -> PeerId:
    return identity(number).peer_id


def run_dry(core: DhtCore, now: float = 0.0) -> list[events.Effect]:
    """Let peers that know no other answer everything; return the other effects."""
    rest: list[events.Effect] = []
    while effects := core.poll_effects():
        for effect in effects:
            if isinstance(effect, events.Send):
                answer(core, effect, now)
            else:
                rest.append(effect)
    return rest


def core_that_knows(*numbers: int, addresses: tuple[str, ...] = ADDRESSES) -> DhtCore:
    core = make_core(addresses=addresses)
    core.handle(events.Discovered(tuple(contact(number) for number in numbers)), 0.0)
    run_dry(core)
    assert len(core.table) == len(numbers)
    return core


def ask(
    core: DhtCore, number: int, message: wire.Message, now: float = 0.0, observed: str = ""
) -> list[events.Send]:
    """Let a peer say something; return what is sent for it."""
    core.handle(events.Received(peer(number), message, observed), now)
    return sends(core)


def pass_time(core: DhtCore, until: float) -> list[events.Send]:
    """Call each deadline before a time; return what is sent, which no peer answers."""
    sent: list[events.Send] = []
    while (deadline := core.next_deadline()) is not None and deadline < until:
        core.handle_deadline(deadline)
        sent += sends(core)
    return sent


# --- what others ask ---------------------------------------------------------------------


def test_who_asks_is_answered_over_the_session_that_it_has() -> None:
    core = core_that_knows(1, 2)
    (sent,) = ask(core, 1, wire.Ping(7, ()))
    assert (sent.peer, sent.addresses, sent.message) == (peer(1), (), wire.Pong(7))
    assert not sent.anew
    (found,) = ask(core, 1, wire.Find(8, (), bytes(32)))
    assert (found.peer, found.addresses) == (peer(1), ())
    assert found.message == wire.Found(8, (contact(2),)), "and not told of itself"
    assert core.statistics().requests_served == 2


def test_those_that_owe_an_answer_are_passed_on_to_none() -> None:
    core = core_that_knows(1, 2)
    core.handle(events.FindPeers(1, BLOB), 1.0)
    for sent in sends(core):
        if sent.peer == peer(2):
            core.handle(events.SendFailed(sent.peer, sent.message.id), 1.0)
        else:
            answer(core, sent, 1.0)
    core.poll_effects()
    (found,) = ask(core, 3, wire.Find(8, (), bytes(32)), 1.0)
    assert found.message == wire.Found(8, (contact(1),))
    assert core.good_contacts() == (contact(1),)


def test_no_more_contacts_are_remembered_over_a_restart_than_the_limit() -> None:
    core = make_core(addresses=ADDRESSES)
    most = limits.DHT_REMEMBERED_MAX
    contacts = [
        contact_at((1 << 250 + n % 5) + n, core.self_id, f"100.{n}.7.1:7337")
        for n in range(most + 1)
    ]
    for each in contacts:
        ping = wire.Ping(1, each.addresses)
        core.handle(events.Received(PeerId(each.peer), ping), 0.0)
        _, check = sends(core)
        answer(core, check, 0.0)
        run_dry(core)
    assert len(core.table) == most + 1
    first = tuple(entry.contact for entry in core.table.entries())[:most]
    assert core.good_contacts() == first


def test_a_record_that_finds_no_room_is_counted() -> None:
    core = make_core()
    outcomes = []
    most = limits.DHT_RECORDS_PER_KEY_MAX
    for number in range(5, 5 + most + 2):
        record = signed_record(number, provider_record(BLOB))
        (sent,) = ask(core, number, wire.Put(number, (), KEY, record))
        assert isinstance(sent.message, wire.Stored)
        outcomes.append(sent.message.outcome)
    assert outcomes == ["stored"] * most + ["full", "full"]
    assert core.statistics().records_rejected == (("full", 2),)
    assert core.statistics().records == most


def test_what_is_held_is_known_until_it_is_over() -> None:
    core = make_core()
    record = signed_record(5, provider_record(BLOB, ttl_s=100))
    outcomes = []
    for now in (0.0, 99.9, 100.0):
        (sent,) = ask(core, 6, wire.Put(1, (), KEY, record), now)
        assert isinstance(sent.message, wire.Stored)
        outcomes.append(sent.message.outcome)
    assert outcomes == ["stored", "held", "stored"]


def test_dates_are_compared_with_the_time_of_day() -> None:
    core = make_core()
    record = signed_record(5, provider_record(BLOB))
    now = limits.DHT_CLOCK_SKEW_S + 7200.0
    (late,) = ask(core, 5, wire.Put(1, (), KEY, record), now + 1.0)
    assert late.message == wire.Stored(1, "refused")
    (just,) = ask(core, 5, wire.Put(2, (), KEY, record), now)
    assert just.message == wire.Stored(2, "stored")
    assert core.statistics().records_rejected == (("expired", 1),)


def test_expired_records_are_forgotten() -> None:
    core = make_core()
    ask(core, 5, wire.Put(1, (), KEY, signed_record(5, provider_record(BLOB, ttl_s=30))))
    pass_time(core, 59.0)
    assert core.statistics().records == 1
    pass_time(core, 61.0)
    assert core.statistics().records == 0


# --- checks ------------------------------------------------------------------------------


def test_a_stranger_is_checked_once_and_anew_when_that_is_over() -> None:
    core = core_that_knows(1)
    _, check = ask(core, 2, wire.Ping(1, contact(2).addresses))
    assert check == events.Send(
        peer(2), contact(2).addresses, wire.Ping(check.message.id, ADDRESSES), anew=True
    )
    assert len(ask(core, 2, wire.Ping(2, contact(2).addresses))) == 1, "it is under way"
    core.handle(events.SendFailed(peer(2), check.message.id), 0.0)
    assert len(ask(core, 2, wire.Ping(3, contact(2).addresses))) == 2
    assert core.statistics().requests_unanswered == 1


def test_who_is_known_is_not_checked_for_asking() -> None:
    core = core_that_knows(1)
    assert len(ask(core, 1, wire.Ping(1, contact(1).addresses))) == 1


def test_so_many_checks_are_under_way_at_once() -> None:
    core = core_that_knows(1)
    checks = [
        sent
        for number in range(2, DHT_CHECKS_MAX + 4)
        for sent in ask(core, number, wire.Ping(1, contact(number).addresses))
        if isinstance(sent.message, wire.Ping)
    ]
    assert len(checks) == DHT_CHECKS_MAX
    answer(core, checks[0], 0.0)
    assert len(ask(core, 99, wire.Ping(1, contact(99).addresses))) == 2


def test_a_contact_that_was_silent_is_checked_over_any_session() -> None:
    core = core_that_knows(1)
    (sent,) = [
        sent
        for sent in pass_time(core, limits.DHT_RECHECK_S * 1.3 + limits.DHT_SELF_LOOKUP_PAUSE_S * 3)
        if isinstance(sent.message, wire.Ping)
    ][:1]
    assert (sent.peer, sent.anew) == (peer(1), False)
    assert sent.addresses == contact(1).addresses


@pytest.mark.parametrize("is_long", [False, True])
def test_the_oldest_of_a_full_bucket_is_checked_if_it_was_silent_for_long(is_long: bool) -> None:
    core = make_core(addresses=ADDRESSES)
    *held, newcomer = (
        contact_at(2**255 + number, core.self_id, f"100.7.{number}.1:7337")
        for number in range(limits.DHT_BUCKET_CONTACTS + 1)
    )
    core.handle(events.Discovered(tuple(held)), 9.0)
    run_dry(core, 9.0)
    oldest = core.table.least_recently_seen()
    assert oldest is not None
    now = 9.0 + limits.DHT_CHECK_SILENCE_S - (0.0 if is_long else 0.001)
    asked = wire.Ping(1, newcomer.addresses)
    core.handle(events.Received(PeerId(newcomer.peer), asked), now)
    _, check = sends(core)
    answer(core, check, now)
    assert [sent.peer for sent in sends(core)] == ([oldest.contact.peer] if is_long else [])
    assert number_of(newcomer.peer) not in core.table


def test_contacts_beyond_the_limit_of_a_network_are_counted() -> None:
    core = core_that_knows()
    for number in range(1, limits.DHT_GROUP_BUCKET_MAX + 3):
        stranger = contact_at(2**255 + number, core.self_id, f"100.9.{number}.1:7337")
        ping = wire.Ping(1, stranger.addresses)
        core.handle(events.Received(PeerId(stranger.peer), ping), 0.0)
        _, check = sends(core)
        pong = wire.Pong(check.message.id)
        core.handle(events.Received(PeerId(stranger.peer), pong, "203.0.113.9:1"), 0.0)
        core.poll_effects()
    assert core.statistics().contacts_limited == 2
    assert core.statistics().contacts == limits.DHT_GROUP_BUCKET_MAX


# --- answers -----------------------------------------------------------------------------


def test_an_answer_that_comes_too_late_changes_nothing() -> None:
    core = core_that_knows(1)
    core.handle(events.FindPeers(9, BLOB), 1.0)
    (sent,) = sends(core)
    core.handle(events.SendFailed(sent.peer, sent.message.id), 1.0)
    assert only(core.poll_effects(), events.PeersFound).contacts == ()
    core.handle(events.SendFailed(sent.peer, sent.message.id), 1.0)
    answer(core, sent, 1.0)
    assert core.poll_effects() == []
    assert core.statistics().requests_unanswered == 1
    entry = core.table.get(number_of(peer(1)))
    assert entry is not None
    assert (entry.failures, entry.seen_at) == (1, 0.0)


def test_an_answer_of_another_kind_counts_as_none() -> None:
    core = core_that_knows(1)
    core.handle(events.FindPeers(9, BLOB), 1.0)
    (sent,) = sends(core)
    with pytest.raises(RemoteProtocolError) as caught:
        ask(core, 1, wire.Stored(sent.message.id, "stored"), 1.0)
    assert caught.value.peer == str(peer(1))
    assert core.statistics().requests_unanswered == 1
    assert core.statistics().requests_in_flight == 0


def test_what_a_node_that_stood_still_did_not_hear_in_time_counts_once() -> None:
    core = core_that_knows(1)
    core.handle(events.FindPeers(9, BLOB), 1.0)
    core.handle_deadline(1.0 + limits.DHT_GONE_S)
    entry = core.table.get(number_of(peer(1)))
    assert entry is not None
    assert entry.failures == 1
    assert core.statistics().requests_unanswered == 1
    assert core.statistics().contacts == 1


def core_that_was_asked() -> DhtCore:
    """Return a core whose one contact asked it something, and then answered."""
    core = make_core(addresses=ADDRESSES)
    _, check = ask(core, 1, wire.Ping(1, contact(1).addresses))
    answer(core, check, 0.0)
    return core


def test_the_first_that_answers_is_asked_at_once_who_is_close_to_us() -> None:
    core = core_that_was_asked()
    (find,) = sends(core)
    assert find.message == wire.Find(find.message.id, ADDRESSES, bytes(core.self_id))


def test_a_lookup_that_could_not_be_sent_holds_up_no_other() -> None:
    core = core_that_was_asked()
    looked_up = []
    for _ in range(5):
        (find,) = sends(core)
        assert isinstance(find.message, wire.Find)
        looked_up.append(find.message.key)
        if find.message.key == core.self_id:
            answer(core, find, 0.0)
        else:
            core.handle(events.SendFailed(find.peer, find.message.id), 0.0)
            break
    (following,) = sends(core)
    assert isinstance(following.message, wire.Find)
    looked_up.append(following.message.key)
    buckets = [core.table.bucket_index(number_of(key)) for key in looked_up]
    assert buckets == [-1, -1, 255, 254], "ourselves, and then what is farther than who we know"


def test_who_is_evicted_is_remembered_and_met_again() -> None:
    core = core_that_was_asked()
    run_dry(core)
    assert core.statistics().contacts_evicted == 0
    for command in range(limits.DHT_UNANSWERED_MAX):
        core.handle(events.FindPeers(command, BLOB), 1.0)
        for sent in sends(core):
            core.handle(events.SendFailed(sent.peer, sent.message.id), 1.0)
        core.poll_effects()
    held = core.statistics()
    assert (held.contacts, held.contacts_evicted) == (0, 1)
    assert held.requests_unanswered == limits.DHT_UNANSWERED_MAX
    (meet,) = pass_time(core, 1.25 * limits.DHT_REJOIN_S + 0.001)
    assert meet.peer == peer(1)
    assert meet.message == wire.Find(meet.message.id, ADDRESSES, bytes(core.self_id))
    answer(core, meet, 1.25 * limits.DHT_REJOIN_S)
    assert core.statistics().contacts == 1


@pytest.mark.parametrize("is_known", [False, True])
def test_a_stranger_that_names_neighbours_we_miss_makes_us_look_around(is_known: bool) -> None:
    core = core_that_knows(*range(1, limits.DHT_BUCKET_CONTACTS + 1))
    core.handle(events.Discovered((contact(99),)), 1.0)
    (meet,) = sends(core)
    assert meet.message == wire.Find(meet.message.id, ADDRESSES, bytes(core.self_id))
    near = contact_at(1, core.self_id, "100.9.9.1:7337")
    answer(core, meet, 1.0, contact(1) if is_known else near)
    asked = pass_time(core, 1.25 * limits.DHT_SELF_LOOKUP_PAUSE_S + 0.001)
    assert (bytes(core.self_id) in keys_of(asked)) is not is_known


# --- operations --------------------------------------------------------------------------


def test_a_request_says_where_we_can_be_dialled() -> None:
    many = tuple(f"192.0.2.{number}:7337" for number in range(limits.DHT_ADDRESSES_MAX + 1))
    core = core_that_knows(1, addresses=many)
    core.handle(events.FindPeers(9, BLOB), 1.0)
    (sent,) = sends(core)
    assert sent == events.Send(
        peer(1),
        contact(1).addresses,
        wire.Find(sent.message.id, many[: limits.DHT_ADDRESSES_MAX], BLOB),
    )
    core.handle(events.Reachable(()), 1.0)
    core.handle(events.GetRecords(10, KEY), 1.0)
    (sent,) = sends(core)
    assert sent.message == wire.Find(sent.message.id, (), KEY, wants_records=True)


def test_a_publication_is_a_search_and_then_records() -> None:
    core = core_that_knows(1)
    core.handle(events.Publish(9, KEY, provider_record(BLOB)), 1.0)
    (find,) = sends(core)
    assert find.message == wire.Find(find.message.id, ADDRESSES, KEY)
    assert core.statistics().records == 1, "we keep it too"
    answer(core, find, 1.0)
    (put,) = sends(core)
    (held,) = core.store.get(KEY, 1.0)
    assert put == events.Send(
        peer(1), contact(1).addresses, wire.Put(put.message.id, ADDRESSES, KEY, held.signed)
    )
    answer(core, put, 1.0)
    assert core.poll_effects() == [events.Published(9, KEY, 1, 1)]
    assert core.statistics().publications == 1


@pytest.mark.parametrize("n_known", range(limits.DHT_LOOKUP_PARALLEL + 1))
def test_who_knows_few_asks_those_too_that_it_heard_of(n_known: int) -> None:
    core = core_that_knows(*range(1, n_known + 1))
    core.handle(events.Discovered((contact(50),)), 1.0)
    for sent in sends(core):
        core.handle(events.SendFailed(sent.peer, sent.message.id), 1.0)
    core.poll_effects()
    core.handle(events.FindPeers(9, peer(50)), 1.0)
    asked = {sent.peer for sent in sends(core)}
    assert (peer(50) in asked) is (n_known < limits.DHT_LOOKUP_PARALLEL)


def test_a_search_for_records_asks_all_if_no_quorum_is_named() -> None:
    core = core_that_knows(1, 2)
    record = signed_record(50, provider_record(BLOB))
    core.handle(events.GetRecords(9, KEY), 1.0)
    for sent in sends(core):
        assert core.poll_effects() == []
        core.handle(events.Received(sent.peer, wire.Found(sent.message.id, (), (record,))), 1.0)
    assert only(core.poll_effects(), events.RecordsFound).holders == 2


def test_what_is_answered_after_a_search_is_over_makes_us_look_for_no_one() -> None:
    core = core_that_knows(*range(1, limits.DHT_BUCKET_CONTACTS + 1))
    record = signed_record(50, provider_record(BLOB))
    core.handle(events.GetRecords(9, KEY, 1), 1.0)
    first, second, _ = sends(core)
    core.handle(events.Received(first.peer, wire.Found(first.message.id, (), (record,))), 1.0)
    assert only(core.poll_effects(), events.RecordsFound).holders == 1
    answer(core, second, 1.0, contact_at(1, core.self_id, "100.9.9.1:7337"))
    asked = pass_time(core, 1.25 * limits.DHT_SELF_LOOKUP_PAUSE_S + 0.001)
    assert bytes(core.self_id) not in keys_of(asked)


def test_we_look_ourselves_up_along_one_path() -> None:
    k = limits.DHT_BUCKET_CONTACTS
    core = core_that_knows(*range(1, k + 1))
    closer = [
        contact_at(distance, core.self_id, f"100.8.{distance}.1:7337")
        for distance in range(1, k + 1)
    ]
    now = 0.0
    while bytes(core.self_id) not in keys_of(asked := sends(core)):
        for sent in asked:
            answer(core, sent, now)
        now = core.next_deadline() or now
        core.handle_deadline(now)
    first, *others = asked
    answer(core, first, now, *closer)
    for sent in others:
        answer(core, sent, now)
    n_asked = 0
    while later := [sent for sent in sends(core) if isinstance(sent.message, wire.Find)]:
        n_asked += len(later)
        for sent in later:
            answer(core, sent, now)
    assert n_asked == k, "the closer ones, and no others"


def test_a_record_that_cannot_be_sent_is_not_waited_for() -> None:
    core = core_that_knows(1)
    core.handle(events.Publish(9, KEY, provider_record(BLOB)), 1.0)
    (find,) = sends(core)
    answer(core, find, 1.0)
    (put,) = sends(core)
    core.handle(events.SendFailed(put.peer, put.message.id), 1.0)
    assert core.poll_effects() == [events.Published(9, KEY, 0, 1)]


def test_slow_ones_are_replaced_while_a_record_is_stored() -> None:
    k = limits.DHT_BUCKET_CONTACTS
    core = core_that_knows(*range(1, k + 1))
    core.handle(events.Publish(9, KEY, provider_record(BLOB)), 1.0)
    beyond = contact_at(2**256 - 1, PeerId(KEY), "100.150.1.1:7337")
    puts: list[events.Send] = []
    while effects := core.poll_effects():
        for sent in effects:
            assert isinstance(sent, events.Send)
            if isinstance(sent.message, wire.Put):
                puts.append(sent)
            else:
                answer(core, sent, 1.0, beyond)
    assert len(puts) == k
    assert beyond.peer not in {sent.peer for sent in puts}
    core.handle_deadline(1.0 + core.statistics().slow_after_s)
    late = [sent.peer for sent in sends(core) if isinstance(sent.message, wire.Put)]
    assert late == [beyond.peer], "there is no other"


def test_records_that_peers_gave_and_were_refused_are_counted_with_the_others() -> None:
    core = core_that_knows(1)
    good = signed_record(50, provider_record(BLOB))
    forged = Signed(good.body, good.public_key, bytes(64))
    core.handle(events.GetRecords(9, KEY), 1.0)
    (sent,) = sends(core)
    core.handle(events.Received(peer(1), wire.Found(sent.message.id, (), (forged, good))), 1.0)
    found = only(core.poll_effects(), events.RecordsFound)
    assert [each.signed for each in found.records] == [good]
    assert core.statistics().records_rejected == (("forged", 1),)


def test_a_command_that_waits_begins_when_fewer_are_under_way() -> None:
    """Upkeep does not wait for a place, and one that ends leaves none while there are too many."""
    core = core_that_knows(1)
    core.handle(events.Discovered((contact(2),)), 1.0)
    (meet,) = sends(core)
    answer(core, meet, 1.0, contact_at(1, core.self_id, "100.9.9.1:7337"))
    now = 1.25 * limits.DHT_SELF_LOOKUP_PAUSE_S  # by then we look ourselves up
    keys = [hashlib.sha256(b"%d" % number).digest() for number in range(DHT_OPERATIONS_MAX + 1)]
    for number, key in enumerate(keys):
        core.handle(events.FindPeers(number, key), now)
    asked = sends(core)
    assert keys_of(asked) == {*keys[:-1]}
    assert core.statistics().operations == DHT_OPERATIONS_MAX + 1
    core.handle_deadline(now)
    assert bytes(core.self_id) in keys_of(sends(core))
    assert core.statistics().operations == DHT_OPERATIONS_MAX + 2
    for begun, end in ((False, keys[0]), (True, keys[1])):
        for sent in asked:
            if isinstance(sent.message, wire.Find) and sent.message.key == end:
                answer(core, sent, now)
        assert (keys[-1] in keys_of(sends(core))) is begun


def keys_of(sent: list[events.Send]) -> set[bytes]:
    return {each.message.key for each in sent if isinstance(each.message, wire.Find)}


def test_counts_of_a_core_are_told() -> None:
    core = make_core()
    empty = core.statistics()
    assert (empty.contacts, empty.records, empty.publications, empty.operations) == (0, 0, 0, 0)
    assert (empty.requests_sent, empty.requests_unanswered, empty.requests_served) == (0, 0, 0)
    assert (empty.slow_after_s, empty.is_bootstrapped) == (DHT_SLOW_S_INITIAL, False)
    core = core_that_knows(1, 2)
    before = core.statistics()
    assert before.is_bootstrapped
    assert before.slow_after_s == limits.DHT_SLOW_S_MIN
    core.handle(events.FindPeers(9, BLOB), 1.0)
    now = core.statistics()
    assert now.requests_sent - before.requests_sent == 2
    assert (now.requests_in_flight, now.operations) == (2, 1)


def test_a_deadline_is_the_soonest_of_all() -> None:
    core = core_that_knows(1)
    upkeep_at = core.next_deadline()
    assert upkeep_at is not None
    core.handle(events.FindPeers(9, BLOB), 1.0)
    slow_at = 1.0 + core.statistics().slow_after_s
    assert core.next_deadline() == slow_at < upkeep_at
    run_dry(core, 1.0)
    core.handle(events.Publish(9, KEY, provider_record(BLOB)), 1.0)
    run_dry(core, 1.0)
    assert core.next_deadline() == upkeep_at
