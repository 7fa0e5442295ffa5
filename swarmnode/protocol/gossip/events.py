"""What goes into an exchange core and what comes out of it, and what it counts.

An *intent* says what this node wants to exchange, an *answer* what it gives to a peer that asks.
No payload is behind them yet: the shell gets it ready between ``StartTransfer`` and ``LocalDone``.
Every ``Begin`` ends in exactly one of ``StartTransfer`` and ``Untaken``, and every
``StartTransfer`` in exactly one of ``Commit`` and ``Abort``.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.outcomes import Outcome
from swarmnode.wire.exchange.gossip import Message, reason_code


class Role(enum.StrEnum):
    """A node's side of an exchange: the initiator made the offer."""

    INITIATOR = "initiator"
    RESPONDER = "responder"


Topic = tuple[str, int]  # tag and fragment: what partners must have in common


@dataclass(frozen=True)
class PairIntent:
    """What a node wants to exchange, or with ``is_open`` an answer.

    Attributes:
        number: the shell's, different for each intent.
        round_skew_max: partners further apart than this do not exchange; None: any.
        is_open: it is accepted whatever the round and base version, and is not used up by that.
        adds_up: what comes of it is added to what is there then: another exchange of the topic may
            begin and end before it.
        chunk_s: what one of its chunks takes on the slowest line that is waited for.
    """

    number: int
    tag: str
    fragment: int
    round: int
    n_chunks: int
    step: int
    tokens: int
    weight: float = 1.0
    base_version: bytes = b""
    round_skew_max: int | None = None
    is_open: bool = False
    adds_up: bool = False
    chunk_s: float = 0.0

    @property
    def topic(self) -> Topic:
        """What a partner's intent must have in common with this one."""
        return self.tag, self.fragment


# --- events ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Available:
    """An intent or answer; it takes the place of the one of the same tag and fragment.

    ``transfer_limit_s`` bounds the transfer if we respond.
    """

    intent: PairIntent
    transfer_limit_s: float


@dataclass(frozen=True)
class Unavailable:
    """This intent is no longer to be offered or accepted; None: no intent and no answer is.

    Nothing changes for one in an exchange.
    """

    number: int | None = None


@dataclass(frozen=True)
class Begin:
    """Offer the intent of this tag and fragment to ``candidates``, one after the other."""

    tag: str
    fragment: int
    candidates: tuple[PeerId, ...]
    transfer_limit_s: float


@dataclass(frozen=True)
class Received:
    """A message of an authenticated peer."""

    peer: PeerId
    message: Message


@dataclass(frozen=True)
class ViewLent:
    """Our view can be sent: from now on it is the partner that is waited for."""

    xid: bytes


@dataclass(frozen=True)
class ChunkSent:
    """One more of our chunks has left."""

    xid: bytes


@dataclass(frozen=True)
class LocalDone:
    """All chunks of the partner are taken in and all of ours are sent."""

    xid: bytes


@dataclass(frozen=True)
class LocalFailed:
    """Our side cannot go on: bad payload, non-finite values, the worker has gone or refuses.

    ``reason`` begins with a code of ``wire/exchange/gossip.py``. ``is_last``: this node ends now
    and hears of no decision any more, so an exchange that waits for one ends in doubt.
    """

    xid: bytes
    reason: str
    is_last: bool = False


@dataclass(frozen=True)
class PeerLost:
    """The session with this peer ended, or could not be opened."""

    peer: PeerId


Progress = ViewLent | ChunkSent | LocalDone | LocalFailed
Event = Available | Unavailable | Begin | Received | Progress | PeerLost


# --- effects -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Send:
    """On the stream of the exchange if it is open, else as a control message.

    Without a session only a StatusQuery is worth a dial; the rest may be dropped.
    """

    peer: PeerId
    message: Message


@dataclass(frozen=True)
class Terms:
    """What the partner says of its side."""

    round: int
    step: int
    tokens: int
    weight: float = 1.0
    base_version: bytes = b""


@dataclass(frozen=True)
class StartTransfer:
    """Get ready what this intent gives, stream it, take in theirs; then LocalDone or LocalFailed.

    The intent is used up, unless it is an answer.
    """

    xid: bytes
    peer: PeerId
    role: Role
    number: int
    theirs: Terms


@dataclass(frozen=True)
class MergeChunk:
    """The chunk just received is to be taken in. Without this effect its payload is dropped."""

    xid: bytes
    index: int


@dataclass(frozen=True)
class Commit:
    """Hand the result to the worker."""

    xid: bytes


@dataclass(frozen=True)
class Abort:
    """What was started came to nothing."""

    xid: bytes
    why: str


@dataclass(frozen=True)
class Untaken:
    """No peer took the intent; unless it was replaced, it can still be had. ``why``: the last.

    It may be offered again.
    """

    number: int
    why: str


@dataclass(frozen=True)
class Finished:
    """One line of history. ``reason`` is empty for commits; ``by_peer``: the peer gave it."""

    xid: bytes
    peer: PeerId
    role: Role
    outcome: Outcome
    reason: str
    by_peer: bool
    in_doubt: bool
    started: float
    ended: float


Effect = Send | StartTransfer | MergeChunk | Commit | Abort | Untaken | Finished


@dataclass(frozen=True)
class ExchangeStatistics:
    """Counters since the core was made. Every key is from a closed set."""

    is_busy: bool
    intents: int  # that wait
    # (role, outcome, reason code) of every exchange that ended here; commits have no reason
    finished_total: Mapping[tuple[str, str, str], int]
    # offers that we declined, by reason code
    refused_total: Mapping[str, int]
    # responders that gave up without knowing the initiator's decision
    in_doubt_total: int
    # exchanges of which we learned that they count on one side only
    half_applied_total: int
    crossed_offers_total: int
    chunks_merged_total: int
    # duplicates, and those of no running exchange
    chunks_dropped_total: int
    # messages of exchanges that are over or unknown
    stale_messages_total: int
    outcomes_kept: int


@dataclass
class Tally:
    """The counters while they count."""

    finished: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    in_doubt: int = 0
    half_applied: int = 0
    crossed_offers: int = 0
    chunks_merged: int = 0
    chunks_dropped: int = 0
    stale_messages: int = 0

    def count_finished(self, finished: Finished) -> None:
        code = "" if finished.outcome is Outcome.COMMITTED else reason_code(finished.reason)
        self.finished[finished.role.value, finished.outcome.value, code] += 1
        self.in_doubt += finished.in_doubt

    def statistics(self, *, is_busy: bool, intents: int, outcomes_kept: int) -> ExchangeStatistics:
        """Return the counters together with what the core knows."""
        return ExchangeStatistics(
            is_busy=is_busy,
            intents=intents,
            finished_total=MappingProxyType(dict(self.finished)),
            refused_total=MappingProxyType(dict(self.refused)),
            in_doubt_total=self.in_doubt,
            half_applied_total=self.half_applied,
            crossed_offers_total=self.crossed_offers,
            chunks_merged_total=self.chunks_merged,
            chunks_dropped_total=self.chunks_dropped,
            stale_messages_total=self.stale_messages,
            outcomes_kept=outcomes_kept,
        )
