"""Under which addresses other nodes may find us, before anybody has told us."""

from __future__ import annotations

import socket

from swarmnode.config import parse_host_port
from swarmnode.net.tcp import format_address

_ANY = frozenset({"0.0.0.0", "::"})  # noqa: S104 -- compared with, never bound
# Documentation addresses: connecting a UDP socket to them sends nothing, it only asks
# the routing table which of our own addresses would be used.
_ELSEWHERE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))


def reachable_addresses(bound: str) -> tuple[str, ...]:
    """Return what to tell others for a listener that is bound to ``bound``.

    A listener on one address is reached there. One on every interface is reached at
    the addresses of the default routes, or only on this machine if there are none.
    """
    host, port = parse_host_port(bound, setting="listen")
    if host is not None and host not in _ANY:
        return (format_address(host, port),)
    own = [_own_address(family, elsewhere) for family, elsewhere in _ELSEWHERE]
    found = tuple(format_address(address, port) for address in own if address)
    return found or (format_address("127.0.0.1", port),)


def _own_address(family: socket.AddressFamily, elsewhere: str) -> str | None:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((elsewhere, 9))
        except OSError:  # no route: this machine does not speak that family
            return None
        return str(probe.getsockname()[0])
