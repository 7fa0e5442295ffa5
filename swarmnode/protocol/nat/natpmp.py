"""NAT-PMP (RFC 6886), the older and smaller sister of PCP on the same port of the router.

::

    external address   request: 0 0                            answer: 0 128 result epoch address
    map a TCP port     request: 0 2 zeros internal external    answer: 0 130 result epoch
                                lifetime                               internal external lifetime

Nothing in an answer is secret: what speaks for it is only that it comes from the router.
"""

from __future__ import annotations

import struct
from ipaddress import IPv4Address

from swarmnode import limits
from swarmnode.errors import MalformedMessage, Refused

_VERSION = 0
_ADDRESS = 0
_MAP_TCP = 2
_ANSWER = 0x80
_HEAD = struct.Struct("!BBHI")
_MAP_REQUEST = struct.Struct("!BBHHHI")
_MAP_ANSWER = struct.Struct("!HHI")

_RESULTS = {
    1: "does not speak this version of it",
    2: "does not allow it: it is switched off in its settings",
    3: "has no connection itself, or no public address",
    4: "has no room for one more mapping",
    5: "cannot map ports",
}


def encode_natpmp_address() -> bytes:
    """Return the question for the router's external address."""
    return bytes((_VERSION, _ADDRESS))


def decode_natpmp_address(data: bytes) -> IPv4Address:
    """Read its answer. Raises MalformedMessage, Refused."""
    return IPv4Address(_body(data, _ADDRESS, 4))


def encode_natpmp_map(port: int, *, external_port: int, lease_s: int) -> bytes:
    """Return the request to forward a TCP port to us; a lease of 0 takes it back."""
    return _MAP_REQUEST.pack(_VERSION, _MAP_TCP, 0, port, external_port, lease_s)


def decode_natpmp_map(data: bytes, port: int) -> tuple[int, int]:
    """Read its answer for this internal port: the external port, the lease in seconds.

    Raises:
        MalformedMessage: it is no such answer.
        Refused: the router says no; the message says why.
    """
    internal, external_port, lease_s = _MAP_ANSWER.unpack(_body(data, _MAP_TCP, _MAP_ANSWER.size))
    if internal != port:
        raise MalformedMessage(f"NAT-PMP: expected an answer for port {port}, got {internal}")
    return external_port, min(lease_s, limits.PORTMAP_LEASE_S)


def _body(data: bytes, operation: int, body_bytes: int) -> bytes:
    """Return what follows the head of an answer; a refusal may have nothing there."""
    if len(data) < _HEAD.size:
        raise MalformedMessage(f"NAT-PMP: expected {_HEAD.size} bytes or more, got {len(data)}")
    version, answered, result, _ = _HEAD.unpack_from(data)
    if (version, answered) != (_VERSION, _ANSWER | operation):
        raise MalformedMessage(f"NAT-PMP: expected an answer to {operation}, got {data[:4].hex()}")
    if result:
        raise Refused(f"the router {_RESULTS.get(result, f'gives the unknown reason {result}')}")
    body = data[_HEAD.size :]
    if len(body) != body_bytes:
        raise MalformedMessage(f"NAT-PMP: expected {body_bytes} bytes of answer, got {len(body)}")
    return body
