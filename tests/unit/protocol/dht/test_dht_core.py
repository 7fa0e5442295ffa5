"""One DHT core, its peers made by hand."""

from __future__ import annotations

import hashlib
import itertools

import pytest

from swarmnode import limits
from swarmnode.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from swarmnode.ids import PeerId
from swarmnode.protocol.dht import events
from swarmnode.protocol.dht.core import (
    DHT_CHECKS_MAX,
    DHT_OPERATIONS_MAX,
    DHT_OPERATIONS_QUEUED_MAX,
    DhtCore,
)
from swarmnode.protocol.dht.keys import blob_key, number_of
from swarmnode.protocol.dht.operations import DHT_SLOW_S_INITIAL, RoundTrips
from swarmnode.wire import dht as wire
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.swarm import Signed
from tests.unit.protocol.dht.dht_kit import (
    RULES,
    UNIX_S,
    answer,
    contact,
    contact_at,
    identity,
    make_core,
    only,
    peer_record,
    provider_record,
    sends,
    signed_record,
)

OWN_ADDRESS = ("192.0.2.9:7337",)
BLOB = hashlib.sha256(b"blob").digest()
KEY = blob_key(BLOB)


def core_that_knows(*numbers: int) -> DhtCore:
    """Return a core with these peers in its table, and nothing under way."""
    core = make_core(addresses=OWN_ADDRESS)
    core.handle(events.Discovered(tuple(contact(number) for number in numbers)), 0.0)
    run_dry(core, 0.0)
    assert len(core.table) == len(numbers)
    return core


def run_dry(core: DhtCore, now: float, *contacts: wire.Contact) -> list[events.Effect]:
    """Let peers answer everything at once until nothing is asked; return the other effects."""
    rest: list[events.Effect] = []
    for _ in range(1000):
        effects = core.poll_effects()
        if not effects:
            return rest
        for effect in effects:
            if isinstance(effect, events.Send):
                answer(core, effect, now, *contacts)
            else:
                rest.append(effect)
    raise AssertionError("no end")


def received(core: DhtCore, number: int, message: wire.Message, now: float = 0.0) -> None:
    core.handle(events.Received(identity(number).peer_id, message), now)


def answer_to(core: DhtCore, number: int, message: wire.Message) -> wire.Message:
    """Let a peer without addresses ask something; return the one answer."""
    received(core, number, message)
    (sent,) = sends(core)
    assert sent.peer == identity(number).peer_id
    return sent.message


# --- the table ---------------------------------------------------------------------------


def test_asking_gets_no_node_into_the_table() -> None:
    core = core_that_knows(1)
    received(core, 2, wire.Find(7, contact(2).addresses, bytes(32)))
    reply, check = sends(core)
    assert isinstance(reply.message, wire.Found)
    assert isinstance(check.message, wire.Ping)
    assert check.anew, "over the session that it opened it can always answer"
    assert check.addresses == contact(2).addresses
    assert len(core.table) == 1
    answer(core, check, 0.1)
    assert number_of(contact(2).peer) in core.table


def test_who_cannot_be_dialled_is_answered_and_left_out() -> None:
    core = core_that_knows(1)
    assert answer_to(core, 2, wire.Ping(7, ())) == wire.Pong(7)
    assert len(core.table) == 1


def test_strangers_are_checked_a_few_at_a_time() -> None:
    core = core_that_knows(1)
    for number in range(2, 102):
        received(core, number, wire.Ping(1, contact(number).addresses))
    checks = [sent for sent in sends(core) if isinstance(sent.message, wire.Ping)]
    assert len(checks) == DHT_CHECKS_MAX


def test_three_requests_without_an_answer_end_it() -> None:
    core = core_that_knows(1, 2)
    now = 100.0
    for _ in range(limits.DHT_UNANSWERED_MAX):
        assert number_of(contact(1).peer) in core.table
        core.handle(events.FindPeers(1, contact(1).peer), now)
        for sent in sends(core):
            if sent.peer == contact(1).peer:
                core.handle(events.SendFailed(sent.peer, sent.message.id), now)
            else:
                answer(core, sent, now)
        core.poll_effects()
    assert number_of(contact(1).peer) not in core.table
    assert core.statistics().contacts_evicted == 1


def test_who_did_not_answer_is_asked_again_soon() -> None:
    core = core_that_knows(1)
    core.handle(events.FindPeers(1, BLOB), 1.0)
    (sent,) = sends(core)
    core.handle(events.SendFailed(sent.peer, sent.message.id), 1.0)
    core.handle_deadline(1.0 + 2 * limits.DHT_RECHECK_S)
    assert any(isinstance(sent.message, wire.Ping) for sent in sends(core))


