"""The intents of a node that wait for a partner, and the exchanges in flight.

A transfer is *overdue* when our view has been lent for longer than the patience with the partner.
Then it gives way: to the offer of another peer, or to an intent of ours, for which it stands in the
way. While nothing waits for its place it may go on until its limit, so that a slow volunteer in
good company with other slow ones loses nothing.

A responder that is ready cannot give way. Where merges add up, it *stands aside* when the decision
is overdue: so a partner that is silent then holds one of the places, and no topic.
"""

from __future__ import annotations

import enum
import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from swarmnode import limits
from swarmnode.env import Rng
from swarmnode.errors import RemoteProtocolError
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.events import Available, PairIntent, Role, Terms, Topic
from swarmnode.wire.exchange.gossip import Accept, Offer, StatusQuery


class IntentTable:
    """At most one intent and one answer for each tag and fragment; the shell bounds how many."""

    def __init__(self) -> None:
        self._intents: dict[Topic, Available] = {}
        self._answers: dict[Topic, Available] = {}

    def put(self, available: Available) -> None:
        """Keep an intent or answer in place of the one before."""
        intent = available.intent
        (self._answers if intent.is_open else self._intents)[intent.topic] = available

    def remove(self, number: int | None) -> None:
        """Forget one, or all."""
        for table in (self._intents, self._answers):
            for topic, available in list(table.items()):
                if number in (None, available.intent.number):
                    del table[topic]

    def intent(self, topic: Topic) -> PairIntent | None:
        """Return the intent that waits there."""
        available = self._intents.get(topic)
        return available.intent if available is not None else None

    def topics(self) -> list[Topic]:
        """Return the topics of the intents that wait, those that are being offered among them."""
        return list(self._intents)

    def for_offer(self, topic: Topic) -> Available | None:
        """Return what an offer can have: an answer, so that an intent of ours is still served."""
        return self._answers.get(topic) or self._intents.get(topic)

    def current(self, intent: PairIntent) -> PairIntent | None:
        """Return what may now stand for an intent that was offered; None: it is out of date."""
        waiting = self.intent(intent.topic)
        if waiting is not None and (waiting == intent or is_as_good(waiting, intent)):
            return waiting
        return None

    def use_up(self, intent: PairIntent) -> PairIntent:
        """Take out what partners have agreed on; return what is given for it."""
        if intent.is_open:
            return intent
        current = self.current(intent)
        if current is None:
            return intent  # it was promised: the lessor of its payload will say that it is gone
        del self._intents[intent.topic]
        return current

    def __len__(self) -> int:
        return len(self._intents)


class State(enum.StrEnum):
    """Where an exchange is. A node without a flight is idle."""

    OFFERED = "offered"  # initiator: waiting for the answer
    TRANSFER = "transfer"  # both: chunks flow
    READY = "ready"  # responder: the decision is the initiator's


