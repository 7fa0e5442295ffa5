"""Ways to a peer that two nodes agree on by signals: TCP punches, and WebRTC.

What every such :class:`Agreement` needs is here: letters of one peer, and bounds on how many peers
are written with.

Of TCP punches the plan is ``protocol/nat/punch.py``, the connections ``net/punch.py``; here they
are brought together. While a punch takes place each side holds a connection from its listening port
to the relay: it tells what the NAT makes of that port, and keeps it so. WebRTC, ``net/rtc``, is for
where UDP can be punched and TCP cannot: its engine, and asyncio with it, is loaded with the first
offer or answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio

from swarmnode import limits
from swarmnode.daemon.driver import Tasks
from swarmnode.daemon.transport.signals import Received, Signals
from swarmnode.env import Env
from swarmnode.errors import DeadlineExceeded, Overloaded, Refused, SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.net.channel import Channel, aclose_forcefully, give_up
from swarmnode.net.punch import Puncher, dial_from, own_ipv6
from swarmnode.net.tcp import TcpChannel
from swarmnode.net.traffic import Traffic
from swarmnode.net.where import ask_where
from swarmnode.protocol.nat.punch import SIGNAL_KIND, Invited, Inviter, Sides, make_address
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.connect import punch as wire
from swarmnode.wire.connect.nat import RtcAnswer, RtcOffer
from swarmnode.wire.connect.punch import PunchAddress, PunchAnswer, PunchGo, PunchOffer
from swarmnode.wire.packing import decode_record, encode_record

if TYPE_CHECKING:
    from swarmnode.net.rtc.engine import PendingAnswer, PendingOffer, RtcEngine

_log = get_logger("swarmnode.daemon.transport")

LetterT = TypeVar("LetterT")
TakeChannel = Callable[[PeerId, Channel], Awaitable[None]]
# Answers and words to begin with that wait to be read: a punch has one of each.
_LETTERS_MAX = 2


class Agreement(ABC, Generic[LetterT]):
    """Channels of one kind that two nodes agree on by signals: offered, and answered.

    Args:
        kind: of the signals.
        concurrent_max: peers whose letters are read at a time, and whose offers are answered.
        may_invite: whether a peer's offer is answered.
        take: takes over a channel that the peer began.
    """

    def __init__(
        self,
        signals: Signals,
        kind: str,
        *,
        concurrent_max: int,
        may_invite: Callable[[PeerId], bool],
        take: TakeChannel,
    ) -> None:
        self._signals = signals
        self._kind = kind
        self._concurrent_max = concurrent_max
        self._may_invite = may_invite
        self._take = take
        self._letters: dict[PeerId, trio.MemorySendChannel[tuple[LetterT, Received]]] = {}
        self._answering: set[PeerId] = set()
        self._tasks = Tasks()
        signals.register(kind, self._on_signal)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer offers until cancelled."""
        async with self._tasks.open():
            task_status.started()
            await trio.sleep_forever()

    @abstractmethod
    async def invite(self, peer: PeerId, via: PeerId) -> Channel:
        """Return a channel with a peer, agreed on with the help of ``via``. Raises SwarmNodeError.

        Checkpoint: yes.
        """

    @abstractmethod
    def _read(self, payload: bytes) -> LetterT:
        """Parse a letter. Raises SwarmNodeError."""

    @abstractmethod
    def _is_offer(self, letter: LetterT) -> bool:
        """Whether a letter begins an agreement."""

    @abstractmethod
    async def _answer(self, offer: LetterT, received: Received) -> Channel:
        """Return the channel that a peer has offered. Raises SwarmNodeError."""

    async def _send(self, peer: PeerId, letter: bytes, via: PeerId) -> None:
        await self._signals.send(peer, self._kind, letter, via=via)

    @asynccontextmanager
    async def _correspond(
        self, peer: PeerId
    ) -> AsyncIterator[trio.MemoryReceiveChannel[tuple[LetterT, Received]]]:
        """Take what this peer writes from now on; one agreement with a peer at a time.

        Raises:
            Refused, Overloaded: there is one with this peer, or there are too many.
        """
        if peer in self._letters:
            raise Refused(f"{self._kind}: an agreement with {peer.short} is under way already")
        if len(self._letters) >= self._concurrent_max:
            raise Overloaded(
                f"{self._kind}: {self._concurrent_max} agreements are under way, no more at once"
            )
        send, receive = trio.open_memory_channel[tuple[LetterT, Received]](_LETTERS_MAX)
        self._letters[peer] = send
        try:
            yield receive
        finally:
            del self._letters[peer]

    def _on_signal(self, received: Received) -> None:
        """Neither waits nor raises: what makes no sense is dropped, and its author told nothing."""
        try:
            letter = self._read(received.payload)
        except SwarmNodeError as error:
            author = received.author.short
            _log.debug("no letter", kind=self._kind, author=author, why=str(error))
            return
        if not self._is_offer(letter):
            self._post(letter, received)
        elif self._may_answer(received.author):
            self._answering.add(received.author)
            self._tasks.start_soon(self._accept, letter, received)

    def _may_answer(self, author: PeerId) -> bool:
        return (
            self._tasks.are_open
            and author not in self._answering
            and len(self._answering) < self._concurrent_max
            and self._may_invite(author)
        )

    def _post(self, letter: LetterT, received: Received) -> None:
        if received.author in self._letters:
            try:
                self._letters[received.author].send_nowait((letter, received))
            except trio.WouldBlock:
                _log.debug("a letter too many", kind=self._kind, author=received.author.short)

    async def _accept(self, offer: LetterT, received: Received) -> None:
        peer = received.author
        try:
            channel = await self._answer(offer, received)
        except SwarmNodeError as error:
            _log.debug("invited in vain", kind=self._kind, peer=peer.short, why=str(error))
            return
        finally:
            self._answering.discard(peer)
        await self._take(peer, channel)


