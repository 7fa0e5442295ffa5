"""From a relay to a better way: what every session that runs through a relay goes on trying.

::

    1. direct        each side dials the addresses of the other that it knows
    2. punched-tcp   both dial at one moment            \\ agreed on by signals that the relay
    3. rtc           ICE finds a way for UDP            /  carries; the side that dialled asks

The session moves to the first channel that comes about; exchanges that run on it go on. If that
channel breaks, the session finds a way through a relay again, and this begins anew. Most nodes
reach every peer directly: this is imported when the first session runs through a relay (``nat``).

Of TCP punches the plan is ``protocol/nat/punch.py``, the connections ``net/punch.py``; here they
are brought together. While a punch takes place each side holds a connection from its listening port
to the relay: it tells what the NAT makes of that port, and keeps it so. WebRTC, ``net/rtc``, is for
where UDP can be punched and TCP cannot.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, Protocol, TypeVar

import trio

from swarmnode import limits
from swarmnode.daemon.driver import Tasks
from swarmnode.daemon.transport.network import Network
from swarmnode.daemon.transport.signals import Agreement, Received, Signals, TakeChannel
from swarmnode.env import Env
from swarmnode.errors import DeadlineExceeded, Refused, SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.net.channel import Channel, aclose_forcefully
from swarmnode.net.paths import path_of
from swarmnode.net.punch import Puncher, dial_from
from swarmnode.net.relays.address import is_relayed
from swarmnode.net.relays.legs import RelayedChannel
from swarmnode.net.rtc.on_demand import RtcOnDemand, open_rtc_on_demand
from swarmnode.net.session import Session
from swarmnode.net.tcp import TcpChannel
from swarmnode.net.where import ask_where
from swarmnode.protocol.nat.punch import SIGNAL_KIND, Invited, Inviter, Sides, make_address
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.connect import punch as wire
from swarmnode.wire.connect.nat import RtcAnswer, RtcOffer
from swarmnode.wire.connect.punch import PunchAddress, PunchAnswer, PunchGo, PunchOffer
from swarmnode.wire.packing import decode_record, encode_record

Whys = dict[PeerId, tuple[str, ...]]

_log = get_logger("swarmnode.daemon.transport")


class Inviting(Protocol):
    """A kind of way that two nodes agree on with the help of a third."""

    async def invite(self, peer: PeerId, via: PeerId) -> Channel:
        """Return a channel to the peer. Raises SwarmNodeError."""


class Upgrader:
    """See the module.

    Args:
        ways: the kinds to try after direct addresses, best first, each with its path's name.
        whys: takes why a peer with a relayed session has no better one, by peer; for people.
    """

    def __init__(
        self,
        network: Network,
        *,
        own_id: PeerId,
        ways: Callable[[], tuple[tuple[str, Inviting], ...]],
        whys: Whys,
        env: Env,
    ) -> None:
        self._whys = whys
        self._network = network
        self._own_id = own_id
        self._ways = ways
        self._env = env
        self._trying: dict[PeerId, trio.Event] = {}  # set when the session is elsewhere, or over
        self._limit = trio.CapacityLimiter(limits.UPGRADES_CONCURRENT_MAX)
        self._tasks = Tasks()
        network.watchers.append(self)
        network.on_moved = self.session_opened
        network.on_whereabouts = self.look_again

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look for better ways until cancelled."""
        async with self._tasks.open():
            task_status.started()
            for session in self._network.sessions.values():
                self.session_opened(session)
            await trio.sleep_forever()

    def session_opened(self, session: Session) -> None:
        """Part of ``SessionWatcher``; also of sessions that go on over another channel."""
        if session.peer in self._trying:
            self._trying[session.peer].set()
        elif self._tasks.are_open and _is_relayed(session):
            self._trying[session.peer] = trio.Event()
            self._tasks.start_soon(self._go_on_trying, session)

    def look_again(self, peer: PeerId) -> None:
        """This peer is said to be somewhere else: perhaps it can be dialled there."""
        if peer in self._trying:
            self._trying[peer].set()

    def session_closed(self, session: Session) -> None:
        """Part of ``SessionWatcher``."""
        self._whys.pop(session.peer, None)
        self.look_again(session.peer)

    async def take(self, peer: PeerId, channel: Channel) -> None:
        """Move the session with a peer to this channel, whichever side began it.

        Both sides have the channel at about the same moment; the greater id asks for the session
        on it, as it is the one that chooses among several.
        """
        sessions = self._network.sessions
        if peer not in sessions or not _is_relayed(sessions[peer]):
            await aclose_forcefully(channel)
        elif self._own_id > peer:
            await self._network.migrate(sessions[peer], channel)
        else:
            self._tasks.start_soon(self._let_in, channel)
            await self._wait_moved(sessions[peer], channel)

    async def _let_in(self, channel: Channel) -> None:
        try:
            await self._network.listener.accept(channel)
        finally:
            await aclose_forcefully(channel)

    async def _wait_moved(self, session: Session, channel: Channel) -> None:
        """Wait until the other side has taken the session there. Raises DeadlineExceeded."""
        with trio.move_on_after(limits.RESUME_HANDSHAKE_S):
            while session.channel is not channel and not session.is_closed:  # noqa: ASYNC110
                await trio.sleep(limits.UPGRADE_LOOK_S)
            return
        raise DeadlineExceeded(
            f"{session.peer.short} to take the session to {channel.description}",
            limits.RESUME_HANDSHAKE_S,
        )

    # --- trying -----------------------------------------------------------------------------

    async def _go_on_trying(self, session: Session) -> None:
        peer, pause_s = session.peer, limits.UPGRADE_PAUSE_S_MIN
        try:
            while _is_relayed(session):
                changed = self._trying[peer] = trio.Event()
                async with self._limit:
                    self._whys[peer] = await self._try_all(session)
                with trio.move_on_after(pause_s * self._env.rng.uniform(0.75, 1.25)):
                    await changed.wait()
                    pause_s = limits.UPGRADE_PAUSE_S_MIN / 2  # another relay is another chance
                pause_s = min(2 * pause_s, limits.UPGRADE_PAUSE_S_MAX)
        finally:
            del self._trying[peer]
            self._whys.pop(peer, None)
        if peer in self._network.sessions:  # anew, as it was lost meanwhile, or relayed once more
            self.session_opened(self._network.sessions[peer])

    async def _try_all(self, session: Session) -> tuple[str, ...]:
        """Try every kind of way once; return why each did not work, nothing if one did."""
        whys: list[str] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._try, session, "direct", self._dial_direct, whys)
            if session.outbound:
                await trio.sleep(limits.RELAY_HEAD_START_S)
                for path, way in self._ways():
                    if _is_relayed(session):
                        await self._try(session, path, partial(self._invite, way=way), whys)
            if not _is_relayed(session):
                nursery.cancel_scope.cancel()
        return tuple(whys) if _is_relayed(session) else ()

    async def _try(
        self,
        session: Session,
        path: str,
        attempt: Callable[[Session], Awaitable[None]],
        whys: list[str],
    ) -> None:
        try:
            with trio.move_on_after(limits.UPGRADE_TRY_S[path]) as scope:
                await attempt(session)
            if scope.cancelled_caught:
                raise DeadlineExceeded("connecting", limits.UPGRADE_TRY_S[path])
        except SwarmNodeError as error:
            whys.append(f"{path}: {str(error).removeprefix(f'{path}: ')}")
            _log.debug("no better way", peer=session.peer.short, path=path, why=str(error))
        if path != "direct":  # dials are counted where they are made
            self._network.ways.tried[path, "failed" if _is_relayed(session) else "ok"] += 1

    async def _dial_direct(self, session: Session) -> None:
        """Dial the peer's own addresses, all at once; raises what the last one said."""
        addresses = self._network.addresses_of(session.peer)
        direct = [address for address in addresses if not is_relayed(address)]
        errors: list[SwarmNodeError] = []
        async with trio.open_nursery() as nursery:

            async def dial(address: str) -> None:
                try:
                    channel = await self._network.ways.open(address)
                    await self._network.migrate(session, channel, address)
                    nursery.cancel_scope.cancel()
                except SwarmNodeError as error:
                    errors.append(error)

            for address in direct:
                nursery.start_soon(dial, address)
        if errors and _is_relayed(session):
            raise errors[-1]

    async def _invite(self, session: Session, *, way: Inviting) -> None:
        channel = session.channel
        if isinstance(channel, RelayedChannel):
            await self.take(session.peer, await way.invite(session.peer, channel.relay))


