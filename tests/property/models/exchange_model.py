"""A seeded network of exchange cores, each with a shell that holds exact numbers.

A node's model is two fragments of ``n_chunks`` fractions each; chunk ``i`` carries
element ``i`` of one. A view is taken when a transfer starts, and an exchange adds half
of the difference of the two views, so the sum over all nodes is conserved exactly if
and only if every exchange counts on both sides or on neither. For fragment 0 a node
has intents, for fragment 1 an answer beside them. Time is virtual, every run is bounded.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip import events
from swarmnode.protocol.gossip.conduct import ConductTable
from swarmnode.protocol.gossip.exchange import ExchangeCore
from swarmnode.protocol.gossip.outcomes import Outcome
from swarmnode.protocol.gossip.patience import Patience
from swarmnode.wire.exchange import gossip as wire

KEY = hashlib.sha256(b"strategy and layout").digest()
TRANSFER_LIMIT_S = limits.EXCHANGE_VIEW_S + 30.0
FRAGMENTS = 2
TAG = "model"
ANSWERED = 1  # the fragment that whoever asks gets


@dataclass(frozen=True)
class Faults:
    """What the network does to each message."""

    loss: float = 0.0
    duplication: float = 0.0
    delay_s_min: float = 0.01
    delay_s_max: float = 0.01
    in_order: bool = True  # per direction, as on a stream


@dataclass
class Flow:
    """The shell's side of one transfer."""

    peer: PeerId
    fragment: int
    own: list[Fraction]
    received: dict[int, Fraction] = field(default_factory=dict)
    is_sent: bool = False


@dataclass
class Node:
    """A core, its model, and what its shell remembers."""

    peer_id: PeerId
    core: ExchangeCore
    model: list[list[Fraction]]
    life: int = 0
    number: int = 0
    is_up: bool = True
    intents: dict[int, events.PairIntent] = field(default_factory=dict)  # not used up, by number
    flows: dict[bytes, Flow] = field(default_factory=dict)
    begun: set[int] = field(default_factory=set)  # fragments whose Begin has not ended


CoreFactory = Callable[[PeerId, bytes, random.Random, Patience], ExchangeCore]


