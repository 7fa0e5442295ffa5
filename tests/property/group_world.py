"""A group mean over a network in which members die at any event: the shells are a few lines.

Links keep their order, as streams do. Of what a member had on its way when it died a part arrives,
and after that the others hear that it is gone, each at its own time.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from dataclasses import dataclass, field
from functools import partial

from swarmnode.ids import PeerId
from swarmnode.protocol.gossip import group_events as events
from swarmnode.protocol.gossip.group import GroupCore
from swarmnode.wire import group as wire

GID = bytes(16)


@dataclass
class Member:
    """One node: a core, a payload of one number for each piece, and what it was told to keep."""

    world: World
    peer_id: PeerId
    payload: list[float]
    weight: float
    core: GroupCore = field(init=False)
    is_up: bool = True
    shares: dict[tuple[PeerId, int], float] = field(default_factory=dict)
    sums: dict[tuple[bytes, int], float] = field(default_factory=dict)
    outcome: events.Commit | events.Abort | None = None
    outcomes: int = 0
    ended_at: float = 0.0
    bytes_sent: int = 0
    wake_at: float | None = None

    def __post_init__(self):
        self.core = GroupCore(self.peer_id)

    def feed(self, event):
        if self.is_up:
            self.core.handle(event, self.world.now)
            self.settle()

    def settle(self):
        for effect in self.core.poll_effects():
            self.carry_out(effect)
        deadline = self.core.next_deadline()
        if deadline is not None and (self.wake_at is None or deadline < self.wake_at):
            self.wake_at = deadline
            self.world.at(deadline, lambda: self.wake(deadline))

    def wake(self, deadline):
        if self.wake_at == deadline and self.is_up:
            self.wake_at = None
            self.core.handle_deadline(self.world.now)
            self.settle()

    def carry_out(self, effect):
        match effect:
            case events.Send(peer, message):
                self.world.send(self, peer, message)
            case events.SendShare(gid, peer, piece, weight):
                self.bytes_sent += 1
                self.world.send(self, peer, wire.Share(gid, piece, weight), self.payload[piece])
            case events.SendSum(gid, peer, plan, piece):
                self.bytes_sent += 1
                value = self.sums[plan, piece]
                self.world.send(self, peer, wire.Sum(gid, plan, piece), value)
            case events.KeepShare(_, peer, piece):
                self.shares[peer, piece] = self.world.arriving
            case events.KeepSum(_, plan, piece):
                self.sums[plan, piece] = self.world.arriving
            case events.Reduce(gid, plan, piece, contributors, weights):
                self.sums[plan, piece] = self.reduce(piece, contributors, weights)
                self.world.later(lambda: self.feed(events.Reduced(gid, plan, piece)))
            case events.Assemble(gid, plan):
                parts = [self.sums[plan, piece] for piece in range(len(self.payload))]
                result = hashlib.sha256(repr(parts).encode()).digest()
                self.world.later(lambda: self.feed(events.Assembled(gid, plan, result)))
            case events.Commit() | events.Abort():
                self.outcome = effect
                self.outcomes += 1
                self.ended_at = self.world.now

    def reduce(self, piece, contributors, weights):
        mine = {(self.peer_id, piece): self.payload[piece]}
        values = [{**self.shares, **mine}[peer, piece] for peer in contributors]
        return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)

    @property
    def mean(self):
        plan = self.outcome.plan
        return [self.sums[plan, piece] for piece in range(len(self.payload))]


class World:
    """Members, and the network between them. Deaths come before the event of that number."""

    def __init__(self, n, seed, *, n_pieces=8, deaths=(), notice_s=0.2):
        self.rng = random.Random(f"{n}/{seed}")
        self.now = 0.0
        self.events = 0
        self.died_at = 0.0
        self.arriving = 0.0
        self._heap = []
        self._order = 0
        self._last = {}
        self._deaths = sorted(deaths)
        self._notice_s = notice_s
        self._cut = set()
        self.members = [
            Member(
                self,
                PeerId(hashlib.sha256(b"%d" % number).digest()),
                [self.rng.uniform(-1, 1) for _ in range(n_pieces)],
                self.rng.choice([1.0, 2.0, 5.0]),
            )
            for number in range(n)
        ]
        self.by_id = {member.peer_id: member for member in self.members}
        self.enlist_s = 5.0

    def begin(self, *, at=lambda number: 0.0, members=lambda number, ids: ids):
        ids = tuple(member.peer_id for member in self.members)
        for number, member in enumerate(self.members):
            event = events.Begin(
                GID,
                members(number, ids),
                len(member.payload),
                member.weight,
                self.enlist_s,
                transfer_s=3.0,
            )
            self.at(at(number), lambda member=member, event=event: member.feed(event))

    # --- time ----------------------------------------------------------------------------

    def at(self, when, what):
        self._order += 1
        heapq.heappush(self._heap, (when, self._order, what))

    def later(self, what):
        self.at(self.now + self.rng.uniform(0, 0.02), what)

    def run(self, until=300.0):
        while self._heap and self._heap[0][0] <= until:
            while self._deaths and self._deaths[0][0] <= self.events:
                self.kill(self.members[self._deaths.pop(0)[1]])
            self.now, _, what = heapq.heappop(self._heap)
            self.events += 1
            what()

    # --- the network -----------------------------------------------------------------------

    def send(self, source, target, message, payload=0.0):
        if {source.peer_id, target} in self._cut:
            return
        link = (source.peer_id, target)
        arrives = max(self.now + self.rng.uniform(0.001, 0.1), self._last.get(link, 0.0))
        self._last[link] = arrives
        member = self.by_id[target]

        def arrive():
            if source.is_up or arrives <= source.cut_at[target]:
                self.arriving = payload
                member.feed(events.Received(source.peer_id, message))

        self.at(arrives, arrive)

    def kill(self, member):
        """Of what is on its way to each other member the first part arrives."""
        member.is_up = False
        self.died_at = max(self.died_at, self.now)
        member.cut_at = {}
        for other in self.members:
            member.cut_at[other.peer_id] = self.now + self.rng.uniform(0, 0.1)
            noticed = self.now + 0.1 + self.rng.uniform(0, self._notice_s)
            self.at(noticed, partial(other.feed, events.PeerLost(member.peer_id)))

    def cut(self, one, two):
        """Let two members lose each other, as each of them hears at once."""
        pair = {self.members[one].peer_id, self.members[two].peer_id}
        self._cut.add(frozenset(pair))
        self.members[one].feed(events.PeerLost(self.members[two].peer_id))
        self.members[two].feed(events.PeerLost(self.members[one].peer_id))

    # --- what is promised --------------------------------------------------------------------

    @property
    def survivors(self):
        return [member for member in self.members if member.is_up]

    def check(self):
        """Every survivor ended, once, all of them with the same bits, and those are the mean."""
        assert all(member.outcomes == 1 for member in self.survivors)
        committed = [m for m in self.members if isinstance(m.outcome, events.Commit)]
        survivors = [m for m in committed if m.is_up]
        # The dead count too: if one of them had finished, it was with this.
        assert len({(m.outcome.contributors, m.outcome.result) for m in committed}) <= 1
        if len(self.survivors) >= 2 or committed:
            assert survivors == self.survivors, [m.outcome for m in self.survivors]
        for member in survivors:
            self.check_mean(member)

    def check_mean(self, member):
        parts = [self.by_id[peer] for peer in member.outcome.contributors]
        total = sum(part.weight for part in parts)
        for piece, value in enumerate(member.mean):
            exact = sum(part.weight * part.payload[piece] for part in parts) / total
            assert abs(value - exact) < 1e-12
