"""The network interfaces of this machine with their addresses, from the C library.

``getifaddrs`` is called through ctypes: the standard library knows only names and
indices, and a package for this would be one more to trust. Linux (glibc and musl)
and macOS lay the structures out alike but for the head of an address.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Address, IPv6Interface

_IS_BSD = sys.platform != "linux"
_UP = 0x1
_BROADCAST = 0x2
_LOOPBACK = 0x8
_POINT_TO_POINT = 0x10
_RUNNING = 0x40
_MULTICAST = 0x8000 if _IS_BSD else 0x1000
# Where the address is in sockaddr_in and sockaddr_in6, and how long it is.
_ADDRESS_AT = {socket.AF_INET: (4, 4), socket.AF_INET6: (8, 16)}

Address = IPv4Interface | IPv6Interface


@dataclass(frozen=True)
class Interface:
    """An interface and its addresses, each with the network that it is in."""

    name: str
    index: int
    flags: int
    addresses: tuple[Address, ...]

    @property
    def is_loopback(self) -> bool:
        """Whether it only reaches this machine."""
        return bool(self.flags & _LOOPBACK)

    @property
    def is_shared(self) -> bool:
        """Whether it is up and several may be reached on it: tunnels have one other end."""
        is_up = self.flags & _UP and self.flags & _RUNNING
        return bool(is_up and not self.flags & _POINT_TO_POINT)

    @property
    def has_multicast(self) -> bool:
        """Whether datagrams to a group leave by it."""
        return bool(self.flags & _MULTICAST)

    @property
    def has_ipv4(self) -> bool:
        """Whether it has an IPv4 address."""
        return any(address.version == 4 for address in self.addresses)

    @property
    def has_ipv6(self) -> bool:
        """Whether it has an IPv6 address."""
        return any(address.version == 6 for address in self.addresses)

    @property
    def broadcasts(self) -> tuple[str, ...]:
        """The IPv4 broadcast address of each network; empty where there is none.

        The loopback of Linux does it without the flag. It does no multicast, that of macOS does.
        """
        if not (self.flags & _BROADCAST or (self.is_loopback and not self.has_multicast)):
            return ()
        networks = [address.network for address in self.addresses if address.version == 4]
        return tuple(str(net.broadcast_address) for net in networks if net.num_addresses > 2)


class _SockAddr(ctypes.Structure):
    _fields_ = (("head", ctypes.c_uint8 * 2),)


class _IfAddrs(ctypes.Structure):
    pass


_IfAddrs._fields_ = (
    ("next", ctypes.POINTER(_IfAddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.POINTER(_SockAddr)),
    ("netmask", ctypes.POINTER(_SockAddr)),
    ("destination", ctypes.c_void_p),
    ("data", ctypes.c_void_p),
)


def list_interfaces() -> tuple[Interface, ...]:
    """Return the interfaces that have an IP address, ordered by index.

    Raises:
        OSError: this system has no such call, or it failed.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "getifaddrs"):
        raise OSError("this system has no getifaddrs to list network interfaces with")
    first = ctypes.POINTER(_IfAddrs)()
    if library.getifaddrs(ctypes.byref(first)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    try:
        return _gather(first)
    finally:
        library.freeifaddrs(first)


def _gather(first: ctypes._Pointer[_IfAddrs]) -> tuple[Interface, ...]:
    indices = {name: index for index, name in socket.if_nameindex()}
    flags: dict[str, int] = {}
    addresses: dict[str, list[Address]] = {}
    for entry in _entries(first):
        name = os.fsdecode(entry.name)
        address = _address(entry)
        # One that vanished between the two calls has no index any more.
        if address is not None and name in indices:
            flags[name] = entry.flags
            addresses.setdefault(name, []).append(address)
    found = [Interface(name, indices[name], flags[name], tuple(addresses[name])) for name in flags]
    return tuple(sorted(found, key=lambda interface: interface.index))


def _entries(first: ctypes._Pointer[_IfAddrs]) -> Iterator[_IfAddrs]:
    entry = first
    while entry:
        yield entry.contents
        entry = entry.contents.next


def _address(entry: _IfAddrs) -> Address | None:
    """Return the IP address of an entry with its network; None for other kinds of address."""
    if not entry.address or not entry.netmask:
        return None
    head = entry.address.contents.head
    family = head[1] if _IS_BSD else int.from_bytes(bytes(head), sys.byteorder)
    if family not in _ADDRESS_AT:
        return None
    raw = _read(entry.address, family)
    prefix_bits = int.from_bytes(_read(entry.netmask, family), "big").bit_count()
    if family == socket.AF_INET:
        return IPv4Interface((raw, prefix_bits))
    if _IS_BSD and IPv6Address(raw).is_link_local:
        raw = raw[:2] + b"\0\0" + raw[4:]  # the kernel hides the interface's index there
    return IPv6Interface((raw, prefix_bits))


def _read(pointer: ctypes._Pointer[_SockAddr], family: int) -> bytes:
    """Return the address in a socket address; macOS cuts the zeros at the end of a mask."""
    start, length = _ADDRESS_AT[socket.AddressFamily(family)]
    stored = pointer.contents.head[0] if _IS_BSD else start + length
    raw = ctypes.string_at(pointer, min(stored, start + length))
    return raw[start:].ljust(length, b"\0")