@dataclass
class Flight:
    """One exchange between offer or acceptance and its end. Times are monotonic seconds."""

    xid: bytes
    peer: PeerId
    role: Role
    state: State
    intent: PairIntent
    transfer_limit_s: float
    started: float
    give_up_at: float  # OFFERED, TRANSFER: end of this state; READY: whatever I answers
    further: tuple[PeerId, ...] = ()  # candidates to try if this one declines
    seen: set[int] = field(default_factory=set)
    local_done: bool = False
    peer_ready: bool = False
    heard_at: float = 0.0  # READY: when the initiator last said that it is undecided
    ask_at: float = 0.0  # READY: when to ask it again
    lent_at: float | None = None  # since when our view is lent
    overdue_at: float = math.inf  # TRANSFER: from then on it gives way
    is_known_overdue: bool = False
    waited_s: float = 0.0  # from lent_at until all was here
    ready_at: float = 0.0  # READY: since when
    decide_s: float = 0.0  # READY: the initiator decides within this, once it has heard of it
    decided_at: float = math.inf  # READY: by then it has, if it is honest
    asked: int = 0  # READY: questions so far
    n_sent: int = 0  # of our chunks
    late_from: int = 0  # READY: this question, and all after it, were asked after decided_at

    @property
    def has_all_chunks(self) -> bool:
        return len(self.seen) == self.intent.n_chunks

    @property
    def doubt_at(self) -> float:
        """When a responder that is ready gives up: silence, or an initiator that never decides."""
        heard_at = min(self.heard_at, self.decided_at)
        return min(heard_at + limits.EXCHANGE_IN_DOUBT_S, self.give_up_at)

    @property
    def deadline(self) -> float:
        """When this flight wants attention."""
        if self.state is State.READY:
            return min(self.ask_at, self.doubt_at)
        if self.state is State.TRANSFER and not self.is_known_overdue:
            return min(self.overdue_at, self.give_up_at)
        return self.give_up_at

    def gives_way(self, now: float) -> bool:
        """Whether another exchange may have its place."""
        return self.state is State.TRANSFER and now >= self.overdue_at

    def stands_aside(self, now: float) -> bool:
        """Whether it is in doubt for longer than is usual, and others may begin beside it.

        To give it up would half-apply it if the way to an honest initiator is cut. Its slot is
        lent until then, and one of the places is taken.
        """
        is_late = self.state is State.READY and now >= self.ready_at + self.decide_s
        return is_late and self.intent.adds_up

    def lend(self, patience_s: float, now: float) -> None:
        """From now on it is the partner's time that passes."""
        if self.lent_at is None:
            self.lent_at, self.overdue_at = now, now + patience_s

    def note_progress(self, n_chunks: int, now: float) -> None:
        """One more chunk has left or come, ``n_chunks`` that way so far: the next has its time.

        On a thin line a transfer takes as long as it takes. Chunks are counted, so one that drips
        can hold a place for so much longer and no more; after the last of them none is waited for.
        """
        if self.state is State.TRANSFER and n_chunks < self.intent.n_chunks:
            until = now + self.intent.chunk_s
            self.give_up_at = max(self.give_up_at, until)
            if self.lent_at is not None and until > self.overdue_at:
                self.overdue_at, self.is_known_overdue = until, False

    def start_transfer(self, now: float) -> None:
        self.state = State.TRANSFER
        self.give_up_at = now + self.transfer_limit_s

    def become_ready(self, now: float, ask_at: float, decide_s: float) -> None:
        """Leave the decision to the initiator, which itself has to decide within a bound."""
        self.state = State.READY
        self.heard_at = self.ready_at = now
        self.ask_at, self.decide_s = ask_at, decide_s
        self.give_up_at = now + limits.EXCHANGE_TRANSFER_S_MAX + limits.EXCHANGE_IN_DOUBT_S

    def next_question(self, now: float) -> StatusQuery:
        """Return what to ask the initiator now."""
        self.asked += 1
        if not self.late_from and now >= self.decided_at:
            self.late_from = self.asked
        return StatusQuery(self.xid, number=self.asked, decide_s=self.decide_s)

    def note_pending(self, number: int, now: float) -> bool:
        """The initiator says that it is undecided; False if it has to have decided before.

        It had heard of our READY by now, so it decides within ``decide_s``. A reply without the
        number of a question could be as old as it likes, and changes nothing.
        """
        if not 0 < number <= self.asked:
            return True
        self.decided_at = min(self.decided_at, now + self.decide_s)
        self.heard_at = now
        return not 0 < self.late_from <= number

    def take_chunk(self, index: int) -> bool:
        """Note a chunk; False for a duplicate. Raises RemoteProtocolError if out of range."""
        if index >= self.intent.n_chunks:
            raise RemoteProtocolError(
                f"expected a chunk below {self.intent.n_chunks}, got {index}",
                peer=str(self.peer),
            )
        if index in self.seen:
            return False
        self.seen.add(index)
        return True


