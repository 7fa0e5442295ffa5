"""Our own words: on disk before a peer sees them, gathered while the disk is slow, carried on."""

from __future__ import annotations

import hashlib
import itertools
import random
import tracemalloc

import pytest

from swarmnode import limits
from swarmnode.errors import LocalProtocolError
from swarmnode.ids import PeerId
from swarmnode.protocol.crdt import events
from swarmnode.protocol.crdt.clock import HybridClock, Stamp
from swarmnode.protocol.crdt.records import RangeIndex, weigh
from swarmnode.protocol.crdt.replica import SharedState
from swarmnode.wire.crdt import Head, Lease, Listing, PeerVerdict, Range, StateRecord, Summary
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.swarm import Signed
from tests.kits.crdt_world import (
    NETWORK,
    WALL_UNIX_S,
    ToySigner,
    World,
    signed_record,
    verify_toy,
)

OTHER = ToySigner.make(2).peer_id


def new_state(epoch: int = 1) -> SharedState:
    return SharedState(
        ToySigner.make(1),
        NETWORK,
        epoch=epoch,
        wall_unix_s=WALL_UNIX_S,
        now=0.0,
        rng=random.Random(1),
        verify=verify_toy,
    )


def persists(state: SharedState) -> list[events.Persist]:
    return [e for e in state.poll_effects() if isinstance(e, events.Persist)]


def read(persist: events.Persist) -> StateRecord:
    return decode_record(persist.record.body, StateRecord)


def words_of(number: int, n_records: int) -> list[Signed]:
    """What another author says, one record after the other."""
    author = SharedState(
        ToySigner.make(number),
        NETWORK,
        epoch=1,
        wall_unix_s=WALL_UNIX_S,
        now=0.0,
        rng=random.Random(number),
        verify=verify_toy,
    )
    said: list[Signed] = []
    for step in range(1, n_records + 1):
        words = events.Update(
            leases={("shard", f"{step}"): 300},
            counters={"steps": step, "tokens": 9 * step},
            registers={"state": "training", "loss": 1 / step},
            maxima={"step": step},
        )
        author.handle(words, step)
        said += [persist.record for persist in persists(author)]
        author.handle(events.Persisted(step), step)
        author.poll_effects()
    return said


def test_a_record_that_is_held_takes_little_more_than_what_it_says() -> None:
    records = tuple(each for number in range(3, 13) for each in words_of(number, 9))
    state = new_state()
    tracemalloc.start()
    state.handle(events.Restored(records), 20.0)
    state.poll_effects()
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert state.view.counters()["steps"] == 90
    assert held_bytes / len(records) < 3500  # with what each writes, which is needed once: 5600


def test_nothing_of_ours_is_shown_before_it_is_on_disk() -> None:
    state = new_state()
    state.handle(events.NeighbourUp(OTHER), 0.0)
    state.poll_effects()
    state.handle(events.Update(counters={"steps": 1}), 0.0)
    (persist,) = state.poll_effects()
    assert isinstance(persist, events.Persist)
    state.handle_deadline(5.0)
    assert not state.version_vector()
    assert not [e for e in state.poll_effects() if isinstance(e, events.Send)]
    state.handle(events.Persisted(1), 6.0)
    assert state.view.counters() == {"steps": 1}
    state.handle_deadline(7.0)
    assert [e.peer for e in state.poll_effects() if isinstance(e, events.Send)] == [OTHER]


def test_a_full_disk_gathers_words_and_loses_none() -> None:
    state = new_state()
    for step in range(1, 1000):
        lease = {("shard", f"{step}"): 60, ("shard", f"{step - 1}"): 0}
        state.handle(events.Update(counters={"steps": step}, leases=lease), 1.0)
    (first,) = persists(state)
    assert read(first).counters == {"steps": 1}
    state.handle(events.Persisted(1), 2.0)
    (second,) = persists(state)
    assert read(second).counters == {"steps": 999}
    assert read(second).checkpoint, "more was taken back than a delta holds"
    state.handle(events.Persisted(2), 3.0)
    assert state.view.sets(3.0)["shard"].keys() == {"999"}
    with pytest.raises(LocalProtocolError, match="no own record 2 waits"):
        state.handle(events.Persisted(2), 4.0)