def test_each_request_that_was_answered_is_counted() -> None:
    core = core_that_knows(1)
    for number in range(1, 4):
        received(core, 1, wire.Ping(number, ()))
    assert core.statistics().requests_served == 3


def test_an_answer_counts_from_whom_it_was_asked() -> None:
    core = core_that_knows(1)
    core.handle(events.FindPeers(9, BLOB), 1.0)
    (sent,) = sends(core)
    received(core, 2, wire.Found(sent.message.id, (contact(3),)), 1.0)
    received(core, 1, wire.Found(sent.message.id + 1000, (contact(3),)), 1.0)
    assert core.poll_effects() == []
    answer(core, sent, 1.0)
    assert only(core.poll_effects(), events.PeersFound).contacts == (contact(1),)


def test_an_answer_of_another_kind_breaks_a_rule() -> None:
    core = core_that_knows(1)
    core.handle(events.FindPeers(9, BLOB), 1.0)
    (sent,) = sends(core)
    with pytest.raises(RemoteProtocolError, match="expected a Found as answer, got a Pong"):
        received(core, 1, wire.Pong(sent.message.id), 1.0)
    assert only(core.poll_effects(), events.PeersFound).contacts == ()


def test_a_message_from_ourselves_is_a_bug() -> None:
    with pytest.raises(LocalProtocolError):
        received(make_core(0), 0, wire.Ping(1, ()))


def test_the_oldest_of_a_full_bucket_is_checked_when_another_waits_for_its_place() -> None:
    core = make_core(addresses=OWN_ADDRESS)
    *held, newcomer = (
        contact_at(2**255 + number, core.self_id, f"100.7.{number}.1:7337")
        for number in range(limits.DHT_BUCKET_CONTACTS + 1)
    )
    core.handle(events.Discovered(tuple(held)), 0.0)
    run_dry(core, 0.0)
    oldest = core.table.least_recently_seen()
    assert oldest is not None
    now = limits.DHT_CHECK_SILENCE_S
    asked = wire.Ping(1, newcomer.addresses)
    core.handle(events.Received(PeerId(newcomer.peer), asked), now)
    (check,) = [sent for sent in sends(core) if isinstance(sent.message, wire.Ping)]
    assert check.peer == newcomer.peer
    answer(core, check, now)
    assert [sent.peer for sent in sends(core)] == [oldest.contact.peer]


# --- bootstrap ---------------------------------------------------------------------------


def test_bootstrap_ends_when_no_new_node_is_close() -> None:
    core = make_core(addresses=OWN_ADDRESS)
    core.handle(events.Discovered((contact(1),)), 0.0)
    others = tuple(contact(number) for number in range(1, 6))
    effects = run_dry(core, 0.0, *others)
    assert effects == [events.Bootstrapped(5)]
    assert core.statistics().is_bootstrapped
    assert set(core.good_contacts()) == set(others)


def test_no_answer_at_all_is_tried_again() -> None:
    core = make_core()
    core.handle(events.Discovered((contact(1),)), 0.0)
    tries = 0
    now = 0.0
    while tries < 5:
        deadline = core.next_deadline()
        assert deadline is not None
        assert deadline >= now
        now = deadline
        assert now < 300.0
        core.handle_deadline(now)
        for sent in sends(core):
            tries += 1
            core.handle(events.SendFailed(sent.peer, sent.message.id), now)
    answer_at = now + 2 * limits.DHT_REJOIN_S
    core.handle_deadline(answer_at)
    assert run_dry(core, answer_at) == [events.Bootstrapped(1)]


def test_a_stranger_with_unknown_neighbours_starts_a_self_lookup() -> None:
    core = core_that_knows(1)
    core.handle(events.Discovered((contact(2),)), 1.0)
    (sent,) = sends(core)
    assert isinstance(sent.message, wire.Find)
    assert sent.message.key == core.self_id
    answer(core, sent, 1.0, *(contact(number) for number in range(3, 9)))
    soon = 1.25 * limits.DHT_SELF_LOOKUP_PAUSE_S
    core.handle_deadline(soon)
    run_dry(core, soon, *(contact(number) for number in range(3, 9)))
    assert len(core.table) == 8