class FlightTable:
    """The exchanges in flight: each with another peer, and of another tag and fragment.

    Of these there may be another one beside those in doubt, if what comes of them adds up.
    """

    def __init__(self) -> None:
        self._flights: dict[bytes, Flight] = {}

    def add(self, flight: Flight) -> None:
        self._flights[flight.xid] = flight

    def remove(self, flight: Flight) -> None:
        del self._flights[flight.xid]

    def get(self, xid: bytes) -> Flight | None:
        return self._flights.get(xid)

    def with_peer(self, peer: PeerId) -> Flight | None:
        return next((flight for flight in self if flight.peer == peer), None)

    def to_give_way(self, topic: Topic, now: float) -> list[Flight] | None:
        """Return what has to end for one more of this topic; None: there is no place for it."""
        same, others = list[Flight](), list[Flight]()
        for flight in self:
            is_same = flight.intent.topic == topic and not flight.stands_aside(now)
            (same if is_same else others).append(flight)
        if not all(flight.gives_way(now) for flight in same):
            return None
        if len(others) < limits.EXCHANGE_FLIGHTS_MAX:
            return same
        overdue = [flight for flight in others if flight.gives_way(now)]
        return same + overdue[:1] if overdue else None

    def __iter__(self) -> Iterator[Flight]:
        return iter(list(self._flights.values()))

    def __len__(self) -> int:
        return len(self._flights)


def new_xid(own: PeerId, peer: PeerId, rng: Rng) -> bytes:
    """Bind the id to both peers, so that equal seeds on two nodes give different ids."""
    drawn = rng.randbytes(16)
    return hashlib.sha256(b"swarmnode/xid\0" + own + peer + drawn).digest()[:16]


def refusal(intent: PairIntent, offer: Offer) -> str | None:
    """Return why ``intent`` cannot accept this offer of its tag and fragment, or None.

    Every comparison of two intents is symmetric: of two peers with crossing offers both refuse
    or neither. With an answer the offer decides the round and the base version.
    """
    if offer.n_chunks != intent.n_chunks:
        return f"incompatible: here it is {intent.n_chunks} chunks"
    if intent.is_open:
        return None
    if offer.base_version != intent.base_version:
        return f"base: here it is {intent.base_version.hex()[:16] or 'none'}"
    skew = intent.round_skew_max
    if skew is not None and abs(offer.round - intent.round) > skew:
        return f"round: here it is {intent.round}"
    return None


def is_as_good(newer: PairIntent, offered: PairIntent) -> bool:
    """Whether ``newer`` may stand for an intent that was offered: the partner would not know."""
    return offered.round_skew_max is None and newer == replace(
        offered, number=newer.number, round=newer.round, step=newer.step, tokens=newer.tokens
    )


def offer_of(intent: PairIntent, xid: bytes, key: bytes) -> Offer:
    """Return the message that offers ``intent``."""
    return Offer(
        xid=xid,
        key=key,
        tag=intent.tag,
        fragment=intent.fragment,
        round=intent.round,
        n_chunks=intent.n_chunks,
        step=intent.step,
        tokens=intent.tokens,
        weight=intent.weight,
        base_version=intent.base_version,
    )


def acceptance_of(intent: PairIntent, offer: Offer) -> Accept:
    """Return the message that gives ``intent`` in return for what is offered."""
    return Accept(
        xid=offer.xid,
        round=offer.round if intent.is_open else intent.round,
        step=intent.step,
        tokens=intent.tokens,
        weight=intent.weight,
    )


def terms_of(theirs: Offer | Accept, own: PairIntent) -> Terms:
    """Return what the partner says; one that accepts has the base version of what was offered."""
    base = theirs.base_version if isinstance(theirs, Offer) else own.base_version
    return Terms(theirs.round, theirs.step, theirs.tokens, theirs.weight, base)
