"""Peers that share out the shards of each epoch over the real shared state, in virtual time.

The shared state travels through :class:`tests.kits.crdt_world.World`; every peer is
told of an arrival or a death a while after it happened. The log holds every attempt at a shard.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from swarmnode.daemon.membership.assignment import shard_view
from swarmnode.ids import PeerId
from swarmnode.protocol.shards import events
from swarmnode.protocol.shards.core import ShardCore
from swarmnode.protocol.shards.words import Shard
from tests.kits.crdt_world import Net, ToySigner, World

TICK_S = 0.05
DETECTION_S = 4.0  # from a death to when the others know
_NOWHERE = 99


@dataclass
class Attempt:
    """One peer's training of one shard."""

    peer: PeerId
    shard: Shard
    begun: float
    ended: float | None = None
    is_whole: bool = False

    def overlaps(self, other: Attempt, now: float) -> bool:
        return self.begun < (other.ended or now) and other.begun < (self.ended or now)


@dataclass
class Node:
    """One life of a peer: its core, and a worker that takes ``shard_s`` for a shard."""

    core: ShardCore
    shard_s: float
    queue: deque[Shard] = field(default_factory=deque)
    now_training: Attempt | None = None
    seen: object = None  # what the last view was made of
    idle_s: float = 0.0


class ShardWorld:
    """``n_nodes`` that know of each other and have a worker each."""

    def __init__(
        self,
        n_nodes: int,
        seed: int,
        *,
        n_shards: int = 32,
        shard_s: tuple[float, float] = (2.5, 6.0),
        delay_s: tuple[float, float] = (0.02, 0.6),
    ) -> None:
        self.rng = random.Random(seed)
        self.world = World(n_nodes, seed, net=Net(delay_s=delay_s))
        self.seed, self.n_shards, self.shard_s = seed, n_shards, shard_s
        self.log: list[Attempt] = []
        self.nodes: dict[PeerId, Node] = {}
        self.views: dict[PeerId, frozenset[PeerId]] = {}  # those that each believes alive
        self._news: list[tuple[float, PeerId, bool]] = []
        for peer in self.world.ids:
            self._start(peer)

    @property
    def now(self) -> float:
        return self.world.now

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.world.run(self.now + TICK_S)
            self._spread_news()
            for peer in list(self.nodes):
                self._tick(peer)

    def join(self) -> PeerId:
        """A new peer comes; it trains once it has the shared state, as a real one does."""
        signer = ToySigner.make(100 + len(self.world.states))
        self.world.add(signer)
        self.world.connect_all()
        self.world.run(self.now + 3.0)
        self._start(signer.peer_id)
        self._news.append((self.now, signer.peer_id, True))
        return signer.peer_id

    def kill(self, peer: PeerId) -> Node:
        """The machine is gone; the others notice later."""
        self.world.net.groups[peer] = _NOWHERE
        node = self.nodes.pop(peer)
        if node.now_training is not None:
            node.now_training.ended = self.now
        self._news.append((self.now + DETECTION_S, peer, False))
        return node

    def revive(self, peer: PeerId) -> None:
        """It starts again with its journal, in a new boot epoch."""
        self.world.net.groups.pop(peer)
        self.world.restart(peer, epoch=2)
        self._start(peer)
        self._news.append((self.now, peer, True))

    def split(self, groups: dict[PeerId, int]) -> None:
        """Cut the network; each side takes the other for dead at once."""
        self.world.net.groups.update(groups)
        for peer in self.nodes:
            side = frozenset(p for p in self.nodes if groups[p] == groups[peer])
            self.views[peer] = side

    def heal(self) -> None:
        self.world.net.groups.clear()
        self.views = dict.fromkeys(self.nodes, frozenset(self.nodes))

    def whole(self, epoch: int) -> dict[int, int]:
        """Return shard of an epoch -> how often it was trained to its end."""
        counts = dict.fromkeys(range(self.n_shards), 0)
        for attempt in self.log:
            if attempt.shard.epoch == epoch and attempt.is_whole:
                counts[attempt.shard.index] += 1
        return counts

    def overlaps(self) -> Iterator[tuple[Attempt, Attempt]]:
        """Yield what two live peers trained at the same time."""
        by_shard: dict[Shard, list[Attempt]] = {}
        for attempt in self.log:
            for other in by_shard.setdefault(attempt.shard, []):
                if other.peer != attempt.peer and attempt.overlaps(other, self.now):
                    yield attempt, other
            by_shard[attempt.shard].append(attempt)

    def _start(self, peer: PeerId) -> None:
        self.nodes[peer] = Node(
            ShardCore(peer, self.seed, self.n_shards), self.rng.uniform(*self.shard_s)
        )
        self.views[peer] = frozenset(p for p in self.world.ids if p not in self.world.net.groups)
        self._look(peer)
        self._feed(peer, events.WorkerUp())

    def _spread_news(self) -> None:
        due = [news for news in self._news if news[0] <= self.now]
        self._news = [news for news in self._news if news[0] > self.now]
        for _, peer, is_alive in due:
            for other, members in self.views.items():
                self.views[other] = members | {peer} if is_alive else members - {peer}

    def _tick(self, peer: PeerId) -> None:
        node = self.nodes[peer]
        version = (len(self.world.seen[peer]), self.views[peer], node.core.statistics())
        if version != node.seen:
            node.seen = version
            self._look(peer)
        deadline = node.core.next_deadline()
        if deadline is not None and deadline <= self.now:
            node.core.handle_deadline(self.now)
            self._drain(peer)
        self._train(peer, node)

    def _train(self, peer: PeerId, node: Node) -> None:
        training = node.now_training
        if training is not None and self.now >= training.begun + node.shard_s:
            training.ended, training.is_whole = self.now, True
            node.now_training = None
            node.queue.popleft()
            self._feed(peer, events.Finished(training.shard))
        if node.now_training is None and node.queue:
            node.now_training = Attempt(peer, node.queue[0], self.now)
            self.log.append(node.now_training)
        node.idle_s += TICK_S * (node.now_training is None)

    def _look(self, peer: PeerId) -> None:
        state = self.world.states[peer]
        view = shard_view(state.view, self.views[peer], self.now, self_id=peer)
        self._feed(peer, view)

    def _feed(self, peer: PeerId, event: events.Event) -> None:
        self.nodes[peer].core.handle(event, self.now)
        self._drain(peer)

    def _drain(self, peer: PeerId) -> None:
        node = self.nodes[peer]
        for effect in node.core.poll_effects():
            match effect:
                case events.Say(leases, registers):
                    self.world.update(peer, leases=leases, registers=registers)
                case events.Assign(shard):
                    node.queue.append(shard)
                case events.Withdraw(shard):
                    node.queue.remove(shard)
                    if node.now_training is not None and node.now_training.shard == shard:
                        node.now_training.ended = self.now
                        node.now_training = None
