"""SSDP: finding the router's description of itself on the LAN (UPnP Device Architecture 1.1, 1.3).

A search goes to all devices and any may answer; only an answer from the default gateway, with
a URL at the default gateway, is of interest.
"""

from __future__ import annotations

from swarmnode.errors import MalformedMessage
from swarmnode.protocol.nat.http_answer import parse_head
from swarmnode.protocol.nat.igd import RouterUrl

GROUP = "239.255.255.250"
SSDP_PORT = 1900
_DEVICES = (
    "urn:schemas-upnp-org:device:InternetGatewayDevice:1",
    "urn:schemas-upnp-org:device:InternetGatewayDevice:2",
)


def encode_searches() -> tuple[bytes, ...]:
    """Return a search for each kind of router; answers come within a second."""
    return tuple(
        f"M-SEARCH * HTTP/1.1\r\nHOST: {GROUP}:{SSDP_PORT}\r\n"
        f'MAN: "ssdp:discover"\r\nMX: 1\r\nST: {device}\r\n\r\n'.encode("ascii")
        for device in _DEVICES
    )


def decode_found(data: bytes, gateway: str) -> RouterUrl:
    """Return where the description is that a datagram from ``gateway`` announces.

    Raises:
        MalformedMessage: it is no answer to a search for a router, or leads elsewhere.
    """
    answer = parse_head(data.partition(b"\r\n\r\n")[0].removesuffix(b"\r\n"))
    if answer.status != 200:
        raise MalformedMessage(f"SSDP: expected status 200, got {answer.status}")
    found = answer.headers.get("st", "")
    if found not in _DEVICES:
        raise MalformedMessage(f"SSDP: expected an internet gateway, got {found[:80]!r}")
    return RouterUrl.parse(answer.headers.get("location", ""), gateway)
