"""A UPnP router (Internet Gateway Device, versions 1 and 2): finding it, its description, and SOAP.

Every URL must lead to the default gateway itself: a description cannot make us talk to
any other. It is found by SSDP (UPnP Device Architecture 1.1, 1.3): a search goes to all
devices and any may answer; only an answer from the default gateway is of interest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address
from urllib.parse import urljoin, urlsplit
from xml.sax.saxutils import escape

from swarmnode import limits
from swarmnode.errors import MalformedMessage, Refused
from swarmnode.protocol.nat.http_answer import HttpAnswer, parse_head
from swarmnode.protocol.nat.tree import Node, parse_xml

_TARGET = re.compile(r"/[!#-;=?-Z_a-z~]*")  # no spaces, quotes, brackets or backslashes
# In the order of preference.
_SERVICES = (
    "urn:schemas-upnp-org:service:WANIPConnection:2",
    "urn:schemas-upnp-org:service:WANIPConnection:1",
    "urn:schemas-upnp-org:service:WANPPPConnection:1",
)
NO_SUCH_MAPPING = 714
CONFLICT = 718
ONLY_PERMANENT = 725
_ERRORS = {
    401: "does not know this action",
    402: "finds an argument wrong",
    501: "failed, perhaps for want of a public address",
    606: "does not allow this machine to map ports",
    NO_SUCH_MAPPING: "has no such mapping",
    715: "maps no port for all remote hosts",
    716: "cannot choose the port",
    CONFLICT: "gave this port to another machine",
    724: "wants the same port inside and outside",
    ONLY_PERMANENT: "makes permanent mappings only",
    728: "has no room for one more mapping",
    729: "has a conflict with another way of mapping ports",
}


class ActionFailed(Refused):
    """The router refuses an action; ``code`` is UPnP's number for the reason."""

    def __init__(self, action: str, code: int) -> None:
        reason = _ERRORS.get(code, f"gives the unknown reason {code}")
        super().__init__(f"the router {reason} ({action})")
        self.code = code


@dataclass(frozen=True)
class RouterUrl:
    """A URL at the default gateway."""

    host: str
    port: int
    target: str  # path and query

    @classmethod
    def parse(cls, url: str, gateway: str) -> RouterUrl:
        """Read one. Raises MalformedMessage if it leads anywhere but to ``gateway``."""
        shown = url[:80]
        if len(url) > limits.PORTMAP_URL_BYTES_MAX:
            raise MalformedMessage(f"UPnP: a URL of {len(url)} characters: {shown!r}")
        try:
            parts = urlsplit(url)
            port = 80 if parts.port is None else parts.port
        except ValueError as error:
            raise MalformedMessage(f"UPnP: expected a URL, got {shown!r}: {error}") from error
        is_plain = parts.scheme == "http" and "@" not in parts.netloc
        if not (is_plain and parts.hostname == gateway and port > 0):
            raise MalformedMessage(f"UPnP: expected a URL at the router {gateway}, got {shown!r}")
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        if not _TARGET.fullmatch(target):
            raise MalformedMessage(f"UPnP: expected a plain path, got {shown!r}")
        return cls(gateway, port, target)

    @property
    def authority(self) -> str:
        """Host and port as the Host header has them."""
        return f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"http://{self.authority}{self.target}"

    def join(self, reference: str) -> RouterUrl:
        """Follow a reference found there. Raises MalformedMessage if it leads elsewhere."""
        if len(reference) > limits.PORTMAP_URL_BYTES_MAX:
            raise MalformedMessage(f"UPnP: a URL of {len(reference)} characters")
        try:
            return RouterUrl.parse(urljoin(str(self), reference), self.host)
        except ValueError as error:
            raise MalformedMessage(f"UPnP: expected a URL, got {reference[:80]!r}") from error


@dataclass(frozen=True)
class Connection:
    """The service of a router that maps ports."""

    url: RouterUrl
    service: str


def parse_description(body: bytes, at: RouterUrl) -> Connection:
    """Find the service in the router's description of itself.

    Raises:
        MalformedMessage, LimitExceeded: it is no description, or leads elsewhere.
        Refused: the router has no such service.
    """
    root = parse_xml(body)
    base = root.value("URLBase")
    origin = at.join(base) if base else at
    found = {node.value("serviceType"): node.value("controlURL") for node in root.all("service")}
    for service in _SERVICES:
        control = found.get(service)
        if control:
            return Connection(origin.join(control), service)
    raise Refused("the router describes no service that maps ports")


def encode_action(
    connection: Connection, action: str, arguments: Mapping[str, str | int]
) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of a SOAP request; order of arguments counts for some routers."""
    inner = "".join(f"<{name}>{escape(str(value))}</{name}>" for name, value in arguments.items())
    body = (
        '<?xml version="1.0"?>\r\n'
        '<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/" '
        's:encodingStyle="http://schemas.xmlsoap.org/soap/encoding/"><s:Body>'
        f'<u:{action} xmlns:u="{connection.service}">{inner}</u:{action}>'
        "</s:Body></s:Envelope>\r\n"
    )
    headers = {
        "Content-Type": 'text/xml; charset="utf-8"',
        "SOAPAction": f'"{connection.service}#{action}"',
    }
    return body.encode("ascii"), headers


def decode_action(answer: HttpAnswer, action: str) -> Node:
    """Return the element that answers ``action``.

    Raises:
        ActionFailed: the router says no.
        MalformedMessage, LimitExceeded: it is no answer to it.
    """
    if answer.status not in (200, 500):
        raise MalformedMessage(f"UPnP: expected an answer to {action}, got HTTP {answer.status}")
    root = parse_xml(answer.body)
    result = next(root.all(f"{action}Response"), None)
    if answer.status == 200 and result is not None:
        return result
    code = root.value("errorCode") or ""
    if not re.fullmatch(r"[0-9]{3,4}", code):
        raise MalformedMessage(f"UPnP: expected an answer to {action} or an error code")
    raise ActionFailed(action, int(code))


def decode_external_address(result: Node) -> IPv4Address:
    """Read the answer to GetExternalIPAddress. Raises Refused if it is none, MalformedMessage."""
    text = result.value("NewExternalIPAddress") or ""
    if not text:
        raise Refused("the router has no address on the internet")
    try:
        return IPv4Address(text)
    except AddressValueError as error:
        raise MalformedMessage(f"UPnP: expected an IPv4 address, got {text[:40]!r}") from error


SSDP_GROUP = "239.255.255.250"
SSDP_PORT = 1900
_DEVICES = (
    "urn:schemas-upnp-org:device:InternetGatewayDevice:1",
    "urn:schemas-upnp-org:device:InternetGatewayDevice:2",
)


def encode_searches() -> tuple[bytes, ...]:
    """Return a search for each kind of router; answers come within a second."""
    return tuple(
        f"M-SEARCH * HTTP/1.1\r\nHOST: {SSDP_GROUP}:{SSDP_PORT}\r\n"
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
