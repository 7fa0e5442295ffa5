"""Which records are believed, and which are kept."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from swarmnode import limits
from swarmnode.errors import (
    AuthenticationFailed,
    LimitExceeded,
    MalformedMessage,
    RemoteProtocolError,
)
from swarmnode.protocol.dht.keys import blob_key, name_key, number_of, swarm_key_key
from swarmnode.protocol.dht.records import (
    OpenRecord,
    RecordExpired,
    RecordRules,
    RecordStore,
    rejection,
)
from swarmnode.protocol.identity import Identity, verify
from swarmnode.testing.world import toy_verify
from swarmnode.wire import dht as wire
from swarmnode.wire.swarm import Signed
from tests.unit.protocol.dht.dht_kit import (
    RULES,
    UNIX_S,
    identity,
    opened,
    peer_record,
    provider_record,
    signed_record,
    swarm_record,
)

DAY_S = 86_400
AUTHOR = identity(1).peer_id
SWARM_KEY = bytes(range(32))


def blob(number: int) -> bytes:
    return hashlib.sha256(b"%d" % number).digest()


def make_store() -> RecordStore:
    return RecordStore(identity(0).peer_id)


# --- what is believed --------------------------------------------------------------------


def test_a_record_is_read_back() -> None:
    record = peer_record()
    found = RULES.open(signed_record(1, record), AUTHOR, UNIX_S)
    assert found.record == record
    assert found.author == AUTHOR


def test_real_signatures_are_checked_too() -> None:
    author = Identity.from_seed(bytes(32))
    rules = RecordRules(bytes(32), verify)
    signed = rules.sign(peer_record(), author)
    assert rules.open(signed, author.peer_id, UNIX_S).author == author.peer_id
    broken = Signed(signed.body, signed.public_key, bytes(64))
    with pytest.raises(AuthenticationFailed):
        rules.open(broken, author.peer_id, UNIX_S)


def test_every_changed_bit_is_a_forgery() -> None:
    signed = signed_record(1, peer_record())
    for place in range(len(signed.body)):
        body = bytearray(signed.body)
        body[place] ^= 1
        with pytest.raises(RemoteProtocolError):
            RULES.open(Signed(bytes(body), signed.public_key, signed.signature), AUTHOR, UNIX_S)


def test_a_record_of_another_network_is_a_forgery() -> None:
    signed = signed_record(1, peer_record(), RecordRules(bytes(31) + b"\1", toy_verify))
    with pytest.raises(AuthenticationFailed):
        RULES.open(signed, AUTHOR, UNIX_S)


@pytest.mark.parametrize(
    ("issued_at", "ttl_s", "is_believed"),
    [
        (UNIX_S, 7200, True),
        (UNIX_S + limits.DHT_CLOCK_SKEW_S, 7200, True),
        (UNIX_S + limits.DHT_CLOCK_SKEW_S + 1, 7200, False),
        (UNIX_S + 365 * DAY_S, 7200, False),
        (UNIX_S - 7200 - limits.DHT_CLOCK_SKEW_S, 7200, True),
        (UNIX_S - 7200 - limits.DHT_CLOCK_SKEW_S - 1, 7200, False),
    ],
)
def test_dates_are_believed_within_a_day(issued_at: float, ttl_s: int, is_believed: bool) -> None:
    signed = signed_record(1, peer_record(ttl_s=ttl_s, issued_at=issued_at))
    if is_believed:
        RULES.open(signed, AUTHOR, UNIX_S)
    else:
        with pytest.raises(RecordExpired):
            RULES.open(signed, AUTHOR, UNIX_S)


def test_a_record_counts_for_its_own_keys_only() -> None:
    swarm = signed_record(1, swarm_record(SWARM_KEY, "demo"))
    for key in (swarm_key_key(SWARM_KEY), name_key("demo")):
        RULES.open(swarm, key, UNIX_S)
    provider = signed_record(1, provider_record(blob(1)))
    RULES.open(provider, blob_key(blob(1)), UNIX_S)
    for signed, key in [
        (swarm, name_key("other")),
        (swarm, bytes(AUTHOR)),
        (provider, blob(1)),
        (signed_record(1, peer_record()), bytes(identity(2).peer_id)),
    ]:
        with pytest.raises(MalformedMessage, match="belongs elsewhere"):
            RULES.open(signed, key, UNIX_S)


def test_large_records_are_refused_on_both_sides() -> None:
    record = wire.PeerRecord(1, int(UNIX_S), 7200, tuple("a" * 260 for _ in range(4)))
    with pytest.raises(LimitExceeded):
        signed_record(1, record)
    body = b"\x80" + bytes(limits.DHT_RECORD_BYTES_MAX)
    with pytest.raises(LimitExceeded):
        RULES.open(Signed(body, identity(1).public_key, bytes(64)), AUTHOR, UNIX_S)


def test_bytes_that_are_no_record_are_malformed() -> None:
    for body in (b"", b"\x80", b"\xc1", b"\x93\1\2\3"):
        with pytest.raises(MalformedMessage):
            RULES.open(Signed(body, identity(1).public_key, bytes(64)), AUTHOR, UNIX_S)


def test_rejections_have_a_word_each() -> None:
    errors = [AuthenticationFailed(""), LimitExceeded(""), RecordExpired(""), MalformedMessage("")]
    assert [rejection(error) for error in errors] == ["forged", "oversized", "expired", "malformed"]


# --- what is kept ------------------------------------------------------------------------


def test_the_highest_sequence_stays() -> None:
    store = make_store()
    older, newer = (opened(1, AUTHOR, peer_record(sequence)) for sequence in (1, 2))
    assert store.put(AUTHOR, newer, 0.0) == "stored"
    assert store.put(AUTHOR, newer, 1.0) == "held"
    assert store.put(AUTHOR, older, 1.0) == "older"
    assert store.get(AUTHOR, 1.0) == (newer,)


def test_two_records_of_one_sequence_end_the_same_everywhere() -> None:
    first = opened(1, AUTHOR, peer_record(1, ttl_s=100))
    second = opened(1, AUTHOR, peer_record(1, ttl_s=200))
    kept = []
    for order in ((first, second), (second, first)):
        store = make_store()
        for each in order:
            store.put(AUTHOR, each, 0.0)
        kept.append(store.get(AUTHOR, 0.0))
    assert kept[0] == kept[1]
    assert len(kept[0]) == 1


def test_time_to_live_counts_from_receipt() -> None:
    store = make_store()
    store.put(AUTHOR, opened(1, AUTHOR, peer_record(ttl_s=100)), 50.0)
    assert store.get(AUTHOR, 149.9)
    assert not store.get(AUTHOR, 150.0)
    store.sweep(150.0)
    assert len(store) == 0


def test_a_replay_does_not_prolong_a_life() -> None:
    store = make_store()
    record = opened(1, AUTHOR, peer_record(ttl_s=100))
    store.put(AUTHOR, record, 0.0)
    assert store.put(AUTHOR, record, 90.0) == "held"
    assert not store.get(AUTHOR, 100.0)


def in_swarm(number: int, ttl_s: int = 7200) -> tuple[bytes, OpenRecord]:
    """Return a record of one author in one of many swarms, with its key."""
    key = swarm_key_key(blob(number))
    return key, opened(1, key, swarm_record(blob(number), ttl_s=ttl_s))


def of_blob(number: int, sequence: int = 1) -> tuple[bytes, OpenRecord]:
    key = blob_key(blob(number))
    return key, opened(1, key, provider_record(blob(number), sequence))


def test_one_author_has_so_much_room() -> None:
    store = make_store()
    outcomes = [store.put(*in_swarm(n), 0.0) for n in range(limits.DHT_RECORDS_PER_AUTHOR_MAX + 5)]
    assert outcomes.count("stored") == limits.DHT_RECORDS_PER_AUTHOR_MAX
    assert outcomes[-5:] == ["full"] * 5


def test_a_newer_blob_takes_the_place_of_its_authors_oldest() -> None:
    store, most = make_store(), limits.DHT_BLOBS_PER_AUTHOR_MAX
    store.put(AUTHOR, opened(1, AUTHOR, peer_record()), 0.0)
    assert [store.put(*of_blob(n, 10 + n), 0.0) for n in range(most)] == ["stored"] * most
    assert store.put(*of_blob(0, 100), 1.0) == "stored"  # said again
    assert store.put(*of_blob(most, 101), 2.0) == "stored"
    assert [n for n in range(most + 1) if store.get(of_blob(n)[0], 2.0)] == [
        0,
        *range(2, most + 1),
    ]
    assert len(store) == most + 1
    assert store.get(AUTHOR, 2.0)


def test_old_records_said_by_a_stranger_push_nothing_out() -> None:
    store, most = make_store(), limits.DHT_BLOBS_PER_AUTHOR_MAX
    for n in range(most):
        store.put(*of_blob(n, 10 + n), 0.0)
    assert [store.put(*of_blob(most + n, n), 1.0) for n in range(11)] == ["full"] * 11
    assert all(store.get(of_blob(n)[0], 1.0) for n in range(most))
    assert store.put(*of_blob(most, 11), 1.0) == "stored"


def test_the_oldest_blob_goes_and_what_others_give_of_it_stays() -> None:
    store, most = make_store(), limits.DHT_BLOBS_PER_AUTHOR_MAX
    for author in (2, 1, 3):
        key, _ = of_blob(0)
        store.put(key, opened(author, key, provider_record(blob(0))), 0.0)
    for n in range(1, most + 1):
        assert store.put(*of_blob(n, 1 + n), 0.0) == "stored"
    assert [each.author for each in store.get(of_blob(0)[0], 0.0)] == [
        identity(2).peer_id,
        identity(3).peer_id,
    ]
    assert len(store) == most + 2


def test_a_blob_whose_record_ended_pushes_none_out() -> None:
    store, most = make_store(), limits.DHT_BLOBS_PER_AUTHOR_MAX
    short = blob_key(blob(0))
    store.put(short, opened(1, short, provider_record(blob(0), 100, ttl_s=50)), 0.0)
    for n in range(1, most):
        store.put(*of_blob(n), 0.0)
    store.sweep(50.0)
    assert store.put(*of_blob(most), 50.0) == "stored"
    assert all(store.get(of_blob(n)[0], 50.0) for n in range(1, most + 1))


def test_one_key_has_so_much_room() -> None:
    store, key = make_store(), blob_key(blob(0))
    outcomes = [
        store.put(key, opened(author, key, provider_record(blob(0))), 0.0)
        for author in range(limits.DHT_RECORDS_PER_KEY_MAX + 3)
    ]
    assert outcomes.count("stored") == limits.DHT_RECORDS_PER_KEY_MAX
    assert len(store.get(key, 0.0)) == limits.DHT_RECORDS_PER_KEY_MAX


def test_swarms_share_a_name() -> None:
    store, key = make_store(), name_key("demo")
    many = [
        store.put(key, opened(author, key, swarm_record(SWARM_KEY)), 0.0) for author in range(10)
    ]
    assert many.count("stored") == limits.DHT_RECORDS_PER_SUBJECT_MAX
    other = opened(50, key, swarm_record(bytes(32)))
    assert store.put(key, other, 0.0) == "stored"
    own_key = swarm_key_key(SWARM_KEY)
    alone = [
        store.put(own_key, opened(author, own_key, swarm_record(SWARM_KEY)), 0.0)
        for author in range(10)
    ]
    assert alone == ["stored"] * 10


def test_a_flood_costs_only_what_is_far_from_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DHT_RECORDS_MAX", 50)
    store = make_store()
    own = number_of(identity(0).peer_id)
    keys = []
    for n in range(2000):  # each from a key of its own
        key = bytes(identity(n + 1).peer_id)
        keys.append(key)
        store.put(key, opened(n + 1, key, peer_record()), 0.0)
        assert len(store) <= 50
    keys.sort(key=lambda key: number_of(key) ^ own)
    assert all(store.get(key, 0.0) for key in keys[:50]), "what is closest to us is kept"


@pytest.fixture
def store_of_three(monkeypatch: pytest.MonkeyPatch) -> RecordStore:
    """Return a store that holds three records at most."""
    monkeypatch.setattr(limits, "DHT_RECORDS_MAX", 3)
    return make_store()


def test_a_newer_record_fits_into_a_full_store(store_of_three: RecordStore) -> None:
    store = store_of_three
    for author in (1, 2, 3):
        key = bytes(identity(author).peer_id)
        store.put(key, opened(author, key, peer_record(1)), 0.0)
    assert store.put(AUTHOR, opened(1, AUTHOR, peer_record(2)), 0.0) == "stored"
    assert len(store) == 3
    store.sweep(1e6)
    assert len(store) == 0


def test_dates_do_not_decide_which_record_is_newer() -> None:
    early = opened(1, AUTHOR, peer_record(5, issued_at=UNIX_S - 3600))
    late = opened(1, AUTHOR, peer_record(4, issued_at=UNIX_S))
    assert early.replaces(late)
    assert not replace(late).replaces(early)


def test_a_record_that_is_over_is_replaced_by_any_other() -> None:
    store = make_store()
    newer, older = (opened(1, AUTHOR, peer_record(n, ttl_s=100)) for n in (2, 1))
    store.put(AUTHOR, newer, 0.0)
    assert store.put(AUTHOR, older, 99.9) == "older"
    assert store.put(AUTHOR, older, 100.0) == "stored"
    assert store.get(AUTHOR, 199.9) == (older,)
    assert len(store) == 1


def test_exactly_what_is_held_is_held() -> None:
    store = make_store()
    record, other = (opened(1, AUTHOR, peer_record(n, ttl_s=100)) for n in (1, 2))
    assert not store.has(AUTHOR, record.signed, 0.0)
    store.put(AUTHOR, record, 0.0)
    assert store.has(AUTHOR, record.signed, 99.9)
    assert not store.has(AUTHOR, record.signed, 100.0)
    assert not store.has(AUTHOR, other.signed, 0.0)
    assert not store.has(blob_key(blob(1)), record.signed, 0.0)


def test_what_is_swept_leaves_room_for_its_author() -> None:
    store = make_store()
    most = limits.DHT_RECORDS_PER_AUTHOR_MAX

    def put(number: int, now: float, ttl_s: int = 100) -> str:
        return store.put(*in_swarm(number, ttl_s), now)

    assert [put(number, 0.0, 50 if number < 2 else 100) for number in range(most)] == (
        ["stored"] * most
    )
    assert put(most, 49.9) == "full"
    store.sweep(49.9)
    assert len(store) == most
    store.sweep(50.0)
    assert len(store) == most - 2
    assert [put(most + n, 50.0) for n in range(3)] == ["stored", "stored", "full"]
    store.sweep(150.0)
    assert len(store) == 0


def test_what_is_swept_leaves_room_under_its_key() -> None:
    store, key = make_store(), blob_key(blob(0))
    most = limits.DHT_RECORDS_PER_KEY_MAX

    def put(author: int, now: float, ttl_s: int = 100) -> str:
        return store.put(key, opened(author, key, provider_record(blob(0), ttl_s=ttl_s)), now)

    assert [put(author, 0.0, 50 if author < 1 else 100) for author in range(most)] == (
        ["stored"] * most
    )
    assert put(most, 0.0) == "full"
    store.sweep(50.0)
    assert [put(most + n, 50.0) for n in range(2)] == ["stored", "full"]


def test_what_is_farthest_makes_room_for_what_is_closer_one_at_a_time(
    store_of_three: RecordStore,
) -> None:
    store = store_of_three
    own = number_of(identity(0).peer_id)
    blobs = sorted(map(blob, range(4)), key=lambda each: number_of(blob_key(each)) ^ own)
    keys = [blob_key(each) for each in blobs]

    def put(author: int, place: int) -> str:
        return store.put(
            keys[place], opened(author, keys[place], provider_record(blobs[place])), 0.0
        )

    assert [put(author, 2) for author in (1, 2, 3)] == ["stored"] * 3
    assert put(4, 3) == "full", "it is farther than all"
    assert put(4, 2) == "full", "and this one as far"
    assert [put(5, 1), put(5, 0)] == ["stored"] * 2
    assert [len(store.get(key, 0.0)) for key in keys] == [1, 1, 1, 0]
    assert [each.author for each in store.get(keys[2], 0.0)] == [identity(3).peer_id]
    assert put(6, 0) == "stored"
    assert put(7, 0) == "stored", "the farthest key is another one now"
    assert [len(store.get(key, 0.0)) for key in keys] == [3, 0, 0, 0]
    assert put(8, 0) == "full"
    assert len(store) == 3


def test_of_one_swarm_so_many_are_kept_under_its_name() -> None:
    store, key = make_store(), name_key("demo")
    outcomes = [
        store.put(key, opened(author, key, swarm_record(SWARM_KEY)), 0.0)
        for author in range(limits.DHT_RECORDS_PER_SUBJECT_MAX + 1)
    ]
    assert outcomes == ["stored"] * limits.DHT_RECORDS_PER_SUBJECT_MAX + ["full"]


def test_what_a_record_is_about() -> None:
    def subject(record: wire.Record, key: bytes) -> bytes:
        return opened(1, key, record).subject

    provider = subject(provider_record(blob(1)), blob_key(blob(1)))
    swarm = subject(swarm_record(blob(1)), name_key("demo"))
    own = subject(peer_record(), AUTHOR)
    assert len({provider, swarm, own}) == 3
    assert provider == subject(provider_record(blob(1), 2), blob_key(blob(1)))
    assert provider != subject(provider_record(blob(2)), blob_key(blob(2)))
    assert swarm == subject(swarm_record(blob(1), "other"), name_key("other"))
    assert swarm != subject(swarm_record(blob(2)), name_key("demo"))
    assert all(isinstance(each, bytes) for each in (provider, swarm, own))


def test_every_reason_has_a_word() -> None:
    words = [
        rejection(error)
        for error in (
            AuthenticationFailed("x"),
            LimitExceeded("x"),
            RecordExpired("x"),
            MalformedMessage("x"),
        )
    ]
    assert words == ["forged", "oversized", "expired", "malformed"]