_MESSAGE: Any = wire.Message  # msgspec reads a union, which mypy does not know as a type
RTC_SIGNAL_KIND = "rtc"
_MessageT = TypeVar("_MessageT", PunchAnswer, PunchGo)
_Letters = trio.MemoryReceiveChannel[tuple[wire.Message, Received]]


class Punching(Agreement[wire.Message]):
    """Invites to TCP punches, and accepts invitations.

    Args:
        puncher: dials from the port that we listen on, which is ``port``.
        address_of: gives the HOST:PORT where we have reached a relay, or "".
        may_invite, take: see ``Agreement``.
        own_ipv6: gives our host in that family, "" for none: a relay that was reached by the other
            one does not see it, and of two homes behind symmetric NATs it is the way that works.
    """

    def __init__(
        self,
        signals: Signals,
        puncher: Puncher,
        *,
        own_id: PeerId,
        port: int,
        address_of: Callable[[PeerId], str],
        may_invite: Callable[[PeerId], bool],
        take: TakeChannel,
        env: Env,
        own_ipv6: Callable[[], str] = own_ipv6,
    ) -> None:
        super().__init__(
            signals,
            SIGNAL_KIND,
            concurrent_max=limits.PUNCHES_CONCURRENT_MAX,
            may_invite=may_invite,
            take=take,
        )
        self._puncher = puncher
        self._own_id = own_id
        self._port = port
        self._address_of = address_of
        self._env = env
        self._own_ipv6 = own_ipv6
        self._lookouts: dict[str, _Lookout] = {}

    async def invite(self, peer: PeerId, via: PeerId) -> Channel:
        """Return a TCP connection with a peer, punched with the help of ``via``.

        Raises:
            DialFailed: none came about.
            Refused, Overloaded, DeadlineExceeded, TransportError: it could not be agreed on.
        """
        async with self._correspond(peer) as letters, self._whereabouts(via) as addresses:
            sides = Sides(self._own_id, peer, addresses)
            inviter = Inviter(
                sides, nonce=self._env.token(wire.PUNCH_NONCE_BYTES), now=trio.current_time()
            )
            await self._send(peer, encode_record(inviter.offer), via)
            answer, received = await _next(letters, PunchAnswer)
            go, start = inviter.handle_answer(
                answer, observed=received.observed, now=trio.current_time()
            )
            with self._puncher.appoint(start.plan) as appointment:
                await self._send(peer, encode_record(go), via)
                return await appointment.keep(start)

    def _read(self, payload: bytes) -> wire.Message:
        letter: wire.Message = decode_record(payload, _MESSAGE)
        return letter

    def _is_offer(self, letter: wire.Message) -> bool:
        return isinstance(letter, PunchOffer)

    async def _answer(self, offer: wire.Message, received: Received) -> Channel:
        assert isinstance(offer, PunchOffer)
        peer, via = received.author, received.via
        async with self._correspond(peer) as letters, self._whereabouts(via) as addresses:
            sides = Sides(self._own_id, peer, addresses)
            invited = Invited(sides, offer, observed=received.observed, now=trio.current_time())
            with self._puncher.appoint(invited.plan) as appointment:
                await self._send(peer, encode_record(invited.answer), via)
                go, _ = await _next(letters, PunchGo)
                return await appointment.keep(invited.handle_go(go, now=trio.current_time()))

    # --- where our port is --------------------------------------------------------------------

    @asynccontextmanager
    async def _whereabouts(self, via: PeerId) -> AsyncIterator[tuple[PunchAddress, ...]]:
        """Give our port's addresses: on this machine, and as ``via`` sees it while this lasts."""
        relay = self._address_of(via)
        if not relay:
            raise Refused(f"{via.short} was not dialled, so it cannot say where our port is")
        lookout = self._lookouts.setdefault(relay, _Lookout())
        lookout.users += 1
        try:
            async with lookout.lock:
                if not lookout.channels:
                    await self._look(relay, lookout)
            yield lookout.addresses
        finally:
            lookout.users -= 1
            if not lookout.users:
                del self._lookouts[relay]
                for channel in lookout.channels:
                    give_up(channel)  # the next punch looks from the same port at the same relay
                    await aclose_forcefully(channel)

    async def _look(self, relay: str, lookout: _Lookout) -> None:
        async with AsyncExitStack() as undo:
            channel = await self._dial(relay)
            undo.push_async_callback(aclose_forcefully, channel)  # cancelled too
            undo.callback(give_up, channel)
            every = dict.fromkeys((await ask_where(channel), channel.local))
            if host := self._own_ipv6():
                every[host, self._port] = None
            lookout.addresses = tuple(make_address(host, port) for host, port in every)
            undo.pop_all()
            lookout.channels.append(channel)

    async def _dial(self, relay: str) -> TcpChannel:
        with trio.move_on_after(limits.DIAL_DEADLINE_S):
            return await dial_from(self._port, relay)
        raise DeadlineExceeded(f"connecting to {relay}", limits.DIAL_DEADLINE_S)


