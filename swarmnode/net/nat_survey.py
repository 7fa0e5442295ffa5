"""The survey of our own NAT under Trio. Loaded when a person asks for it, as by `netcheck`.

IPv4 only: it is what NATs translate.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from ipaddress import IPv4Address

import trio

from swarmnode import limits
from swarmnode.errors import ConfigError, DialFailed, SwarmNodeError
from swarmnode.net.tcp import format_address, parse_address
from swarmnode.protocol.nat.behaviour import NatBehaviour
from swarmnode.protocol.nat.stun import Endpoint
from swarmnode.protocol.nat.survey import AskForProbe, NatSurvey, Received

_EVERYWHERE = "0.0.0.0"  # noqa: S104 -- whichever interface leads to the servers

AskProbe = Callable[[int, int, bytes], Awaitable[None]]
"""Carries out AskForProbe: (index of the server, port, transaction id)."""


async def survey_nat(servers: Sequence[str], ask_probe: AskProbe | None = None) -> NatBehaviour:
    """Find out what our NAT does; takes up to 3 x STUN_ASK_S.

    Args:
        servers: ``IPV4:PORT`` of responders of different hosts; three are good, two the least
            that tell anything.
        ask_probe: asks a server over the session with it (``request_probe`` of ``stun``);
            without it, a filter that lets all in looks like one that knows addresses.

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
        # A peer that cannot be asked sends no probe: that is an answer too.
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
