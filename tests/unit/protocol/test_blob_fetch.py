"""Each rule of a fetch, by hand."""

from __future__ import annotations

import random
from typing import Literal

import pytest

from swarmnode import limits
from swarmnode.errors import LocalProtocolError
from swarmnode.ids import PeerId
from swarmnode.protocol.blobs import events
from swarmnode.protocol.blobs.bucket import TokenBucket
from swarmnode.protocol.blobs.events import Cancel, Completed, Drop, Request, Store
from swarmnode.protocol.blobs.fetch import (
    BLOB_BUSY_PAUSE_S,
    BLOB_TAKEOVER_S_MIN,
    FetchCore,
    FetchStatistics,
)
from swarmnode.protocol.blobs.holders import Holder, bitmap_of, has_bit
from swarmnode.protocol.blobs.merkle import MerkleTree, leaf_hash
from swarmnode.wire.blobs import BlobManifest

N_CHUNKS = 4
LEAVES = [leaf_hash(b"%d" % n) for n in range(N_CHUNKS)]
TREE = MerkleTree(LEAVES)
MANIFEST = BlobManifest(N_CHUNKS, 1, TREE.root)
ALL = bitmap_of(range(N_CHUNKS), N_CHUNKS)
ANNA, BERT, CLEO, DORA = (PeerId(bytes([number]) * 32) for number in (1, 2, 3, 4))


class Bench:
    """A fetch of four chunks of one byte."""

    def __init__(
        self, *, stored: frozenset[int] = frozenset(), bucket: TokenBucket | None = None
    ) -> None:
        self.core = FetchCore(MANIFEST, random.Random(1), stored=stored, bucket=bucket)
        self.now = 10.0

    def feed(self, event: events.Event) -> list[events.Effect]:
        self.core.handle(event, self.now)
        return self.core.poll_effects()

    def advance(self) -> list[events.Effect]:
        """Go to the next deadline."""
        due = self.core.next_deadline()
        assert due is not None
        assert due > self.now
        self.now = due
        self.core.handle_deadline(self.now)
        return self.core.poll_effects()

    def arrive(self, peer: PeerId, index: int, *, size_bytes: int = 1) -> list[events.Effect]:
        proof = TREE.proof(index)
        return self.feed(events.ChunkArrived(peer, index, LEAVES[index], size_bytes, proof))


def asked(effects: list[events.Effect], peer: PeerId) -> list[int]:
    return [e.index for e in effects if isinstance(e, Request) if e.peer == peer]


def test_a_right_chunk_is_stored_and_makes_room_for_the_next() -> None:
    bench = Bench()
    first = asked(bench.feed(events.HolderFound(ANNA, ALL)), ANNA)
    assert len(first) == limits.BLOB_REQUESTS_PER_HOLDER_MIN
    assert bench.core.statistics().requests_total == len(first)
    effects = bench.arrive(ANNA, first[0])
    assert effects[0] == Store(ANNA, first[0])
    assert len(asked(effects, ANNA)) >= 1
    assert bench.core.statistics().arrived == 1


def test_the_last_stored_chunk_completes() -> None:
    bench = Bench()
    pending = asked(bench.feed(events.HolderFound(ANNA, ALL)), ANNA)
    effects: list[events.Effect] = []
    for _ in range(N_CHUNKS):
        assert not bench.core.is_complete
        index = pending.pop(0)
        pending += asked(bench.arrive(ANNA, index), ANNA)
        effects = bench.feed(events.ChunkStored(index))
        pending += asked(effects, ANNA)
    assert effects == [Completed()]
    assert bench.core.is_complete
    assert bench.core.next_deadline() is None


def test_nothing_missing_is_complete_at_once() -> None:
    core = FetchCore(MANIFEST, random.Random(1), stored=frozenset(range(N_CHUNKS)))
    assert core.poll_effects() == [Completed()]


