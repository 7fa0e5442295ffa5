"""What a node holds of every member, in which order it probes them, and what it spreads next."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field

from swarmnode import limits
from swarmnode.env import Rng
from swarmnode.ids import PeerId
from swarmnode.protocol.membership.claims import Rank, rank_of
from swarmnode.protocol.membership.health import SuspicionTimes
from swarmnode.protocol.membership.swim_events import MemberState
from swarmnode.wire.swim import Claim

_ALIVE, _SUSPECT = MemberState.ALIVE, MemberState.SUSPECT  # a look at an enum's class is dear


@dataclass(slots=True)
class Suspicion:
    """A member that another could not reach: it has until the deadline to refute."""

    started: float
    times: SuspicionTimes
    accusers: dict[PeerId, None] = field(default_factory=dict)
    is_certain: bool = False  # a member has waited it out already
    deadline: float = math.inf  # no member accuses yet

    def accuse(self, accusers: Iterable[PeerId], now: float, *, is_certain: bool) -> bool:
        """Add to the accusation, which may bring the deadline forward; return if it is news.

        Not before ``now``: a deadline that was not kept is what a stall looks like.
        """
        before = len(self.accusers)
        for accuser in accusers:
            if len(self.accusers) < limits.SWIM_ACCUSERS_MAX:
                self.accusers[accuser] = None
        self.is_certain |= is_certain
        wanted = self.times.confirmations_wanted
        confirmations = wanted if self.is_certain else len(self.accusers) - 1
        self.deadline = max(now, self.started + self.times.timeout_s(confirmations))
        return len(self.accusers) > before


@dataclass(slots=True)
class Member:
    """One member but ourselves. ``claim`` is its newest signed word, without hearsay."""

    peer: PeerId
    claim: Claim
    state: MemberState
    since: float  # in this state, lived time
    has_answered: bool  # us, ever
    suspicion: Suspicion | None = None

    @property
    def rank(self) -> Rank:
        return rank_of(self.claim)

    @property
    def is_live(self) -> bool:
        return self.state is _ALIVE or self.state is _SUSPECT

    @property
    def is_to_tell(self) -> bool:
        """Whether others may hear of it from us: that it is there, only if it has answered us."""
        return self.has_answered or self.state is not _ALIVE

    def is_news(self, claim: Claim) -> bool:
        """Whether there is anything to learn from a claim of it; of most there is not."""
        if claim is self.claim:
            return False
        told, held = rank_of(claim), self.rank
        return told > held or (told == held and claim.doubt != "none" and self.is_live)


class MemberTable:
    """Bounded; live members are probed in random rounds, each once a round."""

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        self._members: dict[PeerId, Member] = {}
        self.suspects: dict[PeerId, Member] = {}
        self._dead: dict[PeerId, None] = {}
        self._ring: list[PeerId] = []  # the live ones; a round goes through it once
        self._next = 0
        self._page_from = PeerId(bytes(32))
        self._live_sum = 0
        self._by_key: dict[bytes, Member] = {}
        self._overdue_from = math.inf  # no suspicion ends before this
        self._unmet: dict[PeerId, None] = {}  # live ones that never answered us
        self._live_ids: tuple[PeerId, ...] | None = ()  # None: it has changed

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __contains__(self, peer: object) -> bool:
        return peer in self._members

    @property
    def n_live(self) -> int:
        return len(self._ring)

    def live_ids(self) -> tuple[PeerId, ...]:
        """Return the live members in id order; shells ask again and again, and few come or go."""
        if self._live_ids is None:
            self._live_ids = tuple(sorted(self._ring))
        return self._live_ids

    @property
    def has_room_for_unmet(self) -> bool:
        """Whether one more may live on the word of others: never more of them than of those met.

        So members that were made up never more than double the live ones.
        """
        return len(self._unmet) < self.n_met

    @property
    def n_met(self) -> int:
        """How many live ones have answered us."""
        return len(self._ring) - len(self._unmet)

    def meet(self, member: Member) -> None:
        """It has answered us: it is there."""
        member.has_answered = True
        self._unmet.pop(member.peer, None)

    def get(self, peer: PeerId) -> Member | None:
        return self._members.get(peer)

    def claim_of(self, peer: PeerId) -> Claim | None:
        """Return the newest signed word of a member."""
        member = self._members.get(peer)
        return None if member is None else member.claim

    def by_key(self, public_key: bytes) -> Member | None:
        """Return the member with this key: an id costs a hash, and claims come by the hundred."""
        return self._by_key.get(public_key)

    @property
    def next_suspicion_end(self) -> float:
        """When :meth:`overdue` may have something, at the earliest; inf: none is suspected."""
        return self._overdue_from if self.suspects else math.inf

    def accuse(
        self, member: Member, accusers: Iterable[PeerId], now: float, *, is_certain: bool
    ) -> bool:
        """Add to what is held against a suspect; return whether it is news."""
        assert member.suspicion is not None
        is_news = member.suspicion.accuse(accusers, now, is_certain=is_certain)
        deadline = member.suspicion.deadline
        is_only = len(self.suspects) == 1  # then what is kept is of suspicions long gone
        self._overdue_from = deadline if is_only else min(self._overdue_from, deadline)
        return is_news

    def is_to_warn(self, member: Member) -> bool:
        """Whether we tell a suspect at once, so that it refutes in time; about SWIM_WARNINGS of
        all do.

        Without it, a liar that slanders again and again, among members that it made up and
        that are probed in vain, had others taken for dead that answer at once.
        """
        return member.has_answered and self._rng.randrange(self.n_met) < limits.SWIM_WARNINGS

    def doubt_about(self, peer: PeerId) -> tuple[Claim, ...]:
        """Lifeguard's buddy system: a member in doubt learns it first."""
        member = self._members.get(peer)
        if member is None or member.state is _ALIVE or member.state is MemberState.LEFT:
            return ()
        return (claim_of(member),)

    def overdue(self, now: float) -> list[Member]:
        """Return the suspects that did not refute in time."""
        if now < self.next_suspicion_end:
            return []
        found: list[Member] = []
        self._overdue_from = math.inf
        for member in self.suspects.values():
            assert member.suspicion is not None
            if member.suspicion.deadline <= now:
                found.append(member)
            else:
                self._overdue_from = min(self._overdue_from, member.suspicion.deadline)
        return found

    def add(self, peer: PeerId, claim: Claim, now: float, *, is_met: bool = False) -> Member | None:
        """Add a live member, or return None if there is no room; ``is_met``: it has answered us."""
        assert peer not in self._members
        if len(self._members) >= limits.SWIM_MEMBERS_MAX and not self._make_room():
            return None
        member = self._members[peer] = Member(
            peer, claim, MemberState.ALIVE, now, has_answered=is_met
        )
        self._by_key[claim.key] = member
        self._enter_ring(member)
        return member

    def digest_with(self, own: Claim) -> bytes:
        """Return 16 bytes that are equal where the same members live at the same versions."""
        return ((self._live_sum + _summand(own)) % 2**128).to_bytes(16, "big")

    def renew(self, member: Member, claim: Claim, state: MemberState, now: float) -> None:
        """Put a newer claim, and the state that it brings, in place of the old one."""
        if member.is_live:
            self._live_sum += _summand(claim) - _summand(member.claim)
        member.claim = claim
        self.set_state(member, state, now)

    def set_state(self, member: Member, state: MemberState, now: float) -> None:
        """Change a member's state; a suspicion ends with any change."""
        was_live = member.is_live
        if state is MemberState.SUSPECT:
            self.suspects[member.peer] = member
        else:
            self.suspects.pop(member.peer, None)
        if state is MemberState.DEAD and member.has_answered:  # others call those they have met
            self._dead[member.peer] = None
        else:
            self._dead.pop(member.peer, None)
        member.state, member.since, member.suspicion = state, now, None
        if member.is_live and not was_live:
            self._enter_ring(member)
        elif was_live and not member.is_live:
            self._leave_ring(member)

    def forget_gone(self, before: float) -> None:
        """Forget the members that died or left before this time."""
        if len(self._ring) == len(self._members):
            return
        for member in [m for m in self if not m.is_live and m.since < before]:
            self.forget(member)

    def next_to_probe(self) -> Member | None:
        """Return the next member of this round; each round has a new order."""
        if not self._ring:
            return None
        if self._next >= len(self._ring):
            self._ring = self._rng.sample(self._ring, k=len(self._ring))
            self._next = 0
        self._next += 1
        return self._members[self._ring[self._next - 1]]

    def some_live(self, n: int, besides: PeerId | None = None) -> list[PeerId]:
        """Return up to ``n`` different live members."""
        some = self._rng.sample(self._ring, k=min(n + 1, len(self._ring)))
        return [peer for peer in some if peer != besides][:n]

    def dead_to_call(self) -> PeerId | None:
        """Return one that died."""
        return self._rng.choice(list(self._dead)) if self._dead else None

    def periods_until_call(self) -> float:
        """Return after how many periods to call one that died: soon if the dead are many.

        Half the swarm gone is a partition, and all members call; one gone is a crash, and its
        address must not be called by all of them. In each period the chance is the share of the
        dead; the number of periods is drawn at once, which spares a wake in each of them. Inf:
        there is none to call.
        """
        share = len(self._dead) / (len(self._dead) + self.n_live + 1)  # with ourselves
        if not share:
            return math.inf
        return 1 + int(math.log(1.0 - self._rng.random()) / math.log1p(-share))

    def page(self, n_max: int) -> list[Member]:
        """Return the next ``n_max`` members in the order of ids, round and round.

        None that never answered us: we do not know that it is there.
        """
        met = [peer for peer, member in self._members.items() if member.has_answered]
        if len(met) <= n_max:
            return [self._members[peer] for peer in met]
        peers = sorted(met)
        after = [peer for peer in peers if peer > self._page_from]
        chosen = (after + peers)[:n_max]
        self._page_from = chosen[-1]
        return [self._members[peer] for peer in chosen]

    def _enter_ring(self, member: Member) -> None:
        """At a random place of the round, as the paper says, so that a joiner waits half of one."""
        place = self._rng.randrange(len(self._ring) + 1)
        self._ring.insert(place, member.peer)
        self._live_ids = None
        self._live_sum += _summand(member.claim)
        if not member.has_answered:
            self._unmet[member.peer] = None
        if place < self._next:
            self._next += 1

    def _leave_ring(self, member: Member) -> None:
        self._live_sum -= _summand(member.claim)
        self._unmet.pop(member.peer, None)
        place = self._ring.index(member.peer)
        del self._ring[place]
        self._live_ids = None
        if place < self._next:
            self._next -= 1

    def forget(self, member: Member) -> None:
        """Remember nothing of it."""
        if member.is_live:
            self._leave_ring(member)
        self.suspects.pop(member.peer, None)
        self._dead.pop(member.peer, None)
        del self._members[member.peer]
        del self._by_key[member.claim.key]

    def _make_room(self) -> bool:
        """Forget the longest gone, else the longest known that never answered us."""
        gone = [member for member in self if not member.is_live]
        silent = [member for member in self if not member.has_answered]
        for pool in (gone, silent):
            if pool:
                oldest = min(pool, key=lambda member: member.since)
                self.forget(oldest)
                return True
        return False


