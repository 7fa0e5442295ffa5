"""What we publish: signed anew, in time, and no more of it than there is room for."""

from __future__ import annotations

import hashlib
import random

import pytest

from swarmnode import limits
from swarmnode.errors import ConfigError, LimitExceeded
from swarmnode.protocol.dht.keys import blob_key, name_key, swarm_key_key
from swarmnode.protocol.dht.records import Publications
from swarmnode.wire import dht as wire
from swarmnode.wire.swarm import Signed
from tests.unit.protocol.dht.dht_kit import (
    RULES,
    UNIX_S,
    identity,
    peer_record,
    provider_record,
    swarm_record,
)

BLOBS = [hashlib.sha256(b"%d" % number).digest() for number in range(4)]
KEYS = [blob_key(blob) for blob in BLOBS]


class Draws(random.Random):
    """Draws the share of each range that it is told."""

    share = 0.0

    def uniform(self, a: float, b: float) -> float:
        return a + self.share * (b - a)


def make(boot_epoch: int = 1, share: float = 0.0) -> Publications:
    draws = Draws()
    draws.share = share
    return Publications(identity(1), RULES, boot_epoch, draws)


def publish(publications: Publications, number: int, now: float = 0.0) -> Signed:
    """Publish that we hold one of the blobs."""
    draft = provider_record(BLOBS[number])
    signed = publications.add(KEYS[number], draft, now, UNIX_S + now)
    assert signed is not None
    return signed


def read(signed: Signed, number: int = 0) -> wire.Record:
    return RULES.open(signed, KEYS[number], UNIX_S).record


@pytest.mark.parametrize(("share", "times"), [(0.0, 0.75), (1.0, 1.0)])
def test_a_record_is_signed_anew_before_its_interval_is_over(share: float, times: float) -> None:
    publications = make(share=share)
    assert publications.next_deadline() is None
    assert publications.due(1e9) == []
    first = publish(publications, 0, 10.5)
    due_at = 10.5 + times * limits.DHT_REPUBLISH_S
    assert publications.next_deadline() == due_at
    assert publications.due(due_at - 0.001) == []
    ((key, second),) = publications.due(due_at)
    assert key == KEYS[0]
    assert publications.due(due_at) == []
    assert publications.next_deadline() == due_at + times * limits.DHT_REPUBLISH_S
    before, after = read(first), read(second)
    assert after.sequence == before.sequence + 1
    assert (before.issued_at, after.issued_at) == (int(UNIX_S + 10.5), int(UNIX_S + due_at))
    assert before.ttl_s == after.ttl_s == provider_record(BLOBS[0]).ttl_s


def test_the_first_record_of_a_start_is_newer_than_all_of_the_one_before() -> None:
    first, second, later = (read(publish(make(boot_epoch), 0)).sequence for boot_epoch in (1, 2, 3))
    assert second - first == later - second >= 2**32, "of one start none signs so many"
    assert first > 2**32


def test_a_later_draft_on_a_subject_takes_the_place_of_the_one_before() -> None:
    publications = make()
    publish(publications, 0, 0.0)
    publish(publications, 0, 5.0)
    assert len(publications) == 1
    assert publications.next_deadline() == 5.0 + 0.75 * limits.DHT_REPUBLISH_S


def test_there_is_room_for_so_many_subjects() -> None:
    publications = make()
    blobs = [hashlib.sha256(b"%d" % n).digest() for n in range(limits.DHT_PUBLICATIONS_MAX + 1)]
    outcomes = [
        publications.add(blob_key(blob), provider_record(blob), 0.0, UNIX_S) for blob in blobs
    ]
    assert None not in outcomes[:-1]
    assert outcomes[-1] is None
    assert len(publications) == limits.DHT_PUBLICATIONS_MAX
    publish(publications, 0)
    assert len(publications) == limits.DHT_PUBLICATIONS_MAX


def test_what_is_withdrawn_is_not_published_again() -> None:
    publications = make()
    publish(publications, 0, 0.0)
    publish(publications, 1, 1.0)
    publications.withdraw(KEYS[0])
    publications.withdraw(KEYS[2])
    assert len(publications) == 1
    due_at = 1.0 + 0.75 * limits.DHT_REPUBLISH_S
    assert publications.next_deadline() == due_at
    assert [key for key, _ in publications.due(due_at)] == [KEYS[1]]


def test_what_is_hastened_is_due_at_once_and_once() -> None:
    publications = make()
    for number in range(2):
        publish(publications, number)
    publications.hasten(3.0)
    assert publications.next_deadline() == 3.0
    assert sorted(key for key, _ in publications.due(3.0)) == sorted(KEYS[:2])
    due_at = 3.0 + 0.75 * limits.DHT_REPUBLISH_S
    assert publications.next_deadline() == due_at
    assert publications.due(due_at - 0.001) == [], "the turn that it had before is gone"
    assert len(publications.due(due_at)) == 2


def test_a_record_belongs_under_its_keys_only() -> None:
    publications = make()
    swarm = swarm_record(BLOBS[0], "demo")
    for key in (swarm_key_key(BLOBS[0]), name_key("demo")):
        assert publications.add(key, swarm, 0.0, UNIX_S) is not None
    assert publications.add(bytes(identity(1).peer_id), peer_record(), 0.0, UNIX_S) is not None
    for key, record in (
        (KEYS[1], provider_record(BLOBS[0])),
        (bytes(identity(2).peer_id), peer_record()),
        (name_key("other"), swarm),
    ):
        with pytest.raises(ConfigError, match="cannot be published under this key"):
            publications.add(key, record, 0.0, UNIX_S)
    assert len(publications) == 3


def test_what_no_node_would_keep_is_not_signed() -> None:
    most = limits.DHT_RECORD_BYTES_MAX

    def publish_at(n_letters: int) -> Signed:
        places = [("x" * n + ":1") for n in (250, 250, 200, n_letters)]
        draft = wire.ProviderRecord(1, int(UNIX_S), 7200, tuple(places), BLOBS[0])
        signed = make().add(KEYS[0], draft, 0.0, UNIX_S)
        assert signed is not None
        return signed

    n_letters = 100 + most - len(publish_at(100).body)
    signed = publish_at(n_letters)
    assert len(signed.body) == most
    RULES.open(signed, KEYS[0], UNIX_S)
    with pytest.raises(LimitExceeded, match=f"{most + 1} bytes, at most {most}"):
        publish_at(n_letters + 1)
    with pytest.raises(LimitExceeded):
        RULES.open(Signed(signed.body + b"x", signed.public_key, bytes(64)), KEYS[0], UNIX_S)
