"""WebRTC data channels for a Trio program: offers, answers, and the channels that come of them.

    async with open_rtc() as engine:
        async with await engine.offer(servers) as offer:
            send(offer.description)                   # signed, by way of a common neighbour
            channel = await offer.connect(received)   # the answer's bytes

The other side calls ``engine.answer(received, servers)``, sends the ``description`` of what it
gets, and calls its ``connect()``. Which peer is there is proved by the session on the channel.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address
from types import TracebackType
from typing import Self, TypeVar

import msgspec
import trio

from swarmnode import limits
from swarmnode.errors import (
    ChannelClosed,
    DialFailed,
    LimitExceeded,
    MalformedMessage,
    Overloaded,
)
from swarmnode.net.lan.interfaces import list_interfaces
from swarmnode.net.rtc.bridge import (
    Carried,
    Close,
    Command,
    Connect,
    Credited,
    Drained,
    Ended,
    Event,
    Failed,
    Gather,
    Gathered,
    Gone,
    LoopThread,
    Opened,
    Received,
    Server,
    Stopped,
)
from swarmnode.net.rtc.channel import RtcChannel
from swarmnode.net.tcp import format_address, parse_address
from swarmnode.protocol.nat.candidates import is_worth_offering, usable_candidates
from swarmnode.wire.connect.nat import RtcAnswer, RtcDescription, RtcOffer
from swarmnode.wire.packing import decode_record, encode_record

# A home has a few; each is a socket, and is checked against each of the other side's.
RTC_HOSTS_MAX = 4
# Each costs a socket per host and up to four MiB; more paths than this are no partners.
_RTC_CONNECTIONS_MAX = 64
# Of these not yet open: offers of strangers take no more.
RTC_PENDING_MAX = 16
# Peers that are asked for our reflexive addresses: one of them answers.
_RTC_STUN_SERVERS_MAX = 3

# Nothing is sent there: the system only tells which address of ours it would use.
_FAR_AWAY = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))

OnCarried = Callable[[int, int], None]
DescriptionT = TypeVar("DescriptionT", bound=RtcDescription)


@dataclass(frozen=True)
class RtcStatistics:
    """A gauge, then counters since the engine was opened."""

    connections: int  # with sockets, open or not
    opened_total: int
    failed_total: int


class _Negotiation:
    """A connection before it is open, and the channel that it becomes."""

    def __init__(self) -> None:
        self.local: RtcDescription | None = None
        self.channel: RtcChannel | None = None
        self.failure = ""
        self._changed = trio.lowlevel.ParkingLot()

    def wake(self) -> None:
        self._changed.unpark_all()

    async def wait_local(self) -> RtcDescription:
        while self.local is None:
            await self._wait()
        return self.local

    async def wait_channel(self) -> RtcChannel:
        while self.channel is None:
            await self._wait()
        return self.channel

    async def _wait(self) -> None:
        if self.failure:
            raise DialFailed(f"rtc: {self.failure}")
        await self._changed.park()


class RtcEngine:
    """All WebRTC connections of a node. Its owner stops it, as :func:`open_rtc` does.

    ``on_carried`` hears what they take of the line beyond what their sessions count.
    """

    def __init__(
        self, find_hosts: Callable[[], tuple[str, ...]], on_carried: OnCarried = lambda *_: None
    ) -> None:
        self._find_hosts = find_hosts
        self._on_carried = on_carried
        self._thread = LoopThread(_make_hub, self._deliver)
        self._is_started = False
        self._stopped_by: str | None = None
        self._next_link = 0
        self._links: set[int] = set()  # with sockets
        self._negotiations: dict[int, _Negotiation] = {}
        self._channels: dict[int, RtcChannel] = {}
        self._opened_total = 0
        self._failed_total = 0

    async def offer(self, stun_servers: Sequence[str] = ()) -> PendingOffer:
        """Gather our candidates and describe them; takes RTC_GATHER_S at most.

        Args:
            stun_servers: ``HOST:PORT`` of peers that answer STUN, the best first.

        Raises:
            ConfigError: one of them is no such address.
            DialFailed: WebRTC does not work here.
            Overloaded: too many connections are open or being opened.
        """
        link, local = await self._gather(stun_servers, is_offerer=True)
        offer = RtcOffer(**msgspec.structs.asdict(local))
        return PendingOffer(self, link, encode_record(offer))

    async def answer(self, offer: bytes, stun_servers: Sequence[str] = ()) -> PendingAnswer:
        """Take in an offer, describe ourselves, and begin to check addresses.

        Raises:
            MalformedMessage, LimitExceeded: that is no offer.
            DialFailed, Overloaded: as for :meth:`offer`; also no address in it may be tried.
        """
        theirs = _decode(offer, RtcOffer)
        link, local = await self._gather(stun_servers, is_offerer=False)
        answer = RtcAnswer(**msgspec.structs.asdict(local), offer=hashlib.sha256(offer).digest())
        pending = PendingAnswer(self, link, encode_record(answer))
        try:
            self._connect(link, theirs)
        except DialFailed:
            pending.close_nowait()
            raise
        return pending

    def statistics(self) -> RtcStatistics:
        """Return a frozen record of counters."""
        return RtcStatistics(len(self._links), self._opened_total, self._failed_total)

    # --- for PendingOffer and PendingAnswer -------------------------------------------------

    def accept(self, link: int, offer: bytes, answer: bytes) -> None:
        """Go on with an answer. Raises MalformedMessage, LimitExceeded, DialFailed."""
        theirs = _decode(answer, RtcAnswer)
        if theirs.offer != hashlib.sha256(offer).digest():
            raise MalformedMessage("rtc answer: expected one to our offer, got one to another")
        self._connect(link, theirs)

    async def wait_channel(self, link: int) -> RtcChannel:
        """Wait until it is open; the channel is the caller's then. Raises DialFailed."""
        channel = await self._negotiation(link).wait_channel()
        del self._negotiations[link]
        return channel

    def drop(self, link: int) -> None:
        """Let go of the connection unless its channel was given out."""
        if self._negotiations.pop(link, None) is not None:
            self._forget(link)
            self._post(Close(link))

    # --- inside -----------------------------------------------------------------------------

    async def stop(self) -> None:
        """Close every connection and wait until no thread, socket or task is left."""
        if self._is_started:
            await self._thread.stop()

    async def _gather(
        self, stun_servers: Sequence[str], *, is_offerer: bool
    ) -> tuple[int, RtcDescription]:
        self._check_room()
        link = self._next_link
        order = Gather(link, self._find_hosts(), _stun_endpoints(stun_servers), is_offerer)
        if not self._is_started:
            self._is_started = True
            self._thread.start()
        self._next_link += 1
        self._links.add(link)
        negotiation = self._negotiations[link] = _Negotiation()
        self._post(order)
        with ExitStack() as undo:
            undo.callback(self.drop, link)  # cancelled too
            local = await negotiation.wait_local()
            undo.pop_all()
        return link, local

    def _check_room(self) -> None:
        if self._stopped_by is not None:
            raise DialFailed(f"rtc: {self._stopped_by or 'this node stops'}")
        if len(self._links) >= _RTC_CONNECTIONS_MAX:
            raise Overloaded(f"rtc: {_RTC_CONNECTIONS_MAX} connections are open, as many as may be")
        if len(self._negotiations) >= RTC_PENDING_MAX:
            raise Overloaded(
                f"rtc: {RTC_PENDING_MAX} connections are being opened, as many as may be"
            )

    def _negotiation(self, link: int) -> _Negotiation:
        if link not in self._negotiations:
            raise ChannelClosed("rtc: this side closed the connection, or took its channel already")
        return self._negotiations[link]

    def _connect(self, link: int, theirs: RtcDescription) -> None:
        ours = self._negotiation(link).local
        assert ours is not None
        usable = usable_candidates(theirs.candidates, ours.candidates)
        if not usable:
            raise DialFailed(
                f"rtc: none of the {len(theirs.candidates)} addresses of the other side may be "
                "tried: they are private, and not of our network"
            )
        self._post(Connect(link, msgspec.structs.replace(theirs, candidates=usable)))

    def _post(self, command: Command) -> None:
        if self._stopped_by is None:
            self._thread.post(command)

    def _forget(self, link: int) -> None:
        self._channels.pop(link, None)

    # --- events -----------------------------------------------------------------------------

    def _deliver(self, event: Event) -> None:
        match event:
            case Received(link=link, data=data):
                if link in self._channels:
                    self._channels[link].received(data)
            case Credited(link=link, total=total):
                if link in self._channels:
                    self._channels[link].credited(total)
            case Drained(link=link, total=total):
                if link in self._channels:
                    self._channels[link].drained(total)
            case Ended(link=link):
                if link in self._channels:
                    self._channels[link].ended()
            case Failed(link=link, reason=reason):
                self._fail(link, reason)
            case Gathered(link=link, local=local):
                self._gathered(link, local)
            case Opened(link=link, remote=remote):
                self._opened(link, remote)
            case Carried(sent_bytes=sent_bytes, received_bytes=received_bytes):
                self._on_carried(sent_bytes, received_bytes)
            case Gone(link=link):
                self._links.discard(link)
            case Stopped(reason=reason):
                self._stop(reason)

    def _gathered(self, link: int, local: RtcDescription) -> None:
        if link in self._negotiations:
            self._negotiations[link].local = local
            self._negotiations[link].wake()

    def _opened(self, link: int, remote: tuple[str, int]) -> None:
        negotiation = self._negotiations.get(link)
        if negotiation is not None:
            self._opened_total += 1
            channel = RtcChannel(link, format_address(*remote), self._post, self._forget)
            negotiation.channel = self._channels[link] = channel
            negotiation.wake()

    def _fail(self, link: int, reason: str) -> None:
        self._failed_total += 1
        if link in self._channels:
            self._channels[link].broken(reason)
        if link in self._negotiations:
            self._negotiations[link].failure = reason
            self._negotiations[link].wake()

    def _stop(self, reason: str) -> None:
        self._stopped_by = reason
        for link in {*self._channels, *self._negotiations}:
            self._fail(link, reason or "this node stops")
        self._links.clear()


