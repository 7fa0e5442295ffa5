"""Records of membership in a swarm: how two nodes tell each other that they are of it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from swarmnode.wire.swarm import Signed

PeerState = Literal[
    "starting", "syncing", "training", "serving", "paused", "stopped", "failed", "left"
]
PeerRole = Literal["trainer", "keeper", "relay", "monitor"]


class SwarmHello(msgspec.Struct, frozen=True):
    """Request and answer of ``swarm/1``: I am of this swarm; now you.

    ``certificate`` is what a closed swarm asks for, empty in an open one. ``revocations`` is
    the newest list of revoked invites that the sender has.
    """

    role: PeerRole
    certificate: Annotated[bytes, Meta(max_length=4096)] = b""
    revocations: Signed | None = None
