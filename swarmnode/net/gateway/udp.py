"""PCP and NAT-PMP: a datagram to the router, and one back.

The socket is connected to the router, so that the kernel drops what others send.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address
from typing import TypeVar

import trio

from swarmnode import limits
from swarmnode.errors import DeadlineExceeded, LimitExceeded, MalformedMessage, TransportError
from swarmnode.net.gateway.methods import Granted, MapRequest, MethodName
from swarmnode.net.gateway.routes import Place
from swarmnode.protocol.nat import pcp

# A router answers in milliseconds; three questions, each with twice the patience: 1.75 s in all.
PORTMAP_ASK_S_MIN = 0.25
_PORTMAP_ASKS = 3

AnswerT = TypeVar("AnswerT")


class PcpMethod:
    """Port Control Protocol."""

    name: MethodName = "PCP"

    def __init__(self, wanted: MapRequest) -> None:
        self._wanted = wanted

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
            wanted.nonce,
            IPv4Address(wanted.place.own),
            wanted.port,
            external_port=external_port,
            lease_s=lease_s,
        )
        return await _ask_router(
            wanted.place, request, lambda data: pcp.decode_pcp_map(data, wanted.nonce, wanted.port)
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
