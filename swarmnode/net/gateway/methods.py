"""The three ways to ask a router for a port. Loaded when there is a router to ask.

PCP and NAT-PMP are a datagram to the router, and one back; its socket is connected to the router,
so that the kernel drops what others send. UPnP IGD finds the router's description by SSDP, then
talks SOAP to it. Only the default gateway is listened to, and only it is connected to.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from ipaddress import IPv4Address
from typing import TypeVar

import trio

from swarmnode import limits
from swarmnode.errors import DeadlineExceeded, LimitExceeded, MalformedMessage, TransportError
from swarmnode.net.gateway.mapping import Granted, MapRequest, MethodFactory, MethodName
from swarmnode.net.gateway.routes import Place
from swarmnode.protocol.nat import igd, pcp
from swarmnode.protocol.nat.http_answer import AnswerReader, HttpAnswer, encode_http_request
from swarmnode.protocol.nat.tree import Node

# A router answers in milliseconds; three questions, each with twice the patience: 1.75 s in all.
PORTMAP_ASK_S_MIN = 0.25
_PORTMAP_ASKS = 3

AnswerT = TypeVar("AnswerT")


class PcpMethod:
    """Port Control Protocol."""

    name: MethodName = "PCP"

    def __init__(self, wanted: MapRequest) -> None:
        self._wanted = wanted
        self._nonce = wanted.secret[: pcp.NONCE_BYTES]

    async def map(self, external_port: int) -> Granted:
        """Send a MAP request."""
        answer = await self._ask(external_port, limits.PORTMAP_LEASE_S)
        return Granted(answer.external, answer.port, answer.lease_s)

    async def release(self, granted: Granted) -> None:
        """Send the same with no lease."""
        await self._ask(granted.port, 0)

    async def _ask(self, external_port: int, lease_s: int) -> pcp.PcpMapping:
        wanted = self._wanted
        request = pcp.encode_pcp_map(
            self._nonce,
            IPv4Address(wanted.place.own),
            wanted.port,
            external_port=external_port,
            lease_s=lease_s,
        )
        return await _ask_router(
            wanted.place, request, lambda data: pcp.decode_pcp_map(data, self._nonce, wanted.port)
        )


class NatPmpMethod:
    """NAT Port Mapping Protocol."""

    name: MethodName = "NAT-PMP"

    def __init__(self, wanted: MapRequest) -> None:
        self._wanted = wanted

    async def map(self, external_port: int) -> Granted:
        """Ask for the external address, then for the port."""
        request = pcp.encode_natpmp_address()
        external = await _ask_router(self._wanted.place, request, pcp.decode_natpmp_address)
        port, lease_s = await self._ask(external_port, limits.PORTMAP_LEASE_S)
        return Granted(external, port, lease_s)

    async def release(self, granted: Granted) -> None:  # noqa: ARG002 -- it knows one per port
        """Ask for no lease."""
        await self._ask(0, 0)

    async def _ask(self, external_port: int, lease_s: int) -> tuple[int, int]:
        port = self._wanted.port
        request = pcp.encode_natpmp_map(port, external_port=external_port, lease_s=lease_s)
        return await _ask_router(
            self._wanted.place, request, lambda data: pcp.decode_natpmp_map(data, port)
        )


async def _ask_router(place: Place, request: bytes, decode: Callable[[bytes], AnswerT]) -> AnswerT:
    """Ask up to PORTMAP_ASKS times, each time with twice the patience."""
    wait_s = PORTMAP_ASK_S_MIN
    waited_s = 0.0
    try:
        with trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM) as sock:
            await sock.bind((place.own, 0))
            await sock.connect((place.gateway, pcp.PCP_PORT))
            for _ in range(_PORTMAP_ASKS):
                await sock.send(request)
                with trio.move_on_after(wait_s):
                    return await _receive(sock, decode)
                waited_s += wait_s
                wait_s *= 2
    except ConnectionRefusedError as error:
        raise TransportError("the router does not speak it") from error
    except OSError as error:
        raise TransportError(f"the router cannot be asked: {error.strerror}") from error
    raise DeadlineExceeded(f"an answer of the router {place.gateway}", waited_s)


async def _receive(sock: trio.socket.SocketType, decode: Callable[[bytes], AnswerT]) -> AnswerT:
    for _ in range(limits.PORTMAP_DATAGRAMS_MAX):
        try:
            return decode(await sock.recv(limits.PORTMAP_DATAGRAM_BYTES_MAX))
        except MalformedMessage:
            continue  # a late answer to something else; the right one may follow
    raise LimitExceeded(f"{limits.PORTMAP_DATAGRAMS_MAX} datagrams and no answer among them")


# Answers to a search come within a second by its own words; the second search is for lost ones.
_PORTMAP_SEARCH_S = 2.0
_PORTMAP_SEARCH_AGAIN_S = 0.7
# Cheap routers write their description with a 300 MHz processor.
_PORTMAP_HTTP_S = 5.0
# Another machine of the home has the port: so many others are tried.
PORTMAP_PORTS_TRIED_MAX = 4

_HOPS = 2  # UPnP Device Architecture 1.1, 1.3.2
_PIECE_BYTES = 4096
_EXTERNAL_PORTS = range(20_000, 60_000)


class UpnpMethod:
    """Universal Plug and Play, as most home routers have it."""

    name: MethodName = "UPnP"

    def __init__(self, wanted: MapRequest) -> None:
        self._wanted = wanted
        self._found: igd.Connection | None = None
        self._lease_s = limits.PORTMAP_LEASE_S

    async def map(self, external_port: int) -> Granted:
        """Find the router if that was not done, and add the mapping."""
        if self._found is None:
            self._found = await _find(self._wanted.place)
        answer = await self._act("GetExternalIPAddress", {})
        external = igd.decode_external_address(answer)
        port = await self._add(external_port)
        return Granted(external, port, limits.PORTMAP_LEASE_S)

    async def release(self, granted: Granted) -> None:
        """Delete the mapping."""
        await self._act("DeletePortMapping", _key(granted.port))

    async def _add(self, external_port: int) -> int:
        """Add the mapping, at another port where this one is taken; return the port."""
        tried = 1
        while True:
            arguments = _key(external_port) | {
                "NewInternalPort": self._wanted.port,
                "NewInternalClient": self._wanted.place.own,
                "NewEnabled": 1,
                "NewPortMappingDescription": "swarmnode",
                "NewLeaseDuration": self._lease_s,
            }
            try:
                await self._act("AddPortMapping", arguments)
            except igd.ActionFailed as failure:
                if failure.code == igd.ONLY_PERMANENT and self._lease_s:
                    self._lease_s = 0  # renewed and released like any other
                elif failure.code == igd.CONFLICT and tried < PORTMAP_PORTS_TRIED_MAX:
                    external_port = self._wanted.rng.choice(_EXTERNAL_PORTS)
                    tried += 1
                else:
                    raise
            else:
                return external_port

    async def _act(self, action: str, arguments: Mapping[str, str | int]) -> Node:
        assert self._found is not None  # map comes first
        body, headers = igd.encode_action(self._found, action, arguments)
        answer = await _request(self._wanted.place, "POST", self._found.url, body, headers)
        return igd.decode_action(answer, action)


def _key(external_port: int) -> dict[str, str | int]:
    return {"NewRemoteHost": "", "NewExternalPort": external_port, "NewProtocol": "TCP"}


async def _find(place: Place) -> igd.Connection:
    url = await _search(place)
    answer = await _request(place, "GET", url, b"", {})
    if answer.status != 200:
        raise MalformedMessage(f"UPnP: expected a description, got HTTP {answer.status}")
    return igd.parse_description(answer.body, url)


async def _search(place: Place) -> igd.RouterUrl:
    """Return where the gateway says that its description is."""
    try:
        with trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(place.own))
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, _HOPS)
            await sock.bind((place.own, 0))
            first_s = _PORTMAP_SEARCH_AGAIN_S
            for wait_s in (first_s, _PORTMAP_SEARCH_S - first_s):
                for datagram in igd.encode_searches():
                    await sock.sendto(datagram, (igd.SSDP_GROUP, igd.SSDP_PORT))
                    # Some do not join groups on every interface, or are behind a bad switch.
                    await sock.sendto(datagram, (place.gateway, igd.SSDP_PORT))
                with trio.move_on_after(wait_s):
                    return await _receive_found(sock, place.gateway)
    except OSError as error:
        raise TransportError(f"the LAN cannot be searched: {error.strerror}") from error
    raise DeadlineExceeded(
        f"an answer of the router {place.gateway} to a search", _PORTMAP_SEARCH_S
    )


async def _receive_found(sock: trio.socket.SocketType, gateway: str) -> igd.RouterUrl:
    for _ in range(limits.PORTMAP_DATAGRAMS_MAX):
        data, source = await sock.recvfrom(limits.PORTMAP_DATAGRAM_BYTES_MAX)
        if source[0] != gateway:
            continue  # another device of the LAN, or one that poses as the router
        try:
            return igd.decode_found(data, gateway)
        except (MalformedMessage, LimitExceeded):
            continue
    raise LimitExceeded(f"{limits.PORTMAP_DATAGRAMS_MAX} datagrams and no answer of the router")


async def _request(
    place: Place, method: str, url: igd.RouterUrl, body: bytes, headers: Mapping[str, str]
) -> HttpAnswer:
    request = encode_http_request(method, url.authority, url.target, body=body, headers=headers)
    try:
        with trio.move_on_after(_PORTMAP_HTTP_S):
            stream = await trio.open_tcp_stream(url.host, url.port, local_address=place.own)
            async with stream:
                await stream.send_all(request)
                return await _read_answer(stream)
    except (OSError, trio.BrokenResourceError) as error:
        raise TransportError(f"UPnP: {url.authority} does not answer: {error}") from error
    raise DeadlineExceeded(f"UPnP: an answer of {url.authority}", _PORTMAP_HTTP_S)


async def _read_answer(stream: trio.SocketStream) -> HttpAnswer:
    reader = AnswerReader()
    while True:
        answer = reader.feed(bytes(await stream.receive_some(_PIECE_BYTES)))
        if answer is not None:
            return answer


METHODS: tuple[MethodFactory, ...] = (PcpMethod, NatPmpMethod, UpnpMethod)
