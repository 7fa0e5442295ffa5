"""Records of membership in a swarm: how two nodes tell each other that they are of it."""

from __future__ import annotations

from typing import Literal

import msgspec

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


class SwarmHello(msgspec.Struct, frozen=True):
    """Request and answer of ``swarm/1``: I am of this swarm; now you.

    ``role`` is what the sender does; a closed swarm wants a certificate that grants it.
    """

    role: Role
    credentials: Credentials
