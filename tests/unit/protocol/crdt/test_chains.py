"""Chains of records: ours, which we sign, and those of others, as far as they are held."""

from __future__ import annotations

import pytest

from swarmnode import limits
from swarmnode.errors import InvariantViolation, LocalProtocolError
from swarmnode.protocol.crdt.actors import Actor
from swarmnode.protocol.crdt.chains import Chain, OwnChain
from swarmnode.protocol.crdt.clock import HybridClock
from swarmnode.protocol.crdt.events import Update
from swarmnode.protocol.crdt.records import NO_HASH, Opened, contradict
from swarmnode.wire import crdt as wire
from swarmnode.wire.packing import encode_record
from tests.kits.crdt_world import NETWORK, WALL_UNIX_S, ToySigner, signed_record
from tests.unit.protocol.crdt.courier_kit import words_of_size, words_that_fill

WE, AUTHOR = ToySigner.make(1), ToySigner.make(1000)


@pytest.fixture
def own() -> OwnChain:
    return OwnChain(WE, NETWORK, 7, HybridClock(WALL_UNIX_S, 0.0))


def say(own: OwnChain, now: float = 0.0, **words: object) -> Opened:
    """Say this and let the disk have it at once."""
    own.update(Update(**words))  # type: ignore[arg-type]
    return write(own, now)


def write(own: OwnChain, now: float = 0.0) -> Opened:
    opened = own.stage(now)
    assert opened is not None
    assert own.persisted(opened.sequence) == opened
    return opened


def claim(number: int, ttl_s: int = 60) -> wire.SnapshotClaim:
    return wire.SnapshotClaim(bytes([number]) * 32, step=1, size_bytes=1, ttl_s=ttl_s)


# --- our own -----------------------------------------------------------------------------


def test_our_records_are_linked_and_say_by_which_clock(own: OwnChain) -> None:
    assert (own.has_spoken, own.is_pending, own.sequence, own.epoch) == (False, False, 0, 7)
    first = say(own, 1.0, counters={"steps": 1})
    assert own.has_spoken
    second = say(own, 1.0, counters={"steps": 2})
    assert (first.actor, second.actor) == (Actor(WE.peer_id, 7),) * 2
    assert (first.sequence, first.record.previous) == (1, NO_HASH)
    assert (second.sequence, second.record.previous) == (2, first.hash)
    assert own.sequence == 2
    wall_ms = int((WALL_UNIX_S + 1.0) * 1000)
    assert (first.stamp, second.stamp) == ((wall_ms, 0), (wall_ms, 1))
    assert first.record.swarm_id == NETWORK


def test_a_record_waits_until_the_one_before_it_is_on_disk(own: OwnChain) -> None:
    assert own.stage(0.0) is None, "there is nothing to say"
    own.update(Update(counters={"steps": 1}))
    was_pending = own.is_pending
    first = own.stage(0.0)
    assert first is not None
    assert (was_pending, own.is_pending) == (True, False)
    own.update(Update(counters={"steps": 2}))
    assert own.stage(0.0) is None
    with pytest.raises(LocalProtocolError, match="no own record 2 waits"):
        own.persisted(2)
    assert own.persisted(1) == first
    second = own.stage(0.0)
    assert second is not None
    assert second.record.counters == {"steps": 2}


def test_every_so_many_records_the_next_one_says_everything(own: OwnChain) -> None:
    n_records = 2 * limits.STATE_CHECKPOINT_RECORDS + 1
    records = [say(own, maxima={"step": step}) for step in range(1, n_records + 1)]
    checkpoints = [each.sequence for each in records if each.record.checkpoint]
    assert checkpoints == [1, 1 + limits.STATE_CHECKPOINT_RECORDS, n_records]
    assert own.stage(0.0) is None


@pytest.mark.parametrize("beyond_bytes", [0, 1])
def test_a_chain_that_would_grow_too_long_begins_anew(own: OwnChain, beyond_bytes: int) -> None:
    words = words_of_size(2000)
    records = [say(own, now, **words) for now in (1.0, 2.0)]
    more_bytes = records[-1].size_bytes - 2000  # than a record of the same words of another
    left_bytes = limits.STATE_AUTHOR_BYTES_MAX + beyond_bytes
    left_bytes -= sum(each.size_bytes for each in records)
    while left_bytes > 3000:
        records.append(say(own, 1.0 + len(records), **words))
        left_bytes -= records[-1].size_bytes
    last = say(own, 20.0, **words_of_size(left_bytes - more_bytes))
    assert [each.record.checkpoint for each in records] == [True] + [False] * (len(records) - 1)
    assert last.record.checkpoint is (beyond_bytes == 1)
    assert beyond_bytes or last.size_bytes == left_bytes
    following = say(own, 21.0, **words)
    assert following.record.checkpoint is (beyond_bytes == 0), "what it takes counts from there"


