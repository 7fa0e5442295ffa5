"""Finds another channel for a session that has lost its own, or whose peer has gone silent.

Both sides look, the one that dialled first; what one of them asks while the other asks as well is
settled by ``protocol/session/resume.py``. A search ends when there is a channel, when the session
is over (at the latest after RESUME_S), or when the peer's process is known to be gone::

    it does not know the session: it was started again            -> over at once
    its machine has broken the channel, and refuses connections
    now and a second later: it was killed                         -> over within 2 s
    nobody answers: no power, no way there, or it sleeps          -> the search goes on

Twice, because a peer that has moved asks us meanwhile. And it counts what is said where the lost
channel led to: at the peer's other addresses may be anybody, as private ones mean another machine
in another LAN.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from swarmnode import limits
from swarmnode.env import Env
from swarmnode.errors import (
    ChannelBroken,
    DialFailed,
    Overloaded,
    Refused,
    SwarmNodeError,
    TransportError,
)
from swarmnode.ids import PeerId
from swarmnode.net.channel import Channel, aclose_forcefully
from swarmnode.net.resume import resume_over, serve_resume
from swarmnode.net.session import Session
from swarmnode.protocol.session.records import Role
from swarmnode.protocol.session.resume import NONCE_BYTES
from swarmnode.telemetry.logs import get_logger

_log = get_logger(__name__)


@dataclass
class _Watched:
    """What is known of one session.

    Attributes:
        addresses: where its peer may be; where it was found last comes first.
        dialled: where we have found it ourselves, "" if it has found us.
        has_broken: the channel did, so that the peer's machine must have said so.
        search: around the search for another channel.
        asking: around the messages over one that was found.
    """

    addresses: tuple[str, ...]
    dialled: str
    has_broken: bool = False
    search: trio.CancelScope | None = None
    asking: trio.CancelScope | None = None


class Resumer:
    """See the module.

    Args:
        nursery: where searches run.
        open_channel: dials an address.
        addresses_of: where a peer may be, wherever it was found before.
    """

    def __init__(
        self,
        *,
        nursery: trio.Nursery,
        open_channel: Callable[[str], Awaitable[Channel]],
        addresses_of: Callable[[PeerId], tuple[str, ...]],
        env: Env,
    ) -> None:
        self._nursery = nursery
        self._open_channel = open_channel
        self._addresses_of = addresses_of
        self._env = env
        self._watched: dict[Session, _Watched] = {}

    def watch(self, session: Session, addresses: tuple[str, ...]) -> None:
        """Look after this session until :meth:`forget`.

        ``addresses``: where its peer may be, the one first that we have dialled; nothing if the
        peer has dialled us.
        """
        self._watched[session] = _Watched(addresses, next(iter(addresses), ""))
        session.on_lost = self._lost
        session.on_silent = self._search_soon

    def may_be_at(self, session: Session, addresses: tuple[str, ...]) -> None:
        """Somebody who wants this peer knows where to look for it."""
        watched = self._watched.get(session)
        if watched is not None:
            watched.addresses = _merged(watched.addresses, addresses)

    def forget(self, session: Session) -> None:
        """The session is over."""
        watched = self._watched.pop(session, None)
        for scope in (watched.search, watched.asking) if watched is not None else ():
            if scope is not None:
                scope.cancel()

    async def serve(self, channel: Channel, first_bytes: bytes) -> Session | None:
        """Answer a peer that asks for a session; return it if it goes on over ``channel``.

        Raises:
            SwarmNodeError: it is not the peer, or went away.
        """
        nonce = self._env.token(NONCE_BYTES)
        try:
            session = await serve_resume(channel, first_bytes, self._find, nonce)
        finally:
            self._search_for_suspended()
        if session is not None:
            self._note_found(session, "")
        return session

    async def take(self, session: Session, channel: Channel, address: str = "") -> None:
        """Ask the peer to go on over ``channel``, which is closed if nothing comes of that.

        Raises:
            Refused: the peer does not know the session any more.
            Overloaded: the peer asks for it just now, or we do.
            SwarmNodeError: nobody answers as it should.
        """
        try:
            await self._ask(session, channel)
        finally:
            if session.channel is not channel:
                await aclose_forcefully(channel)
            self._search_for_suspended()
        self._note_found(session, address)

    async def _ask(self, session: Session, channel: Channel) -> None:
        watched = self._watched.get(session)
        if watched is None:
            raise Refused(f"the session with {session.peer.short} is over")
        if watched.asking is not None:
            raise Overloaded(f"the session with {session.peer.short} is being taken over already")
        with trio.CancelScope() as watched.asking:
            try:
                await resume_over(channel, session, self._env.token(NONCE_BYTES))
                return
            finally:
                watched.asking = None
        raise Overloaded(f"{session.peer.short} has asked for the session meanwhile")

    def _find(self, name: bytes, is_proven: bool) -> Session | None:
        """Return the session of this name. If both sides ask, what its client asks counts."""
        for session, watched in self._watched.items():
            if session.resume_keys.name == name and not session.is_closed:
                if watched.asking is not None and session.role is Role.CLIENT:
                    raise Overloaded(f"{session.peer.short} asks for what we ask for")
                if watched.asking is not None and is_proven:
                    watched.asking.cancel()
                return session
        return None

    def _note_found(self, session: Session, address: str) -> None:
        _log.info("session goes on", peer=session.peer.short, way=session.channel_description)
        watched = self._watched.get(session)
        if watched is not None:
            watched.has_broken = False
            watched.dialled = address
            if address:
                watched.addresses = _merged((address,), watched.addresses)

    # --- searching ------------------------------------------------------------------------

    def _lost(self, session: Session, error: SwarmNodeError) -> None:
        _log.info("session lost its channel", peer=session.peer.short, why=str(error))
        self._watched[session].has_broken = isinstance(error, TransportError)
        self._search_soon(session)

    def _search_soon(self, session: Session) -> None:
        watched = self._watched[session]
        if watched.search is None:
            watched.search = trio.CancelScope()
            self._nursery.start_soon(self._search, session, watched, watched.search)

    def _search_for_suspended(self) -> None:
        """A session that has left its channel for one that broke at once has nobody else."""
        for session in self._watched:
            if session.is_suspended:
                self._search_soon(session)

    async def _search(self, session: Session, watched: _Watched, scope: trio.CancelScope) -> None:
        n_refused = 0  # rounds in a row
        try:
            with scope:
                if not session.outbound:
                    await trio.sleep(limits.RESUME_SERVER_WAIT_S)
                while _needs_channel(session):
                    is_refused = await self._try_all(session, watched)
                    n_refused = n_refused + 1 if is_refused else 0
                    if n_refused == limits.RESUME_REFUSALS:
                        _let_die(session, f"{session.peer.short} is not running any more")
                    elif _needs_channel(session):
                        pause_s = limits.RESUME_RETRY_S * (0.75 + self._env.rng.random() / 2)
                        await trio.sleep(pause_s)
        finally:
            watched.search = None

    async def _try_all(self, session: Session, watched: _Watched) -> bool:
        """Dial every address once; return whether the peer's machine says that it is not there."""
        n_refused = 0
        addresses = self._addresses(session, watched)
        for address in addresses:
            is_home = self._is_home(address, session, watched)
            try:
                await self._try(session, address)
            except SwarmNodeError as error:
                _log.debug(
                    "no new channel", peer=session.peer.short, address=address, why=str(error)
                )
                if is_home and isinstance(error, Refused):
                    _let_die(session, str(error))
                elif isinstance(error, DialFailed) and error.is_refused and watched.has_broken:
                    n_refused += 1
                    if is_home:
                        return True
            if not _needs_channel(session):
                return False
        return 0 < n_refused == len(addresses)

    async def _try(self, session: Session, address: str) -> None:
        channel = await self._open_channel(address)
        if _needs_channel(session):
            await self.take(session, channel, address)
        else:
            await aclose_forcefully(channel)

    def _addresses(self, session: Session, watched: _Watched) -> tuple[str, ...]:
        return _merged(watched.addresses, self._addresses_of(session.peer))

    def _is_home(self, address: str, session: Session, watched: _Watched) -> bool:
        """Whether this is where the lost channel led to, as far as one can tell."""
        _, _, remote = session.channel_description.partition(" ")
        return address == watched.dialled or _host(address) == _host(remote)


def _needs_channel(session: Session) -> bool:
    return session.is_suspended or (not session.is_closed and session.is_silent)


def _let_die(session: Session, why: str) -> None:
    session.give_up(ChannelBroken(why))


def _merged(first: tuple[str, ...], then: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *then)))[: limits.RESUME_ADDRESSES_MAX]


def _host(address: str) -> str:
    """Return HOST of HOST:PORT; the whole of what is not of that form."""
    host, _, port = address.rpartition(":")
    return host if port.isdigit() else address