def _summand(claim: Claim) -> int:
    """Return what a live member adds to the digest: a sum does not depend on an order."""
    version = b"%d %d" % (claim.epoch, claim.incarnation)
    return int.from_bytes(hashlib.sha256(claim.key + version).digest()[:16], "big")


class Hearsay:
    """Members that others tell of, and that have no place among the live ones yet.

    Each is pinged a few times: if it is there it answers, and is a member for having been met. Its
    teller is whose session the word came over; the one that told of most gives up its oldest.
    """

    def __init__(self) -> None:
        self._told: dict[PeerId, _Told] = {}  # those next to be pinged first
        self._by_teller: dict[PeerId, dict[PeerId, None]] = {}

    def __len__(self) -> int:
        return len(self._told)

    def note(self, subject: PeerId, claim: Claim, teller: PeerId) -> None:
        """Remember a claim that is checked; the newest one of a member."""
        known = self._told.get(subject)
        if known is not None:
            known.claim = max(known.claim, claim, key=rank_of)
            return
        while len(self._told) >= limits.SWIM_HEARSAY_MAX:
            most = max(self._by_teller.values(), key=len)
            self.take(next(iter(most)))
        self._told[subject] = _Told(claim, teller)
        self._by_teller.setdefault(teller, {})[subject] = None

    def take(self, subject: PeerId) -> Claim | None:
        """Forget a member; return its claim, None if there was none."""
        told = self._told.pop(subject, None)
        if told is None:
            return None
        named = self._by_teller[told.teller]
        del named[subject]
        if not named:
            del self._by_teller[told.teller]
        return told.claim

    def next_to_ping(self, n_max: int) -> list[PeerId]:
        """Return some whose turn it is; one that was pinged often enough is forgotten."""
        chosen = list(self._told)[:n_max]
        for subject in chosen:
            told = self._told.pop(subject)
            self._told[subject] = told
            told.pings_left -= 1
            if told.pings_left < 0:
                self.take(subject)
        return [subject for subject in chosen if subject in self._told]