def test_a_checkpoint_says_all_that_was_said_and_not_taken_back(own: OwnChain) -> None:
    say(
        own,
        leases={("role", "keeper"): 60, ("shard", "1"): 60},
        counters={"steps": 5},
        registers={"state": "training", "loss": 2.0},
        maxima={"step": 5},
        snapshots={claim(1).root: claim(1), claim(2).root: claim(2)},
        verdicts={bytes(32): 1, b"v" * 32: limits.STATE_VERDICT_NEUTRAL - 1},
    )
    second = say(
        own,
        leases={("shard", "1"): 0},
        counters={"steps": 4, "tokens": 1},
        registers={"loss": 1.0},
        maxima={"step": 3},
        snapshots={claim(1).root: claim(1, ttl_s=0)},
        verdicts={bytes(32): limits.STATE_VERDICT_NEUTRAL},
    ).record
    assert second.leases == (wire.Lease("shard", "1", 0),)
    assert second.snapshots == (claim(1, ttl_s=0),)
    assert second.verdicts == (wire.PeerVerdict(bytes(32), limits.STATE_VERDICT_NEUTRAL),)
    own.begin_anew()
    assert own.is_pending
    third = write(own).record
    assert third.checkpoint
    assert third.leases == (wire.Lease("role", "keeper", 60),)
    assert third.counters == {"steps": 5, "tokens": 1}
    assert third.registers == {"loss": 1.0, "state": "training"}
    assert third.maxima == {"step": 5}
    assert third.snapshots == (claim(2),)
    assert third.verdicts == (wire.PeerVerdict(b"v" * 32, limits.STATE_VERDICT_NEUTRAL - 1),)


def test_a_record_lists_its_words_in_order(own: OwnChain) -> None:
    record = say(
        own,
        leases={("b", "1"): 60, ("a", "2"): 60, ("a", "1"): 60},
        counters={"b": 1, "a": 1},
        registers={"b": 1.0, "a": 1.0},
        maxima={"b": 1, "a": 1},
        snapshots={claim(2).root: claim(2), claim(1).root: claim(1)},
        verdicts={b"w" * 32: 1, b"v" * 32: 1},
    ).record
    assert [(each.set, each.element) for each in record.leases] == [
        ("a", "1"),
        ("a", "2"),
        ("b", "1"),
    ]
    for names in (record.counters, record.registers, record.maxima):
        assert list(names) == ["a", "b"]
    assert record.snapshots == (claim(1), claim(2))
    assert [each.peer for each in record.verdicts] == [b"v" * 32, b"w" * 32]


def test_a_sign_of_life_says_nothing_and_hides_nothing(own: OwnChain) -> None:
    say(own, counters={"steps": 1})
    own.renew()
    empty = write(own).record
    assert (empty.checkpoint, empty.counters) == (False, {})
    own.update(Update(counters={"steps": 2}))
    own.renew()
    assert write(own).record.counters == {"steps": 2}


def test_what_gathers_while_the_disk_is_slow_is_said_in_one_record(own: OwnChain) -> None:
    say(own, counters={"steps": 1})
    own.update(Update(counters={"steps": 3}, leases={("shard", "1"): 60}))
    own.update(Update(counters={"steps": 2, "tokens": 9}, leases={("shard", "1"): 0}))
    own.update(Update(registers={"state": "paused"}))
    record = write(own).record
    assert not record.checkpoint
    assert record.counters == {"steps": 3, "tokens": 9}
    assert record.leases == (wire.Lease("shard", "1", 0),)
    assert record.registers == {"state": "paused"}


@pytest.mark.parametrize("n_beyond", [0, 1])
def test_more_than_a_record_holds_that_was_taken_back_meanwhile_is_a_checkpoint(
    own: OwnChain, n_beyond: int
) -> None:
    say(own, counters={"steps": 1})
    last = limits.STATE_LEASES_PER_AUTHOR_MAX - 1 + n_beyond
    for number in range(1, last + 1):
        shards = {("shard", f"{number:03}"): 60, ("shard", f"{number - 1:03}"): 0}
        own.update(Update(leases=shards))
    record = write(own).record
    assert record.checkpoint is (n_beyond == 1)
    assert record.leases[-1] == wire.Lease("shard", f"{last:03}", 60)
    assert len(record.leases) == (1 if n_beyond else limits.STATE_LEASES_PER_AUTHOR_MAX)


