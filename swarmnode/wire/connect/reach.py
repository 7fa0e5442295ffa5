"""Dial-back and observed addresses: what peers tell each other about how they are reached.

``proto/reach.md`` says what may be believed.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from swarmnode.wire.records import Port, ShortText

# What a connection begins with that only asks where it comes from; no TLS record does.
WHERE_MAGIC: Final = b"where/1\0"
WHERE_ANSWER_BYTES_MAX = 64  # [IPV6]:PORT and a newline

SeenAddress = Annotated[str, Meta(max_length=260)]


class ReachMessage(msgspec.Struct, frozen=True, tag_field="t"):
    """Base of every message about reachability."""


class WhereAmI(ReachMessage, frozen=True, tag="where-am-i"):
    """Which address do my bytes come from?"""


class SeenAt(ReachMessage, frozen=True, tag="seen-at"):
    """From this one; "" if the way we are connected by has none."""

    address: SeenAddress


class DialBack(ReachMessage, frozen=True, tag="dial-back"):
    """Dial me at the address that you see, and this port. No other address can be named."""

    port: Port


class DialledBack(ReachMessage, frozen=True, tag="dialled-back"):
    """Whether you answered there; if not, why in words."""

    address: SeenAddress
    is_reached: bool
    reason: ShortText = ""


Question = WhereAmI | DialBack
Answer = SeenAt | DialledBack
Message = WhereAmI | SeenAt | DialBack | DialledBack