def test_a_stranger_whose_neighbours_are_known_starts_none() -> None:
    core = core_that_knows(*range(1, 1 + limits.DHT_BUCKET_CONTACTS))
    core.handle(events.Discovered((contact(99),)), 1.0)
    (sent,) = sends(core)
    answer(core, sent, 1.0, *(contact(number) for number in range(6)))  # ourselves among them
    assert min(self_lookups(core, 3600.0)) > 2 * limits.DHT_SELF_LOOKUP_PAUSE_S


def self_lookups(core: DhtCore, end: float) -> list[float]:
    """Return when a core looked itself up; every peer that it asks knows no other."""
    times: list[float] = []
    while (deadline := core.next_deadline()) is not None and deadline <= end:
        core.handle_deadline(deadline)
        for sent in sends(core):
            if isinstance(sent.message, wire.Find) and sent.message.key == core.self_id:
                times.append(deadline)
            answer(core, sent, deadline)
    return times


@pytest.mark.parametrize("n_new", [limits.DHT_NEW_NEIGHBOURS - 1, limits.DHT_NEW_NEIGHBOURS])
def test_several_new_neighbours_are_a_reason_to_look_around(n_new: int) -> None:
    core = core_that_knows(*range(1, 1 + limits.DHT_BUCKET_CONTACTS))
    for distance in range(1, 1 + n_new):
        newcomer = contact_at(distance, core.self_id, f"100.9.{distance}.1:7337")
        core.handle(events.Discovered((newcomer,)), 1.0)
        (sent,) = sends(core)
        answer(core, sent, 1.0)
    soon = 1.0 + 1.25 * limits.DHT_SELF_LOOKUP_PAUSE_S
    assert bool(self_lookups(core, soon)) is (n_new == limits.DHT_NEW_NEIGHBOURS)


def test_who_knows_few_looks_around_soon_and_then_ever_less() -> None:
    times = self_lookups(core_that_knows(1), 7200.0)
    pauses = [later - earlier for earlier, later in itertools.pairwise((0.0, *times))]
    expected = limits.DHT_SELF_LOOKUP_PAUSE_S
    for pause in pauses:
        assert 0.7 * expected < pause < 1.3 * expected
        expected = min(2 * expected, limits.DHT_SELF_LOOKUP_S)
    assert expected == limits.DHT_SELF_LOOKUP_S


def test_who_knows_enough_does_not() -> None:
    core = core_that_knows(*range(1, 1 + limits.DHT_BUCKET_CONTACTS))
    assert min(self_lookups(core, 3600.0)) > 0.7 * limits.DHT_SELF_LOOKUP_S


def test_each_bucket_that_no_lookup_has_touched_for_long_is_looked_into() -> None:
    core = core_that_knows(*range(1, 9))
    core.poll_effects()
    looked_into: set[int] = set()
    while (deadline := core.next_deadline()) is not None and deadline <= 2 * limits.DHT_REFRESH_S:
        core.handle_deadline(deadline)
        for sent in sends(core):
            if isinstance(sent.message, wire.Find) and sent.message.key != core.self_id:
                target = int.from_bytes(sent.message.key, "big")
                looked_into.add(core.table.bucket_index(target))
            answer(core, sent, deadline)
    assert looked_into == {*core.table.buckets()}


# --- time --------------------------------------------------------------------------------


def test_a_slow_peer_holds_no_other_up() -> None:
    core = core_that_knows(*range(1, 9))
    core.handle(events.FindPeers(1, BLOB), 1.0)
    first = sends(core)
    assert len(first) == limits.DHT_LOOKUP_PARALLEL
    slow_s = core.statistics().slow_after_s
    core.handle_deadline(1.0 + slow_s)
    second = sends(core)
    assert len(second) == limits.DHT_LOOKUP_PARALLEL
    for sent in second:
        answer(core, sent, 1.1 + slow_s)
    (found,) = run_dry(core, 1.1 + slow_s)
    assert isinstance(found, events.PeersFound)
    late = {sent.peer for sent in first}
    assert late.isdisjoint(contact.peer for contact in found.contacts)
    assert len(core.table) == 8, "slow is not gone"


