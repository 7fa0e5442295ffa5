"""Members that talk with each other as they should, and one among them that lies now and then.

Made-up messages (``cores.py``) seldom come as far into a protocol as honest ones. Here real cores
lead the conversation; an input says which word of the liar is altered, repeated or made up, how
long each takes, and which sessions break. Of the others none may raise anything but that the liar
broke a rule, wait without end, or take an honest one for the liar.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from functools import partial
from typing import Any

from swarmnode.errors import RemoteProtocolError
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip import group_events
from swarmnode.protocol.gossip.exchange import ExchangeCore
from swarmnode.testing.group_world import GID, GroupWorld, Member, Piece
from swarmnode.wire.exchange import gossip as pair_wire
from swarmnode.wire.exchange import group as group_wire
from swarmnode.wire.exchange.gossip import reason_code
from tests.fuzz.draw import Draw
from tests.fuzz.engine import Target, Words
from tests.fuzz.liar import LATENCIES_S, TURNS_MAX, WAITS_S, Bytes, Liar
from tests.property.models import exchange_model

_PAIR_MEMBERS = 3
_MEMBERS = 4
_PIECES = 8
_END_S = 3000.0
_PAIR_TURNS = ("begin", "begin", "wait", "wait", "say", "lose", "fail", "crash", "intent")
_GROUP_TURNS = ("wait", "wait", "say", "say", "part", "silent", "arriving", "die", "fail")


# --- pairs ------------------------------------------------------------------------------------


class PairTalk(exchange_model.Model):
    """Three nodes that exchange; the last one lies."""

    def __init__(self, draw: Draw, make_core: exchange_model.CoreFactory) -> None:
        super().__init__(_PAIR_MEMBERS, 0, exchange_model.Faults(), make_core=make_core)
        self.rng = Bytes(draw)
        self._draw, self._liar = draw, Liar(draw, pair_wire.Message)
        draw.peers = self.ids
        self.liar_id = self.ids[-1]

    def turn(self) -> str:
        """Let one thing happen; return its name."""
        draw = self._draw
        node = self.nodes[draw.choose(self.ids)]
        others = [peer for peer in self.ids if peer != node.peer_id]
        what = draw.choose(_PAIR_TURNS)
        match what:
            case "wait":
                self.run(self.now + draw.choose(WAITS_S))
            case "begin":
                first = draw.below(2)
                self.begin(node, (others[first], others[1 - first]), draw.below(2))
            case "lose":
                self.lose_session(node.peer_id, draw.choose(others))
            case "fail":
                self.fail_locally(node)
            case "crash" if node.is_up:
                self.crash(node)
            case "crash":
                self.restart(node)
            case "intent":
                fragment, is_open = draw.below(2), bool(draw.below(2))
                if node.is_up and fragment not in node.begun:
                    self.intent(node, fragment, is_open=is_open)
            case "say":
                message = draw.value(pair_wire.Message)
                if self._liar.may_be_said(message):
                    self.send(self.liar_id, draw.choose(self.ids[:-1]), message, None)
        return what

    def send(self, source: PeerId, target: PeerId, message: Any, part: Fraction | None) -> None:
        lies = source == self.liar_id
        for said in self._liar.words(message) if lies else [message]:
            when = self.now + self._draw.choose(LATENCIES_S)
            when = max(when, self.last_arrival.get((source, target), 0.0))
            self.last_arrival[source, target] = when
            self.at(when, partial(self.deliver, source, target, said, part or Fraction(0)))

    def deliver(self, source: PeerId, target: PeerId, message: Any, part: Fraction | None) -> None:
        if self.nodes[target].is_up:  # what an intent has led to, an overdue transfer's end
            self.carry_out(self.nodes[target])
        try:
            super().deliver(source, target, message, part)
        except RemoteProtocolError:
            assert self.liar_id in (source, target), "an honest node is taken for a liar"
            self.lose_session(source, target)

    def check_honest(self) -> None:
        """What is promised to two honest nodes holds, whatever the third one says."""
        for node in self.nodes.values():
            if not node.is_up:
                self.restart(node)
        self.settle()
        everything = self.history
        self.history = [
            (peer, life, end)
            for peer, life, end in everything
            if self.liar_id not in (peer, end.peer)
        ]
        self.check()
        self.history = everything


def run_pairs(data: bytes, make_core: exchange_model.CoreFactory = ExchangeCore) -> Words:
    draw = Draw(data, {}, ())
    world = PairTalk(draw, make_core)
    for _ in range(TURNS_MAX):
        if draw.is_over:
            break
        world.turn()
    world.check_honest()
    ends = {
        f"{end.role} {end.outcome} {reason_code(end.reason)} {end.in_doubt} {end.by_peer}"
        for _, _, end in world.history
    }
    for peer in world.ids[:-1]:
        said = world.nodes[peer].core.statistics()
        ends |= {each.name for each in dataclasses.fields(said) if getattr(said, each.name)}
        ends |= {f"refused {code}" for code in said.refused_total}
    return frozenset(ends)


# --- groups -----------------------------------------------------------------------------------


class Heedful(Member):
    """It lets go of who breaks a rule, and takes payloads of the length that it expects."""

    def feed(self, event: group_events.Event) -> None:
        try:
            super().feed(event)
        except RemoteProtocolError:
            assert isinstance(event, group_events.Received)
            world = self.world
            assert isinstance(world, GroupTalk)
            assert world.liar in (self, world.by_id[event.peer]), "an honest member is taken for it"
            world.part(self, world.by_id[event.peer])

    def carry_out(self, effect: group_events.Effect) -> None:
        if isinstance(effect, group_events.KeepShare | group_events.KeepSum):
            n = len(self.share(effect.piece))
            self.world.arriving = (self.world.arriving + (0.0,) * n)[:n]
        super().carry_out(effect)


class GroupTalk(GroupWorld):
    """Four members of which the last lies."""

    def __init__(self, draw: Draw) -> None:
        super().__init__(_MEMBERS, 0, n_pieces=_PIECES, make=Heedful)
        self.rng = Bytes(draw)
        self._draw, self._lies = draw, Liar(draw, group_wire.Message)
        self._arrives: dict[tuple[PeerId, PeerId], float] = {}
        self._parted: set[frozenset[PeerId]] = set()
        draw.peers = tuple(self.by_id)
        draw.learn(GID)
        self.liar = self.members[-1]

    def begin_all(self) -> None:
        """Each begins, with the terms that all have."""
        draw, ids = self._draw, tuple(self.by_id)
        patience_s = draw.choose((0.0, 1.0, 3.0))
        silence_s = draw.choose((0.0, min(patience_s, 1.0)))
        electorate = ids if draw.below(2) else ()
        needs_all, has_witnesses = draw.below(8) == 7, bool(draw.below(2))
        weights = (1.0,) * _MEMBERS if draw.below(8) == 7 else ()
        for member in self.members:
            event = group_events.Begin(
                GID, ids, _PIECES, 1.0, 5.0, 3.0,
                electorate=electorate, needs_all=needs_all, weights=weights,
                has_witnesses=has_witnesses, is_witness=bool(draw.below(2)),
                patience_s=patience_s, silence_s=silence_s,
            )  # fmt: skip
            self.at(draw.choose(LATENCIES_S), partial(member.feed, event))

    def turn(self) -> str:
        """Let one thing happen; return its name."""
        draw = self._draw
        one, other = draw.choose(self.members), draw.choose(self.members)
        what = draw.choose(_GROUP_TURNS)
        match what:
            case "wait":
                self.run(self.now + draw.choose(WAITS_S))
            case "part" if one is not other:
                self.part(one, other)
            case "silent" if one is not other:
                one.feed(group_events.PeerSilent(other.peer_id))
            case "arriving" if one is not other:
                one.feed(group_events.Arriving(GID, other.peer_id))
            case "die" if one is not self.liar:
                self.kill(one)
            case "fail":
                one.feed(group_events.Failed(GID, "no memory"))
            case "say" if one is not self.liar:
                message = draw.value(group_wire.Message)
                if self._lies.may_be_said(message):
                    self.send(self.liar, one.peer_id, message)
        return what

    def send(self, source: Member, target: PeerId, message: Any, payload: Piece = ()) -> None:
        for said in self._lies.words(message) if source is self.liar else [message]:
            link = (source.peer_id, target)
            when = max(self.now + self._draw.choose(LATENCIES_S), self._arrives.get(link, 0.0))
            self._arrives[link] = when
            self.at(when, partial(self._arrive, source, target, said, payload))

    def _arrive(self, source: Member, target: PeerId, message: Any, payload: Piece) -> None:
        is_parted = frozenset({source.peer_id, target}) in self._parted
        if not is_parted and (source.is_up or self.now <= source.cut_at[target]):
            self.arriving = payload
            self.by_id[target].feed(group_events.Received(source.peer_id, message))

    def part(self, one: Member, other: Member) -> None:
        """Let two lose each other for good."""
        self._parted.add(frozenset({one.peer_id, other.peer_id}))
        one.feed(group_events.PeerLost(other.peer_id))
        other.feed(group_events.PeerLost(one.peer_id))


def run_group(data: bytes) -> Words:
    draw = Draw(data, {}, ())
    world = GroupTalk(draw)
    world.begin_all()
    for _ in range(TURNS_MAX):
        if draw.is_over:
            break
        world.turn()
    world.run(world.now + _END_S)
    ends = set()
    for member in world.survivors:
        assert member.outcomes == 1, f"expected one end of the run, got {member.outcomes}"
        outcome = member.outcome
        why = outcome.why if isinstance(outcome, group_events.Abort) else "commit"
        ends.add(why.partition(":")[0])
    return frozenset(ends)


_P = "swarmnode.protocol.gossip"
TARGETS = (
    Target("pair-talk", run_pairs, (f"{_P}.exchange:ExchangeCore",), seeds=(bytes(range(64)),)),
    Target(
        "group-talk", run_group, (f"{_P}.group:GroupCore", f"{_P}.group_run:Run"),
        seeds=(bytes(range(64)),),
    ),
)  # fmt: skip
