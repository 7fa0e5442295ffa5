"""Asking a router for a port: PCP (RFC 6887), and NAT-PMP (RFC 6886), its older and smaller sister.

Of PCP the MAP opcode for one IPv4 port, nothing else. A request and its answer have 60 bytes
here::

    version 2 | opcode 1, +128 in an answer | 0 | result | lifetime | client, or epoch and zeros
    nonce (12) | protocol | zeros (3) | internal port | external port | external address (16)

The nonce belongs to the mapping: a machine that does not know it can neither forge an answer nor
take the mapping away.

NAT-PMP, on the same port of the router::

    external address   request: 0 0                            answer: 0 128 result epoch address
    map a TCP port     request: 0 2 zeros internal external    answer: 0 130 result epoch
                                lifetime                               internal external lifetime

Nothing in its answer is secret: what speaks for it is only that it comes from the router.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from swarmnode import limits
from swarmnode.errors import MalformedMessage, Refused

PCP_PORT = 5351
NONCE_BYTES = 12
_VERSION = 2
_MAP = 1
_ANSWER = 0x80
_PROTOCOLS = {"tcp": 6}
_ADDRESS_MISMATCH = 12
_REQUEST = struct.Struct("!BBHI16s12sB3xHH16s")
_ANSWER_HEAD = struct.Struct("!BBxBII12x")
_ANSWER_MAP = struct.Struct("!12sB3xHH16s")
_BYTES = _REQUEST.size
_BYTES_MAX = 1100  # RFC 6887, 7

_RESULTS = {
    1: "does not speak this version of it",
    2: "does not allow this machine to map ports",
    3: "finds the request malformed",
    4: "cannot map ports",
    5: "does not know an option",
    6: "finds an option malformed",
    7: "has no connection itself",
    8: "has no room for one more mapping, or no public address",
    9: "maps no ports of this protocol",
    10: "gave this machine as many ports as it may have",
    11: "cannot give the port that was asked for",
    _ADDRESS_MISMATCH: "sees another address than this machine's own: a second NAT is in between",
    13: "cannot limit who may send",
}


class OtherVersion(Refused):
    """The router answers in NAT-PMP, the older protocol on the same port."""


@dataclass(frozen=True)
class PcpMapping:
    """What a router promised."""

    external: IPv4Address
    port: int
    lease_s: int


def encode_pcp_map(
    nonce: bytes, client: IPv4Address, port: int, *, external_port: int, lease_s: int
) -> bytes:
    """Return the request to forward a TCP port to ``client``; a lease of 0 takes it back."""
    nowhere = _mapped(IPv4Address(0))
    protocol = _PROTOCOLS["tcp"]
    return _REQUEST.pack(
        _VERSION, _MAP, 0, lease_s, _mapped(client),
        nonce, protocol, port, external_port, nowhere,
    )  # fmt: skip


def decode_pcp_map(data: bytes, nonce: bytes, port: int) -> PcpMapping:
    """Read the answer to the request with this nonce and internal port.

    Raises:
        MalformedMessage: it is no such answer.
        OtherVersion: the router speaks only NAT-PMP.
        Refused: the router says no; the message says why.
    """
    if len(data) >= 4 and data[0] == 0:
        raise OtherVersion("the router speaks NAT-PMP and not PCP")
    if not (_BYTES <= len(data) <= _BYTES_MAX and len(data) % 4 == 0):
        raise MalformedMessage(f"PCP: expected an answer of {_BYTES} bytes, got {len(data)}")
    version, opcode, result, lease_s, _ = _ANSWER_HEAD.unpack_from(data)
    theirs, protocol, internal, external_port, packed = _ANSWER_MAP.unpack_from(
        data, _ANSWER_HEAD.size
    )
    if (version, opcode) != (_VERSION, _ANSWER | _MAP):
        raise MalformedMessage(f"PCP: expected an answer to MAP, got {data[:4].hex()}")
    if (theirs, protocol, internal) != (nonce, _PROTOCOLS["tcp"], port):
        raise MalformedMessage("PCP: the answer belongs to another request")
    if result:
        raise Refused(f"the router {_RESULTS.get(result, f'gives the unknown reason {result}')}")
    external = IPv6Address(packed).ipv4_mapped
    if external is None:
        raise MalformedMessage(f"PCP: expected an IPv4 address, got {IPv6Address(packed)}")
    return PcpMapping(external, external_port, min(lease_s, limits.PORTMAP_LEASE_S))


def _mapped(address: IPv4Address) -> bytes:
    """Return an IPv4 address in the form that PCP has for it."""
    return bytes(10) + b"\xff\xff" + address.packed


_NATPMP_VERSION = 0
_NATPMP_ADDRESS = 0
_NATPMP_MAP_TCP = 2
_NATPMP_ANSWER = 0x80
_NATPMP_HEAD = struct.Struct("!BBHI")
_NATPMP_REQUEST = struct.Struct("!BBHHHI")
_NATPMP_MAP_ANSWER = struct.Struct("!HHI")

_NATPMP_RESULTS = {
    1: "does not speak this version of it",
    2: "does not allow it: it is switched off in its settings",
    3: "has no connection itself, or no public address",
    4: "has no room for one more mapping",
    5: "cannot map ports",
}


def encode_natpmp_address() -> bytes:
    """Return the question for the router's external address."""
    return bytes((_NATPMP_VERSION, _NATPMP_ADDRESS))


def decode_natpmp_address(data: bytes) -> IPv4Address:
    """Read its answer. Raises MalformedMessage, Refused."""
    return IPv4Address(_body(data, _NATPMP_ADDRESS, 4))


def encode_natpmp_map(port: int, *, external_port: int, lease_s: int) -> bytes:
    """Return the request to forward a TCP port to us; a lease of 0 takes it back."""
    return _NATPMP_REQUEST.pack(_NATPMP_VERSION, _NATPMP_MAP_TCP, 0, port, external_port, lease_s)


def decode_natpmp_map(data: bytes, port: int) -> tuple[int, int]:
    """Read its answer for this internal port: the external port, the lease in seconds.

    Raises:
        MalformedMessage: it is no such answer.
        Refused: the router says no; the message says why.
    """
    internal, external_port, lease_s = _NATPMP_MAP_ANSWER.unpack(
        _body(data, _NATPMP_MAP_TCP, _NATPMP_MAP_ANSWER.size)
    )
    if internal != port:
        raise MalformedMessage(f"NAT-PMP: expected an answer for port {port}, got {internal}")
    return external_port, min(lease_s, limits.PORTMAP_LEASE_S)


def _body(data: bytes, operation: int, body_bytes: int) -> bytes:
    """Return what follows the head of an answer; a refusal may have nothing there."""
    if len(data) < _NATPMP_HEAD.size:
        raise MalformedMessage(
            f"NAT-PMP: expected {_NATPMP_HEAD.size} bytes or more, got {len(data)}"
        )
    version, answered, result, _ = _NATPMP_HEAD.unpack_from(data)
    if (version, answered) != (_NATPMP_VERSION, _NATPMP_ANSWER | operation):
        raise MalformedMessage(f"NAT-PMP: expected an answer to {operation}, got {data[:4].hex()}")
    if result:
        raise Refused(
            f"the router {_NATPMP_RESULTS.get(result, f'gives the unknown reason {result}')}"
        )
    body = data[_NATPMP_HEAD.size :]
    if len(body) != body_bytes:
        raise MalformedMessage(f"NAT-PMP: expected {body_bytes} bytes of answer, got {len(body)}")
    return body
