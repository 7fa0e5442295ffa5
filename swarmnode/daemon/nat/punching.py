"""TCP hole punches between two nodes that talk to each other through a relay.

The plan is ``protocol/nat/punch.py``, the connections ``net/punch.py``; here they are brought
together, with signals that the relay carries. While it takes place each side holds a connection
from its listening port to the relay: it tells what the NAT makes of that port, and keeps it so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import trio

from swarmnode import limits
from swarmnode.daemon.nat.signals import Received, Signals
from swarmnode.env import Env
from swarmnode.errors import DeadlineExceeded, Overloaded, Refused, SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.net.channel import Channel, aclose_forcefully
from swarmnode.net.punch import Puncher, dial_from
from swarmnode.net.tcp import TcpChannel
from swarmnode.net.where import ask_where
from swarmnode.protocol.nat.punch import SIGNAL_KIND, Invited, Inviter, Sides, make_address
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.connect import punch as wire
from swarmnode.wire.connect.punch import PunchAddress, PunchAnswer, PunchGo, PunchOffer
from swarmnode.wire.packing import decode_record, encode_record

_MESSAGE: Any = wire.Message  # msgspec reads a union, which mypy does not know as a type
_log = get_logger("swarmnode.daemon.nat")

TakeChannel = Callable[[PeerId, Channel], Awaitable[None]]
_MessageT = TypeVar("_MessageT", PunchAnswer, PunchGo)
_Letters = trio.MemorySendChannel[tuple[wire.Message, Received]]


class Punching:
    """Invites to punches, and accepts invitations.

    Args:
        puncher: dials from the port that we listen on, which is ``port``.
        address_of: gives the HOST:PORT where we have reached a relay, or "".
        may_invite: whether a peer's invitation is taken.
        take: takes over the channel of a punch that the peer began.
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
        self._signals = signals
        self._puncher = puncher
        self._own_id = own_id
        self._port = port
        self._address_of = address_of
        self._may_invite = may_invite
        self._take = take
        self._env = env
        self._letters: dict[PeerId, _Letters] = {}
        self._lookouts: dict[str, _Lookout] = {}
        self._nursery: trio.Nursery | None = None
        signals.register(SIGNAL_KIND, self._on_signal)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Accept invitations until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._nursery = None

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
            await self._send(peer, inviter.offer, via)
            answer, received = await _next(letters, PunchAnswer)
            go, start = inviter.handle_answer(
                answer, observed=received.observed, now=trio.current_time()
            )
            with self._puncher.appoint(start.plan) as appointment:
                await self._send(peer, go, via)
                return await appointment.keep(start)

    # --- being invited ----------------------------------------------------------------------

    def _on_signal(self, received: Received) -> None:
        """Neither waits nor raises: what makes no sense is dropped, and its author told nothing."""
        try:
            message: wire.Message = decode_record(received.payload, _MESSAGE)
        except SwarmNodeError as error:
            _log.debug("no letter about a punch", author=received.author.short, why=str(error))
            return
        letters = self._letters.get(received.author)
        if not isinstance(message, PunchOffer):
            if letters is not None:
                _post(letters, message, received)
        elif self._nursery is not None and letters is None and self._may_invite(received.author):
            self._nursery.start_soon(self._accept, message, received)

    async def _accept(self, offer: PunchOffer, received: Received) -> None:
        peer = received.author
        try:
            channel = await self._punch_back(offer, received)
        except SwarmNodeError as error:
            _log.debug("invited to a punch in vain", peer=peer.short, why=str(error))
            return
        await self._take(peer, channel)

    async def _punch_back(self, offer: PunchOffer, received: Received) -> Channel:
        peer, via = received.author, received.via
        async with self._correspond(peer) as letters, self._whereabouts(via) as addresses:
            sides = Sides(self._own_id, peer, addresses)
            invited = Invited(sides, offer, observed=received.observed, now=trio.current_time())
            with self._puncher.appoint(invited.plan) as appointment:
                await self._send(peer, invited.answer, via)
                go, _ = await _next(letters, PunchGo)
                return await appointment.keep(invited.handle_go(go, now=trio.current_time()))

    # --- letters ----------------------------------------------------------------------------

    @asynccontextmanager
    async def _correspond(
        self, peer: PeerId
    ) -> AsyncIterator[trio.MemoryReceiveChannel[tuple[wire.Message, Received]]]:
        """Take what this peer writes from now on; one punch with a peer at a time."""
        if peer in self._letters:
            raise Refused(f"a punch with {peer.short} is under way already")
        if len(self._letters) >= limits.PUNCHES_CONCURRENT_MAX:
            raise Overloaded(f"{limits.PUNCHES_CONCURRENT_MAX} TCP punches are under way")
        send, receive = trio.open_memory_channel[tuple[wire.Message, Received]](2)
        self._letters[peer] = send
        try:
            yield receive
        finally:
            del self._letters[peer]

    async def _send(self, peer: PeerId, message: wire.Message, via: PeerId) -> None:
        await self._signals.send(peer, SIGNAL_KIND, encode_record(message), via=via)

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
                if lookout.channel is None:
                    lookout.channel, lookout.addresses = await self._look(relay)
            yield lookout.addresses
        finally:
            lookout.users -= 1
            if not lookout.users:
                del self._lookouts[relay]
                if lookout.channel is not None:
                    await aclose_forcefully(lookout.channel)

    async def _look(self, relay: str) -> tuple[TcpChannel, tuple[PunchAddress, ...]]:
        channel = await self._dial(relay)
        try:
            every = dict.fromkeys((await ask_where(channel), channel.local))
            return channel, tuple(make_address(host, port) for host, port in every)
        except BaseException:  # cancelled too: nothing stays open, and it goes on up
            await aclose_forcefully(channel)
            raise

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
    channel: TcpChannel | None = None
    addresses: tuple[PunchAddress, ...] = ()
    lock: trio.Lock = field(default_factory=trio.Lock)


def _post(letters: _Letters, message: wire.Message, received: Received) -> None:
    try:
        letters.send_nowait((message, received))
    except (trio.WouldBlock, trio.BrokenResourceError):
        _log.debug("a letter too many about a punch", author=received.author.short)


async def _next(
    letters: trio.MemoryReceiveChannel[tuple[wire.Message, Received]], kind: type[_MessageT]
) -> tuple[_MessageT, Received]:
    """Return the next letter of a kind. Raises DeadlineExceeded."""
    with trio.move_on_after(limits.PUNCH_OFFER_S):
        async for message, received in letters:
            if isinstance(message, kind):
                return message, received
    raise DeadlineExceeded(f"{kind.__name__} of the other side", limits.PUNCH_OFFER_S)