def test_totals_of_an_earlier_life_are_carried_on_and_never_fall(own: OwnChain) -> None:
    own.carry({"steps": 9}, {"step": 9})
    assert not own.is_pending, "there is nothing to say yet"
    first = say(own, counters={"tokens": 1}).record
    assert (first.counters, first.maxima) == ({"steps": 9, "tokens": 1}, {"step": 9})
    own.carry({"steps": 8, "tokens": 5}, {"step": 8, "round": 1})
    second = write(own).record
    assert second.checkpoint, "and now all who heard of us are told"
    assert second.counters == {"steps": 9, "tokens": 5}
    assert second.maxima == {"step": 9, "round": 1}
    own.carry({"steps": 9, "tokens": 4}, {"round": 1})
    assert not own.is_pending, "all of that is said already"
    own.carry({}, {"round": 2})
    assert write(own).record.maxima == {"step": 9, "round": 2}


def test_we_are_to_be_heard_of_as_often_as_our_shortest_lease_asks_for(own: OwnChain) -> None:
    assert own.lease_s() == limits.STATE_LEASE_S
    say(own, leases={("role", "keeper"): int(limits.STATE_LEASE_S) + 1})
    assert own.lease_s() == limits.STATE_LEASE_S
    say(own, leases={("shard", "1"): 90, ("shard", "2"): 60})
    assert own.lease_s() == 60
    say(own, snapshots={claim(1).root: claim(1, ttl_s=30)})
    assert own.lease_s() == 30
    say(own, snapshots={claim(1).root: claim(1, ttl_s=0)}, leases={("shard", "2"): 0})
    assert own.lease_s() == 90


def test_what_no_member_would_read_is_refused_and_changes_nothing(own: OwnChain) -> None:
    say(own, leases={("role", "keeper"): 60})
    cases: list[tuple[dict[str, object], str]] = [
        ({"snapshots": {bytes(32): claim(1)}}, "filed under another root"),
        ({"leases": {("role", f"{number}"): 60 for number in range(64)}}, "would not read"),
        ({"verdicts": {bytes(32): limits.STATE_VERDICT_NEUTRAL + 1}}, "would not read"),
        ({"leases": {("Role", "x"): 0}}, "would not read"),
    ]
    for words, match in cases:
        with pytest.raises(LocalProtocolError, match=match):
            own.update(Update(**words))  # type: ignore[arg-type]
        assert not own.is_pending
    own.begin_anew()
    assert write(own).record.leases == (wire.Lease("role", "keeper", 60),)
    most = {("shard", f"{number}"): 60 for number in range(limits.STATE_LEASES_PER_AUTHOR_MAX - 1)}
    assert len(say(own, leases=most).record.leases) == limits.STATE_LEASES_PER_AUTHOR_MAX - 1


@pytest.mark.parametrize("beyond_bytes", [0, 1])
def test_all_that_we_say_fits_into_one_record_to_the_byte(own: OwnChain, beyond_bytes: int) -> None:
    """As large as it can become: with the last number of all, a tick, and a stamp far from now."""

    def size_of(leases: tuple[wire.Lease, ...], registers: dict[str, str]) -> int:
        last = 2**63 - 1
        longest = wire.StateRecord(
            swarm_id=NETWORK,
            epoch=7,
            sequence=last,
            previous=NO_HASH,
            clock_ms=last,
            clock_tick=limits.STATE_CLOCK_TICKS_MAX,
            checkpoint=True,
            leases=leases,
            registers=dict(registers),
        )
        return len(encode_record(longest))

    size_bytes = limits.STATE_RECORD_BYTES_MAX + beyond_bytes
    leases, registers = words_that_fill(size_bytes, size_of)
    said = {(each.set, each.element): each.ttl_s for each in leases}
    words = Update(leases=said, registers=registers)
    if beyond_bytes:
        with pytest.raises(LocalProtocolError, match=f"this would be {size_bytes}"):
            own.update(words)
    else:
        own.update(words)
    assert own.is_pending is (beyond_bytes == 0)


# --- those of others ---------------------------------------------------------------------


