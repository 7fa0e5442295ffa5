"""Honest exchange cores at their usual pace, and one member that holds up every node it can.

Time is virtual. Each honest node has an intent each ``every_s`` and a shell in a few lines: a view
is there at once and its one chunk is ``_MOVE_S`` on the way. The attacker is a script for each
state of the wire; it offers ten times a second to each node that it does not hold. A node can be
frozen as well: what comes to it waits, and so do its deadlines, as for a process that is stopped.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from functools import partial
from typing import Literal

from swarmnode.errors import RemoteProtocolError
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip import events
from swarmnode.protocol.gossip.conduct import ConductTable
from swarmnode.protocol.gossip.exchange import ExchangeCore
from swarmnode.protocol.gossip.outcomes import Outcome
from swarmnode.protocol.gossip.patience import Patience
from swarmnode.wire.exchange import gossip as wire

Phase = Literal["unanswered", "accepted", "offered", "trickled", "ready", "pending", "dragged"]
MakeCore = Callable[[PeerId, bytes, random.Random, Patience], ExchangeCore]

KEY = b"k" * 32
N_HONEST = 5
_DELAY_S, _MOVE_S = 0.02, 0.05
_LIMIT_S = 70.1  # as the shell's: for a slow partner's view, and the least for a transfer
_CHUNKS = 4


class _Node:
    def __init__(self, core: ExchangeCore, conduct: ConductTable) -> None:
        self.core = core
        self.conduct = conduct
        self.untried: list[events.PairIntent] = []
        self.commits_s: list[float] = []
        self.partners: set[PeerId] = set()
        self.seen: dict[bytes, int] = {}
        self.backlog: list[Callable[[], None]] | None = None  # while it is frozen


class World:
    """See the module.

    Args:
        fragments: of each, one exchange at a time, as a worker lends.
        adds_up: so that of each there may be another beside one in doubt.
    """

    def __init__(
        self,
        *,
        fragments: int,
        every_s: float,
        make_core: MakeCore = ExchangeCore,
        seed: int = 1,
        adds_up: bool = False,
    ) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self.order, self.numbers = itertools.count(), itertools.count(1)
        self.fragments, self.every_s, self.adds_up = fragments, every_s, adds_up
        ids = [PeerId(self.rng.randbytes(32)) for _ in range(N_HONEST + 1)]
        self.attacker, self.honest = ids[0], ids[1:]
        self.phase: Phase | None = None
        self.held: set[PeerId] = set()  # nodes that have accepted an offer of the attacker
        self.nodes: dict[PeerId, _Node] = {}
        for peer in self.honest:
            conduct = ConductTable()
            core = make_core(peer, KEY, random.Random(peer), Patience(conduct))
            self.nodes[peer] = _Node(core, conduct)
            self._at(self.rng.random() * every_s, partial(self._step, peer, 0))

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        while self.heap and self.heap[0][0] <= until:
            self.now, _, what = heapq.heappop(self.heap)
            what()
        self.now = until

    def attack(self, phase: Phase) -> None:
        """Let the attacker in."""
        self.phase = phase
        for peer in self.honest:
            self._at(self.now + self.rng.random(), partial(self._push, peer))

    def freeze(self, peer: PeerId) -> None:
        """Stop a node: nothing that it does or hears happens before it is thawed."""
        self.nodes[peer].backlog = []

    def thaw(self, peer: PeerId) -> None:
        """Go on: what has waited happens now, in its order."""
        backlog, self.nodes[peer].backlog = self.nodes[peer].backlog or [], None
        for what in backlog:
            what()

    def commits(self, since_s: float, but: PeerId | None = None) -> int:
        """Count the commits among honest nodes, each of which is counted at both ends."""
        return sum(
            at > since_s
            for peer, node in self.nodes.items()
            if peer != but
            for at in node.commits_s
        )

    def gaps_s(self, since_s: float, but: PeerId) -> list[float]:
        """Return the pauses between two commits of a node, of all but one; ascending."""
        found: list[float] = []
        for peer, node in self.nodes.items():
            times = [since_s, *(at for at in node.commits_s if at > since_s), self.now]
            if peer != but:
                found += (b - a for a, b in itertools.pairwise(times))
        return sorted(found)

    # --- honest nodes --------------------------------------------------------------------

    def _at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.heap, (when, next(self.order), what))

    def _for(self, peer: PeerId, when: float, what: Callable[[], None]) -> None:
        """Let this happen at a node, unless it is frozen then."""

        def happen() -> None:
            backlog = self.nodes[peer].backlog
            if backlog is None:
                what()
            else:
                backlog.append(what)

        self._at(when, happen)

    def _step(self, peer: PeerId, k: int) -> None:
        node = self.nodes[peer]
        fragment = k % self.fragments
        intent = events.PairIntent(
            next(self.numbers),
            "outer",
            fragment,
            k // self.fragments,
            _CHUNKS,
            k,
            k,
            adds_up=self.adds_up,
        )
        node.untried = [i for i in node.untried if i.fragment != fragment] + [intent]
        self._feed(peer, events.Available(intent, _LIMIT_S))
        pace_s = self.every_s * (0.97 + 0.06 * self.rng.random())
        self._for(peer, self.now + pace_s, lambda: self._step(peer, k + 1))

    def _begin(self, peer: PeerId) -> None:
        node = self.nodes[peer]
        for intent in list(node.untried):
            if node.core.may_begin(("outer", intent.fragment), self.now):
                node.untried.remove(intent)
                begin = events.Begin("outer", intent.fragment, self._choose(peer), _LIMIT_S)
                self._feed(peer, begin)

    def _choose(self, peer: PeerId) -> tuple[PeerId, ...]:
        others = [*self.honest, *([self.attacker] if self.phase else [])]
        others.remove(peer)
        self.rng.shuffle(others)
        conduct = self.nodes[peer].conduct
        good = [other for other in others if not conduct.is_avoided(other, self.now)]
        return tuple((good or others)[:3])

    def _feed(self, peer: PeerId, event: events.Event) -> None:
        node = self.nodes[peer]
        node.core.handle(event, self.now)
        self._carry_out(peer)

    def _carry_out(self, peer: PeerId) -> None:
        node = self.nodes[peer]
        for effect in node.core.poll_effects():
            match effect:
                case events.Send(other, message):
                    self._send(peer, other, message)
                case events.StartTransfer(xid, other, number=number):
                    node.untried = [i for i in node.untried if i.number != number]
                    self._stream(peer, other, xid)
                case events.MergeChunk(xid):
                    node.seen[xid] = node.seen.get(xid, 0) + 1
                    if node.seen[xid] == _CHUNKS:
                        done = events.LocalDone(xid)
                        self._for(peer, self.now + _MOVE_S, partial(self._feed, peer, done))
                case events.Finished(outcome=Outcome.COMMITTED, peer=other):
                    if other != self.attacker:
                        node.commits_s.append(self.now)
                        node.partners.add(other)
                    self._for(peer, self.now, lambda: self._begin(peer))
                case events.Finished():
                    self._for(peer, self.now, lambda: self._begin(peer))
        self._for(peer, self.now, lambda: self._begin(peer))
        deadline = node.core.next_deadline()
        if deadline is not None:
            self._for(peer, max(deadline, self.now), lambda: self._deadline(peer, deadline))

    def _deadline(self, peer: PeerId, deadline: float) -> None:
        core = self.nodes[peer].core
        if core.next_deadline() == deadline:
            core.handle_deadline(self.now)
            self._carry_out(peer)

    def _stream(self, peer: PeerId, other: PeerId, xid: bytes) -> None:
        self._for(peer, self.now, lambda: self._feed(peer, events.ViewLent(xid)))
        for index in range(_CHUNKS):
            when = self.now + _MOVE_S * (index + 1) / _CHUNKS
            chunk = wire.Chunk(xid, index)
            self._for(peer, when, partial(self._send, peer, other, chunk))

    def _send(self, source: PeerId, target: PeerId, message: wire.Message) -> None:
        when = self.now + _DELAY_S
        if target == self.attacker:
            self._at(when, lambda: self._answer(source, message))
        else:
            self._for(target, when, lambda: self._hear(target, source, message))

    def _hear(self, peer: PeerId, source: PeerId, message: wire.Message) -> None:
        try:
            self._feed(peer, events.Received(source, message))
        except RemoteProtocolError:
            assert source == self.attacker

    # --- the attacker --------------------------------------------------------------------

    def _say(self, peer: PeerId, message: wire.Message, after_s: float = 0.0) -> None:
        self._at(self.now + after_s, lambda: self._send(self.attacker, peer, message))

    def _push(self, peer: PeerId) -> None:
        if self.phase in ("unanswered", "accepted"):
            return
        self._at(self.now + 0.1, lambda: self._push(peer))
        if peer not in self.held:
            fragment = self.rng.randrange(self.fragments)
            xid = self.rng.randbytes(16)
            self._say(peer, wire.Offer(xid, KEY, "outer", fragment, 1, _CHUNKS, 1, 1))

    def _answer(self, peer: PeerId, message: wire.Message) -> None:
        xid = message.xid
        match message:
            case wire.Offer() if self.phase == "accepted":
                self._say(peer, wire.Accept(xid, message.round, 1, 1))
            case wire.Offer() if self.phase != "unanswered":
                self._say(peer, wire.Busy(xid, "busy"))
            case wire.Abort():
                self.held.discard(peer)
            case wire.Ready() if self.phase == "dragged":
                self._say(peer, wire.Commit(xid))
                self.held.discard(peer)
            case wire.Accept():
                self.held.add(peer)
                self._accepted(peer, xid)
            case wire.StatusQuery(number=number) if self.phase == "pending":
                self._say(peer, wire.StatusReply(xid, "pending", number))

    def _accepted(self, peer: PeerId, xid: bytes) -> None:
        match self.phase:
            case "trickled":
                for index in range(_CHUNKS - 1):
                    self._say(peer, wire.Chunk(xid, index), after_s=0.9 * (index + 1))
            case "dragged":  # each of its exchanges counts, as late as may be
                late_s = self.rng.uniform(0.5, 8.0)
                for index in range(_CHUNKS):
                    self._say(peer, wire.Chunk(xid, index), after_s=late_s)
            case "ready" | "pending":
                for index in range(_CHUNKS):
                    self._say(peer, wire.Chunk(xid, index))
