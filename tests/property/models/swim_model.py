"""A seeded network of failure detectors, with virtual time, pauses, cuts and crashes.

Every node's core sees only its own clock and its own messages; the model keeps the truth
beside them and counts what the detectors got wrong.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from swarmnode.errors import AuthenticationFailed
from swarmnode.ids import PeerId
from swarmnode.protocol.membership import swim_events as events
from swarmnode.protocol.membership.claims import claim_body
from swarmnode.protocol.membership.swim import SwimCore
from swarmnode.wire.swim import Claim, Message


@dataclass(frozen=True)
class ToyNotary:
    """Signatures that any node could forge and none here does: 50 times faster."""

    public_key: bytes

    def sign(self, epoch: int, incarnation: int, left: str | None) -> bytes:
        return hashlib.sha512(self.public_key + claim_body(epoch, incarnation, left)).digest()

    def check(self, claim: Claim) -> None:
        notary = ToyNotary(claim.key)
        if claim.signature != notary.sign(claim.epoch, claim.incarnation, claim.left):
            raise AuthenticationFailed("forged claim")


@dataclass
class Node:
    """One daemon: its core, and what the operating system does to it."""

    number: int
    peer: PeerId
    core: SwimCore
    epoch: int = 1
    is_up: bool = True
    is_paused: bool = False
    armed: float = float("inf")
    inbox: deque[tuple[PeerId, Message]] = field(default_factory=deque)
    versions: dict[PeerId, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Death:
    """``by`` declared ``of`` dead at ``at``; ``truth`` is what ``of`` was doing then."""

    at: float
    by: int
    of: int
    truth: str  # "down", "cut", "paused" or "fine"


class SwimNetwork:
    """Nodes, a heap of what is to happen, and a record of what happened."""

    def __init__(self, n_nodes: int, seed: int, *, loss: float = 0.0) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.loss = loss
        self.now = 0.0
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.side: dict[PeerId, int] = {}
        self.deaths: list[Death] = []
        self.changes: list[tuple[float, int, events.Changed]] = []
        self.messages_sent = 0
        self.claims_sent = 0
        self.steps = 0
        self.nodes = [self._new_node(number) for number in range(n_nodes)]
        self.by_peer = {node.peer: node for node in self.nodes}
        for node in self.nodes[1:]:
            self.at(self.rng.uniform(0.0, 2.0), partial(self.join, node))

    def _new_node(self, number: int) -> Node:
        key = hashlib.sha256(b"key %d" % number).digest()
        core = SwimCore(ToyNotary(key), 1, random.Random(f"{self.seed}/{number}/1"))
        return Node(number, PeerId.from_public_key(key), core)

    # --- time ----------------------------------------------------------------------------

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.heap, (when, next(self.order), what))

    def run(self, seconds: float, steps_max: int = 3_000_000) -> None:
        until = self.now + seconds
        for _ in range(steps_max):
            if not self.heap or self.heap[0][0] > until:
                self.now = until
                return
            self.now, _, what = heapq.heappop(self.heap)
            self.steps += 1
            what()
        raise AssertionError(f"seed {self.seed}: no end after {steps_max} steps")

    def run_until(self, is_done: Callable[[], bool], limit_s: float) -> float:
        """Run until something holds, looked at twice a second; return how long it took."""
        started = self.now
        while not is_done():
            assert self.now - started < limit_s, f"seed {self.seed}: not within {limit_s} s"
            self.run(0.5)
        return self.now - started

    # --- faults --------------------------------------------------------------------------

    def join(self, node: Node) -> None:
        """Contact the first node that is up, as a link would say."""
        seed = next(other for other in self.nodes if other.is_up and other is not node)
        self.feed(node, events.Contact(seed.peer))
        # The answer may be lost: ask again until a member is known.
        self.at(self.now + 5.0, lambda: self.join(node) if not node.core.live_members() else None)

    def crash(self, node: Node) -> None:
        node.is_up = False
        node.inbox.clear()

    def restart(self, node: Node) -> None:
        """Come back with the next boot epoch and no memory."""
        node.is_up, node.is_paused = True, False
        node.epoch += 1
        notary = ToyNotary(hashlib.sha256(b"key %d" % node.number).digest())
        rng = random.Random(f"{self.seed}/{node.number}/{node.epoch}")
        node.core = SwimCore(notary, node.epoch, rng)
        node.versions.clear()
        node.armed = float("inf")
        self.join(node)

    def pause(self, node: Node, seconds: float) -> None:
        """Stop the world of one node; what arrives meanwhile waits in its sockets."""
        if node.is_paused or not node.is_up:
            return
        node.is_paused = True

        def resume() -> None:
            node.is_paused = False
            for peer, message in itertools.islice(iter_popleft(node.inbox), 10_000):
                self.feed(node, events.Received(peer, message))
            self.wake(node, node.armed)

        self.at(self.now + seconds, resume)

    def cut(self, sides: dict[PeerId, int]) -> None:
        """Let messages pass within a side only; an empty dict heals."""
        self.side = sides

    # --- a node's shell ------------------------------------------------------------------

    def feed(self, node: Node, event: events.Event) -> None:
        if node.is_up:
            node.core.handle(event, self.now)
            self.carry_out(node)

    def carry_out(self, node: Node) -> None:
        for effect in node.core.poll_effects():
            match effect:
                case events.Send(peer, message):
                    self.send(node, peer, message)
                case events.Changed():
                    self.note(node, effect)
                case events.KeyConflict():
                    raise AssertionError(f"seed {self.seed}: node {node.number} is twice here")
        due = node.core.next_deadline()
        if due is not None and due < node.armed:
            node.armed = due
            self.at(due, lambda: self.wake(node, due))

    def wake(self, node: Node, armed: float) -> None:
        """Act on the alarm that is set; one that was set before means nothing any more."""
        if armed != node.armed or not node.is_up or node.is_paused:
            return
        node.armed = float("inf")
        due = node.core.next_deadline()
        if due is not None and due <= self.now:
            node.core.handle_deadline(self.now)
        self.carry_out(node)

    def note(self, node: Node, change: events.Changed) -> None:
        self.changes.append((self.now, node.number, change))
        version = node.core.version_of(change.peer)
        assert version is not None
        assert version >= node.versions.get(change.peer, (0, 0)), "a version fell"
        node.versions[change.peer] = version
        if change.state is events.MemberState.DEAD:
            other = self.by_peer[change.peer]
            self.deaths.append(Death(self.now, node.number, other.number, self.truth(node, other)))

    def truth(self, node: Node, other: Node) -> str:
        if not other.is_up:
            return "down"
        if self.side.get(node.peer) != self.side.get(other.peer):
            return "cut"
        return "paused" if other.is_paused else "fine"

    # --- the network ---------------------------------------------------------------------

    def send(self, node: Node, peer: PeerId, message: Message) -> None:
        self.messages_sent += 1
        self.claims_sent += len(getattr(message, "news", ()) or getattr(message, "claims", ()))
        if self.rng.random() < self.loss or self.side.get(node.peer) != self.side.get(peer):
            return
        delay = 0.02 + self.rng.expovariate(1 / 0.06)  # 80 ms one way, one in 10,000 over 0.57 s
        self.at(self.now + delay, lambda: self.deliver(node.peer, peer, message))

    def deliver(self, source: PeerId, target: PeerId, message: Message) -> None:
        node = self.by_peer[target]
        if node.is_paused:
            node.inbox.append((source, message))
        elif node.is_up:
            node.core.handle(events.Received(source, message), self.now)
            self.carry_out(node)

    # --- what is checked -----------------------------------------------------------------

    def up(self) -> list[Node]:
        return [node for node in self.nodes if node.is_up]

    def agree(self) -> bool:
        """Whether every node that is up holds exactly the others that are up, as alive."""
        everybody = {node.peer for node in self.up()}
        return all(
            set(node.core.live_members()) == everybody - {node.peer}
            and node.core.statistics().suspect == 0
            for node in self.up()
        )

    def probes(self) -> int:
        return sum(node.core.statistics().probes_total for node in self.nodes)

    def deaths_of(self, *truths: str) -> list[Death]:
        return [death for death in self.deaths if death.truth in truths]

    def digest(self) -> str:
        """Return a hash of all that happened."""
        return hashlib.sha256(repr((self.changes, self.messages_sent)).encode()).hexdigest()


def iter_popleft(inbox: deque[tuple[PeerId, Message]]) -> Iterator[tuple[PeerId, Message]]:
    while inbox:
        yield inbox.popleft()