class _Pending:
    """A connection that is being opened. Closed on leaving, if its channel was not taken."""

    def __init__(self, engine: RtcEngine, link: int, description: bytes) -> None:
        self._engine = engine
        self._link = link
        self.description = description
        """What the other side must get, over a way that it can trust."""

    def close_nowait(self) -> None:
        """Let go of it. A channel that was given out stays open."""
        self._engine.drop(self._link)

    async def __aenter__(self) -> Self:
        await trio.lowlevel.checkpoint()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close_nowait()


class PendingOffer(_Pending):
    """We offered, and wait for an answer: RTC_ANSWER_S at most."""

    async def connect(self, answer: bytes) -> RtcChannel:
        """Open the channel; the caller must close it. Takes RTC_CONNECT_S at most.

        Raises:
            MalformedMessage, LimitExceeded: that is no answer to this offer.
            DialFailed: no way through; the message says how far it came.
        """
        self._engine.accept(self._link, self.description, answer)
        return await self._engine.wait_channel(self._link)


class PendingAnswer(_Pending):
    """We answered, and check addresses already."""

    async def connect(self) -> RtcChannel:
        """Wait for the channel; the caller must close it. Raises DialFailed as above."""
        return await self._engine.wait_channel(self._link)


@asynccontextmanager
async def open_rtc(
    find_hosts: Callable[[], tuple[str, ...]] | None = None,
    on_carried: OnCarried = lambda *_: None,
) -> AsyncIterator[RtcEngine]:
    """Give an engine; on leaving, every connection is closed and no thread is left.

    The thread starts, and aiortc is imported, with the first offer or answer.

    Args:
        find_hosts: gives the addresses of ours to open sockets on; by default those that
            other machines may reach.
        on_carried: see :class:`RtcEngine`.
    """
    engine = RtcEngine(find_hosts or local_hosts, on_carried)
    try:
        yield engine
    finally:
        await engine.stop()


