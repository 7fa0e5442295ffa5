"""Datagrams to and from all nodes on the LAN: multicast and broadcast, IPv4 and IPv6.

One socket for each IP version does everything. It is bound to a fixed port that all
nodes of a machine share, so nothing is ever sent to a single host: only datagrams to
a group or a broadcast address reach all nodes that share the port.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Any, Protocol

import trio

from swarmnode import limits
from swarmnode.net.lan.interfaces import Interface, list_interfaces

# Linux lets a socket join 20 groups; a machine with more is one that runs containers.
_LAN_INTERFACES_MAX = 16
# Read at once before other tasks get their turn: about 0.2 ms.
_LAN_RECEIVE_BATCH = 32

PORT = 7339
# Administratively scoped, and link-local but not assigned: routers forward neither.
GROUP_IPV4 = "239.255.73.39"
GROUP_IPV6 = "ff12::7339"
_HOPS = 1
_ALL = "all"

_log = logging.getLogger(__name__)

# The datagram, the host that sent it as written in an address, whether that is on our LAN.
Deliver = Callable[[bytes, str, bool], None]


class DatagramNet(Protocol):
    """What a beacon needs from the network; tests have another one."""

    def open(self) -> None:
        """Take the port. What cannot be had is logged, and done without."""

    def rescan(self) -> tuple[Interface, ...]:
        """Look for interfaces that came or went; return those used from now on."""

    def send(self, data: bytes) -> None:
        """Send one datagram on every interface, now or not at all."""

    async def listen(self, deliver: Deliver) -> None:
        """Hand on what arrives until cancelled."""

    def close(self) -> None:
        """Give the port back."""


@dataclass(frozen=True)
class _Way:
    """One way to all nodes behind one interface."""

    interface: str
    kind: str
    send: Callable[[bytes], object]


class UdpNet:
    """The real one. What the system refuses is logged once, and the rest is used."""

    def __init__(
        self, find_interfaces: Callable[[], tuple[Interface, ...]] = list_interfaces
    ) -> None:
        self._find_interfaces = find_interfaces
        self._ways: tuple[_Way, ...] = ()
        self._networks: tuple[IPv4Network | IPv6Network, ...] = ()
        self._complaints: set[tuple[str, str]] = set()  # (interface, kind) that was logged
        self._ipv4: socket.socket | None = None
        self._ipv6: socket.socket | None = None

    def open(self) -> None:
        """Open one socket for IPv4 and one for IPv6."""
        self._ipv4 = self._opened(_open_ipv4, "IPv4")
        self._ipv6 = self._opened(_open_ipv6, "IPv6")

    def rescan(self) -> tuple[Interface, ...]:
        """Join the groups on every interface; one that is joined already stays so."""
        found = self._find()
        names = {interface.name for interface in found} | {_ALL}
        self._complaints = {each for each in self._complaints if each[0] in names}
        # Loopback, then what has IPv4: where there are too many, the rest are containers' ends.
        shared = sorted(
            (interface for interface in found if interface.is_shared),
            key=lambda interface: (not interface.is_loopback, not interface.has_ipv4),
        )[:_LAN_INTERFACES_MAX]
        self._ways = tuple(way for interface in shared for way in self._ways_on(interface))
        names_used = {way.interface for way in self._ways}
        used = tuple(interface for interface in shared if interface.name in names_used)
        self._networks = tuple(
            address.network for interface in used for address in interface.addresses
        )
        return used

    def send(self, data: bytes) -> None:
        """Send to the groups and the broadcast addresses of every interface."""
        for way in self._ways:
            self._try(way.interface, way.kind, partial(way.send, data))

    async def listen(self, deliver: Deliver) -> None:
        """Read both sockets until cancelled."""
        async with trio.open_nursery() as nursery:
            for sock in (self._ipv4, self._ipv6):
                if sock is not None:
                    nursery.start_soon(self._read, sock, deliver)

    def close(self) -> None:
        """Close both sockets; the system leaves the groups."""
        for sock in (self._ipv4, self._ipv6):
            if sock is not None:
                sock.close()

    def _opened(self, open_socket: Callable[[], socket.socket], kind: str) -> socket.socket | None:
        try:
            return open_socket()
        except OSError as error:
            self._complain(_ALL, kind, error)
            return None

    def _find(self) -> tuple[Interface, ...]:
        try:
            return self._find_interfaces()
        except OSError as error:
            self._complain(_ALL, "list of interfaces", error)
            return ()

    def _ways_on(self, interface: Interface) -> Iterator[_Way]:
        name, index = interface.name, interface.index
        if self._ipv4 is not None and interface.has_ipv4:
            kind = "IPv4 multicast"
            if interface.has_multicast and self._try(
                name, kind, partial(_join_ipv4, self._ipv4, index)
            ):
                yield _Way(name, kind, partial(_send_ipv4_group, self._ipv4, index))
            for host in interface.broadcasts:
                yield _Way(name, "broadcast", partial(_send_broadcast, self._ipv4, host))
        if self._ipv6 is not None and interface.has_ipv6:
            kind = "IPv6 multicast"
            if interface.has_multicast and self._try(
                name, kind, partial(_join_ipv6, self._ipv6, index)
            ):
                yield _Way(name, kind, partial(_send_ipv6_group, self._ipv6, index))

    async def _read(self, sock: socket.socket, deliver: Deliver) -> None:
        while True:
            await trio.lowlevel.wait_readable(sock)
            for _ in range(_LAN_RECEIVE_BATCH):
                received = _receive(sock)
                if received is None:
                    break
                data, source = received
                deliver(data, _host(source), self._is_on_link(source[0]))

    def _is_on_link(self, host: str) -> bool:
        address = ip_address(host.partition("%")[0])
        return (address.version == 6 and address.is_link_local) or any(
            address in network for network in self._networks
        )

    def _try(self, interface: str, kind: str, attempt: Callable[[], object]) -> bool:
        try:
            attempt()
        except BlockingIOError:
            pass  # a full queue: the next beacon comes
        except OSError as error:
            self._complain(interface, kind, error)
            return False
        return True

    def _complain(self, interface: str, kind: str, error: OSError) -> None:
        if (interface, kind) not in self._complaints:
            self._complaints.add((interface, kind))
            fields = {"interface": interface, "way": kind, "error": str(error)}
            _log.warning("LAN discovery goes on without it", extra={"fields": fields})


# --- sockets --------------------------------------------------------------------------------------


def _open_ipv4() -> socket.socket:
    return _bound(
        socket.AF_INET,
        "",
        (
            (socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1),  # to other nodes on this machine
            (socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, _HOPS),
            (socket.IPPROTO_IP, socket.IP_TTL, _HOPS),
            (socket.SOL_SOCKET, socket.SO_BROADCAST, 1),
        ),
    )


def _open_ipv6() -> socket.socket:
    return _bound(
        socket.AF_INET6,
        "::",
        (
            (socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1),
            (socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 1),
            (socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, _HOPS),
        ),
    )


def _bound(
    family: socket.AddressFamily, host: str, options: tuple[tuple[int, int, int], ...]
) -> socket.socket:
    with contextlib.ExitStack() as on_failure:
        sock = on_failure.enter_context(socket.socket(family, socket.SOCK_DGRAM))
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # macOS wants this one
        for level, option, value in options:
            sock.setsockopt(level, option, value)
        sock.bind((host, PORT))
        on_failure.pop_all()
        return sock


def _join_ipv4(sock: socket.socket, index: int) -> None:
    _join(sock, socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, _ip_mreqn(index))


def _join_ipv6(sock: socket.socket, index: int) -> None:
    request = struct.pack("@16sI", socket.inet_pton(socket.AF_INET6, GROUP_IPV6), index)
    _join(sock, socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, request)


def _join(sock: socket.socket, level: int, option: int, request: bytes) -> None:
    try:
        sock.setsockopt(level, option, request)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:  # joined already
            raise


def _send_ipv4_group(sock: socket.socket, index: int, data: bytes) -> None:
    # An interface by its index: also where the routing table knows no way to the group.
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, _ip_mreqn(index))
    sock.sendto(data, (GROUP_IPV4, PORT))


def _send_broadcast(sock: socket.socket, host: str, data: bytes) -> None:
    sock.sendto(data, (host, PORT))


def _send_ipv6_group(sock: socket.socket, index: int, data: bytes) -> None:
    sock.sendto(data, (GROUP_IPV6, PORT, 0, index))


def _ip_mreqn(index: int) -> bytes:
    """Return our group on the interface with this index, as the C structure of this name."""
    return struct.pack("=4s4si", socket.inet_aton(GROUP_IPV4), bytes(4), index)


def _receive(sock: socket.socket) -> tuple[bytes, tuple[Any, ...]] | None:
    """Return a datagram and its source, or None if there is nothing to read now."""
    try:
        # One byte more than allowed tells an oversized one.
        return sock.recvfrom(limits.LAN_BEACON_BYTES_MAX + 1)
    except OSError:
        return None  # nothing there, or what a vanishing interface left: reading cleared it


def _host(source: tuple[Any, ...]) -> str:
    """Write a source as in an address; a link-local one only means something on one interface."""
    if len(source) == 2:
        return str(source[0])
    host, _, _, scope = source
    if not scope or "%" in host:
        return f"[{host}]"
    with contextlib.suppress(OSError):
        return f"[{host}%{socket.if_indextoname(scope)}]"
    return f"[{host}%{scope}]"
