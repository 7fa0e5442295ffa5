"""The default gateway of this machine, and the address that we have towards it."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from swarmnode.errors import TransportError

_TABLE = Path("/proc/net/route")
_UP_AND_GATEWAY = 0x3


@dataclass(frozen=True)
class Place:
    """Where we are: the IPv4 default gateway, and our own address on its network."""

    gateway: str
    own: str


def find_place() -> Place:
    """Ask the kernel. Raises TransportError that says why there is no gateway to ask."""
    try:
        table = _TABLE.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise TransportError(f"the default gateway is not known: {_TABLE}: {error}") from error
    gateway = parse_gateway(table)
    if gateway is None:
        raise TransportError("there is no IPv4 default gateway: not connected, or by a tunnel only")
    return Place(gateway, _own_address(gateway))


def parse_gateway(table: str) -> str | None:
    """Return the gateway of the default route with the lowest metric in ``/proc/net/route``."""
    routes = []
    for line in table.splitlines()[1:]:
        _, destination, gateway, flags, _, _, metric, mask, *_ = line.split()
        is_default = int(destination, 16) == 0 and int(mask, 16) == 0
        if is_default and int(flags, 16) & _UP_AND_GATEWAY == _UP_AND_GATEWAY:
            routes.append((int(metric), gateway))
    if not routes:
        return None
    # Stored as the machine keeps numbers, written in hexadecimal.
    return str(IPv4Address(socket.htonl(int(min(routes)[1], 16))))


def _own_address(gateway: str) -> str:
    """Return the address that packets to the gateway leave from; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((gateway, 9))
        except OSError as error:
            raise TransportError(f"the gateway {gateway} cannot be reached: {error}") from error
        return str(probe.getsockname()[0])
