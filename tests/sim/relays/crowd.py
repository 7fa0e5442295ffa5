"""Nodes that reach each other through relays only: real contact books and relays, virtual time.

Between them is a model: a dial takes DIAL_S, both legs of a circuit come at once, an exchange lasts
EXCHANGE_S and passes a few pieces. What a daemon tells its book and does for it, this does too: it
seeks the partners of a round, parts with a session whose turn is over, gives back circuits that are
not used, and asks its relays again and again for its place.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip import matching
from swarmnode.protocol.hosts import RELAYED_PREFIX
from swarmnode.protocol.membership import contacts
from swarmnode.protocol.membership.contacts import ContactBook
from swarmnode.protocol.relay import events
from swarmnode.protocol.relay.accounts import Ends, Quota
from swarmnode.protocol.relay.core import RelayCore
from swarmnode.protocol.uplink import Line
from swarmnode.wire.connect.relay import Granted, Reserved

DIAL_S = 0.5
EXCHANGE_S = 1.0
ROUND_S = 5.0
PIECE_BYTES = 20 * limits.KIB
JOIN_S = 0.5  # one node after the other


def jain(shares: Iterable[float]) -> float:
    """Return Jain's index: 1 if all have the same, 1 / n if one has everything.

    Source: Jain, Chiu and Hawe, "A quantitative measure of fairness and discrimination", 1984.
    """
    values = list(shares)
    return sum(values) ** 2 / (len(values) * sum(each**2 for each in values))


class FirstComeRelay(RelayCore):
    """Takes no circuit from any peer for another."""

    def giving_way(self, ends: Ends, now: float, *, number: int = 0) -> list[int]:
        """None does."""
        return []


@dataclass(eq=False)
class Link:
    """A session over a circuit."""

    relay: SimRelay
    number: int
    ends: tuple[Member, Member]
    used_at: float
    busy_until: float = 0.0


@dataclass(eq=False)
class SimRelay:
    """A relay, and the sessions over its circuits."""

    peer: PeerId
    core: RelayCore
    links: dict[int, Link] = field(default_factory=dict)
    load: int = 0


@dataclass(eq=False)
class Member:
    """One node."""

    peer: PeerId
    host: str
    book: ContactBook
    shares: dict[SimRelay, int] = field(default_factory=dict)  # of the relays that place it
    links: dict[PeerId, Link] = field(default_factory=dict)
    partners: Counter[PeerId] = field(default_factory=Counter)
    circuit_s: float = 0.0
    round: int = 0
    lost_place: int = 0


class Crowd:
    """``n`` nodes with addresses of their own, or all with ``host``, and relays of these quotas."""

    def __init__(
        self, n: int, quotas: list[Quota], *, is_fair: bool = True, host: str = "", seed: int = 1
    ) -> None:
        self.now = 0.0
        self.rng = random.Random(seed)
        self._is_fair = is_fair
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._numbers = itertools.count(1)
        kind = RelayCore if is_fair else FirstComeRelay
        self.relays = [
            SimRelay(_id(f"relay {number}"), kind(bytes(32), quota, Line()))
            for number, quota in enumerate(quotas)
        ]
        self.members: dict[PeerId, Member] = {}
        for number in range(n):
            peer = _id(f"node {number}")
            book = ContactBook(peer, random.Random(f"{seed}/{number}"))
            address = host or f"192.0.{number // 250}.{number % 250}"
            self.members[peer] = Member(peer, address, book)
        for number, member in enumerate(self.members.values()):
            self.at(number * JOIN_S, lambda member=member: self._join(member))
        self.at(1.0, self._count)

    def at(self, when: float, do: Callable[[], None]) -> None:
        """Do something at that time."""
        heapq.heappush(self._queue, (when, next(self._order), do))

    def run(self, until: float) -> None:
        """Let time pass."""
        while self._queue and self._queue[0][0] <= until:
            self.now, _, do = heapq.heappop(self._queue)
            do()
        self.now = until

    # --- a node ---------------------------------------------------------------------------

    def _join(self, member: Member) -> None:
        self._renew(member)
        for other in self.members.values():
            if other.shares and other is not member:
                self._tell(member, other)
                self._tell(other, member)
        for relay in self.relays:  # which are members, and have a session with every node
            self._feed(member, contacts.SessionOpened(relay.peer))
        self._watch(member)
        self.at(self.now + self.rng.uniform(0, ROUND_S), lambda: self._round(member))

    def _tell(self, member: Member, other: Member) -> None:
        """The shared state says where another is reached."""
        relays = _in_order(other)
        at = tuple(f"{RELAYED_PREFIX}{self.relays.index(relay)}" for relay in relays)
        if at:
            self._feed(member, contacts.AddressesFound(other.peer, at, is_own_word=True))

    def _renew(self, member: Member) -> None:
        """Ask for places: for a second one only where there is room."""
        had = set(member.shares)
        for relay in sorted(self.relays, key=lambda each: (each not in had, self.rng.random())):
            is_second = bool(member.shares.keys() - {relay})
            if is_second and relay.load >= limits.RELAY_LOAD_FULL:
                if relay in member.shares:
                    self._reserve(member, relay, is_release=True)
            else:
                self._reserve(member, relay)
        share = sum(member.shares.values()) if self._is_fair else 0
        self._feed(member, contacts.RelayShare(share))
        if set(member.shares) != had:
            for other in self.members.values():
                if other is not member:
                    self._tell(other, member)
        self.at(self.now + limits.RELAY_LOOK_S, lambda: self._renew(member))

    def _reserve(self, member: Member, relay: SimRelay, *, is_release: bool = False) -> None:
        asked = events.ReserveAsked(next(self._numbers), member.peer, member.host, is_release)
        member.shares.pop(relay, None)
        for effect in self._ask(relay, asked):
            if isinstance(effect, events.PlaceLost):
                self.members[effect.peer].shares.pop(relay, None)
                self.members[effect.peer].lost_place += 1
            elif isinstance(effect, events.Answered) and isinstance(effect.answer, Reserved):
                relay.load = effect.answer.load
                if effect.answer.lifetime_s:
                    member.shares[relay] = effect.answer.circuits

    def _watch(self, member: Member) -> None:
        """Give back circuits that were not used, and do what the book says."""
        for link in list(member.links.values()):
            if self._is_fair and self.now - link.used_at >= limits.RELAY_SPARE_S:
                self._part(link)
        self._wake(member)
        self.at(self.now + 1.0, lambda: self._watch(member))

    def _wake(self, member: Member) -> None:
        due = member.book.next_deadline()
        if due is not None and due <= self.now:
            member.book.handle_deadline(self.now)
        self._follow(member)

    def _feed(self, member: Member, event: contacts.Event) -> None:
        member.book.handle(event, self.now)
        self._follow(member)

    def _follow(self, member: Member) -> None:
        for effect in member.book.poll_effects():
            if isinstance(effect, contacts.Dial):
                peer = effect.peer
                self.at(self.now + DIAL_S, lambda peer=peer: self._dial(member, peer))
            elif self._is_fair and effect.peer in member.links:
                link = member.links[effect.peer]
                if link.busy_until <= self.now:
                    self._part(link)

    def _round(self, member: Member) -> None:
        """Exchange with the partner of the round, or with the next that there is a session to."""
        member.round = int(self.now / ROUND_S)
        order = matching.candidates(
            member.peer, b"salt", member.round, self.members, limit=len(self.members)
        )
        sought = tuple(each for each in order[: limits.SOUGHT_MAX] if each not in member.links)
        if self._is_fair:
            self._feed(member, contacts.Sought(sought))
        for peer in order:
            if peer in member.links and member.links[peer].busy_until <= self.now:
                self._exchange(member.links[peer])
                break
        self.at(self.now + ROUND_S * self.rng.uniform(0.8, 1.2), lambda: self._round(member))

    # --- circuits -------------------------------------------------------------------------

    def _exchange(self, link: Link) -> None:
        link.busy_until, link.used_at = self.now + EXCHANGE_S, self.now
        one, other = link.ends
        for _ in range(2):
            assert link.relay.core.try_pass(link.number, PIECE_BYTES, self.now)
        one.partners[other.peer] += 1
        other.partners[one.peer] += 1

    def _dial(self, member: Member, peer: PeerId) -> None:
        other = self.members[peer]
        for relay in _in_order(other):
            if peer not in member.links and self._connect(relay, member, other):
                break
        self._feed(member, contacts.DialEnded(peer))

    def _connect(self, relay: SimRelay, source: Member, target: Member) -> bool:
        number = next(self._numbers)
        asked = events.ConnectAsked(number, source.peer, target.peer, source.host)
        (offer,) = self._ask(relay, asked)
        if not isinstance(offer, events.Offer):
            return False
        (granted,) = self._ask(relay, events.OfferAnswered(offer.circuit, None))
        assert isinstance(granted, events.Answered)
        assert isinstance(granted.answer, Granted)
        self._ask(relay, events.Attached(2 * number, granted.answer.token, None))
        effects = self._ask(relay, events.Attached(2 * number + 1, offer.token, None))
        for effect in effects:
            if isinstance(effect, events.CircuitClosed):
                self._closed(relay.links[effect.circuit])
            elif isinstance(effect, events.Joined):
                link = Link(relay, effect.circuit, (source, target), self.now)
                relay.links[effect.circuit] = link
                for here, there in ((source, target), (target, source)):
                    here.links[there.peer] = link
                    opened = contacts.SessionOpened(there.peer, is_relayed=True)
                    self._feed(here, opened)
        return peer_is_linked(source, target)

    def _part(self, link: Link) -> None:
        self._ask(link.relay, events.CircuitEnded(link.number))
        self._closed(link)

    def _closed(self, link: Link) -> None:
        if link.relay.links.pop(link.number, None) is None:
            return
        one, other = link.ends
        for here, there in ((one, other), (other, one)):
            if here.links.get(there.peer) is link:
                del here.links[there.peer]
                self._feed(here, contacts.SessionClosed(there.peer))

    def _ask(self, relay: SimRelay, event: events.Event) -> list[events.Effect]:
        due = relay.core.next_deadline()
        if due is not None and due <= self.now:
            relay.core.handle_deadline(self.now)
            for effect in relay.core.poll_effects():
                if isinstance(effect, events.CircuitClosed):
                    self._closed(relay.links[effect.circuit])
        relay.core.handle(event, self.now)
        return relay.core.poll_effects()

    def _count(self) -> None:
        for member in self.members.values():
            member.circuit_s += len(member.links)
        self.at(self.now + 1.0, self._count)


def peer_is_linked(one: Member, other: Member) -> bool:
    """Whether two have a session."""
    return other.peer in one.links


def _in_order(member: Member) -> list[SimRelay]:
    """Return the relays of a node, by an order of its own."""
    return sorted(
        member.shares,
        key=lambda relay: bytes(a ^ b for a, b in zip(relay.peer, member.peer, strict=True)),
    )


def _id(name: str) -> PeerId:
    return PeerId(hashlib.sha256(name.encode()).digest())
