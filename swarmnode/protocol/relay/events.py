"""What the core of a relay is told, and what it wants done.

A *circuit* connects two peers; each has one *leg* of it, a connection to the relay. Side 0 is
the caller, side 1 the target. A leg is named by a number of the shell's.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarmnode.ids import PeerId
from swarmnode.wire.connect.relay import Answer, LegAnswer

# --- events -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReserveAsked:
    """A peer with an open session wants to be reachable, or not any more.

    ``host``: where its bytes come from, "" if its way has no such thing: those are one address.
    """

    command: int
    peer: PeerId
    host: str
    is_release: bool = False


@dataclass(frozen=True, slots=True)
class ConnectAsked:
    """A peer wants a circuit."""

    command: int
    source: PeerId
    target: PeerId
    host: str = ""  # of the source, as in ReserveAsked


@dataclass(frozen=True, slots=True)
class OfferAnswered:
    """What the target said; None: it comes."""

    circuit: int
    declined_because: str | None


@dataclass(frozen=True, slots=True)
class Attached:
    """A connection has shown a token; ``peer`` is known if it is a stream of a session."""

    leg: int
    token: bytes
    peer: PeerId | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A piece of an open circuit did not pass; Passed comes when it may."""

    circuit: int
    side: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class CircuitEnded:
    """One of its legs is gone."""

    circuit: int


@dataclass(frozen=True, slots=True)
class LegGone:
    """A connection that had shown a token went away."""

    leg: int


@dataclass(frozen=True, slots=True)
class PeerGone:
    """There is no session with this peer any more."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Allowed:
    """Whether the owner lets this node relay: ``why_not`` is "" then. It is told so again."""

    why_not: str


Event = (
    ReserveAsked
    | ConnectAsked
    | OfferAnswered
    | Attached
    | Waiting
    | CircuitEnded
    | LegGone
    | PeerGone
    | Allowed
)

# --- effects ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answered:
    """This is what the peer that asked is told."""

    command: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class Offer:
    """Tell the target; OfferAnswered must follow."""

    circuit: int
    source: PeerId
    target: PeerId
    token: bytes


@dataclass(frozen=True, slots=True)
class Joined:
    """Both legs are here: say GO on both, then copy."""

    circuit: int
    legs: tuple[int, int]


@dataclass(frozen=True, slots=True)
class LegRefused:
    """Say so on this leg and close it."""

    leg: int
    answer: LegAnswer


@dataclass(frozen=True, slots=True)
class Passed:
    """The piece that waited on this side of a circuit may be sent."""

    circuit: int
    side: int


@dataclass(frozen=True, slots=True)
class CircuitClosed:
    """Stop copying and close both legs."""

    circuit: int
    why: str


@dataclass(frozen=True, slots=True)
class PlaceLost:
    """Tell this peer that its reservation is another's now."""

    peer: PeerId
    why: str


Effect = PlaceLost | Answered | Offer | Joined | LegRefused | Passed | CircuitClosed
