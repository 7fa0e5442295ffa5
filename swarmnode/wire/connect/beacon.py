"""The record that announces a node to its LAN: the body of a ``Signed`` in one UDP datagram."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from swarmnode.limits import LAN_SWARMS_MAX
from swarmnode.wire.records import Count, Digest, Name, PublicKeyBytes


class LanSwarm(msgspec.Struct, frozen=True):
    """A swarm that the sender is in, as it knows it: shown to people, proved by nothing."""

    name: Name
    swarm_key: PublicKeyBytes
    members: Count
    created_at: Count  # Unix seconds


class Beacon(msgspec.Struct, frozen=True):
    """I am here: dial the address that this datagram came from, at this port.

    It carries no address: a beacon can send no node to a third party.
    """

    network_id: Digest
    boot: Count  # grows with every start of the sender: Unix milliseconds
    sequence: Count  # grows with every beacon of one start
    port: Annotated[int, Meta(ge=0, le=65_535)]  # TCP; 0: cannot be dialled, and only asks
    swarms: Annotated[tuple[LanSwarm, ...], Meta(max_length=LAN_SWARMS_MAX)]
