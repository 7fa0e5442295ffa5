"""What members of a swarm leave in the mainline DHT for strangers."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from swarmnode import limits
from swarmnode.wire.records import Address, Count, Name, PeerIdBytes, PublicKeyBytes

Grant = Annotated[bytes, Meta(min_length=96, max_length=96)]


class MeetingItem(msgspec.Struct, frozen=True):
    """Where some live members of a swarm are; the value of a mutable item (BEP 44).

    Attributes:
        grant: the swarm's key allows the key of the meeting to speak: see ``protocol/meeting.py``.
        at: when it was written, in Unix seconds, and ``made`` when the swarm was.
        peers: members, and in the same order ``addresses`` where each may be dialled.
    """

    name: Name
    swarm: PublicKeyBytes
    grant: Grant
    at: Count
    members: Count
    made: Count
    peers: Annotated[tuple[PeerIdBytes, ...], Meta(max_length=limits.BOOTSTRAP_HINTS_MAX)] = ()
    addresses: Annotated[tuple[Address, ...], Meta(max_length=limits.BOOTSTRAP_HINTS_MAX)] = ()
