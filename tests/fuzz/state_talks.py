"""Nodes that share state, or gather messages, and one among them that lies: see ``talks.py``.

When the liar has left, the others must come to the same.
"""

from __future__ import annotations

import heapq
import random
from functools import partial
from typing import Any

from swarmnode.errors import SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.protocol.crdt import events
from swarmnode.protocol.crdt.records import NO_HASH, open_record, seal
from swarmnode.protocol.crdt.replica import SharedState
from swarmnode.protocol.gossip import gather_events
from swarmnode.testing.gather_world import GATHER_ID, Gatherer, GatherWorld
from swarmnode.testing.world import ToyIdentity, toy_verify
from swarmnode.wire import crdt as wire
from swarmnode.wire.exchange.gather import Announcement, Have
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.records import Digest
from swarmnode.wire.swarm import Signed
from tests.fuzz.draw import Draw
from tests.fuzz.engine import Target, Words
from tests.fuzz.liar import LATENCIES_S, TURNS_MAX, WAITS_S, Bytes, Liar

_NETWORK = bytes(32)
_UNIX_S = 1_800_000_000.0
_NODES = 3
_AGREED_S = 300.0
_RECORDS_MAX = 16  # that the liar shows again
_NAMES = ("work", "seen", "b")
_KEYS = [(name, "element") for name in _NAMES]
_STATE_TURNS = ("update", "update", "wait", "wait", "say", "say", "down", "up", "clock", "restart")
_GATHER_TURNS = ("wait", "wait", "say", "publish", "settle", "die", "cut", "silent", "lying")


# --- shared state -----------------------------------------------------------------------------