def test_who_judges_many_one_after_the_other_repeats_none_that_it_took_back() -> None:
    state, judged = new_state(), [b"%032d" % number for number in range(100)]
    for before, peer in itertools.pairwise(judged):
        verdicts = {before: limits.STATE_VERDICT_NEUTRAL, peer: 2}
        state.handle(events.Update(verdicts=verdicts), 1.0)
    state.handle(events.Persisted(1), 2.0)
    second = read(persists(state)[-1])
    assert second.checkpoint, "more was taken back than a delta holds"
    assert second.verdicts == (PeerVerdict(judged[-1], 2),)


def test_a_record_after_the_first_says_what_is_new_and_no_more() -> None:
    state = new_state()
    state.handle(events.Update(counters={"steps": 1}, maxima={"step": 1}), 0.0)
    assert [read(each).checkpoint for each in persists(state)] == [True]
    state.handle(events.Persisted(1), 1.0)
    state.handle(events.Update(maxima={"step": 2}), 2.0)
    (second,) = map(read, persists(state))
    assert (second.checkpoint, second.counters, second.maxima) == (False, {}, {"step": 2})


def test_what_a_journal_holds_of_others_is_as_old_as_their_clocks_say() -> None:
    author = ToySigner.make(5)
    lease = (Lease("role", "keeper", 60),)
    record = signed_record(author, wall_unix_s=WALL_UNIX_S - 10, leases=lease).signed
    state = new_state()
    state.handle(events.Restored((record,)), 0.0)
    held = [state.view.of(author.peer_id, now) for now in (0.0, 49.0, 51.0)]
    assert held == [{"role": ("keeper",)}, {"role": ("keeper",)}, {}]


def test_totals_go_on_after_a_restart_and_count_once() -> None:
    world = World(3, 1)
    peer = world.ids[0]
    for step in range(40):
        world.update(peer, counters={"steps": step}, leases={("role", "keeper"): 300})
    world.settle()
    world.restart(peer, 2)
    world.update(peer, counters={"tokens": 7})
    world.settle()
    for state in world.states.values():
        assert state.view.counters() == {"steps": 39, "tokens": 7}
        assert state.view.of(peer, world.now) == {}, "what an earlier life leased is over"


def test_totals_come_back_from_others_when_the_journal_is_lost() -> None:
    world = World(3, 2)
    peer = max(world.ids)
    world.update(peer, counters={"steps": 50})
    world.settle()
    world.journals[peer].clear()
    world.restart(peer, 2)
    world.run(world.now + 30.0)
    world.update(peer, registers={"state": "training"})
    world.settle()
    assert all(state.view.counters() == {"steps": 50} for state in world.states.values())


def test_a_journal_restores_the_same_bytes() -> None:
    world = World(3, 3)
    for number in range(100):
        world.update(world.ids[number % 3], maxima={"step": number})
        world.run(world.now + 1.0)
    world.settle()
    peer = world.ids[0]
    before = world.states[peer].canonical()
    snapshot = list(world.states[peer].journal_records())
    assert len(snapshot) < len(world.journals[peer])
    world.journals[peer] = snapshot
    assert world.restart(peer, 2).canonical() == before


def test_leases_are_renewed_by_signs_of_life() -> None:
    world = World(2, 4)
    first, second = world.ids
    world.update(first, leases={("member", str(first)): 90})
    world.run(world.now + 1000.0)
    assert world.states[second].view.members(world.now) == (first,)
    signs = world.states[first].statistics().own_sequence
    assert 1000 / 30 - 2 <= signs <= 1000 / 30 + 2
    for peer in world.ids:
        world.states[peer].handle(events.NeighbourDown(second), world.now)
        world.states[peer].handle(events.NeighbourDown(first), world.now)
    world.run(world.now + 91.0)
    assert world.states[second].view.members(world.now) == ()


def test_stamps_follow_cause_and_effect_but_not_a_broken_clock() -> None:
    clock = HybridClock(1000.0, 0.0)
    first, second = clock.next(0.0), clock.next(0.0)
    assert first == Stamp(1_000_000, 0) < second == Stamp(1_000_000, 1)
    clock.observe(Stamp(1_005_000, 7), 0.0)
    assert clock.next(0.0) == Stamp(1_005_000, 8)
    assert clock.next(6.0) == Stamp(1_006_000, 0)
    assert clock.is_ahead(Stamp(1_000_000 + 86_500_000, 0), 0.0)
    clock.observe(Stamp(2_000_000_000, 0), 6.0)
    assert clock.next(7.0) == Stamp(1_007_000, 0)
    clock.observe(Stamp(1_007_000, limits.STATE_CLOCK_TICKS_MAX), 7.0)
    assert clock.next(7.0) == Stamp(1_007_001, 0)