@pytest.mark.parametrize("wrong", ["bytes", "size", "proof", "index"])
def test_a_wrong_chunk_drops_its_sender_for_good(wrong: str) -> None:
    bench = Bench()
    index, other = asked(bench.feed(events.HolderFound(ANNA, ALL)), ANNA)
    leaf = LEAVES[other] if wrong in ("bytes", "index") else LEAVES[index]
    proof = TREE.proof(other if wrong == "index" else index)
    proof = proof[:-1] if wrong == "proof" else proof
    size_bytes = 2 if wrong == "size" else 1
    effects = bench.feed(events.ChunkArrived(ANNA, index, leaf, size_bytes, proof))
    assert [type(effect) for effect in effects] == [Cancel, Cancel, Drop]
    assert effects[-1] == Drop(ANNA, True, f"chunk {index} is not the one of this blob")
    assert bench.feed(events.HolderFound(ANNA, ALL)) == []
    assert bench.arrive(ANNA, other) == [], "what it still sends is not wanted"
    assert bench.core.statistics().bytes_wasted_total == size_bytes + 1
    assert sorted(asked(bench.feed(events.HolderFound(BERT, ALL)), BERT)) != []


def test_a_chunk_that_was_not_asked_for_is_not_taken() -> None:
    bench = Bench()
    bench.feed(events.HolderFound(ANNA, bitmap_of({0}, N_CHUNKS)))
    assert bench.arrive(ANNA, 3) == []
    assert bench.arrive(BERT, 0) == []
    assert bench.core.statistics().bytes_wasted_total == 2


def test_an_absent_chunk_is_asked_for_elsewhere() -> None:
    bench = Bench()
    bench.feed(events.HolderFound(ANNA, bitmap_of({0}, N_CHUNKS)))
    assert bench.feed(events.ChunkRefused(ANNA, 0, "absent")) == []
    assert asked(bench.feed(events.HolderFound(BERT, bitmap_of({0}, N_CHUNKS))), BERT) == [0]


def test_what_a_holder_of_a_large_blob_lacks_is_asked_of_it_no_more() -> None:
    last = 19
    manifest = BlobManifest(last + 1, 1, TREE.root)
    core = FetchCore(manifest, random.Random(1), stored=frozenset(range(last)))
    core.handle(events.HolderFound(ANNA, bitmap_of({last}, last + 1)), 10.0)
    assert core.poll_effects() == [Request(ANNA, last)]
    core.handle(events.ChunkRefused(ANNA, last, "absent"), 10.0)
    assert core.poll_effects() == []


def test_what_only_those_had_that_have_left_is_rare_again() -> None:
    bench = Bench()
    for _ in range(3):
        assert asked(bench.feed(events.HolderFound(ANNA, bitmap_of({0}, N_CHUNKS))), ANNA) == [0]
        bench.feed(events.HolderLost(ANNA))
    bert_s = asked(bench.feed(events.HolderFound(BERT, bitmap_of({1, 2, 3}, N_CHUNKS))), BERT)
    for index in bert_s:
        bench.feed(events.ChunkRefused(BERT, index, "busy"))
    assert asked(bench.feed(events.HolderFound(CLEO, ALL)), CLEO)[0] == 0


Word = tuple[PeerId, set[int] | None]


@pytest.mark.parametrize(
    ("words", "rarest"),
    [
        ([(BERT, {0, 1, 2})], 3),
        ([(BERT, {0, 1, 2})] * 3, 3),
        ([(BERT, {0, 1, 3}), (CLEO, {0, 2}), (DORA, {1, 2})], 3),
        ([*[(BERT, {0, 1, 3})] * 3, (CLEO, {0, 1, 2}), (DORA, {0, 1, 2})], 3),
        ([(BERT, {3}), (BERT, None), (BERT, {3}), (BERT, None), (CLEO, {0, 1, 2})], 3),
        ([(BERT, {2}), (BERT, None), (BERT, {2}), (BERT, None), (CLEO, {0, 1, 2})], 3),
        ([(BERT, {3}), (CLEO, {3}), (BERT, {0, 1, 3}), (DORA, {0, 1})], 2),
    ],
)
def test_the_chunk_that_fewest_have_is_asked_for_first(words: list[Word], rarest: int) -> None:
    """However often they say so, and whoever has left meanwhile."""
    bucket = TokenBucket(1.0, 0.0)
    bucket.spend(1, 10.0)
    bench = Bench(bucket=bucket)
    for peer, has in [(ANNA, set(range(N_CHUNKS))), *words]:
        told = events.HolderLost(peer)
        found = events.HolderFound(peer, bitmap_of(has or set(), N_CHUNKS))
        assert bench.feed(told if has is None else found) == [], "nothing may be fetched yet"
    assert bench.advance() == [Request(ANNA, rarest)]


