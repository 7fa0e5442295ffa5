"""Messages of relaying, and the few bytes with which a relayed connection begins.

``proto/relay.md`` says when each is sent.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from swarmnode.errors import MalformedMessage
from swarmnode.wire.records import Count, PeerIdBytes, ShortText

TOKEN_BYTES = 16
LEG_MAGIC: Final = b"relay/1\0"  # no TLS record begins like this
LEG_AS_TLS: Final = b"\x16\x03\x03"  # in the shape of TLS; a session's first record says 3.1
LEG_BYTES = len(LEG_MAGIC) + TOKEN_BYTES

Token = Annotated[bytes, Meta(min_length=TOKEN_BYTES, max_length=TOKEN_BYTES)]
RefusalCode = Literal[
    "absent",  # the target has no reservation here
    "declined",  # the target does not want it
    "full",  # no room for one more
    "rate",  # too many questions
    "quota",  # its share of bytes is used up
    "setup",  # the target did not answer
]


class RelayMessage(msgspec.Struct, frozen=True, tag_field="t"):
    """Base of every message of relaying."""


class Reserve(RelayMessage, frozen=True, tag="reserve"):
    """Let others reach me through you; again before it expires."""


class Release(RelayMessage, frozen=True, tag="release"):
    """I need no reservation any more."""


class Reserved(RelayMessage, frozen=True, tag="reserved", omit_defaults=True):
    """You can be reached for so long, while this session is open. 0: not any more.

    ``load``: how much of what the relay has is taken. ``circuits``: what of it is yours while all
    want some, 0 if it does not say.
    """

    lifetime_s: Annotated[int, Meta(ge=0, le=7 * 86_400)]
    load: Annotated[int, Meta(ge=0, le=100)] = 0
    circuits: Annotated[int, Meta(ge=0, le=65_535)] = 0


class PlaceLost(RelayMessage, frozen=True, tag="place-lost"):
    """Your reservation is another's now: your address had more than others."""

    reason: ShortText


class Connect(RelayMessage, frozen=True, tag="connect"):
    """Connect me with this peer."""

    target: PeerIdBytes


class Granted(RelayMessage, frozen=True, tag="granted", omit_defaults=True):
    """The target wants it too: begin with this token. ``bytes_per_s`` 0: as fast as it goes.

    ``as_tls``: a connection may begin in the shape of TLS.
    """

    token: Token
    bytes_per_s: Count = 0
    as_tls: bool = False


class Incoming(RelayMessage, frozen=True, tag="incoming", omit_defaults=True):
    """``source`` asks for you: begin with this token. Who it really is, its session shows.

    ``as_tls``: see ``Granted``.
    """

    token: Token
    source: PeerIdBytes
    as_tls: bool = False


class Accepted(RelayMessage, frozen=True, tag="accepted"):
    """I am coming."""


class Refusal(RelayMessage, frozen=True, tag="refusal"):
    """No: the reason for programs and for people, and when it may be different (0: unknown)."""

    code: RefusalCode
    reason: ShortText
    retry_s: Annotated[int, Meta(ge=0, le=7 * 86_400)] = 0


Question = Reserve | Release | Connect
Answer = Reserved | Granted | Refusal
OfferAnswer = Accepted | Refusal
Arrival = Incoming | PlaceLost
Message = (
    Reserve | Release | Reserved | Connect | Granted | Incoming | Accepted | Refusal | PlaceLost
)


class LegAnswer(IntEnum):
    """The one byte with which a relay answers the beginning of a leg."""

    GO = 0  # both sides are here; from now on nothing is the relay's
    UNKNOWN = 1  # no such token: used before, too late, or never given
    ALONE = 2  # the other side did not come
    CLOSED = 3  # the relay gives the circuit up


def encode_leg(token: bytes) -> bytes:
    """Return the bytes with which a leg begins."""
    assert len(token) == TOKEN_BYTES
    return LEG_MAGIC + token


def decode_leg(data: bytes) -> bytes:
    """Return the token. Raises MalformedMessage."""
    if len(data) != LEG_BYTES or not data.startswith(LEG_MAGIC):
        raise MalformedMessage(f"expected {LEG_MAGIC!r} and a token, got {data[:LEG_BYTES]!r}")
    return data[len(LEG_MAGIC) :]
