"""STUN under Trio: a responder for peers, and probes that they ask for (``nat_survey`` asks).

IPv4 only: it is what NATs translate.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cached_property
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

import trio

from swarmnode import limits
from swarmnode.errors import (
    ConfigError,
    Overloaded,
    Refused,
)
from swarmnode.ids import PeerId
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.net.tcp import format_address, parse_address
from swarmnode.wire.connect.nat import ProbeRequest
from swarmnode.wire.packing import decode_record, encode_record

if TYPE_CHECKING:
    from swarmnode.protocol.nat.stun import StunServer, StunStatistics

# Read in one go, before other tasks get their turn.
_STUN_RECEIVE_BATCH = 32

PROBE_SERVICE = "stun-probe/1"
_HEADER_BYTES = 28  # IPv4 and UDP
_EVERYWHERE = "0.0.0.0"  # noqa: S104 -- a public service of the node
# struct in_pktinfo: interface, our address, the datagram's destination.
_PKTINFO = struct.Struct("=i4s4s")
_IP_PKTINFO = getattr(socket, "IP_PKTINFO", 8)


class StunResponder:
    """Answers strangers where their questions come from, on two ports.

    ``on_carried`` hears what that takes of the line: bytes that were sent, bytes that came.
    """

    def __init__(self, on_carried: Callable[[int, int], None] = lambda *_: None) -> None:
        self._on_carried = on_carried
        self._main: socket.socket | None = None

    @cached_property
    def _server(self) -> StunServer:
        from swarmnode.protocol.nat.stun import StunServer  # most nodes are never asked

        return StunServer()

    async def run(
        self, address: str, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Answer until cancelled; started with the address that was really bound.

        Raises:
            ConfigError: ``address`` is not ``IPV4:PORT`` or ``*:PORT``, or cannot be bound.
        """
        with ExitStack() as sockets:
            main = sockets.enter_context(_bind(address))
            host, port = main.getsockname()
            # Any port will do for the second one.
            other = sockets.enter_context(_bind(f"{host}:0"))
            self._main = main
            sockets.callback(self._forget)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._answer, main, other)
                nursery.start_soon(self._answer, other, main)
                task_status.started(format_address(host, port))

    def send_probe(self, host: str, port: int, transaction: bytes) -> None:
        """Send an indication to a host that is known to have asked for it.

        Raises:
            Overloaded: too many were sent, to this host or in all.
            Refused: we run no responder, or cannot send there.
        """
        from swarmnode.protocol.nat.stun import Indication, encode_indication

        if self._main is None:
            raise Refused("no STUN responder runs here")
        if not self._server.admits(host, trio.current_time()):
            raise Overloaded(f"too many probes to {host}: ask again in a second")
        try:
            sent = self._main.sendto(encode_indication(Indication(transaction)), (host, port))
        except OSError as error:
            raise Refused(f"cannot send to {host}: {error.strerror}") from error
        self._on_carried(sent + _HEADER_BYTES, 0)

    def statistics(self) -> StunStatistics:
        """Return a frozen record of counters."""
        return self._server.statistics()

    async def _answer(self, sock: socket.socket, other: socket.socket) -> None:
        other_port = other.getsockname()[1]
        while True:
            await trio.lowlevel.wait_readable(sock)
            from swarmnode.protocol.nat.stun import Endpoint  # with the first question

            for _ in range(_STUN_RECEIVE_BATCH):
                try:
                    data, ancillary, _, source = sock.recvmsg(limits.STUN_BYTES_MAX + 1, 64)
                except OSError:
                    break  # nothing more, or an error of an earlier answer: reading cleared it
                self._on_carried(0, len(data) + _HEADER_BYTES)
                now = trio.current_time()
                reply = self._server.answer(data, Endpoint(*source), now, other_port=other_port)
                if reply is not None:
                    with suppress(OSError):  # a full queue, no route: the question comes again
                        sender = other if reply.from_other_port else sock
                        sender.sendmsg([reply.data], _same_source(ancillary), 0, source)
                        self._on_carried(len(reply.data) + _HEADER_BYTES, 0)

    def _forget(self) -> None:
        self._main = None


def _bind(address: str) -> socket.socket:
    host, port = parse_address(address)
    try:
        host = str(IPv4Address(_EVERYWHERE if host == "*" else host))
    except ValueError as error:
        raise ConfigError(f"STUN: expected IPV4:PORT or *:PORT, got {address!r}") from error
    with ExitStack() as on_failure:
        sock = on_failure.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        sock.setblocking(False)
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            advice = "; choose another port" if error.errno == errno.EADDRINUSE else ""
            raise ConfigError(f"STUN: cannot bind {address}: {error.strerror}{advice}") from error
        on_failure.pop_all()
    return sock


def _same_source(ancillary: list[tuple[int, int, bytes]]) -> list[tuple[int, int, bytes]]:
    """Let the answer come from the address that was asked, where this machine has several."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.IPPROTO_IP, _IP_PKTINFO) and len(data) >= _PKTINFO.size:
            _, ours, _ = _PKTINFO.unpack_from(data)
            return [(level, kind, _PKTINFO.pack(0, ours, bytes(4)))]
    return []


# --- probes over sessions -----------------------------------------------------------------------


def add_probe_service(
    services: Services, responder: StunResponder, host_of: Callable[[PeerId], str]
) -> None:
    """Answer requests to send a probe: only to the host that a session really comes from.

    ``host_of`` gives that host, or "" if it is not known, such as behind a relay.
    """

    async def handle(peer: PeerId, request: bytes) -> bytes:
        wanted = decode_record(request, ProbeRequest)
        host = host_of(peer)
        if not host or ":" in host:
            raise Refused("probes go to the IPv4 host of a direct session; this one has none")
        responder.send_probe(host, wanted.port, wanted.transaction)
        await trio.lowlevel.checkpoint()
        return b""

    services.add_request(PROBE_SERVICE, handle)


async def request_probe(session: Session, port: int, transaction: bytes) -> None:
    """Let the peer send an indication to our host as it sees it, at ``port``.

    Raises:
        Refused, Overloaded, ChannelBroken, DeadlineExceeded: it will not.
    """
    request = encode_record(ProbeRequest(port, transaction))
    await session.request(PROBE_SERVICE, request, deadline_s=limits.STUN_ASK_S)