def test_newcomers_do_not_all_begin_with_the_same_chunk() -> None:
    first: set[int] = set()
    for seed in range(40):
        core = FetchCore(MANIFEST, random.Random(seed))
        core.handle(events.HolderFound(ANNA, ALL), 0.0)
        first.add(asked(core.poll_effects(), ANNA)[0])
    assert first == set(range(N_CHUNKS))


def test_what_its_holders_have_no_more_is_rare_again() -> None:
    bench = Bench()
    for peer in (BERT, CLEO):
        assert asked(bench.feed(events.HolderFound(peer, bitmap_of({3}, N_CHUNKS))), peer) == [3]
        assert bench.feed(events.ChunkRefused(peer, 3, "absent")) == []
    [one, other] = asked(bench.feed(events.HolderFound(DORA, bitmap_of({0, 1, 2}, 4))), DORA)
    for index in (one, other):
        bench.feed(events.ChunkRefused(DORA, index, "busy"))
    assert asked(bench.feed(events.HolderFound(ANNA, ALL)), ANNA)[0] == 3
    assert bench.feed(events.ChunkRefused(ANNA, 7, "absent")) == [], "it was not asked for that"


def test_who_says_that_it_lacks_a_chunk_makes_it_no_rarer_than_it_is() -> None:
    bench = Bench(stored=frozenset({2, 3}))
    absent: tuple[int, Literal["absent", "busy"]] = (0, "absent")
    busy: tuple[int, Literal["absent", "busy"]] = (0, "busy")
    other: tuple[int, Literal["absent", "busy"]] = (1, "busy")
    for number, (index, reason) in enumerate([absent] * 2 + [busy] * 3 + [other] * 2):
        peer = PeerId(bytes([100 + number]) * 32)
        found = events.HolderFound(peer, bitmap_of({index}, N_CHUNKS))
        assert bench.feed(found) == [Request(peer, index)]
        assert bench.feed(events.ChunkRefused(peer, index, reason)) == []
    assert asked(bench.feed(events.HolderFound(ANNA, ALL)), ANNA) == [1, 0]


def test_a_holder_that_lacks_one_chunk_keeps_the_others() -> None:
    """Of a blob of many chunks, wherever their bits are."""
    n_chunks = 20
    for absent in range(n_chunks):
        core = FetchCore(BlobManifest(n_chunks, 1, TREE.root), random.Random(absent))
        core.handle(events.HolderFound(ANNA, bitmap_of({absent}, n_chunks)), 10.0)
        assert core.poll_effects() == [Request(ANNA, absent)]
        core.handle(events.HolderFound(ANNA, bitmap_of(range(n_chunks), n_chunks)), 10.0)
        core.handle(events.ChunkRefused(ANNA, absent, "absent"), 10.0)
        asked_for: set[int] = set()
        while new := asked(core.poll_effects(), ANNA):
            asked_for |= set(new)
            for index in new:
                core.handle(events.ChunkRefused(ANNA, index, "absent"), 10.0)
        assert asked_for == set(range(n_chunks)) - {absent}
        assert core.statistics().asked == 0


def test_chunks_on_disk_are_asked_of_no_holder() -> None:
    bench = Bench(stored=frozenset({0, 2}))
    assert bench.core.poll_effects() == []
    assert sorted(asked(bench.feed(events.HolderFound(ANNA, ALL)), ANNA)) == [1, 3]
    assert bench.core.statistics().stored == 2


