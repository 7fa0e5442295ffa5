"""Where others reach us: what we tell them at first, what they say, and answers to their questions.

``reach/1`` answers two questions. *Where am I?*: the address that a session's bytes come from.
*Dial me back*: one connection to that address and a port of the asker's choice, with a handshake
that proves which node answers. It dials no other address, and of ports below DIALBACK_PORT_MIN only
those that a node may listen on. What it tells is which node answered, not what else is there.

Before any peer has told us, :func:`reachable_addresses` is what there is to say.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Mapping
from ipaddress import IPv4Network, IPv6Network

import trio

from swarmnode import limits
from swarmnode.config import parse_host_port
from swarmnode.daemon.driver import CoreDriver
from swarmnode.env import Env
from swarmnode.errors import (
    AuthenticationFailed,
    ConfigError,
    DeadlineExceeded,
    MalformedMessage,
    Overloaded,
    Refused,
    SwarmNodeError,
    TransportError,
)
from swarmnode.ids import PeerId
from swarmnode.net.lan.interfaces import list_interfaces
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.net.tcp import format_address, parse_address
from swarmnode.protocol.blobs.bucket import Rates, TokenBucket
from swarmnode.protocol.nat import reach
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.connect.reach import Answer, DialBack, DialledBack, Question, SeenAt, WhereAmI
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.session import printable

REACH_SERVICE = "reach/1"
_log = get_logger("swarmnode.daemon.transport")

Probe = Callable[[PeerId, str], Awaitable[object]]


class ReachAnswers:
    """Answers peers that want to know how they are reached.

    Args:
        sessions: those that are open.
        address_of: gives the HOST:PORT that the bytes of one come from, "" if its way has none.
        probe: connects to an address and returns if exactly this peer proves to be there.
    """

    def __init__(
        self,
        services: Services,
        env: Env,
        *,
        sessions: Mapping[PeerId, Session],
        address_of: Callable[[Session], str],
        probe: Probe,
    ) -> None:
        self._env = env
        self._sessions = sessions
        self._address_of = address_of
        self._probe = probe
        self._rate = TokenBucket(limits.DIALBACKS_PER_S, limits.DIALBACKS_BURST)
        self._hosts: Rates[str] = Rates(
            limits.DIALBACKS_PER_HOST_PER_S,
            limits.DIALBACKS_PER_HOST_BURST,
            limits.DIALBACK_HOSTS_MAX,
        )
        self._n_dialling = 0
        services.add_request(REACH_SERVICE, self._answer)

    async def _answer(self, peer: PeerId, payload: bytes) -> bytes:
        question: Question = decode_record(payload, Question)  # type: ignore[arg-type]
        address = self._address_of(self._sessions[peer]) if peer in self._sessions else ""
        if isinstance(question, WhereAmI):
            return encode_record(SeenAt(address))
        return encode_record(await self._dial_back(peer, address, question.port))

    async def _dial_back(self, peer: PeerId, seen_at: str, port: int) -> DialledBack:
        host = _host_of(seen_at)
        if not host:
            raise Refused("your bytes come from no address that could be dialled")
        if port < limits.DIALBACK_PORT_MIN and port not in limits.DIALBACK_PORTS_LOW:
            raise Refused(f"port {port}: another service's; at least {limits.DIALBACK_PORT_MIN}")
        now = self._env.monotonic()
        if self._n_dialling >= limits.DIALBACKS_CONCURRENT_MAX or not self._rate.has(0, now):
            raise Overloaded("too many dial-backs at once")
        if not self._hosts.try_take(host, now):
            raise Overloaded("too many dial-backs to your address")
        self._rate.spend(1, now)
        self._n_dialling += 1
        try:
            return await self._dial(peer, format_address(host, port))
        finally:
            self._n_dialling -= 1

    async def _dial(self, peer: PeerId, address: str) -> DialledBack:
        try:
            with trio.move_on_after(limits.DIALBACK_DIAL_S):
                await self._probe(peer, address)
                return DialledBack(address, True)
            why = f"no answer within {limits.DIALBACK_DIAL_S:g} s"
        except SwarmNodeError as error:
            why = _why_not(error)
        return DialledBack(address, False, why)


class Reach:
    """Finds out how we are reached, with the help of peers that we have dialled.

    ``on_change`` hears of every new :class:`reach.Reachability`; it must not wait.
    """

    def __init__(
        self,
        env: Env,
        *,
        sessions: Mapping[PeerId, Session],
        on_change: Callable[[reach.Reachability], None],
    ) -> None:
        self._sessions = sessions
        self._on_change = on_change
        self._core = reach.ReachCore()
        self._driver = CoreDriver(self._core, self._carry_out, now=env.monotonic)
        self._asks: trio.MemorySendChannel[reach.AskWhere | reach.AskDialBack]
        self._asks, self._to_ask = trio.open_memory_channel(limits.REACH_VOTERS_MAX)

    @property
    def reachability(self) -> reach.Reachability:
        """What we know by now."""
        return self._core.reachability

    def statistics(self) -> reach.ReachStatistics:
        """Return counters."""
        return self._core.statistics()

    async def run(self) -> None:
        """Ask, as long as this runs. Events that came before count."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._driver.run)
            async for ask in self._to_ask:
                nursery.start_soon(self._ask, ask)

    def set_ports(self, ports: tuple[int, ...]) -> None:
        """Say on which ports we should be reached: the listener's, and what is mapped to it."""
        self._driver.feed(reach.PortsChanged(ports))

    def session_opened(self, session: Session) -> None:
        """Another peer that may know how we are reached, if we have dialled it over TCP."""
        kind, _, address = session.channel_description.partition(" ")
        if session.outbound and kind == "tcp":
            self._driver.feed(reach.PeerOpened(session.peer, _host_of(address)))

    def session_closed(self, session: Session) -> None:
        """A peer that cannot be asked any more."""
        self._driver.feed(reach.PeerClosed(session.peer))

    def _carry_out(self, effect: reach.Effect) -> None:
        if isinstance(effect, reach.Changed):
            self._on_change(effect.reachability)
            return
        try:
            self._asks.send_nowait(effect)  # each voter has one question at a time
        except trio.WouldBlock:
            self._driver.feed(_no_answer(effect))

    async def _ask(self, ask: reach.AskWhere | reach.AskDialBack) -> None:
        try:
            event = await self._answer_of(ask)
        except SwarmNodeError as error:
            _log.debug("a peer did not say how it sees us", peer=ask.peer.short, why=str(error))
            event = _no_answer(ask)
        self._driver.feed(event)

    async def _answer_of(self, ask: reach.AskWhere | reach.AskDialBack) -> reach.Event:
        if ask.peer not in self._sessions:
            return _no_answer(ask)
        question = WhereAmI() if isinstance(ask, reach.AskWhere) else DialBack(ask.port)
        payload = await self._sessions[ask.peer].request(
            REACH_SERVICE, encode_record(question), deadline_s=limits.DIALBACK_DEADLINE_S
        )
        answer: Answer = decode_record(payload, Answer)  # type: ignore[arg-type]
        if isinstance(answer, SeenAt) and isinstance(ask, reach.AskWhere):
            return reach.Seen(ask.peer, _host_of(answer.address))
        if isinstance(answer, DialledBack) and isinstance(ask, reach.AskDialBack):
            host, reason = _host_of(answer.address), printable(answer.reason)
            return reach.DialledBack(ask.peer, ask.port, host, answer.is_reached, reason)
        raise MalformedMessage(f"expected an answer to {question}, got {type(answer).__name__}")


