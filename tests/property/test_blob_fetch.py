"""Fetches over generated swarms: whatever holders do, what is written is right, and once."""

from __future__ import annotations

import hashlib

from hypothesis import given, settings
from hypothesis import strategies as st

from swarmnode import limits
from swarmnode.protocol.blobs.merkle import MerkleTree, leaf_hash, proof_length, root_from
from tests.property.models.blob_model import CHUNK_BYTES, FetchModel, Peer, peer_id


@st.composite
def swarms(draw: st.DrawFn) -> tuple[int, list[Peer]]:
    """Return a number of chunks, and holders that together have them all."""
    n_chunks = draw(st.integers(1, 40))
    n_peers = draw(st.integers(1, 6))
    has: list[set[int]] = [set() for _ in range(n_peers)]
    for index in range(n_chunks):
        for number in draw(st.sets(st.integers(0, n_peers - 1), min_size=1)):
            has[number].add(index)
    rates = draw(st.lists(st.floats(0.5, 200.0), min_size=n_peers, max_size=n_peers))
    return n_chunks, [Peer(n, has[n], rate) for n, rate in enumerate(rates)]


@given(swarm=swarms(), seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_any_holders_with_all_chunks_complete_the_blob(
    swarm: tuple[int, list[Peer]], seed: int
) -> None:
    model = FetchModel(*swarm, seed)
    model.begin()
    model.run()
    model.check_whole()
    assert [drop for drop in model.drops if drop.lied] == []


@given(swarm=swarms(), seed=st.integers(0, 2**32), data=st.data())
@settings(max_examples=60, deadline=None)
def test_liars_and_mutes_are_dropped_and_named_and_one_honest_holder_is_enough(
    swarm: tuple[int, list[Peer]], seed: int, data: st.DataObject
) -> None:
    n_chunks, peers = swarm
    for peer in peers:
        peer.lies_about = data.draw(st.sets(st.integers(0, n_chunks - 1), max_size=5))
        peer.is_silent = data.draw(st.booleans())
        peer.busy_share = data.draw(st.sampled_from([0.0, 0.5]))
    honest = Peer(99, set(range(n_chunks)), rate=20.0)
    model = FetchModel(n_chunks, [*peers, honest], seed)
    model.begin()
    model.run()
    model.check_whole()
    liars = {peer_id(peer.number) for peer in peers if peer.sent.keys() & peer.lies_about}
    named = {drop.peer for drop in model.drops if drop.lied}
    assert named <= liars
    assert peer_id(99) not in {drop.peer for drop in model.drops}


@given(swarm=swarms(), seed=st.integers(0, 2**32), data=st.data())
@settings(max_examples=60, deadline=None)
def test_what_is_on_disk_is_not_fetched_again(
    swarm: tuple[int, list[Peer]], seed: int, data: st.DataObject
) -> None:
    n_chunks, peers = swarm
    stored = frozenset(data.draw(st.sets(st.integers(0, n_chunks - 1))))
    model = FetchModel(n_chunks, peers, seed, stored=stored)
    model.begin()
    model.run()
    model.check_whole()
    assert not model.asked.keys() & stored


@given(
    n_chunks=st.integers(10, 60),
    seed=st.integers(0, 2**32),
    dies_after=st.floats(0.0, 1.0),
)
@settings(max_examples=60, deadline=None)
def test_killing_a_holder_midway_costs_no_chunk_twice(
    n_chunks: int, seed: int, dies_after: float
) -> None:
    peers = [Peer(n, set(range(n_chunks)), rate=20.0) for n in range(3)]
    model = FetchModel(n_chunks, peers, seed)
    model.begin()
    model.at(model.now + dies_after, lambda: model.lose(peers[0]))
    model.run()
    model.check_whole()
    received = sum((peer.sent for peer in peers[1:]), peers[0].sent)
    assert set(received.values()) == {1}, "each chunk came exactly once"


def test_all_holders_share_the_work_by_their_speed() -> None:
    peers = [Peer(n, set(range(300)), rate) for n, rate in enumerate([40.0, 20.0, 10.0])]
    model = FetchModel(300, peers, seed=1)
    started = model.now
    model.begin()
    model.run()
    model.check_whole()
    assert model.completed_at is not None
    assert model.completed_at - started < 1.15 * 300 / 70
    assert model.core.statistics().takeovers_total == 0


def test_the_rarest_chunks_are_fetched_first() -> None:
    rare = {3, 17, 29}
    common = [Peer(n, set(range(40)) - rare, rate=30.0) for n in range(3)]
    keeper = Peer(9, set(range(40)), rate=30.0)
    model = FetchModel(40, [*common, keeper], seed=2)
    model.begin()
    model.run()
    model.check_whole()
    assert set(list(keeper.sent)[:3]) == rare


def test_a_slow_holder_does_not_hold_up_the_end() -> None:
    peers = [Peer(0, set(range(50)), rate=0.02), Peer(1, set(range(50)), rate=50.0)]
    model = FetchModel(50, peers, seed=3)
    started = model.now
    model.begin()
    model.run()
    model.check_whole()
    assert model.completed_at is not None
    assert model.completed_at - started < limits.BLOB_IDLE_S
    assert model.core.statistics().takeovers_total == limits.BLOB_REQUESTS_PER_HOLDER_MIN


def test_a_bandwidth_limit_is_kept_over_any_window() -> None:
    peers = [Peer(n, set(range(200)), rate=1000.0) for n in range(3)]
    rate = 20.0 * CHUNK_BYTES
    model = FetchModel(200, peers, seed=4, rate_bytes_per_s=rate)
    model.begin()
    model.run()
    model.check_whole()
    moved = model.bytes_moved
    for start, (began, _) in enumerate(moved):
        for window_s in (1.0, 5.0):
            inside = sum(n for at, n in moved[start:] if at < began + window_s)
            assert inside <= rate * (window_s + limits.BLOB_BURST_S) + CHUNK_BYTES
    assert model.now - 100.0 > 0.9 * (200 / 20 - limits.BLOB_BURST_S)


def test_a_holder_that_comes_later_ends_starvation() -> None:
    model = FetchModel(10, [Peer(0, set(range(5))), Peer(1, set(range(10)))], seed=5)
    model.found(model.peers[peer_id(0)])
    model.run(60.0)
    assert model.completed_at is None
    model.found(model.peers[peer_id(1)])
    model.run()
    model.check_whole()


@given(n_leaves=st.integers(1, 200), data=st.data())
@settings(max_examples=200, deadline=None)
def test_a_proof_leads_to_the_root_from_its_own_leaf_only(
    n_leaves: int, data: st.DataObject
) -> None:
    leaves = [leaf_hash(b"%d" % n) for n in range(n_leaves)]
    tree = MerkleTree(leaves)
    index = data.draw(st.integers(0, n_leaves - 1))
    proof = tree.proof(index)
    assert len(proof) == proof_length(index, n_leaves)
    assert root_from(leaves[index], index, n_leaves, proof) == tree.root
    other = data.draw(st.integers(0, n_leaves - 1))
    if other != index:
        assert root_from(leaves[other], index, n_leaves, proof) != tree.root
        assert root_from(leaves[index], other, n_leaves, proof) != tree.root
    if proof:
        assert root_from(leaves[index], index, n_leaves, proof[:-1]) is None
        place = data.draw(st.integers(0, len(proof) - 1))
        wrong = (*proof[:place], hashlib.sha256(proof[place]).digest(), *proof[place + 1 :])
        assert root_from(leaves[index], index, n_leaves, wrong) != tree.root
