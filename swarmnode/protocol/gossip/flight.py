"""The one exchange in flight on a node: its state, its deadlines, its chunks."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from swarmnode import limits
from swarmnode.errors import RemoteProtocolError
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.events import Role, Snapshot
from swarmnode.wire.gossip import Accept, Offer


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
    snapshot: Snapshot
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
        return len(self.seen) == self.snapshot.n_chunks

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
        if index >= self.snapshot.n_chunks:
            raise RemoteProtocolError(
                f"expected a chunk below {self.snapshot.n_chunks}, got {index}",
                peer=str(self.peer),
            )
        if index in self.seen:
            return False
        self.seen.add(index)
        return True


def refusal(snapshot: Snapshot | None, offer: Offer) -> str | None:
    """Return why this offer cannot be accepted with ``snapshot``, or None.

    Every comparison is symmetric: of two peers with crossing offers both refuse or neither.
    """
    if snapshot is None:
        return "no-snapshot"
    if offer.key != snapshot.key:
        return "incompatible: other strategy, settings, layout or codec"
    if (offer.tag, offer.fragment) != (snapshot.tag, snapshot.fragment):
        return f"fragment: here {snapshot.tag}/{snapshot.fragment} is due"
    if offer.n_chunks != snapshot.n_chunks:
        return f"incompatible: here it is {snapshot.n_chunks} chunks"
    skew = snapshot.round_skew_max
    if skew is not None and abs(offer.round - snapshot.round) > skew:
        return f"round: here it is {snapshot.round}"
    return None


def offer_of(snapshot: Snapshot, xid: bytes) -> Offer:
    """Return the message that offers ``snapshot``."""
    return Offer(
        xid=xid,
        key=snapshot.key,
        tag=snapshot.tag,
        fragment=snapshot.fragment,
        round=snapshot.round,
        n_chunks=snapshot.n_chunks,
        step=snapshot.step,
        tokens=snapshot.tokens,
    )


def acceptance_of(snapshot: Snapshot, xid: bytes) -> Accept:
    """Return the message that gives ``snapshot`` in return."""
    return Accept(xid=xid, round=snapshot.round, step=snapshot.step, tokens=snapshot.tokens)
