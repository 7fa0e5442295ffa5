"""The intents of a node that wait for a partner, and the one exchange in flight."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace

from swarmnode import limits
from swarmnode.errors import RemoteProtocolError
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.events import Available, PairIntent, Role, Terms, Topic
from swarmnode.wire.exchange.gossip import Accept, Offer


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

    @property
    def has_all_chunks(self) -> bool:
        return len(self.seen) == self.intent.n_chunks

    @property
    def doubt_at(self) -> float:
        """When a responder that is ready gives up: silence, or an initiator that never decides."""
        return min(self.heard_at + limits.EXCHANGE_IN_DOUBT_S, self.give_up_at)

    @property
    def deadline(self) -> float:
        """When this flight wants attention."""
        if self.state is State.READY:
            return min(self.ask_at, self.doubt_at)
        return self.give_up_at

    def start_transfer(self, now: float) -> None:
        self.state = State.TRANSFER
        self.give_up_at = now + self.transfer_limit_s

    def become_ready(self, now: float, ask_at: float) -> None:
        """Leave the decision to the initiator, who itself has to decide within a bound."""
        self.state = State.READY
        self.heard_at = now
        self.ask_at = ask_at
        self.give_up_at = now + limits.EXCHANGE_TRANSFER_S_MAX + limits.EXCHANGE_IN_DOUBT_S

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
    """Return what the partner says; who accepts has the base version of what was offered."""
    base = theirs.base_version if isinstance(theirs, Offer) else own.base_version
    return Terms(theirs.round, theirs.step, theirs.tokens, theirs.weight, base)
