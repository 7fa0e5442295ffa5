"""Pairs in the laboratory: which nodes meet, and whether it counts.

MATCHING: a node's intent waits until it meets one with the same tag and fragment, first of all that
of the partner that the round's matching gives, else of the next in that round's order. Its next
intent replaces it. NEIGHBOUR: the node it calls answers with its state as of now.

The views are taken when two have met, the commit comes a latency later. An exchange counts on
both sides or on neither, however many messages are lost: the protocol sees to that
(proto/gossip.md, protocol/gossip), and here it is simply so, unless a known bug is switched on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

from swarmnode.errors import WorkerError
from swarmnode.ids import PEER_ID_BYTES, PeerId
from swarmnode.protocol.gossip import matching
from swarmnode.strategies.base import Intent, Kind, Offer, Selector
from swarmnode.strategies.topology import Edge, Graph
from swarmnode.testing.lab.faults import Commit, Message
from swarmnode.testing.lab.gatherings import Gatherings
from swarmnode.testing.lab.sides import (
    Side,
    exchange_of,
    has_banned,
    let_forge,
    meta_of,
    refusal,
    take_view,
)
from swarmnode.testing.lab.standings import Standings
from swarmnode.testing.lab.world import Node, World

_TRIES_MAX = 3  # candidates that a node asks before it goes on training

NodeIntent = tuple[Node, Intent]


class Meetings:
    """The intents that wait, and the exchanges that are under way."""

    def __init__(self, world: World, gatherings: Gatherings, standings: Standings) -> None:
        self._world = world
        self._gatherings = gatherings
        self._standings = standings
        self._intents: dict[tuple[str, int], dict[int, Intent]] = {}
        self._busy: set[tuple[int, str, int]] = set()
        self._rounds: dict[tuple[bytes, int], dict[int, list[int]]] = {}  # of the graph, the last
        graph = world.graph
        self._neighbours = [graph.neighbours(i) for i in range(graph.n)] if graph else []

    def post(self, intents: list[NodeIntent]) -> None:
        """Take in the intents of one moment, and see which nodes can meet now."""
        waiting = []
        for node, intent in intents:
            if intent.selector is Selector.NEIGHBOUR:
                self._call(node, intent)
            else:
                self._wait(node, intent)
                waiting.append((node, intent))
        for node, intent in waiting:  # pairs of the round's matching come first
            self._meet(node, intent, tries=1)
        for node, intent in waiting:
            self._meet(node, intent, tries=_TRIES_MAX)

    def forget(self, number: int) -> None:
        """Drop what a crashed node has posted."""
        for intents in self._intents.values():
            intents.pop(number, None)
        self._busy = {busy for busy in self._busy if busy[0] != number}

    # --- which nodes meet ----------------------------------------------------------------

    def _wait(self, node: Node, intent: Intent) -> None:
        intents = self._intents.setdefault((intent.tag, intent.fragment), {})
        old = intents.pop(node.number, None)
        if old is not None:
            self._abort(node, old, "no peer came before the next round")
        intents[node.number] = intent

    def _meet(self, node: Node, intent: Intent, *, tries: int) -> None:
        intents = self._intents[intent.tag, intent.fragment]
        if intents.get(node.number) is not intent:
            return  # it has met a peer
        candidates = self._candidates(node.number, intent)
        if tries > 1:
            candidates = self._standings.admitted(node, intent, candidates)
        for number in candidates[:tries]:
            other = intents.get(number)
            if other is not None and self._is_fit(node, intent, self._world.nodes[number], other):
                del intents[node.number], intents[number]
                self._begin((node, intent), (self._world.nodes[number], other))
                return

    def _candidates(self, number: int, intent: Intent) -> Sequence[int]:
        """Return the nodes that the round has for this one, best first."""
        world = self._world
        salt = f"{world.seed}/{intent.tag}/{intent.fragment}".encode()
        if world.graph is not None:
            key = (salt, intent.round)
            if key not in self._rounds:
                self._rounds = {key: _on_graph(world.graph, salt, intent.round)}
            return self._rounds[key][number]
        ids = tuple(node.peer_id for node in world.up)
        return _on_all(ids, salt, intent.round)[number]

    def _call(self, node: Node, intent: Intent) -> None:
        """Go to random neighbours until one has time; what they give is as of now."""
        world, graph = self._world, self._world.graph
        if graph is None:
            rates = {other.number: 1.0 for other in world.up if other is not node}
        else:
            rates = self._neighbours[node.number]
        preferred = self._gatherings.preferred(node.number) if intent.kind is Kind.PULL else ()
        rates = {number: rates[number] for number in rates if number in preferred} or rates
        for _ in range(min(_TRIES_MAX, len(rates))):
            (number,) = node.rng.choices(list(rates), list(rates.values()))
            partner = world.nodes[number]
            if self._is_fit(node, intent, partner, intent):
                self._begin((node, intent), (partner, intent))
                return
        self._abort(node, intent, "no neighbour had time")

    def _is_fit(self, one: Node, its: Intent, two: Node, other: Intent) -> bool:
        if not self._world.reachable(one.number, two.number):
            return False
        if self._busy & {_topic(one, its), _topic(two, other)}:
            return False
        if _shape(its) != _shape(other):
            return False
        skew = its.round_skew_max
        if skew is not None and abs(its.round - other.round) > skew:
            return False
        is_pull = its.kind is Kind.PULL  # a node that only reads is not asked
        if not self._standings.admits(one, two, its):
            return False
        if not is_pull and not self._standings.admits(two, one, other):
            return False
        return self._accepts(two, one, its) and (is_pull or self._accepts(one, two, other))

    def _accepts(self, node: Node, peer: Node, intent: Intent) -> bool:
        offer = Offer(peer.peer_id, intent, meta_of(peer, intent))
        return node.strategy.accept(offer) is None

    # --- whether it counts ---------------------------------------------------------------

    def _begin(self, initiator: NodeIntent, responder: NodeIntent) -> None:
        world = self._world
        lost = self._draw_lost()
        if world.commit is Commit.ATOMIC and lost in (Message.OFFER, Message.ACCEPT):
            for node, intent in (initiator, responder):  # before anything was sent
                self._abort(node, intent, f"{lost.name} was lost")
            return
        try:
            sides = [take_view(world, node, intent) for node, intent in (initiator, responder)]
        except WorkerError as error:  # not finite: no codec takes it
            for node, intent in (initiator, responder):
                self._abort(node, intent, str(error))
            return
        let_forge(world, sides)
        for side in sides[1:] if initiator[1].kind is Kind.PULL else sides:
            world.tally.bytes += side.bytes
        latency = world.draw_latency()
        if not latency:
            self._end(sides, lost)
            return
        topics = {_topic(*initiator), _topic(*responder)}
        self._busy |= topics

        def arrive() -> None:
            self._busy -= topics
            self._end(sides, lost)

        world.at(world.now + latency, arrive)

    def _draw_lost(self) -> Message | None:
        """Return which message of the next exchange is lost."""
        if self._world.draw_loss():
            return Message(self._world.rng.randrange(Message.COMMIT))
        return Message.COMMIT if self._world.draw_loss() else None

    def _end(self, sides: list[Side], lost: Message | None) -> None:
        """Commit on both sides or on neither; see :class:`Commit` for the known bugs."""
        initiator, responder = sides
        if lost in (None, Message.COMMIT):  # a COMMIT that is lost is asked for again
            is_complete = initiator.is_there and responder.is_there
        else:
            is_complete = False
        rule = self._world.commit
        times = 2 if rule is Commit.FORGETFUL and lost is Message.COMMIT else 1
        if rule is Commit.RESPONDER_EARLY and lost is Message.READY:
            self._apply(responder, initiator)
            self._abort_side(initiator, "READY was lost")
        elif not is_complete:
            for side in sides:
                self._abort_side(side, "a message or the partner was lost")
        elif why := self._refusal(initiator, responder):
            for side in sides:
                self._abort_side(side, f"local: refused: {why}")
        else:
            self._apply(initiator, responder)
            if initiator.intent.kind is Kind.PAIR:
                for _ in range(times):
                    self._apply(responder, initiator)
                self._standings.note_taken(
                    responder.node, initiator.node, responder.intent, responder.share
                )
            self._standings.note_taken(
                initiator.node, responder.node, initiator.intent, initiator.share
            )
            self._count(initiator.node.number, responder.node.number)

    def _refusal(self, initiator: Side, responder: Side) -> str:
        """Return why one of the two refuses what came; then it counts for neither."""
        ways = [(initiator, responder)]
        if initiator.intent.kind is Kind.PAIR:
            ways.append((responder, initiator))
        why = next(filter(None, (self._refuse(*way) for way in ways)), "")
        why = why or ", ".join(filter(None, [self._weigh(*way) for way in ways]))
        if why:
            self._world.tally.note_refusal(initiator.node.number, responder.node.number)
        return why

    def _refuse(self, side: Side, partner: Side) -> str:
        """Return why what came is refused before it is weighed; empty: it is not."""
        why = refusal(self._world, side, partner)
        if why:
            self._standings.note_refused(side.node, partner.node, why)
        return why

    def _weigh(self, side: Side, partner: Side) -> str:
        """Return why the guard of a node refuses what came; empty: it does not."""
        world, node = self._world, side.node
        if world.is_impostor(node.number):
            return ""
        world.flow(node)
        verdict = node.strategy.weigh(exchange_of(side, partner))
        side.share = verdict.share
        if has_banned(node, partner.node.peer_id):
            world.tally.bans[node.number, partner.node.number] += 1
        if verdict.refusal is None:
            return ""
        self._standings.note_refused(node, partner.node, str(verdict.refusal))
        return str(verdict.refusal)

    def _apply(self, side: Side, partner: Side) -> None:
        node = side.node
        exchange = exchange_of(side, partner)
        exchange.clip(side.share)
        if side.intent.kind is Kind.PULL:
            self._gatherings.note_pulled(node.number)
        self._world.deliver(node, exchange, side.meta.steps + side.intent.apply_after_steps)

    def _count(self, one: int, two: int) -> None:
        self._world.tally.exchanges += 1
        self._world.tally.edges[min(one, two), max(one, two)] += 1

    def _abort_side(self, side: Side, why: str) -> None:
        if side.is_there:
            self._abort(side.node, side.intent, why)

    def _abort(self, node: Node, intent: Intent, why: str) -> None:
        self._world.tally.aborted += 1
        node.strategy.on_abort(intent, why)


def _shape(intent: Intent) -> tuple[object, ...]:
    """Return what must be equal on both sides."""
    return intent.kind, intent.views, intent.base_version, intent.round_skew_max


def _topic(node: Node, intent: Intent) -> tuple[int, str, int]:
    return node.number, intent.tag, intent.fragment


@lru_cache(maxsize=64)
def _on_all(ids: tuple[PeerId, ...], salt: bytes, round_number: int) -> dict[int, list[int]]:
    """Return candidates by number, as every node of a real swarm finds them by itself."""
    ordered = [int.from_bytes(i[-8:], "big") for i in matching.order(salt, round_number, ids)]
    found = {}
    for place, number in enumerate(ordered):
        ranked = ordered[place + 1 :] + ordered[:place]
        partner = place ^ 1
        if partner < len(ordered):
            ranked.remove(ordered[partner])
            ranked.insert(0, ordered[partner])
        found[number] = ranked
    return found


def _on_graph(graph: Graph, salt: bytes, round_number: int) -> dict[int, list[int]]:
    """Return candidates by number: a maximal matching of the graph, then the other neighbours."""
    prefix = hashlib.sha256(salt + round_number.to_bytes(8, "big"))

    def place(edge: Edge) -> bytes:
        digest = prefix.copy()
        digest.update(b"".join(end.to_bytes(PEER_ID_BYTES, "big") for end in edge))
        return digest.digest()

    found: dict[int, list[int]] = {number: [] for number in range(graph.n)}
    ordered = sorted(graph.edges, key=place)
    taken: set[int] = set()
    others = []
    for i, j in ordered:
        if {i, j} & taken:
            others.append((i, j))
        else:
            taken |= {i, j}
            found[i], found[j] = [j], [i]
    for i, j in others:
        found[i].append(j)
        found[j].append(i)
    return found
