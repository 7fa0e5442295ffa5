"""STUN under Trio: a responder for peers, a question to one, and the survey of our own NAT.

IPv4 only: it is what NATs translate.
"""

from __future__ import annotations

import errno
import secrets
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from ipaddress import IPv4Address

import trio

from swarmnode import limits
from swarmnode.errors import (
    ConfigError,
    DialFailed,
    Overloaded,
    Refused,
    SwarmNodeError,
)
from swarmnode.ids import PeerId
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.net.tcp import format_address, parse_address
from swarmnode.protocol.nat.behaviour import AskForProbe, NatBehaviour, NatSurvey, Received
from swarmnode.protocol.nat.stun import (
    Endpoint,
    Indication,
    StunServer,
    StunStatistics,
    encode_indication,
)
from swarmnode.wire.connect.nat import ProbeRequest
from swarmnode.wire.packing import decode_record, encode_record

# Read in one go, before other tasks get their turn.
_STUN_RECEIVE_BATCH = 32

PROBE_SERVICE = "stun-probe/1"
_EVERYWHERE = "0.0.0.0"  # noqa: S104 -- a public service of the node
# struct in_pktinfo: interface, our address, the datagram's destination.
_PKTINFO = struct.Struct("=i4s4s")
_IP_PKTINFO = getattr(socket, "IP_PKTINFO", 8)

AskProbe = Callable[[int, int, bytes], Awaitable[None]]
"""Carries out AskForProbe: (index of the server, port, transaction id)."""


class StunResponder:
    """Answers strangers where their questions come from, on two ports."""

    def __init__(self) -> None:
        self._server = StunServer()
        self._main: socket.socket | None = None

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
        if self._main is None:
            raise Refused("no STUN responder runs here")
        if not self._server.admits(host, trio.current_time()):
            raise Overloaded(f"too many probes to {host}: ask again in a second")
        try:
            self._main.sendto(encode_indication(Indication(transaction)), (host, port))
        except OSError as error:
            raise Refused(f"cannot send to {host}: {error.strerror}") from error

    def statistics(self) -> StunStatistics:
        """Return a frozen record of counters."""
        return self._server.statistics()

    async def _answer(self, sock: socket.socket, other: socket.socket) -> None:
        other_port = other.getsockname()[1]
        while True:
            await trio.lowlevel.wait_readable(sock)
            for _ in range(_STUN_RECEIVE_BATCH):
                try:
                    data, ancillary, _, source = sock.recvmsg(limits.STUN_BYTES_MAX + 1, 64)
                except OSError:
                    break  # nothing more, or an error of an earlier answer: reading cleared it
                now = trio.current_time()
                reply = self._server.answer(data, Endpoint(*source), now, other_port=other_port)
                if reply is not None:
                    with suppress(OSError):  # a full queue, no route: the question comes again
                        sender = other if reply.from_other_port else sock
                        sender.sendmsg([reply.data], _same_source(ancillary), 0, source)

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


# --- asking -----------------------------------------------------------------------------------


async def survey_nat(servers: Sequence[str], ask_probe: AskProbe | None = None) -> NatBehaviour:
    """Find out what our NAT does; takes up to 3 x STUN_ASK_S.

    Args:
        servers: ``IPV4:PORT`` of responders of different hosts; three are good, two the least
            that tell anything.
        ask_probe: asks a server over the session with it, see :func:`request_probe`; without
            it, a filter that lets all in looks like one that knows addresses.

    Raises:
        ConfigError: a server is no such address, or there is none.
        DialFailed: nothing can be sent at all.
    """
    targets = [_endpoint(server) for server in servers]
    if not targets:
        raise ConfigError("STUN: expected the addresses of some peers, got none")
    with ExitStack() as stack:
        sockets = [stack.enter_context(_open_socket()) for _ in range(2)]
        survey = NatSurvey(
            targets,
            local=_local_endpoints(sockets, targets),
            token=secrets.token_bytes,
            can_probe=ask_probe is not None,
            now=trio.current_time(),
        )
        async with trio.open_nursery() as nursery:
            shell = _SurveyShell(survey, sockets, ask_probe, nursery)
            for number in range(2):
                nursery.start_soon(shell.listen, number)
            await shell.keep_time()
            nursery.cancel_scope.cancel()
    return survey.statistics()


class _SurveyShell:
    """Carries out what the survey wants."""

    def __init__(
        self,
        survey: NatSurvey,
        sockets: Sequence[socket.socket],
        ask_probe: AskProbe | None,
        nursery: trio.Nursery,
    ) -> None:
        self._survey = survey
        self._sockets = sockets
        self._ask_probe = ask_probe
        self._nursery = nursery
        self._changed = trio.Event()

    async def listen(self, number: int) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._sockets[number])
            received = _receive(self._sockets[number])
            if received is not None:
                self._survey.handle(Received(number, *received), trio.current_time())
                self._changed.set()

    async def keep_time(self) -> None:
        while True:
            for effect in self._survey.poll_effects():
                if isinstance(effect, AskForProbe):
                    self._nursery.start_soon(self._probe, effect)
                else:
                    _send(self._sockets[effect.socket], effect.data, effect.target)
            deadline = self._survey.next_deadline()
            if deadline is None:
                return
            with trio.move_on_at(deadline):
                await self._changed.wait()
            self._changed = trio.Event()
            self._survey.handle_deadline(trio.current_time())

    async def _probe(self, effect: AskForProbe) -> None:
        assert self._ask_probe is not None
        # Who cannot be asked sends no probe: that is an answer too.
        with suppress(SwarmNodeError):
            await self._ask_probe(effect.server, effect.port, effect.transaction)


def _open_socket() -> socket.socket:
    with ExitStack() as on_failure:
        sock = on_failure.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        sock.setblocking(False)
        sock.bind((_EVERYWHERE, 0))
        on_failure.pop_all()
    return sock


def _endpoint(address: str) -> Endpoint:
    host, port = parse_address(address)
    try:
        return Endpoint(str(IPv4Address(host)), port)
    except ValueError as error:
        raise ConfigError(f"STUN: expected IPV4:PORT, got {address!r}") from error


def _send(sock: socket.socket, data: bytes, target: Endpoint) -> None:
    try:
        sock.sendto(data, target)
    except BlockingIOError:
        pass  # a full queue: it is sent again
    except OSError as error:
        address = format_address(*target)
        raise DialFailed(f"STUN {address}: {error.strerror}", address=address) from error


def _receive(sock: socket.socket) -> tuple[bytes, Endpoint] | None:
    """Return a datagram, or None if there is none after all."""
    try:
        data, source = sock.recvfrom(limits.STUN_BYTES_MAX + 1)
    except OSError:
        return None
    return data, Endpoint(*source)


def _local_endpoints(
    sockets: Sequence[socket.socket], targets: Sequence[Endpoint]
) -> tuple[Endpoint, Endpoint]:
    """Return both sockets' ports at the address that datagrams to the first server leave from."""
    host = _EVERYWHERE
    with _open_socket() as scout, suppress(OSError):
        scout.connect(targets[0])  # sends nothing
        host = scout.getsockname()[0]
    first, second = (Endpoint(host, sock.getsockname()[1]) for sock in sockets)
    return first, second


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