@dataclass
class _Lookout:
    """A connection from our port to a relay, for all punches that the relay helps with just now.

    There cannot be two: they would have the same four numbers.
    """

    users: int = 0
    channels: list[TcpChannel] = field(default_factory=list)  # none before it has been dialled
    addresses: tuple[PunchAddress, ...] = ()
    lock: trio.Lock = field(default_factory=trio.Lock)


async def _next(letters: _Letters, kind: type[_MessageT]) -> tuple[_MessageT, Received]:
    """Return the next letter of a kind. Raises DeadlineExceeded."""
    with trio.move_on_after(limits.PUNCH_OFFER_S):
        async for message, received in letters:
            if isinstance(message, kind):
                return message, received
    raise DeadlineExceeded(f"{kind.__name__} of the other side", limits.PUNCH_OFFER_S)


class RtcOnDemand:
    """The WebRTC of a node that may never need it. Made by :func:`open_rtc_on_demand` only."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._engines: tuple[RtcEngine, ...] = ()  # one, from the first offer or answer on

    async def offer(self, stun_servers: Sequence[str] = ()) -> PendingOffer:
        """Make an offer; arguments and errors are those of :meth:`RtcEngine.offer`."""
        return await self._loaded().offer(stun_servers)

    async def answer(self, offer: bytes, stun_servers: Sequence[str] = ()) -> PendingAnswer:
        """Take in an offer; arguments and errors are those of :meth:`RtcEngine.answer`."""
        return await self._loaded().answer(offer, stun_servers)

    async def stop(self) -> None:
        """Close every connection; nothing is to be done where none was begun."""
        for engine in self._engines:
            await engine.stop()

    def _loaded(self) -> RtcEngine:
        if not self._engines:
            from swarmnode.net.rtc.engine import RtcEngine, local_hosts  # asyncio, see the module

            self._engines = (RtcEngine(local_hosts, self._traffic.carried),)
        return self._engines[0]


@asynccontextmanager
async def open_rtc_on_demand(traffic: Traffic) -> AsyncIterator[RtcOnDemand]:
    """Give what makes offers and answers; on leaving, every connection of it is closed."""
    rtc = RtcOnDemand(traffic)
    try:
        yield rtc
    finally:
        await rtc.stop()


class RtcWays(Agreement[RtcOffer | RtcAnswer]):
    """Offers WebRTC channels, and answers offers.

    Args:
        engine: makes them.
        stun_servers: gives HOST:PORT of peers that tell us what our NAT does.
        may_invite, take: see ``Agreement``.
    """

    def __init__(
        self,
        signals: Signals,
        engine: RtcOnDemand,
        *,
        stun_servers: Callable[[], Sequence[str]],
        may_invite: Callable[[PeerId], bool],
        take: TakeChannel,
    ) -> None:
        super().__init__(
            signals,
            RTC_SIGNAL_KIND,
            concurrent_max=limits.UPGRADES_CONCURRENT_MAX,
            may_invite=may_invite,
            take=take,
        )
        self._engine = engine
        self._stun_servers = stun_servers

    async def invite(self, peer: PeerId, via: PeerId) -> Channel:
        """Return a channel with a peer, agreed on with the help of ``via``.

        Raises:
            DialFailed: no UDP gets through, or WebRTC does not work here.
            Refused, Overloaded, DeadlineExceeded, TransportError: it could not be agreed on.
            MalformedMessage: the answer is none.
        """
        async with (
            self._correspond(peer) as letters,
            await self._engine.offer(self._stun_servers()) as offer,
        ):
            await self._send(peer, offer.description, via)
            return await offer.connect(await _next_answer(letters))

    def _read(self, payload: bytes) -> RtcOffer | RtcAnswer:
        try:
            return decode_record(payload, RtcAnswer)
        except SwarmNodeError:  # then it is an offer, or nothing
            return decode_record(payload, RtcOffer)

    def _is_offer(self, letter: RtcOffer | RtcAnswer) -> bool:
        return isinstance(letter, RtcOffer)

    async def _answer(self, offer: RtcOffer | RtcAnswer, received: Received) -> Channel:  # noqa: ARG002
        peer, via = received.author, received.via
        async with await self._engine.answer(received.payload, self._stun_servers()) as answer:
            await self._send(peer, answer.description, via)
            return await answer.connect()


async def _next_answer(
    letters: trio.MemoryReceiveChannel[tuple[RtcOffer | RtcAnswer, Received]],
) -> bytes:
    with trio.move_on_after(limits.RTC_ANSWER_S):
        _, received = await letters.receive()
        return received.payload
    raise DeadlineExceeded("the answer to a WebRTC offer", limits.RTC_ANSWER_S)