def test_a_busy_holder_rests_and_is_asked_again() -> None:
    bench = Bench()
    for index in asked(bench.feed(events.HolderFound(ANNA, ALL)), ANNA):
        assert bench.feed(events.ChunkRefused(ANNA, index, "busy")) == []
    started = bench.now
    assert len(asked(bench.advance(), ANNA)) == limits.BLOB_REQUESTS_PER_HOLDER_MIN
    assert BLOB_BUSY_PAUSE_S <= bench.now - started <= 2 * BLOB_BUSY_PAUSE_S


def test_silence_drops_a_holder_but_accuses_it_of_nothing() -> None:
    bench = Bench()
    bench.feed(events.HolderFound(ANNA, ALL))
    effects = bench.advance()
    assert bench.now == 10.0 + limits.BLOB_IDLE_S
    [drop] = [effect for effect in effects if isinstance(effect, Drop)]
    assert drop.peer == ANNA
    assert not drop.lied
    assert "sent none of 2 chunks in 20 s" in drop.why


def test_what_a_lost_holder_owed_is_asked_of_another() -> None:
    bench = Bench()
    owed = asked(bench.feed(events.HolderFound(ANNA, ALL)), ANNA)
    bench.feed(events.HolderFound(BERT, bitmap_of(set(owed), N_CHUNKS)))
    effects = bench.feed(events.HolderLost(ANNA))
    assert sorted(asked(effects, BERT)) == sorted(owed)
    again = asked(bench.feed(events.HolderFound(ANNA, ALL)), ANNA)
    assert set(again).isdisjoint(owed), "it may come back, for what is missing"


def test_an_idle_holder_takes_over_what_is_late_and_the_slower_is_told() -> None:
    bench = Bench()
    bench.feed(events.HolderFound(ANNA, bitmap_of({0}, N_CHUNKS)))
    pending = asked(bench.feed(events.HolderFound(BERT, ALL)), BERT)
    for _ in range(3):
        index = pending.pop(0)
        pending += asked(bench.arrive(BERT, index), BERT)
        pending += asked(bench.feed(events.ChunkStored(index)), BERT)
    assert asked(bench.advance(), BERT) == [0]
    assert bench.now >= 10.0 + BLOB_TAKEOVER_S_MIN
    assert bench.arrive(BERT, 0) == [Cancel(ANNA, 0), Store(BERT, 0)]
    assert bench.arrive(ANNA, 0) == []
    assert bench.core.statistics().takeovers_total == 1


def waits_for_anna(took_s: tuple[float, ...]) -> Bench:
    """Return a fetch of which Bert sent all but chunk 0, each chunk so long after the last."""
    bench = Bench()
    bench.feed(events.HolderFound(ANNA, bitmap_of({0}, N_CHUNKS)))
    pending = asked(bench.feed(events.HolderFound(BERT, bitmap_of({0, 1}, N_CHUNKS))), BERT)
    for index, seconds in zip((1, 2, 3), took_s, strict=True):
        pending += asked(bench.feed(events.HolderFound(BERT, bitmap_of({0, index}, 4))), BERT)
        assert pending.pop() == index
        bench.now += seconds
        assert bench.arrive(BERT, index) == [Store(BERT, index)]
        bench.feed(events.ChunkStored(index))
    return bench


@pytest.mark.parametrize(
    ("took_s", "usual_s"),
    [
        ((0.1, 0.1, 0.1), BLOB_TAKEOVER_S_MIN / limits.BLOB_TAKEOVER_TIMES),
        ((1.0, 1.0, 1.0), 1.0),
        ((1.0, 1.0, 2.0), 1.2),
        ((2.0, 1.0, 1.8), 1.8),
    ],
)
def test_a_chunk_is_late_after_some_times_the_usual(
    took_s: tuple[float, ...], usual_s: float
) -> None:
    """The first one says what is usual, later ones correct it by a fifth."""
    bench = waits_for_anna(took_s)
    due = bench.core.next_deadline() or 0.0
    assert due == pytest.approx(10.0 + limits.BLOB_TAKEOVER_TIMES * usual_s)
    bench.core.handle_deadline(due - 0.01)
    assert bench.core.poll_effects() == []
    assert bench.advance() == [Request(BERT, 0)]
    assert bench.core.next_deadline() == 10.0 + limits.BLOB_IDLE_S, "two are asked, no third"