class StateTalk:
    """Three replicas, all neighbours; the last one's words are not all its own."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self.signers = [ToyIdentity.from_seed(bytes([n + 1]) * 32) for n in range(_NODES)]
        self.ids = [each.peer_id for each in self.signers]
        self.liar_id = self.ids[-1]
        draw.peers = self.ids
        self.liar = Liar(draw, wire.Message)
        self.now = 100.0
        self.words: set[str] = set()
        self._records: list[Signed] = []
        self._heap: list[tuple[float, int, PeerId, PeerId, Any]] = []
        self._order = 0
        self._journals: dict[PeerId, list[Signed]] = {peer: [] for peer in self.ids}
        self._up: set[tuple[PeerId, PeerId]] = set()
        self._epochs = dict.fromkeys(self.ids, 1)
        self.states = {signer.peer_id: self._state(signer) for signer in self.signers}
        for one in self.ids:
            for other in self.ids:
                self._set_link(one, other, is_up=True)

    def _state(self, signer: ToyIdentity) -> SharedState:
        return SharedState(
            signer, _NETWORK, epoch=self._epochs[signer.peer_id], wall_unix_s=_UNIX_S,
            now=self.now, rng=random.Random(1), verify=toy_verify,
        )  # fmt: skip

    def turn(self) -> None:
        """Let one thing happen."""
        draw = self._draw
        one, other = draw.choose(self.ids), draw.choose(self.ids)
        match draw.choose(_STATE_TURNS):
            case "update":
                self.handle(one, self._update())
            case "wait":
                self.run(self.now + draw.choose(WAITS_S))
            case "say" if one != self.liar_id:
                message = draw.value(wire.Message)
                if self.liar.may_be_said(message):
                    self._send(self.liar_id, one, message)
            case "down" | "up" as way:
                for ends in ((one, other), (other, one)):
                    self._set_link(*ends, is_up=way == "up")
            case "clock":
                self.handle(one, events.ClockSet(_UNIX_S + draw.choose((0.0, 60.0, -60.0))))
            case "restart":
                self._restart(one)

    def _update(self) -> events.Update:
        draw = self._draw
        name = draw.choose(_NAMES)
        return draw.choose(
            (
                events.Update(leases={(name, "element"): draw.choose((0, 60, 600))}),
                events.Update(counters={name: draw.below(9)}),
                events.Update(maxima={name: draw.below(9)}),
                events.Update(registers={name: draw.below(256)}),
            )
        )

    def _restart(self, peer: PeerId) -> None:
        """A crash: only the journal is left."""
        self._epochs[peer] += 1
        (signer,) = (each for each in self.signers if each.peer_id == peer)
        self.states[peer] = self._state(signer)
        self.handle(peer, events.Restored(tuple(self._journals[peer])))
        for other in self.ids:
            was_up = (peer, other) in self._up
            for ends in ((peer, other), (other, peer)):
                self._set_link(*ends, is_up=False)
                self._set_link(*ends, is_up=was_up)

    def _set_link(self, one: PeerId, other: PeerId, *, is_up: bool) -> None:
        if one == other or is_up == ((one, other) in self._up):
            return
        (self._up.add if is_up else self._up.discard)((one, other))
        self.handle(one, (events.NeighbourUp if is_up else events.NeighbourDown)(other))

    def handle(self, peer: PeerId, event: events.Event) -> None:
        """Feed one of them, and do what it wants."""
        self.states[peer].handle(event, self.now)
        self._carry_out(peer, type(event).__name__)

    def _carry_out(self, peer: PeerId, after: str) -> None:
        for effect in self.states[peer].poll_effects():
            if not isinstance(effect, events.Send):
                self.words.add(f"{after} > {type(effect).__name__}")
            match effect:
                case events.Send(to, message):
                    for said in self.liar.words(message) if peer == self.liar_id else [message]:
                        self._send(peer, to, said)
                case events.Persist(record, sequence):
                    self._journals[peer].append(record)
                    self._records = [*self._records[1 - _RECORDS_MAX :], record]
                    if sequence is not None:
                        self.handle(peer, events.Persisted(sequence))
                case events.Ban(author) | events.Penalise(author):
                    assert author == self.liar_id, "an honest one is taken for the liar"

    def _send(self, source: PeerId, to: PeerId, message: Any) -> None:
        self._order += 1
        arrives = self.now + self._draw.choose(LATENCIES_S)
        heapq.heappush(self._heap, (arrives, self._order, source, to, encode_record(message)))

    def run(self, until: float) -> None:
        """Deliver words and let deadlines pass."""
        while True:
            deadline, peer = min((self._deadline(each), each) for each in self.ids)
            arrival = self._heap[0][0] if self._heap else until
            if min(deadline, arrival) >= until:
                self.now = max(self.now, until)
                return
            if arrival > deadline:
                self.now = max(self.now, deadline)
                self.states[peer].handle_deadline(self.now)
                self._carry_out(peer, "deadline")
                continue
            arrives, _, source, to, data = heapq.heappop(self._heap)
            self.now = max(self.now, arrives)
            if (to, source) in self._up:
                message: Any = decode_record(data, wire.Message)  # type: ignore[arg-type]
                self.handle(to, events.Received(source, message))

    def _deadline(self, peer: PeerId) -> float:
        due = self.states[peer].next_deadline()
        return float("inf") if due is None else due

    def check(self) -> None:
        """Without the liar the others come to agree."""
        first, second, liar = self.ids
        for ends in ((first, liar), (second, liar), (liar, first), (liar, second)):
            self._set_link(*ends, is_up=False)
        for ends in ((first, second), (second, first)):
            self._set_link(*ends, is_up=True)
        for peer in (first, second):  # what is renewed all the time is never the same on both
            self.handle(peer, events.Update(leases=dict.fromkeys(_KEYS, 0)))
        self.run(self.now + _AGREED_S)
        one, other = self.states[first], self.states[second]
        assert one.version_vector() == other.version_vector(), "they hold different records"
        assert one.canonical() == other.canonical(), "of the same records they make two documents"

    # --- what the liar makes up ---------------------------------------------------------------

    def made_up(self, draw: Draw) -> Signed:
        """A record that was shown before, or one that the liar signs: any, or one that follows."""
        own = [each for each in self._records if each.public_key == self.signers[-1].public_key]
        how = draw.below(4)
        if how == 0 and self._records:
            return draw.choose(self._records)
        last = open_record(draw.choose(own), _NETWORK) if own else None
        follows = last is not None and how > 1
        record = wire.StateRecord(
            swarm_id=_NETWORK,
            epoch=last.record.epoch if last and follows else draw.below(3),
            sequence=last.sequence + 1 if last and follows else draw.below(4) + 1,
            previous=last.hash if last and follows else draw.choose((NO_HASH, bytes([1]) * 32)),
            clock_ms=int(_UNIX_S * 1000) + draw.choose((0, 1, 1000, -1000, 10**9)),
            clock_tick=draw.below(3),
            checkpoint=bool(draw.below(2)),
            leases=(wire.Lease("work", "element", draw.choose((0, 5, 600))),),
            counters={"work": draw.below(9)},
            verdicts=draw.value(tuple[wire.PeerVerdict, ...])[:2],
        )
        signed = seal(record, self.signers[-1]).signed
        if draw.below(8) == 7:
            signed = Signed(signed.body, signed.public_key, bytes(64))
        self._records = [*self._records[1 - _RECORDS_MAX :], signed]
        return signed


def run_state(data: bytes) -> Words:
    makers: dict[Any, Any] = {}
    draw = Draw(data, makers, ())
    talk = StateTalk(draw)
    makers[Signed] = talk.made_up
    for _ in range(TURNS_MAX):
        if draw.is_over:
            break
        talk.turn()
    talk.check()
    return frozenset(talk.words)


# --- gatherings -------------------------------------------------------------------------------


class GatherTalk(GatherWorld):
    """Four members that gather each other's messages; the last one lies."""

    def __init__(self, draw: Draw) -> None:
        super().__init__(4, 0)
        self.rng = Bytes(draw)
        self._draw = draw
        self.liar = self.members[-1]
        self._lies = Liar(draw, Have)
        draw.peers = [each.peer_id for each in self.members]
        draw.learn(GATHER_ID)

    def turn(self) -> None:
        """Let one thing happen."""
        draw = self._draw
        one, other = draw.choose(self.members), draw.choose(self.members)
        match draw.choose(_GATHER_TURNS):
            case "wait":
                self.run(self.now + draw.choose(WAITS_S))
            case "say" if one is not self.liar:
                self._carry(self.liar, one.peer_id, draw.value(Have))
            case "publish" if one is self.liar or one.announced is None:
                self.publish(one, bytes([draw.below(3)]) if one is self.liar else b"")
            case "settle":
                known = tuple(each.announced for each in self.members if each.announced)
                one.feed(gather_events.Settled(known))
            case "die" if one is not self.liar:
                self.kill(one)
            case "cut" if one is not other:
                self.cut(one, other)
            case "silent":
                self.liar.is_silent = not self.liar.is_silent
            case "lying":
                self.liar.is_lying = not self.liar.is_lying

    def tell(self, source: Gatherer, target: PeerId, message: Have) -> None:
        for said in self._lies.words(message) if source is self.liar else [message]:
            self._carry(source, target, said)

    def _carry(self, source: Gatherer, target: PeerId, message: Have) -> None:
        if not self._lies.may_be_said(message):
            return
        announced = None
        if message.announcement is not None:
            try:
                announced = self.terms.read(message.announcement)
            except SwarmNodeError:
                return
        heard = gather_events.Heard(source.peer_id, message, announced)
        when = self.now + self._draw.choose(LATENCIES_S)
        self.at(when, partial(self.by_id[target].feed, heard))

    def made_up(self, draw: Draw) -> Signed:
        """An announcement that the liar signs."""
        body = encode_record(Announcement(GATHER_ID, draw.value(Digest), 10**6))
        signer = self.liar.identity
        return Signed(body, signer.public_key, signer.sign("gather/1", body))


def run_gather(data: bytes) -> Words:
    makers: dict[Any, Any] = {}
    draw = Draw(data, makers, ())
    world = GatherTalk(draw)
    makers[Signed] = world.made_up
    for _ in range(TURNS_MAX):
        if draw.is_over:
            break
        world.turn()
    world.run(world.now + _AGREED_S)
    return frozenset(f"{len(member.core.held())} held" for member in world.survivors)


_P = "swarmnode.protocol"
TARGETS = (
    Target(
        "state-talk", run_state,
        (f"{_P}.crdt.replica:SharedState", f"{_P}.crdt.courier:Courier"),
        seeds=(bytes(range(64)),),
    ),
    Target(
        "gather-talk", run_gather, (f"{_P}.gossip.gather:GatherCore",), seeds=(bytes(range(64)),)
    ),
)  # fmt: skip