def test_our_clock_is_compared_with_the_middle_one_of_the_neighbours() -> None:
    state = new_state()
    same = Range("", 0, bytes(32))
    for number, ahead_s in ((2, 3600), (3, -1), (4, 5)):
        neighbour = ToySigner.make(number).peer_id
        state.handle(events.NeighbourUp(neighbour), 0.0)
        said = Summary((same,), int(WALL_UNIX_S + ahead_s) * 1000)
        state.handle(events.Received(neighbour, said), 0.0)
    assert state.statistics().clock_skew_s == 5


def test_a_neighbour_is_compared_with_about_once_in_an_interval_and_never_in_step() -> None:
    state, compared_at = new_state(), []
    state.handle(events.NeighbourUp(OTHER), 0.0)
    for _ in range(100):
        due = state.next_deadline()
        assert due is not None
        state.handle_deadline(due)
        if [e for e in state.poll_effects() if isinstance(e, events.Send)]:
            compared_at.append(due)
    pauses = [later - earlier for earlier, later in itertools.pairwise(compared_at)]
    assert len(pauses) > 50
    assert sum(pauses) / len(pauses) == pytest.approx(limits.STATE_SYNC_INTERVAL_S, rel=0.05)
    assert len({round(pause) for pause in pauses}) > 3


@pytest.mark.parametrize("prefix", ["", "3", "3a", "3a7", "3a7f"])
def test_fingerprints_of_ranges_are_those_of_their_heads(prefix: str) -> None:
    rng = random.Random(1)
    one, two = RangeIndex(), RangeIndex()
    heads = [Head(b"\x3a\x7f" + rng.randbytes(30), 1, n, bytes(32)) for n in range(20)]
    heads += [Head(rng.randbytes(32), 1, n, bytes(32)) for n in range(300)]
    for head in heads:
        one.put(weigh(head))
        two.put(weigh(Head(head.peer, 0, 0, head.hash)))
    assert one.digest(prefix) != two.digest(prefix)
    for head in reversed(heads):
        two.put(weigh(head))
    assert one.digest(prefix) == two.digest(prefix)
    assert one.heads(prefix) == sorted(
        (head for head in heads if head.peer.hex().startswith(prefix)), key=lambda head: head.peer
    )
    parts = one.split(prefix)
    assert sum(part.n_heads for part in parts) == one.digest(prefix).n_heads
    for head in heads:
        two.remove(head.peer)
    assert len(two) == 0
    assert two.digest(prefix).fingerprint == bytes(32)


def test_nodes_of_any_release_add_up_the_same_of_a_head() -> None:
    index = RangeIndex()
    index.put(weigh(Head(b"\x3a" * 32, 258, 7, b"h" * 32)))
    says = b"\x3a" * 32 + b"\0\0\0\0\0\0\1\2" + b"\0\0\0\0\0\0\0\7" + b"h" * 32
    assert index.digest("").fingerprint == hashlib.sha256(says).digest()


@pytest.mark.parametrize("prefix", ["\n", "3\n", "3a\n", "3" * 63 + "\n", "3" * 64])
def test_no_id_is_in_a_range_that_ends_in_a_line_break(prefix: str) -> None:
    """The pattern of the wire ends in a dollar sign, which lets one through."""
    index = RangeIndex()
    index.put(weigh(Head(b"\x3a" * 32, 1, 1, bytes(32))))
    digest = decode_record(encode_record(Range(prefix, 0, bytes(32))), Range)
    assert index.digest(prefix) == digest
    assert index.heads(prefix) == []


def test_large_states_are_compared_in_parts() -> None:
    """Two that differ in three of a thousand authors do not list the thousand."""
    world = World(2, 6)
    authors = [signed_record(ToySigner.make(100 + n)) for n in range(1000)]
    first, second = world.ids
    world.net.loss = 1.0
    for start in range(0, 1000, 250):
        world.inject(second, first, authors[start : start + 250])
        world.inject(first, second, authors[start : start + 250])
    extra = [signed_record(ToySigner.make(5000 + n)) for n in range(3)]
    world.inject(PeerId(second), first, extra)
    world.run(world.now + 20.0)
    world.net.loss = 0.0
    world.messages.clear()
    world.settle()
    listed = [len(m.heads) for _, _, m in world.messages if isinstance(m, Listing)]
    assert 0 < sum(listed) < 400