def chain_from(first: int, n: int) -> tuple[Chain, list[Opened]]:
    """Return a chain that begins with a checkpoint of this number."""
    records = [signed_record(AUTHOR, first, epoch=3, checkpoint=True)]
    chain = Chain.begin(records[0], 5.0)
    for sequence in range(first + 1, first + n):
        records.append(signed_record(AUTHOR, sequence, epoch=3, previous=records[-1].hash))
        assert chain.append(records[-1], 5.0) == records[-1].size_bytes
    return chain, records


def test_a_chain_begins_with_a_checkpoint() -> None:
    with pytest.raises(InvariantViolation, match="begins with a checkpoint"):
        Chain.begin(signed_record(AUTHOR, 2), 0.0)
    opened = signed_record(AUTHOR)
    chain = Chain.begin(opened, 4.0)
    assert (chain.actor, chain.heard_at, chain.size_bytes) == (opened.actor, 4.0, opened.size_bytes)
    assert (chain.newest, chain.head) == (opened, opened.head)


def test_a_checkpoint_takes_the_place_of_what_was_before_it() -> None:
    chain, records = chain_from(1, 3)
    assert chain.size_bytes == sum(each.size_bytes for each in records)
    checkpoint = signed_record(AUTHOR, 4, epoch=3, previous=records[-1].hash, checkpoint=True)
    grown_bytes = checkpoint.size_bytes - sum(each.size_bytes for each in records)
    assert chain.append(checkpoint, 6.0) == grown_bytes
    assert (chain.records, chain.size_bytes) == ([checkpoint], checkpoint.size_bytes)
    assert chain.heard_at == 6.0


def test_records_of_a_chain_are_found_by_number_and_by_what_was_signed() -> None:
    chain, records = chain_from(4, 3)
    assert [chain.at(sequence) for sequence in range(3, 8)] == [None, *records, None]
    for opened in records:
        assert chain.find(opened.signed.body) == opened
    assert chain.find(signed_record(AUTHOR, 9).signed.body) is None


def test_a_chain_is_contradicted_by_another_record_of_a_number_or_a_broken_link() -> None:
    chain, (first, second, third) = chain_from(4, 3)
    for opened in (first, second, third):
        assert chain.contradiction(opened) is None
    fork = signed_record(AUTHOR, 5, epoch=3, previous=first.hash, maxima={"step": 1})
    assert chain.contradiction(fork) == second
    broken = signed_record(AUTHOR, 7, epoch=3, previous=fork.hash)
    assert chain.contradiction(broken) == third
    assert chain.contradiction(signed_record(AUTHOR, 8, epoch=3, previous=fork.hash)) is None
    assert chain.contradiction(signed_record(AUTHOR, 3, epoch=3)) is None


def test_two_records_contradict_each_other_if_no_honest_author_signs_both() -> None:
    _, (first, second, third) = chain_from(4, 3)
    fork = signed_record(AUTHOR, 5, epoch=3, previous=first.hash, maxima={"step": 1})
    other = signed_record(AUTHOR, 6, epoch=3, previous=fork.hash)
    pairs = [
        (first, second, False),
        (first, third, False),
        (second, second, False),
        (second, fork, True),
        (second, other, True),
        (first, other, False),
        (third, other, True),
        (second, signed_record(AUTHOR, 5, epoch=4), False),
        (second, signed_record(WE, 5, epoch=3), False),
    ]
    for one, two, expected in pairs:
        assert contradict(one, two) is expected
        assert contradict(two, one) is expected


def test_a_node_is_sent_what_follows_its_head_or_all_if_it_is_of_another_history() -> None:
    chain, records = chain_from(4, 3)
    peer = bytes(AUTHOR.peer_id)

    def lacking(epoch: int, sequence: int, hash_: bytes) -> list[Opened]:
        return chain.lacking(wire.Head(peer, epoch, sequence, hash_))

    assert lacking(3, 4, records[0].hash) == records[1:]
    assert lacking(3, 5, records[1].hash) == records[2:]
    assert lacking(3, 6, records[2].hash) == []
    assert lacking(3, 5, b"f" * 32) == records
    assert lacking(3, 6, b"f" * 32) == records
    assert lacking(3, 3, NO_HASH) == records
    assert lacking(2, 6, records[2].hash) == records, "that is another life"
    assert lacking(3, 7, NO_HASH) == []
    assert lacking(4, 1, NO_HASH) == []
