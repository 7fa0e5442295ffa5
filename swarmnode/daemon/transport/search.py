"""The search for another channel of one session, whose own has broken or fallen silent.

All addresses of the peer are dialled, one shortly after the other; who gets through asks for the
session. The search ends when there is a channel, when the session is over (at the latest after
RESUME_S), or when the peer's process is known to be gone::

    it does not know the session: it was started again            -> over at once
    its machine has broken the channel, and refuses connections
    now and a second later: it was killed                         -> over within 2 s
    nobody answers: no power, no way there, or it sleeps          -> the search goes on

Twice, because a peer that has moved asks us meanwhile. And it counts what is said where the lost
channel led to: at the peer's other addresses may be anybody, as private ones mean another machine
in another LAN.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import trio

from swarmnode import limits
from swarmnode.env import Rng
from swarmnode.errors import ChannelBroken, DialFailed, Refused, SwarmNodeError
from swarmnode.net.channel import Channel, aclose_forcefully
from swarmnode.net.session import Session
from swarmnode.telemetry.logs import get_logger

_log = get_logger("swarmnode.daemon.transport")


class Search:
    """See the module.

    Args:
        has_broken: the channel did, so that the peer's machine must have said so.
        addresses: returns where the peer may be.
        dialled: where we have found it ourselves, "" if it has found us.
        open_channel: dials an address.
        take: asks for the session over a channel, found at an address.
    """

    def __init__(
        self,
        session: Session,
        *,
        has_broken: bool,
        addresses: Callable[[], tuple[str, ...]],
        dialled: str,
        open_channel: Callable[[str], Awaitable[Channel]],
        take: Callable[[Session, Channel, str], Awaitable[None]],
        rng: Rng,
    ) -> None:
        self.has_broken = has_broken
        self.scope = trio.CancelScope()
        self._session = session
        self._addresses = addresses
        self._dialled = dialled
        self._open_channel = open_channel
        self._take = take
        self._rng = rng
        self._rounds_refused = 0  # in a row
        self._news = trio.Event()

    async def run(self) -> None:
        """Search until there is nothing to search for."""
        with self.scope:
            if not self._session.outbound:
                await trio.sleep(limits.RESUME_SERVER_WAIT_S)
            while needs_channel(self._session):
                pause_s = limits.RESUME_RETRY_S * (1 - self._rng.random() / 2)
                next_at = trio.current_time() + pause_s
                self._news = trio.Event()
                is_refused = await self._dial_all(next_at) and not self._news.is_set()
                self._rounds_refused = self._rounds_refused + 1 if is_refused else 0
                if not needs_channel(self._session):
                    return
                if self._rounds_refused == limits.RESUME_REFUSALS:
                    self._end(f"{self._session.peer.short} is not running any more")
                else:
                    with trio.move_on_at(next_at):
                        await self._news.wait()
                        self._rounds_refused = 0

    def look_again(self) -> None:
        """There is another address: do not wait, and what was said so far may be old."""
        self._news.set()

    async def _dial_all(self, next_at: float) -> bool:
        """Dial every address once; return whether the peer's machine says that it is not there.

        It may have said so while other addresses have yet to answer: they have until ``next_at``.
        """
        addresses = self._addresses()
        async with trio.open_nursery() as nursery:
            this = _Round(nursery.cancel_scope)
            for index, address in enumerate(addresses):
                wait_s = index * limits.RESUME_STAGGER_S
                nursery.start_soon(self._try, address, wait_s, this, next_at)
        return this.is_home_refused or (self.has_broken and 0 < this.n_refused == len(addresses))

    async def _try(self, address: str, wait_s: float, this: _Round, next_at: float) -> None:
        is_home = self._is_home(address)
        try:
            with trio.CancelScope() as dialling:
                this.dialling.append(dialling)
                await trio.sleep(wait_s)
                channel = await self._open_channel(address)
                this.dialling.remove(dialling)
            if not dialling.cancelled_caught:
                await self._ask(channel, address, this)
        except SwarmNodeError as error:
            _log.debug(
                "no new channel", peer=self._session.peer.short, address=address, why=str(error)
            )
            if is_home and isinstance(error, Refused):
                self._end(str(error))
                this.scope.cancel()
            elif isinstance(error, DialFailed) and error.is_refused:
                this.n_refused += 1
                if is_home and self.has_broken:
                    this.is_home_refused = True
                    is_last = self._rounds_refused + 1 == limits.RESUME_REFUSALS
                    this.stop_dialling(-math.inf if is_last else next_at)

    async def _ask(self, channel: Channel, address: str, this: _Round) -> None:
        """Ask over ``channel``, unless the session has got one meanwhile."""
        try:
            async with this.asking:
                if needs_channel(self._session):
                    await self._take(self._session, channel, address)
                this.scope.cancel()
        finally:
            if self._session.channel is not channel:
                await aclose_forcefully(channel)

    def _is_home(self, address: str) -> bool:
        """Whether this is where the lost channel led to, as far as one can tell."""
        _, _, remote = self._session.channel_description.partition(" ")
        return address == self._dialled or _host(address) == _host(remote)

    def _end(self, why: str) -> None:
        self._session.give_up(ChannelBroken(why))


class _Round:
    """All addresses, dialled once."""

    def __init__(self, scope: trio.CancelScope) -> None:
        self.scope = scope
        self.asking = trio.Lock()  # one at a time: see ``net/resume.py``
        self.dialling: list[trio.CancelScope] = []
        self.n_refused = 0
        self.is_home_refused = False

    def stop_dialling(self, at: float) -> None:
        for scope in self.dialling:
            scope.deadline = at


def needs_channel(session: Session) -> bool:
    """Whether a session has none, or one that nothing comes from."""
    return session.is_suspended or (not session.is_closed and session.is_silent)


def _host(address: str) -> str:
    """Return HOST of HOST:PORT; the whole of what is not of that form."""
    host, _, port = address.rpartition(":")
    return host if port.isdigit() else address