def test_who_is_busy_takes_nothing_over_until_it_has_rested() -> None:
    bench = waits_for_anna((0.1, 0.1, 0.1))
    assert bench.advance() == [Request(BERT, 0)]
    assert bench.feed(events.ChunkRefused(BERT, 0, "busy")) == []
    rested_at = bench.core.next_deadline()
    assert rested_at is not None
    assert bench.now + BLOB_BUSY_PAUSE_S <= rested_at < bench.now + 2 * BLOB_BUSY_PAUSE_S
    bench.core.handle_deadline(rested_at - 0.01)
    assert bench.core.poll_effects() == []
    assert bench.advance() == [Request(BERT, 0)]
    assert bench.now == rested_at
    assert bench.core.statistics().takeovers_total == 2


def test_one_holder_takes_over_a_few_late_chunks_at_once_and_no_more() -> None:
    n_chunks = 4
    core = FetchCore(BlobManifest(n_chunks, 1, TREE.root), random.Random(1))
    for number, peer in enumerate((ANNA, CLEO, DORA)):
        core.handle(events.HolderFound(peer, bitmap_of({number}, n_chunks)), 10.0 + number)
    core.handle(events.HolderFound(BERT, bitmap_of({0, 1, 2}, n_chunks)), 13.0)
    core.handle(events.HolderFound(PeerId(b"e" * 32), bitmap_of({3}, n_chunks)), 13.0)
    core.poll_effects()
    core.handle_deadline(12.5 + BLOB_TAKEOVER_S_MIN)
    effects = core.poll_effects()
    assert effects == [Request(BERT, 0), Request(BERT, 1)], "the oldest first"
    assert len(effects) == limits.BLOB_REQUESTS_PER_HOLDER_MIN
    assert core.statistics().takeovers_total == len(effects)
    assert core.statistics().requests_total == n_chunks + len(effects)


def test_what_is_taken_over_is_paid_for() -> None:
    bucket = TokenBucket(1.0, 100.0)
    bench = Bench(stored=frozenset({1, 2, 3}), bucket=bucket)
    assert bench.feed(events.HolderFound(ANNA, ALL)) == [Request(ANNA, 0)]
    assert bench.feed(events.HolderFound(BERT, ALL)) == []
    bucket.spend(50, bench.now)
    assert bench.advance() == [Request(BERT, 0)]
    assert bench.now == 10.0 + BLOB_TAKEOVER_S_MIN
    assert bucket.has(100 - 1 - 50 + 2 - 1, bench.now)
    assert not bucket.has(100 - 1 - 50 + 2, bench.now)


def test_while_anything_is_missing_nothing_is_taken_over() -> None:
    bench = Bench()
    bench.feed(events.HolderFound(ANNA, bitmap_of({0}, N_CHUNKS)))
    assert bench.feed(events.HolderFound(BERT, bitmap_of({0}, N_CHUNKS))) == []
    assert bench.core.next_deadline() == 10.0 + limits.BLOB_IDLE_S


def test_a_late_chunk_that_two_are_asked_for_is_asked_of_no_third() -> None:
    bench = Bench(stored=frozenset({1, 2, 3}))
    for peer in (ANNA, BERT, CLEO):
        bench.feed(events.HolderFound(peer, ALL))
    assert bench.advance() == [Request(BERT, 0)]
    assert bench.core.next_deadline() == 10.0 + limits.BLOB_IDLE_S
    assert bench.arrive(BERT, 0) == [Cancel(ANNA, 0), Store(BERT, 0)]
    bench.feed(events.ChunkStored(0))
    assert bench.arrive(ANNA, 0) == []
    statistics = bench.core.statistics()
    assert (statistics.bytes_received_total, statistics.bytes_wasted_total) == (1, 1)


def is_held_back(bench: Bench) -> bool:
    return bench.core.is_held_back


