"""A group mean over a network in which members die at any event: the shells are a few lines.

Links keep their order, as streams do. Of what a member had on its way when it died a part arrives,
and after that the others hear that it is gone, each at its own time.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from swarmnode.ids import PeerId
from swarmnode.protocol.gossip import group_events as events
from swarmnode.protocol.gossip.group import GroupCore
from swarmnode.protocol.gossip.groups import fair_weights
from swarmnode.wire.exchange import group as wire

GID = bytes(16)
Piece = tuple[float, ...]


@dataclass
class Member:
    """One node: a core, a payload of numbers, and what it was told to keep."""

    world: GroupWorld
    peer_id: PeerId
    payload: list[float]
    weight: float
    core: GroupCore = field(init=False)
    is_up: bool = True
    n_pieces: int = 0  # of the plan in use
    shares: dict[tuple[PeerId, int], Piece] = field(default_factory=dict)
    sums: dict[tuple[bytes, int], Piece] = field(default_factory=dict)
    outcome: events.Commit | events.Abort | None = None
    outcomes: int = 0
    ended_at: float = 0.0
    numbers_sent: int = 0
    wake_at: float | None = None
    cut_at: dict[PeerId, float] = field(default_factory=dict)  # what arrives of it once it is dead

    def __post_init__(self) -> None:
        self.core = GroupCore(self.peer_id)

    def feed(self, event: events.Event) -> None:
        """Let the core hear of an event, if the member lives."""
        if self.is_up:
            self.core.handle(event, self.world.now)
            self.settle()

    def settle(self) -> None:
        """Do what the core wants, and wake it when it wants to be woken."""
        for effect in self.core.poll_effects():
            self.carry_out(effect)
        deadline = self.core.next_deadline()
        if deadline is not None and (self.wake_at is None or deadline < self.wake_at):
            self.wake_at = deadline
            self.world.at(deadline, lambda: self.wake(deadline))

    def wake(self, deadline: float) -> None:
        """Let a deadline pass, unless it has been replaced."""
        if self.wake_at == deadline and self.is_up:
            self.wake_at = None
            self.core.handle_deadline(self.world.now)
            self.settle()

    def carry_out(self, effect: events.Effect) -> None:
        """Be the shell of the core."""
        match effect:
            case events.Send(peer, message):
                self.world.send(self, peer, message)
            case events.TakePayload(gid):
                self.world.later(lambda: self.feed(events.Loaded(gid, self.weight)))
            case events.UsePlan(n_pieces=n_pieces):
                self.n_pieces = n_pieces
                self.shares.clear()
            case events.SendShare(gid, peer, plan, piece, weight):
                values = self.share(piece)
                self.numbers_sent += len(values)
                self.world.send(self, peer, wire.Share(gid, piece, weight, plan), values)
            case events.SendSum(gid, peer, plan, piece):
                values = self.sums[plan, piece]
                self.numbers_sent += len(values)
                self.world.send(self, peer, wire.Sum(gid, plan, piece), values)
            case events.KeepShare(_, peer, piece):
                self.shares[peer, piece] = self.world.arriving
            case events.KeepSum(_, plan, piece):
                self.sums[plan, piece] = self.world.arriving
            case events.Reduce(gid, plan, piece, contributors, weights):
                self.sums[plan, piece] = self.reduce(piece, contributors, weights)
                self.world.later(lambda: self.feed(events.Reduced(gid, plan, piece)))
            case events.Witness(gid, plan, piece, contributors, weights):
                hash_ = _hash(self.witness(piece, contributors, weights))
                self.world.later(lambda: self.feed(events.Witnessed(gid, plan, (hash_,))))
            case events.Assemble(gid, plan):
                parts = [self.sums[plan, piece] for piece in range(self.n_pieces)]
                hashes = tuple(map(_hash, parts))
                self.world.later(
                    lambda: self.feed(events.Assembled(gid, plan, _hash(parts), hashes))
                )
            case events.Commit() | events.Abort():
                self.ended(effect)

    def ended(self, how: events.Commit | events.Abort) -> None:
        """A run is over."""
        self.outcome = how
        self.outcomes += 1
        self.ended_at = self.world.now

    def share(self, piece: int) -> Piece:
        """Return the own numbers of a piece."""
        return tuple(self.payload[piece :: self.n_pieces])

    def reduce(
        self, piece: int, contributors: tuple[PeerId, ...], weights: tuple[float, ...]
    ) -> Piece:
        """Return the weighted mean of a piece, summed in the order given."""
        mine = {(self.peer_id, piece): self.share(piece)}
        values = [{**self.shares, **mine}[peer, piece] for peer in contributors]
        total = sum(weights)
        return tuple(
            sum(w * v for w, v in zip(weights, each, strict=True)) / total
            for each in zip(*values, strict=True)
        )

    def witness(
        self, piece: int, contributors: tuple[PeerId, ...], weights: tuple[float, ...]
    ) -> Piece:
        """Return what this member thinks that a piece of another one should be."""
        return Member.reduce(self, piece, contributors, weights)

    @property
    def mean(self) -> list[float]:
        """The mean that it has committed."""
        assert isinstance(self.outcome, events.Commit), "it holds no mean"
        plan = self.outcome.plan
        n = self.n_pieces
        return [self.sums[plan, k % n][k // n] for k in range(len(self.payload))]


class GroupWorld:
    """Members, and the network between them. Deaths come before the event of that number."""

    def __init__(
        self,
        n: int,
        seed: int,
        *,
        n_pieces: int = 8,
        deaths: Iterable[tuple[int, int]] = (),
        notice_s: float = 0.2,
        make: Callable[[GroupWorld, PeerId, list[float], float], Member] | None = None,
    ) -> None:
        """``deaths``: (number of the event, number of the member). ``make``: a member; Member."""
        self.rng = random.Random(f"{n}/{seed}")
        self.now = 0.0
        self.events = 0
        self.died_at = 0.0
        self.arriving: Piece = ()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._last: dict[tuple[PeerId, PeerId], float] = {}
        self._deaths = sorted(deaths)
        self._notice_s = notice_s
        self._cut: set[frozenset[PeerId]] = set()
        self.members = [
            (make or Member)(
                self,
                PeerId(hashlib.sha256(b"%d" % number).digest()),
                [self.rng.uniform(-1, 1) for _ in range(n_pieces)],
                self.rng.choice([1.0, 2.0, 5.0]),
            )
            for number in range(n)
        ]
        self.by_id = {member.peer_id: member for member in self.members}
        self.enlist_s = 5.0
        self.has_witnesses = False
        self.is_witness: Callable[[int], bool] = lambda _: True  # by number

    def begin(
        self,
        *,
        at: Callable[[int], float] = lambda _: 0.0,
        members: Callable[[int, tuple[PeerId, ...]], tuple[PeerId, ...]] = lambda _, ids: ids,
    ) -> None:
        """Let every member begin the mean at its time, with those it takes for the members."""
        ids = tuple(member.peer_id for member in self.members)
        for number, member in enumerate(self.members):
            event = events.Begin(
                GID,
                members(number, ids),
                len(member.payload),
                1.0,  # as it says when it is loaded
                self.enlist_s,
                transfer_s=3.0,
                has_witnesses=self.has_witnesses,
                is_witness=self.is_witness(number),
            )
            self.at(at(number), partial(member.feed, event))

    # --- time ----------------------------------------------------------------------------

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Let ``what`` happen then."""
        self._order += 1
        heapq.heappush(self._heap, (when, self._order, what))

    def later(self, what: Callable[[], None]) -> None:
        """Let ``what`` happen after a short computation."""
        self.at(self.now + self.rng.uniform(0, 0.02), what)

    def run(self, until: float = 300.0) -> None:
        """Go through the events until nothing is left to happen."""
        while self._heap and self._heap[0][0] <= until:
            while self._deaths and self._deaths[0][0] <= self.events:
                self.kill(self.members[self._deaths.pop(0)[1]])
            self.now, _, what = heapq.heappop(self._heap)
            self.events += 1
            what()

    # --- the network -----------------------------------------------------------------------

    def send(
        self, source: Member, target: PeerId, message: wire.Message, payload: Piece = ()
    ) -> None:
        """Let a message arrive after a while, in order, if its sender has not died before."""
        if frozenset({source.peer_id, target}) in self._cut:
            return
        link = (source.peer_id, target)
        arrives = max(self.now + self.rng.uniform(0.001, 0.1), self._last.get(link, 0.0))
        self._last[link] = arrives
        member = self.by_id[target]

        def arrive() -> None:
            if source.is_up or arrives <= source.cut_at[target]:
                self.arriving = payload
                member.feed(events.Received(source.peer_id, message))

        self.at(arrives, arrive)

    def kill(self, member: Member) -> None:
        """Of what is on its way to each other member the first part arrives."""
        member.is_up = False
        self.died_at = max(self.died_at, self.now)
        for other in self.members:
            member.cut_at[other.peer_id] = self.now + self.rng.uniform(0, 0.1)
            noticed = self.now + 0.1 + self.rng.uniform(0, self._notice_s)
            self.at(noticed, partial(other.feed, events.PeerLost(member.peer_id)))

    def cut(self, one: int, two: int) -> None:
        """Let two members lose each other, as each of them hears at once."""
        pair = frozenset({self.members[one].peer_id, self.members[two].peer_id})
        self._cut.add(pair)
        self.members[one].feed(events.PeerLost(self.members[two].peer_id))
        self.members[two].feed(events.PeerLost(self.members[one].peer_id))

    # --- what is promised --------------------------------------------------------------------

    @property
    def survivors(self) -> list[Member]:
        """The members that live."""
        return [member for member in self.members if member.is_up]

    def check(self) -> None:
        """Every survivor ended, once, all of them with the same bits, and those are the mean."""
        assert all(member.outcomes == 1 for member in self.survivors)
        committed = [m for m in self.members if isinstance(m.outcome, events.Commit)]
        survivors = [m for m in committed if m.is_up]
        # The dead count too: if one of them had finished, it was with this.
        assert len(self.results()) <= 1
        if len(self.survivors) >= 2 or committed:
            assert survivors == self.survivors, [m.outcome for m in self.survivors]
        for member in survivors:
            self.check_mean(member)

    def results(self) -> set[tuple[tuple[PeerId, ...], bytes]]:
        """Return contributors and hash of every member that has finished, the dead too."""
        outcomes = [member.outcome for member in self.members]
        ends = [outcome for outcome in outcomes if isinstance(outcome, events.Commit)]
        return {(end.contributors, end.result) for end in ends}

    def check_mean(self, member: Member) -> None:
        """What it holds is the weighted mean over its contributors."""
        assert self.error(member) < 1e-12

    def error(self, member: Member) -> float:
        """Return the largest deviation of its mean from the exact one over its contributors."""
        assert isinstance(member.outcome, events.Commit), "it holds no mean"
        parts = [self.by_id[peer] for peer in member.outcome.contributors]
        weights = fair_weights([part.weight for part in parts])
        weighed = list(zip(weights, parts, strict=True))
        return max(
            abs(value - sum(w * part.payload[piece] for w, part in weighed) / sum(weights))
            for piece, value in enumerate(member.mean)
        )


def _hash(values: object) -> bytes:
    return hashlib.sha256(repr(values).encode()).digest()