async def better_sessions(
    network: Network,
    signals: Signals,
    *,
    own_id: PeerId,
    port: int,
    dialled_address: Callable[[PeerId], str],
    stun_servers: Callable[[], Sequence[str]],
    whys: Whys,
    env: Env,
) -> NoReturn:
    """Better every session that runs through a relay, by all kinds of way, until cancelled.

    Args:
        port: that we listen on, and punch from.
        dialled_address: gives the HOST:PORT where we have reached a peer directly, or "".
        stun_servers: see ``RtcWays``.
        whys: see ``Upgrader``.
    """
    ways: list[tuple[str, Inviting]] = []
    upgrader = Upgrader(network, own_id=own_id, ways=lambda: tuple(ways), whys=whys, env=env)

    def may_invite(peer: PeerId) -> bool:
        return peer in network.sessions and _is_relayed(network.sessions[peer])

    async def take(peer: PeerId, channel: Channel) -> None:
        """Move the session to a channel that the peer has begun; if not, it stays as it was."""
        try:
            await upgrader.take(peer, channel)
        except SwarmNodeError as error:
            _log.debug("not moved", peer=peer.short, why=str(error))

    puncher = Puncher(port, env=env)
    network.listener.claim = puncher.claim
    async with open_rtc_on_demand() as engine, trio.open_nursery() as nursery:
        punching = Punching(
            signals,
            puncher,
            own_id=own_id,
            port=port,
            address_of=dialled_address,
            may_invite=may_invite,
            take=take,
            env=env,
        )
        rtc = RtcWays(signals, engine, stun_servers=stun_servers, may_invite=may_invite, take=take)
        ways += [("punched-tcp", punching), ("rtc", rtc)]
        for part in (punching, rtc):
            await nursery.start(part.run)
        await nursery.start(upgrader.run)
        await trio.sleep_forever()


def _is_relayed(session: Session) -> bool:
    """Whether it runs through a relay just now, or was lost and did so last."""
    return not session.is_closed and path_of(session.channel_description) == "relay"


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
                    await aclose_forcefully(channel)

    async def _look(self, relay: str, lookout: _Lookout) -> None:
        channel = await self._dial(relay)
        try:
            every = dict.fromkeys((await ask_where(channel), channel.local))
            lookout.addresses = tuple(make_address(host, port) for host, port in every)
        except BaseException:  # cancelled too: nothing stays open, and it goes on up
            await aclose_forcefully(channel)
            raise
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