def test_a_bandwidth_limit_holds_back_what_it_cannot_pay_for() -> None:
    bench = Bench(bucket=TokenBucket(1.0, 1.0))
    first = asked(bench.feed(events.HolderFound(ANNA, ALL)), ANNA)
    assert len(first) == 2, "one overdraws it"
    assert not is_held_back(bench)
    assert bench.core.next_deadline() == 10.0 + limits.BLOB_IDLE_S
    bench.arrive(ANNA, first[0])
    assert not is_held_back(bench), "another one is under way"
    bench.arrive(ANNA, first[1])
    assert is_held_back(bench)
    due = bench.core.next_deadline()
    assert due == pytest.approx(11.0, abs=1e-4)
    bench.now = 10.5
    assert bench.feed(events.HolderFound(BERT, ALL)) == []
    assert bench.core.next_deadline() == due
    [request] = bench.advance()
    assert isinstance(request, Request)
    assert not is_held_back(bench)
    due = bench.core.next_deadline()
    assert due == pytest.approx(12.0, abs=1e-4)
    bench.advance()
    assert bench.core.statistics().requests_total == N_CHUNKS
    assert bench.core.next_deadline() == pytest.approx(11.0 + limits.BLOB_IDLE_S, abs=1e-4)


def test_bandwidth_that_no_holder_has_room_for_sets_no_deadline() -> None:
    bench = Bench(bucket=TokenBucket(1.0, 0.0))
    assert len(asked(bench.feed(events.HolderFound(ANNA, ALL)), ANNA)) == 1
    assert len(asked(bench.advance(), ANNA)) == 1
    assert bench.core.next_deadline() == 10.0 + limits.BLOB_IDLE_S


def test_bandwidth_is_there_at_the_very_moment_that_it_was_told_for() -> None:
    bench = Bench(bucket=TokenBucket(1.0, 0.0))
    assert len(asked(bench.feed(events.HolderFound(ANNA, ALL)), ANNA)) == 1
    due = bench.core.next_deadline() or 0.0
    assert due == pytest.approx(11.0, abs=1e-4)
    bench.now = due
    assert len(asked(bench.feed(events.Heard(ANNA)), ANNA)) == 1


def test_what_comes_of_a_chunk_is_no_silence() -> None:
    bench = Bench()
    bench.feed(events.HolderFound(ANNA, ALL))
    bench.now = 15.0
    assert bench.feed(events.Heard(ANNA)) == []
    assert bench.feed(events.Heard(BERT)) == [], "a stranger"
    assert bench.core.next_deadline() == 15.0 + limits.BLOB_IDLE_S
    bench.core.handle_deadline(15.0 + limits.BLOB_IDLE_S - 0.01)
    assert bench.core.statistics().holders == 1
    bench.advance()
    assert bench.core.statistics().holders == 0
    assert bench.core.statistics().dropped_total == 1


def test_silence_is_counted_from_when_a_holder_begins_to_owe() -> None:
    bench = Bench(stored=frozenset({1, 2, 3}))
    bench.feed(events.HolderFound(ANNA, bitmap_of({1}, N_CHUNKS)))
    assert bench.core.next_deadline() is None, "it owes nothing"
    bench.now = 50.0
    assert bench.feed(events.HolderFound(ANNA, ALL)) == [Request(ANNA, 0)]
    assert bench.core.next_deadline() == 50.0 + limits.BLOB_IDLE_S


def test_every_chunk_is_counted_where_it_is() -> None:
    bench = Bench(stored=frozenset({0}))
    [one, two] = asked(bench.feed(events.HolderFound(ANNA, ALL)), ANNA)
    assert bench.core.statistics().stored == 1
    [three] = asked(bench.arrive(ANNA, one), ANNA)
    bench.arrive(ANNA, two)
    bench.feed(events.ChunkStored(one))
    assert {0, one, two, three} == set(range(N_CHUNKS))
    assert bench.core.statistics() == FetchStatistics(
        n_chunks=N_CHUNKS,
        stored=2,
        asked=1,
        arrived=1,
        holders=1,
        requests_total=3,
        bytes_received_total=2,
        bytes_wasted_total=0,
        takeovers_total=0,
        dropped_total=0,
    )


