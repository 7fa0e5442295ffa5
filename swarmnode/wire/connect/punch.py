"""Messages that agree on a TCP hole punch: ``proto/punch.md`` says when each is sent.

They travel as payload of signed signals between the two nodes that want to meet.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from swarmnode import limits
from swarmnode.wire.records import Digest

PUNCH_NONCE_BYTES = 16


class PunchAddress(msgspec.Struct, frozen=True):
    """Where the author's listening port is: on its own machine, or as a peer saw it."""

    host: Annotated[bytes, Meta(min_length=4, max_length=16)]  # 4 bytes of IPv4 or 16 of IPv6
    port: Annotated[int, Meta(ge=limits.PUNCH_PORT_MIN, le=65_535)]


PunchAddresses = Annotated[
    tuple[PunchAddress, ...], Meta(min_length=1, max_length=limits.PUNCH_ADDRESSES_MAX)
]


class PunchMessage(msgspec.Struct, frozen=True, tag_field="t"):
    """Base of every message of a punch."""


class PunchOffer(PunchMessage, frozen=True, tag="punch-offer"):
    """Let us dial each other at the same moment; I shall say when."""

    nonce: Annotated[bytes, Meta(min_length=PUNCH_NONCE_BYTES, max_length=PUNCH_NONCE_BYTES)]
    addresses: PunchAddresses


class PunchAnswer(PunchMessage, frozen=True, tag="punch-answer"):
    """Yes. ``offer`` is the SHA-256 of the offer's bytes: an answer to no other."""

    offer: Digest
    addresses: PunchAddresses


class PunchGo(PunchMessage, frozen=True, tag="punch-go"):
    """Now. The offer and its answer took so long."""

    offer: Digest
    round_trip_ms: Annotated[int, Meta(ge=0, le=limits.PUNCH_ROUND_TRIP_MS_MAX)]


Message = PunchOffer | PunchAnswer | PunchGo