class Model:
    """Nodes, a heap of what is to happen, and a record of what happened."""

    def __init__(
        self,
        n_nodes: int,
        seed: int,
        faults: Faults,
        *,
        n_chunks: int = 2,
        make_core: CoreFactory = ExchangeCore,
    ) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.faults = faults
        self.n_chunks = n_chunks
        self.make_core = make_core
        self.now = 0.0
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.last_arrival: dict[tuple[PeerId, PeerId], float] = {}
        self.cut: set[frozenset[PeerId]] = set()
        self.history: list[tuple[PeerId, int, events.Finished]] = []
        self.commits: list[tuple[PeerId, int, bytes]] = []
        self.nodes: dict[PeerId, Node] = {}
        for number in range(n_nodes):
            peer_id = PeerId(hashlib.sha256(b"node %d" % number).digest())
            model = [
                [Fraction(self.rng.randrange(-1000, 1000)) for _ in range(n_chunks)]
                for _ in range(FRAGMENTS)
            ]
            core = make_core(
                peer_id, KEY, random.Random(f"{seed}/{number}/0"), Patience(ConductTable())
            )
            self.nodes[peer_id] = Node(peer_id, core, model)
        self.ids = sorted(self.nodes)
        for node in self.nodes.values():
            self.post_all(node)

    # --- time ----------------------------------------------------------------------------

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.heap, (when, next(self.order), what))

    def run(self, until: float, steps_max: int = 400_000) -> None:
        """Carry out everything up to ``until``; a livelock fails instead of hanging."""
        for _ in range(steps_max):
            due = [
                (deadline, node.peer_id)
                for node in self.nodes.values()
                if node.is_up and (deadline := node.core.next_deadline()) is not None
            ]
            deadline, peer_id = min(due, default=(float("inf"), None))
            arrival = self.heap[0][0] if self.heap else float("inf")
            if min(deadline, arrival) > until:
                self.now = until
                return
            if arrival <= deadline:
                self.now, _, what = heapq.heappop(self.heap)
                what()
            else:
                assert peer_id is not None
                node = self.nodes[peer_id]
                self.now = max(self.now, deadline)
                node.core.handle_deadline(self.now)
                self.carry_out(node)
        raise AssertionError(f"seed {self.seed}: no end after {steps_max} steps")

    def settle(self) -> None:
        """Deliver everything and let every deadline pass."""
        self.cut.clear()
        self.run(self.now + 2000.0)
        assert not self.heap

    # --- faults --------------------------------------------------------------------------

    def crash(self, node: Node) -> None:
        """Lose everything but the model; what is under way to it still arrives."""
        node.is_up = False
        node.life += 1
        node.flows.clear()
        node.intents.clear()
        node.begun.clear()

    def restart(self, node: Node) -> None:
        node.is_up = True
        rng = random.Random(f"{self.seed}/{node.peer_id}/{node.life}")
        node.core = self.make_core(node.peer_id, KEY, rng, Patience(ConductTable()))
        self.post_all(node)

    def lose_session(self, first: PeerId, second: PeerId) -> None:
        """Tell both ends, in either order, that their session is gone."""
        for own, other in self.rng.sample([(first, second), (second, first)], 2):
            self.feed(self.nodes[own], events.PeerLost(other))

    def fail_locally(self, node: Node) -> None:
        """Let the newest transfer of a node fail, whatever has become of it."""
        if node.flows:
            self.feed(node, events.LocalFailed(list(node.flows)[-1], "local: not finite"))

    # --- a node's shell ------------------------------------------------------------------

    def post_all(self, node: Node) -> None:
        """Give a new core an intent for each fragment, and the answer."""
        for fragment in range(FRAGMENTS):
            self.intent(node, fragment)
        self.intent(node, ANSWERED, is_open=True)

    def intent(self, node: Node, fragment: int, *, is_open: bool = False) -> None:
        """Give the core an intent, as the worker does when the one before was used up."""
        node.number += 1
        intent = events.PairIntent(
            number=node.number,
            tag=TAG,
            fragment=fragment,
            round=0,
            n_chunks=self.n_chunks,
            step=0,
            tokens=0,
            is_open=is_open,
        )
        if not is_open:
            node.intents = {
                number: waiting
                for number, waiting in node.intents.items()
                if waiting.is_open or waiting.fragment != fragment
            }
        node.intents[intent.number] = intent
        node.core.handle(events.Available(intent, TRANSFER_LIMIT_S), self.now)

    def begin(self, node: Node, candidates: tuple[PeerId, ...], fragment: int = 0) -> bool:
        """Start an exchange if the node can."""
        if not (node.is_up and node.core.may_begin((TAG, fragment), self.now)):
            return False
        assert fragment not in node.begun, "an offer gave way to one of our own"
        node.begun.add(fragment)
        self.feed(node, events.Begin(TAG, fragment, candidates, TRANSFER_LIMIT_S))
        return True

    def feed(self, node: Node, event: events.Event) -> None:
        if node.is_up:
            node.core.handle(event, self.now)
            self.carry_out(node)

    def carry_out(self, node: Node) -> None:
        for effect in node.core.poll_effects():
            match effect:
                case events.Send(peer, message):
                    self.send(node.peer_id, peer, message, None)
                case events.StartTransfer():
                    self.start_transfer(node, effect)
                case events.MergeChunk():
                    raise AssertionError("merge without a chunk")
                case events.Commit(xid):
                    self.commits.append((node.peer_id, node.life, xid))
                    self.apply(node, xid)
                case events.Abort(xid):
                    del node.flows[xid]
                case events.Untaken(number):
                    assert number in node.intents, "an intent that was used up came back"
                    self.end_begin(node, node.intents[number].fragment)
                case events.Finished():
                    self.history.append((node.peer_id, node.life, effect))

    def start_transfer(self, node: Node, start: events.StartTransfer) -> None:
        intent = node.intents[start.number]  # used up once only
        assert len(node.flows) < limits.EXCHANGE_FLIGHTS_MAX, "too many exchanges at a time"
        assert all(flow.fragment != intent.fragment for flow in node.flows.values())
        assert all(flow.peer != start.peer for flow in node.flows.values())
        if intent.fragment in node.begun:  # accepted, or it yielded
            self.end_begin(node, intent.fragment)
        own = list(node.model[intent.fragment])
        flow = node.flows[start.xid] = Flow(start.peer, intent.fragment, own)
        if not intent.is_open:
            del node.intents[intent.number]
            self.intent(node, intent.fragment)
        for index, part in enumerate(flow.own):
            self.send(node.peer_id, start.peer, wire.Chunk(start.xid, index), part)
        life = node.life
        duration = self.rng.uniform(0.0, 0.05)

        def sent() -> None:
            flow.is_sent = True
            if node.life == life:
                self.finish_if_done(node, start.xid)

        self.at(self.now + duration, sent)
        node.core.handle(events.ViewLent(start.xid), self.now)

    def end_begin(self, node: Node, fragment: int) -> None:
        assert fragment in node.begun, "a Begin ended twice"
        node.begun.remove(fragment)

    def finish_if_done(self, node: Node, xid: bytes) -> None:
        flow = node.flows.get(xid)
        if flow is not None and flow.is_sent and len(flow.received) == self.n_chunks:
            self.feed(node, events.LocalDone(xid))

    def apply(self, node: Node, xid: bytes) -> None:
        """Add half of the difference of the views: local steps since then survive."""
        flow = node.flows.pop(xid)
        for index, theirs in flow.received.items():
            node.model[flow.fragment][index] += (theirs - flow.own[index]) / 2

    # --- the network ---------------------------------------------------------------------

    def send(
        self, source: PeerId, target: PeerId, message: wire.Message, part: Fraction | None
    ) -> None:
        copies = 1 + (self.rng.random() < self.faults.duplication)
        for _ in range(copies):
            if self.rng.random() < self.faults.loss or frozenset((source, target)) in self.cut:
                continue
            when = self.now + self.rng.uniform(self.faults.delay_s_min, self.faults.delay_s_max)
            if self.faults.in_order:
                when = max(when, self.last_arrival.get((source, target), 0.0))
                self.last_arrival[source, target] = when
            self.at(when, lambda: self.deliver(source, target, message, part))

    def deliver(
        self, source: PeerId, target: PeerId, message: wire.Message, part: Fraction | None
    ) -> None:
        node = self.nodes[target]
        if not node.is_up:
            return
        node.core.handle(events.Received(source, message), self.now)
        if not isinstance(message, wire.Chunk):
            self.carry_out(node)
            return
        merges = node.core.poll_effects()
        if merges:
            assert merges == [events.MergeChunk(message.xid, message.index)]
            assert part is not None
            node.flows[message.xid].received[message.index] = part
            self.finish_if_done(node, message.xid)

    # --- what is checked -----------------------------------------------------------------

    def total(self) -> list[Fraction]:
        return [
            sum((node.model[fragment][index] for node in self.nodes.values()), Fraction(0))
            for fragment in range(FRAGMENTS)
            for index in range(self.n_chunks)
        ]

    def in_doubt(self) -> int:
        return sum(finished.in_doubt for _, _, finished in self.history)

    def check(self) -> None:
        """Check atomicity, exactly-once and liveness; the network is quiet."""
        assert len(set(self.commits)) == len(self.commits), "commit effect twice"
        outcomes: dict[bytes, dict[tuple[PeerId, int], events.Finished]] = {}
        for peer_id, life, finished in self.history:
            sides = outcomes.setdefault(finished.xid, {})
            assert (peer_id, life) not in sides, "finished twice"
            sides[peer_id, life] = finished
        for sides in outcomes.values():
            living = [
                finished
                for (peer_id, life), finished in sides.items()
                if self.nodes[peer_id].life == life
            ]
            committed = {finished.outcome is Outcome.COMMITTED for finished in living}
            assert len(committed) < 2 or any(finished.in_doubt for finished in living)
        for node in self.nodes.values():
            assert not node.core.statistics().is_busy, "stuck"
            assert not node.begun, "a Begin did not end"
            assert not node.flows, "a transfer did not end"

    def digest(self) -> str:
        """Return a hash of all that happened and of all models."""
        text = repr((self.history, [node.model for node in self.nodes.values()]))
        return hashlib.sha256(text.encode()).hexdigest()