def test_a_holder_is_asked_for_what_it_sends_in_the_time_ahead() -> None:
    """Of a fast one more is under way, so that its line is never idle."""
    holder = Holder(ANNA, bytearray(ALL))
    assert holder.room(1000, 0.0) == limits.BLOB_REQUESTS_PER_HOLDER_MIN
    holder.rate_bytes_per_s = 2500 / limits.BLOB_AHEAD_S
    assert holder.room(1000, 0.0) == 3
    assert holder.room(5000, 0.0) == limits.BLOB_REQUESTS_PER_HOLDER_MIN
    assert holder.room(100, 0.0) == limits.BLOB_REQUESTS_PER_HOLDER_MAX
    holder.ask(0, 0.0)
    assert holder.room(1000, 0.0) == 2


def test_the_first_chunk_says_how_fast_a_holder_is_and_later_ones_correct_it() -> None:
    holder = Holder(ANNA, bytearray(ALL))
    holder.ask(0, 0.0)
    holder.ask(1, 0.0)
    assert holder.deliver(0, 1000, 2.0) == 2.0
    assert holder.rate_bytes_per_s == 500.0
    assert holder.deliver(1, 1000, 3.0) == 3.0
    assert 500.0 < holder.rate_bytes_per_s < 1000.0


def test_a_holder_is_asked_for_more_when_what_it_sends_in_the_time_ahead_is_a_chunk_more() -> None:
    holder = Holder(ANNA, bytearray(ALL))
    for rate, room in ((1999.0, 2), (2000.0, 3), (2999.0, 3), (3000.0, 4), (9000.0, 4)):
        holder.rate_bytes_per_s = rate / limits.BLOB_AHEAD_S
        assert holder.room(1000, 0.0) == room
    holder.resting_until = 5.0
    assert holder.room(1000, 4.9) == 0
    assert holder.room(1000, 5.0) == limits.BLOB_REQUESTS_PER_HOLDER_MAX


def test_the_speed_of_a_holder_follows_a_change_within_ten_chunks() -> None:
    holder = Holder(ANNA, bytearray(ALL))
    now = 100.0
    for index in range(11):
        holder.ask(index, now)
        now += 10.0
        assert holder.idle_at == now - 10.0 + limits.BLOB_IDLE_S
        assert holder.deliver(index, 1000 if index else 2000, now) == 10.0
        assert holder.rate_bytes_per_s > 100.0
    assert holder.rate_bytes_per_s == pytest.approx(100.0, rel=0.05)
    assert holder.bytes_received == 12_000


def test_chunks_of_one_holder_queue_behind_each_other() -> None:
    holder = Holder(ANNA, bytearray(ALL))
    holder.ask(0, 0.0)
    holder.ask(1, 1.0)
    assert holder.deliver(0, 1000, 2.0) == 2.0
    assert holder.rate_bytes_per_s == 500.0, "since it began to owe"
    assert holder.idle_at == 2.0 + limits.BLOB_IDLE_S
    assert holder.deliver(1, 1000, 4.0) == 3.0
    assert holder.rate_bytes_per_s == pytest.approx(500.0), "since the last one"
    holder.ask(2, 50.0)
    assert holder.deliver(2, 1000, 52.0) == 2.0
    assert holder.rate_bytes_per_s == pytest.approx(500.0), "while it owes nothing it is not slow"


def test_a_chunk_that_comes_at_once_is_measured_as_well() -> None:
    holder = Holder(ANNA, bytearray(ALL))
    holder.ask(0, 10.0)
    assert holder.deliver(0, 1000, 10.01) == pytest.approx(0.01)
    assert holder.rate_bytes_per_s == pytest.approx(100_000)
    holder.ask(1, 10.01)
    assert holder.deliver(1, 1000, 10.01) == 0.0
    assert holder.rate_bytes_per_s > 100_000