def test_a_search_for_peers_asks_the_closest_along_one_path() -> None:
    core = core_that_knows(*range(1, 1 + limits.DHT_BUCKET_CONTACTS))
    closer = [
        contact_at(distance, PeerId(BLOB), f"100.8.{distance}.1:7337")
        for distance in range(1, 1 + limits.DHT_BUCKET_CONTACTS)
    ]
    core.handle(events.FindPeers(1, BLOB), 1.0)
    first, *others = sends(core)
    before = core.statistics().requests_sent
    answer(core, first, 1.0, *closer)
    for sent in others:
        answer(core, sent, 1.0)
    found = only(run_dry(core, 1.0), events.PeersFound)
    assert {each.peer for each in found.contacts} == {each.peer for each in closer}
    assert core.statistics().requests_sent - before == len(closer), "and no others"


def test_a_slow_peer_is_waited_for_until_it_is_gone() -> None:
    core = core_that_knows(1)
    core.handle(events.FindPeers(1, BLOB), 1.0)
    core.handle_deadline(1.0 + core.statistics().slow_after_s)
    core.handle_deadline(1.0 + limits.DHT_GONE_S - 0.001)
    assert core.statistics().requests_unanswered == 0
    core.handle_deadline(1.0 + limits.DHT_GONE_S)
    assert core.statistics().requests_unanswered == 1


def test_how_long_is_slow_follows_from_what_was_measured() -> None:
    trips = RoundTrips()
    assert trips.slow_after_s() == DHT_SLOW_S_INITIAL
    for _ in range(100):
        trips.measured(0.001)
    assert trips.slow_after_s() == limits.DHT_SLOW_S_MIN
    for _ in range(100):
        trips.measured(0.5)
    assert 0.5 < trips.slow_after_s() < 1.0
    for _ in range(100):
        trips.measured(60.0)
    assert trips.slow_after_s() == limits.DHT_SLOW_S_MAX


# --- records -----------------------------------------------------------------------------


def test_a_record_that_was_put_is_found() -> None:
    core = make_core()
    record = signed_record(5, provider_record(BLOB))
    assert answer_to(core, 5, wire.Put(1, (), KEY, record)) == wire.Stored(1, "stored")
    assert answer_to(core, 6, wire.Put(2, (), KEY, record)) == wire.Stored(2, "held")
    assert answer_to(core, 6, wire.Find(3, (), KEY, wants_records=True)) == wire.Found(
        3, (), (record,)
    )
    assert answer_to(core, 6, wire.Find(4, (), KEY)) == wire.Found(4, ())


def test_bad_records_are_refused_and_counted() -> None:
    core = make_core()
    good = signed_record(5, provider_record(BLOB))
    forged = Signed(good.body, good.public_key, bytes(64))
    old = signed_record(5, peer_record(issued_at=UNIX_S - 10 * 86_400))
    assert answer_to(core, 5, wire.Put(1, (), KEY, forged)) == wire.Stored(1, "refused")
    assert answer_to(core, 5, wire.Put(2, (), bytes(32), good)) == wire.Stored(2, "refused")
    own_key = bytes(identity(5).peer_id)
    assert answer_to(core, 5, wire.Put(3, (), own_key, old)) == wire.Stored(3, "refused")
    assert dict(core.statistics().records_rejected) == {"forged": 1, "malformed": 1, "expired": 1}
    assert core.statistics().records == 0


def test_put_reports_how_many_keep_it() -> None:
    core = core_that_knows(*range(1, 9))
    core.handle(events.Publish(3, KEY, provider_record(BLOB)), 1.0)
    now = 1.0
    silent = contact(4).peer
    told: list[events.Effect] = []
    while core.statistics().operations:
        effects = core.poll_effects()
        told += effects
        asked = [effect for effect in effects if isinstance(effect, events.Send)]
        for sent in asked:
            if not (isinstance(sent.message, wire.Put) and sent.peer == silent):
                answer(core, sent, now)
        if not asked:
            now += limits.DHT_SLOW_S_MAX
            core.handle_deadline(now)
    told += core.poll_effects()
    assert only(told, events.Published) == events.Published(3, KEY, 7, 8)
    assert now < limits.DHT_GONE_S, "a slow one holds the answer up no longer than that"


def publish_to(core: DhtCore, silent: set[bytes]) -> tuple[list[bytes], events.Published]:
    """Publish KEY; return the peers that got the record, in order, and what the shell was told.

    The silent ones are slow; the others name six that the core does not know yet.
    """
    core.handle(events.Publish(3, KEY, provider_record(BLOB)), 1.0)
    got: list[bytes] = []
    told: list[events.Effect] = []
    now = 1.0
    while core.statistics().operations:
        effects = core.poll_effects()
        for sent in effects:
            if not isinstance(sent, events.Send):
                told.append(sent)
                continue
            got += [bytes(sent.peer)] if isinstance(sent.message, wire.Put) else []
            if sent.peer not in silent:
                answer(core, sent, now, *(contact(number) for number in range(21, 27)))
        if not effects:
            now += limits.DHT_SLOW_S_MAX
            core.handle_deadline(now)
    return got, only([*told, *core.poll_effects()], events.Published)


