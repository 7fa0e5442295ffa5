"""A seeded network of holders and one fetch: rates, refusals, lies, silence, deaths."""

from __future__ import annotations

import hashlib
import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from swarmnode.ids import PeerId
from swarmnode.protocol.blobs import events
from swarmnode.protocol.blobs.bucket import TokenBucket
from swarmnode.protocol.blobs.fetch import FetchCore
from swarmnode.protocol.blobs.holders import bitmap_of
from swarmnode.protocol.blobs.merkle import MerkleTree, leaf_hash
from swarmnode.wire.blobs import BlobManifest

CHUNK_BYTES = 1000


def peer_id(number: int) -> PeerId:
    return PeerId(hashlib.sha256(b"holder %d" % number).digest())


@dataclass
class Peer:
    """A holder. ``rate`` in chunks a second; chunks of one peer come one after the other."""

    number: int
    has: set[int]
    rate: float = 50.0
    lies_about: set[int] = field(default_factory=set)
    absent: set[int] = field(default_factory=set)  # said to be there, and gone
    busy_share: float = 0.0
    is_silent: bool = False
    is_dead: bool = False
    free_at: float = 0.0
    cancelled: set[int] = field(default_factory=set)
    sent: Counter[int] = field(default_factory=Counter)


class FetchModel:
    """One fetch over a heap of what is to happen."""

    def __init__(
        self,
        n_chunks: int,
        peers: list[Peer],
        seed: int,
        *,
        stored: frozenset[int] = frozenset(),
        rate_bytes_per_s: float | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.chunks = [self.rng.randbytes(CHUNK_BYTES) for _ in range(n_chunks)]
        self.chunks[-1] = self.chunks[-1][: self.rng.randrange(1, CHUNK_BYTES + 1)]
        self.tree = MerkleTree([leaf_hash(chunk) for chunk in self.chunks])
        size_bytes = sum(map(len, self.chunks))
        self.manifest = BlobManifest(size_bytes, CHUNK_BYTES, self.tree.root)
        bucket = TokenBucket(rate_bytes_per_s) if rate_bytes_per_s is not None else None
        self.core = FetchCore(self.manifest, random.Random(seed), stored=stored, bucket=bucket)
        self.peers = {peer_id(peer.number): peer for peer in peers}
        self.disk = {index: self.chunks[index] for index in stored}
        self.now = 100.0
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.asked: Counter[int] = Counter()
        self.writes: Counter[int] = Counter()
        self.drops: list[events.Drop] = []
        self.completed_at: float | None = None
        self.bytes_moved: list[tuple[float, int]] = []
        self.carry_out()

    def begin(self) -> None:
        for peer in self.peers.values():
            self.found(peer)

    def found(self, peer: Peer) -> None:
        have = bitmap_of(peer.has | peer.absent, len(self.chunks))
        self.feed(events.HolderFound(peer_id(peer.number), have))

    def lose(self, peer: Peer) -> None:
        peer.is_dead = True
        self.feed(events.HolderLost(peer_id(peer.number)))

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.heap, (when, next(self.order), what))

    def run(self, seconds: float = 600.0, steps_max: int = 100_000) -> None:
        """Go on until the fetch completes or nothing more happens."""
        until = self.now + seconds
        for _ in range(steps_max):
            due = self.core.next_deadline()
            arrival = self.heap[0][0] if self.heap else float("inf")
            when = min(arrival, float("inf") if due is None else due)
            if when > until or self.completed_at is not None:
                self.now = min(until, self.now if self.completed_at is not None else until)
                return
            self.now = max(self.now, when)
            if arrival == when:
                heapq.heappop(self.heap)[2]()
            else:
                self.core.handle_deadline(self.now)
                self.carry_out()
        raise AssertionError("a fetch without end")

    def feed(self, event: events.Event) -> None:
        self.core.handle(event, self.now)
        self.carry_out()

    def carry_out(self) -> None:
        for effect in self.core.poll_effects():
            match effect:
                case events.Request(peer, index):
                    self.request(self.peers[peer], index)
                case events.Cancel(peer, index):
                    self.peers[peer].cancelled.add(index)
                case events.Store(peer, index):
                    self.store(self.peers[peer], index)
                case events.Drop():
                    self.drops.append(effect)
                case events.Completed():
                    assert self.completed_at is None
                    self.completed_at = self.now

    def request(self, peer: Peer, index: int) -> None:
        dropped = {drop.peer for drop in self.drops}
        assert peer_id(peer.number) not in dropped, "asked again after it was dropped"
        assert index in peer.has | peer.absent
        self.asked[index] += 1
        self.bytes_moved.append((self.now, len(self.chunks[index])))
        if peer.is_dead or peer.is_silent:
            return
        if index in peer.absent or self.rng.random() < peer.busy_share:
            reason = "absent" if index in peer.absent else "busy"
            refused = events.ChunkRefused(peer_id(peer.number), index, reason)  # type: ignore[arg-type]
            self.at(self.now + 0.02, lambda: self.feed(refused))
            return
        peer.free_at = max(peer.free_at, self.now) + 1 / peer.rate
        self.at(peer.free_at + 0.02, lambda: self.arrive(peer, index))

    def arrive(self, peer: Peer, index: int) -> None:
        if peer.is_dead:
            return
        chunk = self.chunks[index]
        if index in peer.lies_about:
            chunk = bytes([chunk[0] ^ 1]) + chunk[1:]
        peer.sent[index] += 1
        who = peer_id(peer.number)
        proof = self.tree.proof(index)
        arrived = events.ChunkArrived(who, index, leaf_hash(chunk), len(chunk), proof)
        self.in_hand = chunk
        self.feed(arrived)

    def store(self, peer: Peer, index: int) -> None:
        """Write what has just arrived; the disk takes a moment."""
        chunk = self.in_hand
        assert chunk == self.chunks[index], "a wrong chunk was to be written"
        self.writes[index] += 1

        def written() -> None:
            self.disk[index] = chunk
            self.feed(events.ChunkStored(index))

        self.at(self.now + 0.001, written)

    def check_whole(self) -> None:
        assert self.completed_at is not None, self.core.statistics()
        assert [self.disk[index] for index in range(len(self.chunks))] == self.chunks
        assert max(self.writes.values(), default=1) == 1, "a chunk was written twice"