def _no_answer(ask: reach.AskWhere | reach.AskDialBack) -> reach.Event:
    if isinstance(ask, reach.AskWhere):
        return reach.Seen(ask.peer, None)
    return reach.DialledBack(ask.peer, ask.port, "", None)


def _host_of(address: str) -> str:
    """Return the host of HOST:PORT, "" if it is none."""
    try:
        return parse_address(address)[0]
    except ConfigError:
        return ""


def _why_not(error: SwarmNodeError) -> str:
    """Say what is there, and no more: the asker may want to learn of others behind its address."""
    match error:
        case DeadlineExceeded():
            return "no answer in time"
        case AuthenticationFailed():
            return "another node answers there"
        case TransportError():
            return "no connection"
    return "no node answers there"


# --- before any peer has told us ----------------------------------------------------------

# Hosts that stand for every interface; None is both families.
_FAMILIES = {
    None: (socket.AF_INET, socket.AF_INET6),
    "0.0.0.0": (socket.AF_INET,),  # noqa: S104 -- compared with, never bound
    "::": (socket.AF_INET6,),
}
_LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
# Documentation addresses: connecting a UDP socket to them sends nothing, it only asks
# the routing table which of our own addresses would be used.
_ELSEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}


def reachable_addresses(bound: str) -> tuple[str, ...]:
    """Return what to tell others for a listener that is bound to ``bound``.

    A listener on one address is reached there. One on every interface is reached at the
    addresses of the default routes; without any, on a network that leads nowhere else, at those
    of its interfaces; and without these only on this machine.
    """
    host, port = parse_host_port(bound, setting="listen")
    families = _FAMILIES.get(host, ())
    if host is not None and not families:
        return (format_address(host, port),)
    own = [_own_address(family) for family in families]
    found = [address for address in own if address] or _interface_addresses(families)
    found = found or [_LOOPBACK[families[0]]]
    return tuple(format_address(address, port) for address in found)


def _own_address(family: socket.AddressFamily) -> str | None:
    try:
        probe = socket.socket(family, socket.SOCK_DGRAM)
    except OSError:  # switched off in the kernel
        return None
    with probe:
        try:
            probe.connect((_ELSEWHERE[family], 9))
        except OSError:  # no route: this machine does not speak that family
            return None
        return str(probe.getsockname()[0])


def _interface_addresses(families: tuple[socket.AddressFamily, ...]) -> list[str]:
    versions = [4 if family == socket.AF_INET else 6 for family in families]
    found = [
        str(address.ip)
        for interface in list_interfaces()
        if interface.is_shared and not interface.is_loopback
        for address in interface.addresses
        if address.version in versions and not address.is_link_local
    ]
    return found[: limits.DHT_ADDRESSES_MAX]


def own_networks() -> tuple[IPv4Network | IPv6Network, ...]:
    """Return the private networks that this machine is in, where peers may share a range."""
    return tuple(
        address.network
        for interface in list_interfaces()
        for address in interface.addresses
        if address.is_private
    )
