"""A home router on a loopback address of its own, and methods of mapping that need no network."""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from random import Random

import trio

from swarmnode.env import Env
from swarmnode.errors import SwarmNodeError, TransportError
from swarmnode.net.gateway.mapping import Granted, MapRequest, Method, MethodFactory, MethodName
from swarmnode.net.gateway.portmap import PortMapper
from swarmnode.net.gateway.routes import Place
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.nat import igd, pcp

EXTERNAL = IPv4Address("11.11.11.100")
IDENTITY = Identity.from_seed(bytes(32))
PORT = 7337
_numbers = itertools.count(2)


def fresh_address() -> str:
    """Return a loopback address that no other test uses: the ports of a router are fixed."""
    return f"127.{os.getpid() >> 8 & 127}.{os.getpid() & 255}.{next(_numbers)}"


def map_request_of(gateway: str) -> MapRequest:
    return MapRequest(Place(gateway, "127.0.0.1"), PORT, bytes(12), Random(1))


def mapper_of(*methods: MethodFactory, find_place: Callable[[], Place] | None = None) -> PortMapper:
    return PortMapper(
        PORT,
        identity=IDENTITY,
        env=Env(trio.current_time, trio.current_time, Random(1)),
        find_place=find_place or Where().find,
        methods=methods,
    )


@dataclass
class Where:
    """The place of a machine that moves; None: the kernel knows no gateway."""

    place: Place | None = field(default_factory=lambda: Place("192.168.1.1", "192.168.1.2"))

    def find(self) -> Place:
        if self.place is None:
            raise TransportError("there is no IPv4 default gateway")
        return self.place


@dataclass
class Script:
    """What a scripted way of mapping answers, and what it was asked; each call takes a second."""

    name: MethodName = "PCP"
    answers: list[Granted | SwarmNodeError] = field(default_factory=list)
    asked: list[tuple[float, str]] = field(default_factory=list)

    def __call__(self, wanted: MapRequest) -> Method:
        self.asked.append((trio.current_time(), f"new for {wanted.place.own}"))
        return ScriptedMethod(self)


class ScriptedMethod:
    def __init__(self, script: Script) -> None:
        self._script = script

    @property
    def name(self) -> MethodName:
        return self._script.name

    async def map(self, external_port: int) -> Granted:
        self._script.asked.append((trio.current_time(), f"map {external_port}"))
        answers = self._script.answers
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, SwarmNodeError):
            raise answer
        return answer

    async def release(self, granted: Granted) -> None:
        self._script.asked.append((trio.current_time(), f"release {granted.port}"))


# --- a router with sockets ------------------------------------------------------------------------

Answer = Callable[[bytes], bytes | None]


async def answer_datagrams(
    address: str,
    port: int,
    answer: Answer,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    *,
    forger: trio.socket.SocketType | None = None,
    forged: Answer | None = None,
) -> None:
    """Answer each datagram; a forger with another address is told of it and answers first."""
    with trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM) as sock:
        await sock.bind((address, port))
        task_status.started()
        while True:
            data, source = await sock.recvfrom(2048)
            if forger is not None and forged is not None:
                lie = forged(data)
                assert lie is not None
                await forger.sendto(lie, source)
            reply = answer(data)
            if reply is not None:
                await sock.sendto(reply, source)


async def serve_http(
    address: str,
    answer: Callable[[bytes], bytes],
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer each connection's first request; reports the port."""

    async def handle(stream: trio.SocketStream) -> None:
        async with stream:
            request = bytes(await stream.receive_some(65536))
            head, _, body = request.partition(b"\r\n\r\n")
            wanted = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0] or b"0")
            while len(body) < wanted:
                body += bytes(await stream.receive_some(65536))
            await stream.send_all(answer(head + b"\r\n\r\n" + body))

    listeners = await trio.open_tcp_listeners(0, host=address)
    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_listeners, handle, listeners)
        task_status.started(listeners[0].socket.getsockname()[1])


def pcp_answer(request: bytes, *, external: IPv4Address = EXTERNAL, lease_s: int = 3600) -> bytes:
    """Return what a willing router says to a MAP request."""
    head = struct.pack("!BBBBII12x", 2, 0x81, 0, 0, lease_s, 77)
    mapped = bytes(10) + b"\xff\xff" + external.packed
    return head + request[24:42] + request[40:42] + mapped


def search_answer(url: str) -> bytes:
    return (
        "HTTP/1.1 200 OK\r\nST: urn:schemas-upnp-org:device:InternetGatewayDevice:1\r\n"
        f"EXT:\r\nLOCATION: {url}\r\n\r\n"
    ).encode("ascii")


PCP_PORT = pcp.PCP_PORT
SSDP_PORT = igd.SSDP_PORT