def by_distance(numbers: range) -> list[bytes]:
    """Return the ids of these peers, the closest to KEY first."""
    ids = [bytes(identity(number).peer_id) for number in numbers]
    return sorted(ids, key=lambda peer: number_of(peer) ^ number_of(KEY))


def test_the_k_closest_get_a_record_and_not_all_of_them_are_asked_before() -> None:
    core = core_that_knows(*range(1, 21))
    before = core.statistics().requests_sent
    got, published = publish_to(core, set())
    assert sorted(got) == sorted(by_distance(range(1, 27))[: limits.DHT_BUCKET_CONTACTS])
    n_asked = core.statistics().requests_sent - before - len(got)
    assert n_asked <= limits.DHT_LOOKUP_PATHS * limits.DHT_NEAR_ANSWERS + 2
    assert published.replicas == limits.DHT_PUT_REPLICAS, "told while the others go on"


def test_the_next_closest_stand_in_for_those_that_do_not_answer() -> None:
    core = core_that_knows(*range(1, 21))
    nearest = by_distance(range(1, 27))
    silent = set(nearest[1:4])
    got, published = publish_to(core, silent)
    answered = [peer for peer in got if peer not in silent]
    assert sorted(answered) == sorted(
        [peer for peer in nearest if peer not in silent][: limits.DHT_BUCKET_CONTACTS]
    )
    assert published.replicas == limits.DHT_PUT_REPLICAS


def test_what_is_published_is_signed_anew_before_it_ends() -> None:
    core = core_that_knows(1)
    core.handle(events.Publish(3, KEY, provider_record(BLOB)), 1.0)
    sequences = []
    now = 1.0
    while now < 2 * limits.DHT_RECORD_TTL_S:
        asked = sends(core)
        for sent in asked:
            if isinstance(sent.message, wire.Put):
                assert sent.message.key == KEY
                record = RULES.open(sent.message.record, KEY, UNIX_S + now).record
                sequences.append(record.sequence)
                assert record.issued_at == int(UNIX_S + now)
            answer(core, sent, now)
        if not asked:
            now = core.next_deadline() or now
            core.handle_deadline(now)
    assert len(sequences) >= 8
    assert sequences == sorted(set(sequences))
    core.handle(events.Withdraw(KEY), now)
    assert core.statistics().publications == 0


def test_what_was_published_before_there_was_a_node_to_keep_it_is_published_when_there_is() -> None:
    core = make_core(addresses=OWN_ADDRESS)
    core.handle(events.Publish(3, KEY, provider_record(BLOB)), 1.0)
    assert run_dry(core, 1.0) == [events.Published(3, KEY, 0, 0)]
    core.handle(events.Discovered((contact(1),)), 2.0)
    assert run_dry(core, 2.0) == [events.Bootstrapped(1)]
    core.handle_deadline(2.0)
    (find,) = sends(core)
    answer(core, find, 2.0)
    (put,) = sends(core)
    assert isinstance(put.message, wire.Put)
    assert (put.peer, put.message.key) == (contact(1).peer, KEY)


def test_a_record_is_published_under_its_own_key() -> None:
    core = core_that_knows(1)
    with pytest.raises(ConfigError, match="cannot be published under this key"):
        core.handle(events.Publish(3, bytes(32), provider_record(BLOB)), 1.0)


def get(
    core: DhtCore, gifts: dict[int, tuple[Signed, ...]], quorum: int = 0
) -> events.RecordsFound:
    """Get KEY; each peer gives its records, one answer after the other."""
    core.handle(events.GetRecords(1, KEY, quorum), 1.0)
    by_peer = {identity(number).peer_id: records for number, records in gifts.items()}
    for _ in range(100):
        effects = core.poll_effects()
        for effect in effects:
            if isinstance(effect, events.RecordsFound):
                return effect
        for effect in effects:
            assert isinstance(effect, events.Send)
            if core.statistics().operations:
                records = by_peer.get(effect.peer, ())
                reply = wire.Found(effect.message.id, (), records)
                core.handle(events.Received(effect.peer, reply), 1.0)
    raise AssertionError("no end")


