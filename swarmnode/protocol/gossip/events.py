"""What goes into an exchange core and what comes out of it.

An *intent* says what this node wants to exchange, an *answer* what it gives to whoever asks for it.
No payload is behind them yet: the shell gets it ready between ``StartTransfer`` and ``LocalDone``.
Every ``Begin`` ends in exactly one of ``StartTransfer`` and ``Untaken``, and every
``StartTransfer`` in exactly one of ``Commit`` and ``Abort``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.outcomes import Outcome
from swarmnode.wire.exchange.gossip import Message


class Role(enum.StrEnum):
    """Who made the offer."""

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


Event = Available | Unavailable | Begin | Received | LocalDone | LocalFailed | PeerLost


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
