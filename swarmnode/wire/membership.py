"""Records of membership in a swarm: how two nodes tell each other that they are of it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from swarmnode.wire.admission import Credentials, Role

PeerState = Literal[
    "starting",
    "syncing",
    "training",
    "serving",
    "paused",
    "stopped",
    "finished",
    "failed",
    "left",
]


class SwarmHello(msgspec.Struct, frozen=True, omit_defaults=True):
    """Request and answer of ``swarm/1``: I am of this swarm; now you.

    ``role`` is what the sender does; a closed swarm wants a certificate that grants it. ``work``
    proves that the sender's key has cost it something; b"": it does not say so.
    """

    role: Role
    credentials: Credentials
    work: Annotated[bytes, Meta(max_length=8)] = b""
