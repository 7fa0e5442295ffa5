"""Lets sessions outlive their channel: answers peers that ask for one, and asks them.

Both sides of a session look for another channel (:class:`Search`), the one that dialled first; what
one asks while the other asks as well is settled by ``protocol/session/opening.py``. Another part
may have found a better channel while the old one works: :meth:`Resumer.take`.

The search for another channel of one session, whose own has broken or fallen silent.

All addresses of the peer are dialled, one shortly after the other; a dial that gets through asks
for the session. The search ends when there is a channel, when the session is over (at the latest
after RESUME_S), or when the peer's process is known to be gone::

    it does not know the session: it was started again            -> over at once
    its machine has broken the channel, and refuses connections
    now and a second later: it was killed                         -> over within 2 s
    no answer: no power, no way there, or it sleeps          -> the search goes on

Twice, because a peer that has moved asks us meanwhile. And it counts what is said where the lost
channel led to: at the peer's other addresses may be any machine, as private ones mean another
machine in another LAN.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import trio

from swarmnode import limits
from swarmnode.daemon.transport.channels import WaitLeft
from swarmnode.env import Env, Rng
from swarmnode.errors import (
    ChannelBroken,
    DialFailed,
    Overloaded,
    Refused,
    SwarmNodeError,
    TransportError,
)
from swarmnode.ids import PeerId
from swarmnode.net.channel import Channel, aclose_forcefully, give_up
from swarmnode.net.paths import path_of
from swarmnode.net.peering import resume_over, serve_resume
from swarmnode.net.session import Session
from swarmnode.protocol.session.opening import NONCE_BYTES
from swarmnode.protocol.session.records import Role
from swarmnode.telemetry.logs import get_logger

_log = get_logger("swarmnode.daemon.transport")


class OpenChannel(Protocol):
    """Dials an address."""

    async def __call__(self, address: str, *, is_home: bool) -> Channel:
        """Connect; ``is_home``: where the lost channel led to. Raises SwarmNodeError."""


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
        open_channel: OpenChannel,
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
                channel = await self._open_channel(address, is_home=is_home)
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
            elif isinstance(error, DialFailed) and error.cause == "busy" and self._was_relayed():
                self._end("its circuit is another's, and the relay has no other")
                this.scope.cancel()
            elif isinstance(error, DialFailed) and error.cause == "refused":
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

    def _was_relayed(self) -> bool:
        return path_of(self._session.channel_description) == "relay"

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
        self.asking = trio.Lock()  # one at a time: see ``net/peering.py``
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


@dataclass
class _Watched:
    """What is known of one session.

    Attributes:
        addresses: where its peer may be; where it was found last comes first.
        dialled: where we have found it ourselves, "" if it has found us.
    """

    addresses: tuple[str, ...]
    dialled: str


class Resumer:
    """See the module.

    Args:
        start_soon: starts a search as a task.
        open_channel: dials an address.
        addresses_of: where a peer may be, wherever it was found before.
        on_moved: told of sessions that go on over another channel.
    """

    def __init__(
        self,
        *,
        start_soon: Callable[..., None],
        open_channel: OpenChannel,
        addresses_of: Callable[[PeerId], tuple[str, ...]],
        on_moved: Callable[[Session], None],
        env: Env,
    ) -> None:
        self._start_soon = start_soon
        self._open_channel = open_channel
        self._addresses_of = addresses_of
        self._on_moved = on_moved
        self._env = env
        self._watched: dict[Session, _Watched] = {}
        self._searches: dict[Session, Search] = {}
        self._asking: dict[Session, trio.CancelScope] = {}  # around what is said over a new channel

    def watch(self, session: Session, addresses: tuple[str, ...]) -> None:
        """Look after this session until :meth:`forget`.

        ``addresses``: where its peer may be, the one first that we have dialled; nothing if the
        peer has dialled us.
        """
        self._watched[session] = _Watched(addresses, next(iter(addresses), ""))
        session.on_lost = self._lost
        session.on_silent = self._search_soon

    def may_be_at(self, session: Session, addresses: tuple[str, ...]) -> None:
        """A caller that wants this peer knows where to look for it."""
        if session not in self._watched:
            return
        watched = self._watched[session]
        known, watched.addresses = watched.addresses, _merged(watched.addresses, addresses)
        if watched.addresses != known and session in self._searches:
            self._searches[session].look_again()

    def is_where_dialled(self, session: Session) -> bool:
        """Whether the session runs on a channel that we have dialled, and not the peer."""
        return session in self._watched and bool(self._watched[session].dialled)

    def forget(self, session: Session) -> None:
        """The session is over."""
        self._watched.pop(session, None)
        if session in self._searches:
            self._searches[session].scope.cancel()

    async def serve(self, channel: Channel, first_bytes: bytes) -> WaitLeft:
        """Answer a peer that asks for a session; see ``Greet``.

        Raises:
            SwarmNodeError: it is not the peer, or went away.
        """
        nonce = self._env.token(NONCE_BYTES)
        try:
            session = await serve_resume(channel, first_bytes, self._find, nonce)
        finally:
            self._search_for_suspended()
        if session is None:
            return trio.lowlevel.checkpoint
        self._note_found(session, "")
        return partial(session.wait_left, channel)

    async def take(self, session: Session, channel: Channel, address: str = "") -> None:
        """Ask the peer to go on over ``channel``, which is closed if nothing comes of that.

        Raises:
            Refused: the peer does not know the session any more.
            Overloaded: the peer asks for it just now, or we do.
            SwarmNodeError: no peer answers as it should.
        """
        try:
            await self._ask(session, channel)
        finally:
            if session.channel is not channel:
                give_up(channel)
                await aclose_forcefully(channel)
            self._search_for_suspended()
        self._note_found(session, address)

    async def _ask(self, session: Session, channel: Channel) -> None:
        if session not in self._watched:
            raise Refused(f"the session with {session.peer.short} is over")
        if session in self._asking:
            raise Overloaded(f"the session with {session.peer.short} is being taken over already")
        with trio.CancelScope() as self._asking[session]:
            try:
                await resume_over(channel, session, self._env.token(NONCE_BYTES))
                return
            finally:
                del self._asking[session]
        raise Overloaded(f"{session.peer.short} has asked for the session meanwhile")

    def _find(self, name: bytes, is_proven: bool) -> Session | None:
        """Return the session of this name. If both sides ask, what its client asks counts."""
        for session in self._watched:
            if session.resume_keys.name == name and not session.is_closed:
                if session in self._asking and session.role is Role.CLIENT:
                    raise Overloaded(f"{session.peer.short} asks for what we ask for")
                if session in self._asking and is_proven:
                    self._asking[session].cancel()
                return session
        return None

    def _note_found(self, session: Session, address: str) -> None:
        _log.info("session goes on", peer=session.peer.short, way=session.channel_description)
        if session in self._watched:
            watched = self._watched[session]
            watched.dialled = address
            if address:
                watched.addresses = _merged((address,), watched.addresses)
        self._on_moved(session)

    # --- searching ------------------------------------------------------------------------

    def _lost(self, session: Session, error: SwarmNodeError) -> None:
        _log.info("session lost its channel", peer=session.peer.short, why=str(error))
        self._search_soon(session, has_broken=isinstance(error, TransportError))

    def _search_soon(self, session: Session, *, has_broken: bool = False) -> None:
        if session not in self._searches:
            watched = self._watched[session]
            search = self._searches[session] = Search(
                session,
                has_broken=has_broken,
                addresses=lambda: _merged(watched.addresses, self._addresses_of(session.peer)),
                dialled=watched.dialled,
                open_channel=self._open_channel,
                take=self.take,
                rng=self._env.rng,
            )
            self._start_soon(self._run_search, session, search)
        self._searches[session].has_broken |= has_broken

    def _search_for_suspended(self) -> None:
        """A session that has left its channel for one that broke at once has no other."""
        for session in self._watched:
            if session.is_suspended:
                self._search_soon(session)

    async def _run_search(self, session: Session, search: Search) -> None:
        try:
            await search.run()
        finally:
            del self._searches[session]


def _merged(first: tuple[str, ...], then: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *then)))[: limits.RESUME_ADDRESSES_MAX]