def test_get_takes_the_highest_sequence_of_each_author() -> None:
    old, new = (signed_record(50, provider_record(BLOB, sequence)) for sequence in (1, 2))
    other = signed_record(51, provider_record(BLOB))
    forged = Signed(new.body, new.public_key, bytes(64))
    core = core_that_knows(*range(1, 9))
    found = get(core, {1: (old,), 2: (new, other), 3: (forged,), 4: (old,), 5: (new,)})
    assert {record.signed for record in found.records} == {new, other}
    assert found.holders == 4
    assert found.asked == 8, "no early end at the first value"
    assert dict(core.statistics().records_rejected) == {"forged": 1}


def test_get_with_a_quorum_ends_when_every_path_gave_one() -> None:
    record = signed_record(50, provider_record(BLOB))
    numbers = range(1, 17)
    core = core_that_knows(*numbers)
    found = get(core, dict.fromkeys(numbers, (record,)), quorum=3)
    assert found.holders == 3
    assert found.asked < 16
    assert [each.signed for each in found.records] == [record]


def test_what_we_hold_ourselves_is_found_too() -> None:
    core = make_core()
    record = signed_record(5, provider_record(BLOB))
    answer_to(core, 5, wire.Put(1, (), KEY, record))
    core.handle(events.GetRecords(1, KEY), 0.0)
    found = only(core.poll_effects(), events.RecordsFound)
    assert [each.signed for each in found.records] == [record]


# --- limits ------------------------------------------------------------------------------


def test_commands_wait_and_then_are_refused() -> None:
    core = core_that_knows(1)
    n_taken = DHT_OPERATIONS_MAX + DHT_OPERATIONS_QUEUED_MAX
    for command in range(n_taken + 2):
        core.handle(events.FindPeers(command, BLOB), 1.0)
    effects = core.poll_effects()
    refused = [effect.command for effect in effects if isinstance(effect, events.Refused)]
    assert refused == [n_taken, n_taken + 1]
    for effect in effects:
        if isinstance(effect, events.Send):
            answer(core, effect, 1.0)
    found = [e for e in run_dry(core, 1.0) if isinstance(e, events.PeersFound)]
    assert sorted(effect.command for effect in found) == list(range(n_taken))


def test_too_many_publications_are_refused() -> None:
    core = core_that_knows(1)
    most = limits.DHT_PUBLICATIONS_MAX
    blobs = [hashlib.sha256(b"%d" % number).digest() for number in range(most + 1)]
    refused = []
    for number, blob in enumerate([*blobs[:most], blobs[0], blobs[most]]):
        core.handle(events.Publish(number, blob_key(blob), provider_record(blob)), 1.0)
        refused += [e for e in run_dry(core, 1.0) if isinstance(e, events.Refused)]
    assert [effect.command for effect in refused] == [most + 1]


def test_an_answer_fits_into_a_message() -> None:
    core = core_that_knows(*range(1, 1 + limits.DHT_BUCKET_CONTACTS))
    for author in range(100, 100 + limits.DHT_RECORDS_PER_KEY_MAX):
        record = signed_record(author, provider_record(BLOB))
        answer_to(core, author, wire.Put(1, (), KEY, record))
    found = answer_to(core, 200, wire.Find(1, (), KEY, wants_records=True))
    assert isinstance(found, wire.Found)
    assert len(found.records) == limits.DHT_RECORDS_PER_KEY_MAX
    assert len(found.contacts) == limits.DHT_BUCKET_CONTACTS
    assert decode_record(encode_record(found), wire.Message) == found  # type: ignore[arg-type]


def test_what_is_published_again_waits_its_turn() -> None:
    core = core_that_knows(1)
    for number in range(DHT_OPERATIONS_MAX * 2):
        blob = hashlib.sha256(b"%d" % number).digest()
        core.handle(events.Publish(number, blob_key(blob), provider_record(blob)), 1.0)
        run_dry(core, 1.0)
    now = 1.0 + limits.DHT_REPUBLISH_S
    core.handle_deadline(now)
    asked = [sent for sent in sends(core) if isinstance(sent.message, wire.Find)]
    n_own = sum(sent.message.key == core.self_id for sent in asked)  # upkeep does not wait
    assert len(asked) - n_own == DHT_OPERATIONS_MAX
    assert core.statistics().operations - n_own == DHT_OPERATIONS_MAX * 2
    for sent in asked:
        answer(core, sent, now)
    run_dry(core, now)
    assert core.statistics().operations == 0