def test_of_two_holders_with_room_the_one_that_owes_less_is_asked_first() -> None:
    bench = Bench()
    for peer, index in ((ANNA, 0), (CLEO, 1)):
        assert asked(bench.feed(events.HolderFound(peer, bitmap_of({index}, N_CHUNKS))), peer)
    for peer, has in ((ANNA, {0, 1}), (BERT, {1})):
        assert bench.feed(events.HolderFound(peer, bitmap_of(has, N_CHUNKS))) == []
    assert bench.feed(events.HolderLost(CLEO)) == [Request(BERT, 1)]


def test_memory_is_bounded_by_what_waits_for_the_disk() -> None:
    n_chunks = 3 * limits.BLOB_REQUESTS_MAX
    leaves = [leaf_hash(b"%d" % n) for n in range(n_chunks)]
    tree = MerkleTree(leaves)
    core = FetchCore(BlobManifest(n_chunks, 1, tree.root), random.Random(1))
    for number in range(20):
        peer = PeerId(bytes([number]) * 32)
        core.handle(events.HolderFound(peer, b"\xff" * n_chunks), 0.0)
    requests = [effect for effect in core.poll_effects() if isinstance(effect, Request)]
    assert len(requests) == limits.BLOB_REQUESTS_MAX
    for request in requests:
        arrived = events.ChunkArrived(
            request.peer, request.index, leaves[request.index], 1, tree.proof(request.index)
        )
        core.handle(arrived, 1.0)
    assert {type(effect) for effect in core.poll_effects()} == {Store}
    core.handle(events.ChunkStored(requests[0].index), 1.0)
    assert [type(effect) for effect in core.poll_effects()] == [Request]


def test_the_number_of_holders_is_bounded() -> None:
    core = FetchCore(MANIFEST, random.Random(1))
    for number in range(limits.BLOB_HOLDERS_MAX + 5):
        core.handle(events.HolderFound(PeerId(bytes([number]) * 32), b""), 0.0)
        assert core.statistics().holders == min(number + 1, limits.BLOB_HOLDERS_MAX)
    core.handle(events.HolderFound(PeerId(bytes(32)), ALL), 0.0)
    assert len(core.poll_effects()) == limits.BLOB_REQUESTS_PER_HOLDER_MIN, "it is known"


def test_stored_without_an_order_is_a_bug() -> None:
    with pytest.raises(LocalProtocolError, match="chunk 2, which was not to be stored"):
        Bench().feed(events.ChunkStored(2))


@pytest.mark.parametrize("index", range(24))
def test_each_chunk_has_a_bit_of_its_own(index: int) -> None:
    bitmap = bitmap_of({index}, 24)
    assert len(bitmap) == 3
    assert [n for n in range(32) if has_bit(bitmap, n)] == [index]
    assert [n for n in range(32) if has_bit(bitmap_of({index, 5}, 24), n)] == sorted({5, index})


@pytest.mark.parametrize(("n_chunks", "n_bytes"), [(1, 1), (7, 1), (8, 1), (9, 2), (16, 2)])
def test_a_bitmap_has_no_byte_more_than_it_needs(n_chunks: int, n_bytes: int) -> None:
    assert len(bitmap_of(range(n_chunks), n_chunks)) == n_bytes


def test_bits_beyond_a_bitmap_are_not_set() -> None:
    assert bitmap_of({0, 9}, 10) == b"\x01\x02"
    assert has_bit(b"\x01\x02", 9)
    assert not has_bit(b"\x01", 9)


def test_a_bucket_keeps_its_rate_and_pays_its_debts() -> None:
    bucket = TokenBucket(100.0)
    assert bucket.try_take(150, 0.0)
    assert not bucket.try_take(1, 0.4)
    assert 0.5 <= bucket.free_at() < 0.51
    assert bucket.try_take(1, bucket.free_at())
    bucket.spend(100, 0.6)
    assert not bucket.try_take(1, 1.0)
    assert bucket.try_take(1, 1000.0)
    assert bucket.try_take(98, 1000.0)
    assert bucket.try_take(10, 1000.0)
    assert not bucket.try_take(1, 1000.0), "an hour's silence saves up one burst, not more"
