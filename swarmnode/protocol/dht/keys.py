"""Keys of the DHT, distances between them, and which network an address belongs to.

A key has 256 bits; so does a peer id, the SHA-256 of a public key. The distance of two is
their XOR read as a number. Inside the DHT both are Python ints, as XOR and order are all that
is ever done with them.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Sequence
from functools import lru_cache

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

KEY_BITS = 256
LOOPBACK: tuple[Network, ...] = (
    ipaddress.ip_network("127.0.0.0/8"),
    ipaddress.ip_network("::1/128"),
)


def number_of(key: bytes) -> int:
    """Return a 32-byte key or peer id as the number that distances are made of."""
    return int.from_bytes(key, "big")


def key_bytes(number: int) -> bytes:
    """Reverse of :func:`number_of`."""
    return number.to_bytes(KEY_BITS // 8, "big")


def name_key(name: str) -> bytes:
    """Return the key under which swarms of this name are found."""
    return hashlib.sha256(b"swarmnode/dht/name\0" + name.encode("utf-8")).digest()


def swarm_key_key(swarm_key: bytes) -> bytes:
    """Return the key under which members of the swarm with this public key are found."""
    return hashlib.sha256(b"swarmnode/dht/swarm\0" + swarm_key).digest()


def blob_key(digest: bytes) -> bytes:
    """Return the key under which holders of a blob are found."""
    return hashlib.sha256(b"swarmnode/dht/blob\0" + digest).digest()


class AddressGroups:
    """Names the network of an address: what one owner can have many of.

    Args:
        exempt: networks without a limit: loopback, a LAN, the ranges of a test.
        kept: of how many addresses the answer is remembered.
    """

    def __init__(self, exempt: Sequence[Network] = LOOPBACK, kept: int = 1024) -> None:
        self._exempt = tuple(exempt)
        self._cached = lru_cache(maxsize=kept)(self._group)

    def group(self, address: str) -> str | None:
        """Return the /24 or /48 of ``address``, the host if it is a name, None if exempt."""
        return self._cached(address)

    def _group(self, address: str) -> str | None:
        host = host_of(address)
        try:
            ip = ipaddress.ip_address(host)
        except ValueError:
            return host
        if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        if any(ip.version == network.version and ip in network for network in self._exempt):
            return None
        prefix = 24 if ip.version == 4 else 48
        return str(ipaddress.ip_network((ip, prefix), strict=False))


def host_of(address: str) -> str:
    """Return the host of ``[SCHEME://]HOST:PORT`` in lower case, or all if there is no port."""
    rest = address.partition("://")[2] or address
    if rest.startswith("["):
        return rest[1:].partition("]")[0].lower()
    host, _, port = rest.rpartition(":")
    return (host if port.isdecimal() else rest).lower()
