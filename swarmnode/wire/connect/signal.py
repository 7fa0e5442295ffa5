"""Signals: small signed words to a peer that there is no way to yet, carried by a common neighbour.

``proto/signal.md`` says which node checks what.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from swarmnode import limits
from swarmnode.wire.records import Count, Name, PeerIdBytes
from swarmnode.wire.swarm import Signed

NONCE_BYTES = 16
ObservedAddress = Annotated[str, Meta(max_length=260)]


class Signal(msgspec.Struct, frozen=True):
    """What the author says to ``target``; the body of a Signed, whose key is the author's.

    ``created_at_ms`` is Unix time. No node takes a ``nonce`` of one author twice.
    """

    target: PeerIdBytes
    kind: Name
    created_at_ms: Count
    nonce: Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
    payload: Annotated[bytes, Meta(max_length=limits.SIGNAL_BYTES_MAX)]


class SignalMessage(msgspec.Struct, frozen=True, tag_field="t"):
    """Base of what is sent between neighbours."""


class Carry(SignalMessage, frozen=True, tag="carry"):
    """Author to carrier: bring this to its target."""

    target: PeerIdBytes
    signal: Signed


class Deliver(SignalMessage, frozen=True, tag="deliver"):
    """Carrier to target; ``observed`` is where the carrier sees the author, "" if it cannot say."""

    observed: ObservedAddress
    signal: Signed


class Taken(SignalMessage, frozen=True, tag="taken"):
    """The target has it. ``observed`` is where the carrier sees the target."""

    observed: ObservedAddress = ""


Message = Carry | Deliver | Taken
