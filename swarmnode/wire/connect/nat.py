"""Records of NAT traversal: offers and answers of WebRTC, and the probe of a NAT's filter.

An offer travels in a signed message of ``signal/1`` and is answered the same way. It holds no
text of SDP: only what is checked here field by field. See ``proto/rtc.md`` and ``proto/stun.md``.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from swarmnode import limits
from swarmnode.wire.records import Digest, Port

# RFC 8839, 5.4: at least four and twenty-two characters of this alphabet.
IceUser = Annotated[str, Meta(min_length=4, max_length=32, pattern=r"^[A-Za-z0-9+/]+$")]
IcePassword = Annotated[str, Meta(min_length=22, max_length=64, pattern=r"^[A-Za-z0-9+/]+$")]
TransactionId = Annotated[bytes, Meta(min_length=12, max_length=12)]


class RtcCandidate(msgspec.Struct, frozen=True):
    """A UDP address that the author can perhaps be reached at.

    ``host`` is its own, ``srflx`` is what a peer saw its questions come from.
    """

    kind: Literal["host", "srflx"]
    address: Annotated[bytes, Meta(min_length=4, max_length=16)]  # 4 bytes of IPv4 or 16 of IPv6
    port: Port


Candidates = Annotated[
    tuple[RtcCandidate, ...], Meta(min_length=1, max_length=limits.RTC_CANDIDATES_MAX)
]


class RtcDescription(msgspec.Struct, frozen=True, tag_field="t"):
    """Base of both: how to check addresses with the author, and the DTLS certificate to expect."""

    user: IceUser
    password: IcePassword
    fingerprint: Digest  # SHA-256 of the DTLS certificate
    candidates: Candidates


class RtcOffer(RtcDescription, frozen=True, tag="rtc-offer"):
    """Let us open a data channel; I shall lead the checks."""


class RtcAnswer(RtcDescription, frozen=True, tag="rtc-answer"):
    """Yes. ``offer`` is the SHA-256 of the offer's bytes: an answer to no other."""

    offer: Digest


class ProbeRequest(msgspec.Struct, frozen=True):
    """Send me a STUN indication with this transaction id: to where you see me, at this port."""

    port: Annotated[int, Meta(ge=limits.RTC_PORT_MIN, le=65_535)]
    transaction: TransactionId
