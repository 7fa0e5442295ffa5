"""Dials peers: each at its addresses in turn, once for all who want it, and few at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from swarmnode import limits
from swarmnode.errors import (
    ChannelBroken,
    DeadlineExceeded,
    DialFailed,
    ProtocolError,
    SwarmNodeError,
)
from swarmnode.ids import PeerId
from swarmnode.net.channel import Channel, Transport
from swarmnode.net.session import Session
from swarmnode.telemetry.logs import get_logger

_log = get_logger(__name__)


class StartSession(Protocol):
    """Makes a session of a channel that we have dialled."""

    async def __call__(self, channel: Channel, dialled: PeerId, *, is_probe: bool) -> Session:
        """Return it when it is open. Raises SwarmNodeError: no session came about."""


class Dialler:
    """See the module.

    Args:
        start: makes a session of a channel.
        register: takes in a new session, dialled at the first of these addresses.
        open_session: returns the session with a peer, if there is one.

    Attributes:
        errors: why the last attempt to reach a peer failed, of peers without a session.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        start: StartSession,
        register: Callable[[Session, tuple[str, ...]], Awaitable[None]],
        open_session: Callable[[PeerId], Session | None],
    ) -> None:
        self.errors: dict[PeerId, SwarmNodeError] = {}
        self._transport = transport
        self._start = start
        self._register = register
        self._open_session = open_session
        self._dials: dict[PeerId, trio.Event] = {}
        self._limit = trio.CapacityLimiter(limits.DIALS_CONCURRENT_MAX)

    def dial_shared(
        self, nursery: trio.Nursery, peer: PeerId, addresses: tuple[str, ...]
    ) -> trio.Event:
        """Return what is set when the dial is over that all who want this peer wait for.

        It goes on in ``nursery`` if one of them loses patience.
        """
        done = self._dials.get(peer)
        if done is None:
            done = self._dials[peer] = trio.Event()
            nursery.start_soon(self._dial_once, peer, addresses, done)
        return done

    def found(self, peer: PeerId) -> None:
        """There is a session: whoever waits for a slow dial need not any more."""
        self.errors.pop(peer, None)
        dial = self._dials.pop(peer, None)
        if dial is not None:
            dial.set()

    async def open_channel(self, address: str) -> Channel:
        """Connect. Raises DialFailed, DeadlineExceeded, ConfigError."""
        with trio.move_on_after(limits.DIAL_DEADLINE_S):
            return await self._transport.dial(address)
        raise DeadlineExceeded(f"connecting to {address}", limits.DIAL_DEADLINE_S)

    async def probe(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """Return if the peer answers at one of the addresses. Raises what the last one said."""
        error: SwarmNodeError = DialFailed(f"no address of {peer.short} is known")
        async with self._limit:
            for address in addresses:
                try:
                    await self.shake_hands_only(peer, address)
                    return
                except SwarmNodeError as failed:
                    error = failed
        raise error

    async def shake_hands_only(self, peer: PeerId, address: str) -> bytes:
        """Return the instance of the node that proves to be ``peer`` at this address."""
        channel = await self.open_channel(address)
        session = await self._start(channel, peer, is_probe=True)
        await session.aclose("only looking whether you answer")
        return session.instance

    def note_error(self, peer: PeerId, error: SwarmNodeError) -> None:
        """Keep why a peer cannot be reached."""
        self.errors.pop(peer, None)
        self.errors[peer] = error  # the newest last
        while len(self.errors) > limits.DIAL_ERRORS_KEPT_MAX:
            del self.errors[next(iter(self.errors))]

    def error_again(self, peer: PeerId) -> SwarmNodeError:
        """Return why a dial failed: an error of its own for each who waited for it."""
        error = self.errors.get(peer)
        if error is None:
            return ChannelBroken(f"the session with {peer.short} ended at once")
        return (
            type(error)(error.operation, error.limit_s)
            if isinstance(error, DeadlineExceeded)
            else type(error)(str(error))
        )

    async def _dial_once(self, peer: PeerId, addresses: tuple[str, ...], done: trio.Event) -> None:
        try:
            async with self._limit:
                await self._dial(peer, addresses)
        finally:
            if self._dials.get(peer) is done:
                del self._dials[peer]
            done.set()

    async def _dial(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        if not addresses:
            self.note_error(peer, DialFailed(f"no address of {peer.short} is known"))
        for address in addresses:
            try:
                channel = await self.open_channel(address)
                if self._open_session(peer) is not None:  # it got through to us first
                    await channel.aclose()
                    return
                session = await self._start(channel, peer, is_probe=False)
                await self._register(session, tuple(dict.fromkeys((address, *addresses))))
                return
            except SwarmNodeError as error:
                self.note_error(peer, error)
                level = _log.warning if isinstance(error, ProtocolError) else _log.debug
                level("dial failed", peer=peer.short, address=address, why=str(error))
