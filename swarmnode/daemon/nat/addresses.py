"""Under which addresses other nodes may find us, before any peer has told us."""

from __future__ import annotations

import socket
from ipaddress import IPv4Network, IPv6Network

from swarmnode import limits
from swarmnode.config import parse_host_port
from swarmnode.net.lan.interfaces import list_interfaces
from swarmnode.net.tcp import format_address

# Hosts that stand for every interface; None is both families.
_FAMILIES = {
    None: (socket.AF_INET, socket.AF_INET6),
    "0.0.0.0": (socket.AF_INET,),  # noqa: S104 -- compared with, never bound
    "::": (socket.AF_INET6,),
}
_LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
# Documentation addresses: connecting a UDP socket to them sends nothing, it only asks
# the routing table which of our own addresses would be used.
_ELSEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}


def reachable_addresses(bound: str) -> tuple[str, ...]:
    """Return what to tell others for a listener that is bound to ``bound``.

    A listener on one address is reached there. One on every interface is reached at the
    addresses of the default routes; without any, on a network that leads nowhere else, at those
    of its interfaces; and without these only on this machine.
    """
    host, port = parse_host_port(bound, setting="listen")
    families = _FAMILIES.get(host)
    if families is None:
        assert host is not None
        return (format_address(host, port),)
    own = [_own_address(family) for family in families]
    found = [address for address in own if address] or _interface_addresses(families)
    found = found or [_LOOPBACK[families[0]]]
    return tuple(format_address(address, port) for address in found)


def _own_address(family: socket.AddressFamily) -> str | None:
    try:
        probe = socket.socket(family, socket.SOCK_DGRAM)
    except OSError:  # switched off in the kernel
        return None
    with probe:
        try:
            probe.connect((_ELSEWHERE[family], 9))
        except OSError:  # no route: this machine does not speak that family
            return None
        return str(probe.getsockname()[0])


def _interface_addresses(families: tuple[socket.AddressFamily, ...]) -> list[str]:
    versions = [4 if family == socket.AF_INET else 6 for family in families]
    found = [
        str(address.ip)
        for interface in list_interfaces()
        if interface.is_shared and not interface.is_loopback
        for address in interface.addresses
        if address.version in versions and not address.is_link_local
    ]
    return found[: limits.DHT_ADDRESSES_MAX]


def own_networks() -> tuple[IPv4Network | IPv6Network, ...]:
    """Return the private networks that this machine is in, where peers may share a range."""
    return tuple(
        address.network
        for interface in list_interfaces()
        for address in interface.addresses
        if address.is_private
    )