def local_hosts() -> tuple[str, ...]:
    """Return addresses of this machine: those of its default routes, then others; RTC_HOSTS_MAX."""
    hosts = dict.fromkeys(_default_sources())
    with suppress(OSError):  # then those of the routes must do
        for interface in list_interfaces():
            hosts.update(dict.fromkeys(str(address.ip) for address in interface.addresses))
    return tuple(host for host in hosts if is_worth_offering(host))[:RTC_HOSTS_MAX]


def _default_sources() -> list[str]:
    sources = []
    for family, far_away in _FAR_AWAY:
        with closing(socket.socket(family, socket.SOCK_DGRAM)) as sock:
            try:
                sock.connect((far_away, 9))
            except OSError:
                continue  # no such route
            sources.append(str(sock.getsockname()[0]))
    return sources


def _make_hub(emit: Callable[[Event], None]) -> Server:
    from swarmnode.net.rtc.link import Hub  # it imports aiortc: 0.3 s and 40 MB, in its own thread

    return Hub(emit)


def _decode(data: bytes, kind: type[DescriptionT]) -> DescriptionT:
    if len(data) > limits.RTC_DESCRIPTION_BYTES_MAX:
        raise LimitExceeded(
            f"rtc: description of {len(data)} bytes, "
            f"at most {limits.RTC_DESCRIPTION_BYTES_MAX} are allowed"
        )
    return decode_record(data, kind)


def _stun_endpoints(addresses: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Return the first RTC_STUN_SERVERS_MAX that are IPv4: what NATs translate."""
    endpoints = []
    for address in addresses:
        host, port = parse_address(address)
        try:
            endpoints.append((str(IPv4Address(host)), port))
        except ValueError:
            continue  # IPv6, or a name that it would take time to look up
    return tuple(endpoints[:_RTC_STUN_SERVERS_MAX])
