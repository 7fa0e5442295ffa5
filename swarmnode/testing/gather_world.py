"""Gatherings over a network of slow, silent, lying and dying members: the shells are a few lines.

Uplinks are shared: what a member sends to several at once takes as long as all of it would one
after the other, at its own rate.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from swarmnode import limits
from swarmnode.errors import SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip import gather_events as events
from swarmnode.protocol.gossip.gather import GatherCore
from swarmnode.protocol.gossip.gather_set import Announced, RunTerms
from swarmnode.testing.world import ToyIdentity, toy_verify
from swarmnode.wire.exchange.gather import Have

GATHER_ID = bytes(16)
_LATENCY_S = (0.01, 0.1)


@dataclass
class Gatherer:
    """One node: a core, what it holds, and how it behaves.

    Attributes:
        rate: of its uplink, in bytes a second.
        is_silent: it announces, and gives nothing.
        is_lying: what it gives is not what was asked for.
    """

    world: GatherWorld
    identity: ToyIdentity
    rate: float
    core: GatherCore
    is_up: bool = True
    is_silent: bool = False
    is_lying: bool = False
    announced: Announced | None = None
    done_at: float | None = None
    sent_bytes: int = 0
    free_at: float = 0.0  # its uplink
    uploads: int = 0
    running: set[tuple[PeerId, bytes]] = field(default_factory=set)
    given: Counter[tuple[PeerId, bytes]] = field(default_factory=Counter)
    wake_at: float | None = None

    @property
    def peer_id(self) -> PeerId:
        """The id of this member."""
        return self.identity.peer_id

    def feed(self, event: events.Event) -> None:
        """Let the core hear of an event, if the member lives."""
        if self.is_up:
            self.core.handle(event, self.world.now)
            self.settle()

    def settle(self) -> None:
        """Do what the core wants, and wake it when it wants to be woken."""
        for effect in self.core.poll_effects():
            self.carry_out(effect)
        self.world.check_bounds(self)
        deadline = self.core.next_deadline()
        if deadline is not None and (self.wake_at is None or deadline < self.wake_at):
            self.wake_at = deadline
            self.world.at(deadline, partial(self.wake, deadline))

    def wake(self, deadline: float) -> None:
        """Let a deadline pass, unless it has been replaced."""
        if self.wake_at == deadline and self.is_up:
            self.wake_at = None
            self.core.handle_deadline(self.world.now)
            self.settle()

    def carry_out(self, effect: events.Effect) -> None:
        """Be the shell of the core."""
        match effect:
            case events.Tell(peer, message):
                self.world.tell(self, peer, message)
            case events.Fetch(peer, announced):
                self.running.add((peer, announced.digest))
                self.world.ask(self, peer, announced)
            case events.Cancel(peer, digest):
                self.running.discard((peer, digest))
            case events.Held():
                if len(self.core.held()) == len(self.world.members) and self.done_at is None:
                    self.done_at = self.world.now


class GatherWorld:
    """Members and the network between them.

    Args:
        size_bytes: of a message.
        loss: share of the words that are lost.
    """

    def __init__(
        self, n: int, seed: int, *, size_bytes: int = 10**6, rate: float = 1e7, loss: float = 0.0
    ) -> None:
        self.rng = random.Random(f"gather/{n}/{seed}")
        self.now = 0.0
        self.events = 0
        self._loss = loss
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._cut: set[frozenset[PeerId]] = set()
        identities = [ToyIdentity.from_seed(hashlib.sha256(b"%d" % i).digest()) for i in range(n)]
        ids = frozenset(each.peer_id for each in identities)
        self.terms = RunTerms(GATHER_ID, ids, size_bytes, toy_verify)
        self.members = [
            Gatherer(self, each, rate, GatherCore(each.peer_id, self.terms)) for each in identities
        ]
        self.by_id = {member.peer_id: member for member in self.members}

    # --- time ----------------------------------------------------------------------------

    def at(self, when: float, what: Callable[[], object]) -> None:
        """Let ``what`` happen then."""
        self.events += 1
        heapq.heappush(self._heap, (when, self.events, what))

    def run(self, until: float = 300.0) -> None:
        """Go through the events until nothing is left to happen."""
        while self._heap and self._heap[0][0] <= until:
            self.now, _, what = heapq.heappop(self._heap)
            what()

    # --- what members do -------------------------------------------------------------------

    def publish(self, member: Gatherer, content: bytes = b"") -> Announced:
        """Let a member offer its message; ``content``: which of several it shows."""
        digest = hashlib.sha256(member.peer_id + content).digest()
        announced = self.terms.announce(member.identity, digest)
        member.announced = announced
        member.feed(events.Publish(announced))
        return announced

    def publish_all(self, spread_s: float = 0.5) -> None:
        """Let all members offer their messages, each at a time of its own."""
        for member in self.members:
            self.at(self.rng.uniform(0, spread_s), partial(self.publish, member))

    def settle_all(self, entries: tuple[Announced, ...]) -> None:
        """Let all members that live learn the set."""
        for member in self.members:
            member.feed(events.Settled(entries))

    def kill(self, member: Gatherer) -> None:
        """Let a member die; the others hear of it soon."""
        member.is_up = False
        for other in self.members:
            self.at(
                self.now + self.rng.uniform(0.1, 1.0),
                partial(other.feed, events.Lost(member.peer_id)),
            )

    def cut(self, one: Gatherer, two: Gatherer) -> None:
        """Let two members lose each other for good."""
        self._cut.add(frozenset({one.peer_id, two.peer_id}))
        one.feed(events.Lost(two.peer_id))
        two.feed(events.Lost(one.peer_id))

    # --- the network -----------------------------------------------------------------------

    def tell(self, source: Gatherer, target: PeerId, message: Have) -> None:
        """Let a word arrive, if it is not lost."""
        if self.rng.random() < self._loss or self._is_cut(source.peer_id, target):
            return
        announced = None
        if message.announcement is not None:
            try:
                announced = self.terms.read(message.announcement)
            except SwarmNodeError:
                return
        heard = events.Heard(source.peer_id, message, announced)
        self.at(self.now + self._latency(), partial(self.by_id[target].feed, heard))

    def ask(self, asker: Gatherer, target: PeerId, announced: Announced) -> None:
        """Let a member give a message over its uplink, or say that it does not."""
        giver, digest = self.by_id[target], announced.digest
        self.at(self.now + self._latency(), partial(self._give, giver, asker, digest))

    def _give(self, giver: Gatherer, asker: Gatherer, digest: bytes) -> None:
        peer = giver.peer_id
        if not giver.is_up or giver.is_silent or self._is_cut(peer, asker.peer_id):
            later = 15.0 if giver.is_silent else self._latency()
            self._answer(asker, events.NotGiven(peer, digest), later)
            return
        if giver.is_lying:
            self._answer(asker, events.NotGiven(peer, digest, is_wrong=True), self._latency())
            return
        giver.given[asker.peer_id, digest] += 1
        is_refused = (
            not giver.core.is_held(digest)
            or giver.uploads >= limits.GATHER_UPLOADS_MAX
            or giver.given[asker.peer_id, digest] > limits.GATHER_GIVEN_MAX
        )
        if is_refused:
            giver.given[asker.peer_id, digest] -= 1
            self._answer(asker, events.NotGiven(peer, digest), self._latency())
            return
        giver.uploads += 1
        giver.sent_bytes += self.terms.size_bytes
        begins = max(self.now, giver.free_at)
        giver.free_at = begins + self.terms.size_bytes / giver.rate
        self.at(giver.free_at, partial(self._end_upload, giver))
        self._answer(asker, events.Arrived(peer, digest), giver.free_at - self.now)

    def _end_upload(self, giver: Gatherer) -> None:
        giver.uploads -= 1

    def _answer(
        self, asker: Gatherer, answer: events.Arrived | events.NotGiven, later: float
    ) -> None:
        def arrive() -> None:
            if (answer.peer, answer.digest) in asker.running:
                asker.running.discard((answer.peer, answer.digest))
                asker.feed(answer)

        self.at(self.now + later, arrive)

    def _latency(self) -> float:
        return self.rng.uniform(*_LATENCY_S)

    def _is_cut(self, one: PeerId, two: PeerId) -> bool:
        return frozenset({one, two}) in self._cut

    # --- what is promised --------------------------------------------------------------------

    def check_bounds(self, member: Gatherer) -> None:
        """Hold at most so many fetches at once, and never two of one message of one peer."""
        assert len({digest for _, digest in member.running}) <= limits.GATHER_FETCHES_MAX
        assert len(member.running) <= 2 * limits.GATHER_FETCHES_MAX

    @property
    def survivors(self) -> list[Gatherer]:
        """The members that live."""
        return [member for member in self.members if member.is_up]