@dataclass(slots=True)
class _Told:
    """One member that others know."""

    claim: Claim
    teller: PeerId
    pings_left: int = limits.SWIM_HEARSAY_PINGS


def without_hearsay(claim: Claim) -> Claim:
    """Return the member's own word alone."""
    if claim.doubt == "none" and not claim.by:
        return claim
    return Claim(claim.key, claim.epoch, claim.incarnation, claim.signature, claim.left)


def claim_of(member: Member) -> Claim:
    """Return the member's claim together with what we hold against it."""
    claim = member.claim
    version = claim.key, claim.epoch, claim.incarnation, claim.signature
    if member.state is _SUSPECT and member.suspicion is not None:
        by = tuple(bytes(peer) for peer in member.suspicion.accusers)
        return Claim(*version, None, "suspect", by)
    if member.state is MemberState.DEAD:
        return Claim(*version, None, "dead")
    return claim


class Rumours:
    """Subjects of news by how often each was sent: the least sent first.

    Cost: O(taken) for each message.
    """

    def __init__(self) -> None:
        # Index: times sent. Insertion order within a level, so equal news take turns.
        self._levels: list[dict[PeerId, None]] = [{}]
        self._sent: dict[PeerId, int] = {}

    def __len__(self) -> int:
        return len(self._sent)

    def push(self, subject: PeerId) -> None:
        """There is something new about this member: begin to count again."""
        self.drop(subject)
        self._sent[subject] = 0
        self._levels[0][subject] = None

    def drop(self, subject: PeerId) -> None:
        """Spread no more about this member."""
        sent = self._sent.pop(subject, None)
        if sent is not None:
            del self._levels[sent][subject]

    def take(self, n_max: int, n_live: int, besides: Container[PeerId] = ()) -> list[PeerId]:
        """Return up to ``n_max`` subjects and count them as sent, but none of ``besides``."""
        taken: list[PeerId] = []
        for level in self._levels:
            for subject in level:
                if len(taken) == n_max:
                    break
                if subject not in besides:
                    taken.append(subject)
        sends_max = retransmissions_max(n_live)
        for subject in taken:
            self._count(subject, sends_max)
        return taken

    def _count(self, subject: PeerId, sends_max: int) -> None:
        sent = self._sent[subject]
        self.drop(subject)
        if sent + 1 >= sends_max:
            return
        self._sent[subject] = sent + 1
        if len(self._levels) == sent + 1:
            self._levels.append({})
        self._levels[sent + 1][subject] = None


def retransmissions_max(n_live: int) -> int:
    """Return how often one piece of news is sent by each node that has it."""
    return limits.SWIM_RETRANSMIT * math.ceil(math.log2(n_live + 1))
