"""Each rule of a fetch, by hand."""

from __future__ import annotations

import random

import pytest

from swarmnode import limits
from swarmnode.errors import LocalProtocolError
from swarmnode.ids import PeerId
from swarmnode.protocol.blobs import events
from swarmnode.protocol.blobs.bucket import TokenBucket
from swarmnode.protocol.blobs.events import Cancel, Completed, Drop, Request, Store
from swarmnode.protocol.blobs.fetch import BLOB_BUSY_PAUSE_S, BLOB_TAKEOVER_S_MIN, FetchCore
from swarmnode.protocol.blobs.holders import Holder, bitmap_of, has_bit
from swarmnode.protocol.blobs.merkle import MerkleTree, leaf_hash
from swarmnode.wire.blobs import BlobManifest

N_CHUNKS = 4
LEAVES = [leaf_hash(b"%d" % n) for n in range(N_CHUNKS)]
TREE = MerkleTree(LEAVES)
MANIFEST = BlobManifest(N_CHUNKS, 1, TREE.root)
ALL = bitmap_of(range(N_CHUNKS), N_CHUNKS)
ANNA, BERT, CLEO = (PeerId(bytes([number]) * 32) for number in (1, 2, 3))


class Bench:
    """A fetch of four chunks of one byte."""

    def __init__(self) -> None:
        self.core = FetchCore(MANIFEST, random.Random(1))
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
        core.handle(events.HolderFound(PeerId(bytes([number]) * 32), ALL), 0.0)
    assert core.statistics().holders == limits.BLOB_HOLDERS_MAX


def test_stored_without_an_order_is_a_bug() -> None:
    with pytest.raises(LocalProtocolError, match="chunk 2, which was not to be stored"):
        Bench().feed(events.ChunkStored(2))


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
