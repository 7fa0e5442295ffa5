"""Sessions with other nodes: dialled, accepted, replaced, let go.

There is at most one session per peer, and everything that two nodes have to say to each other
runs on it. When two nodes dial each other at the same moment both keep the session that the
smaller id dialled; in any other case the newer session wins, because a peer that dials again
has lost the old one::

    new session, same running process as the old     -> crossing rule above, else the newer
    new session, another process, old one answers    -> refused: two nodes with one key
    new session, another process, old one is silent  -> it has started again: the newer

Whoever needs a peer asks for :meth:`Network.connect`; sessions that nobody keeps and nobody
has asked for lately are closed again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol

import trio

from swarmnode import limits
from swarmnode.daemon.transport.dialler import Dialler, Ways
from swarmnode.daemon.transport.listener import Listener
from swarmnode.daemon.transport.resumer import Resumer
from swarmnode.env import Env
from swarmnode.errors import (
    ChannelBroken,
    ConfigError,
    DeadlineExceeded,
    KeyInUse,
    SwarmNodeError,
)
from swarmnode.ids import PeerId
from swarmnode.net.channel import Channel, Transport
from swarmnode.net.paths import path_of
from swarmnode.net.peering import run_session
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.session.opening import MAGIC
from swarmnode.protocol.session.records import Role
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.session import GoodbyeCode

ALIVE_SERVICE = "alive/1"
_INSTANCE_BYTES = 16
_log = get_logger("swarmnode.daemon.transport")


class SessionWatcher(Protocol):
    """Hears of every session. Both methods must not wait."""

    def session_opened(self, session: Session) -> None:
        """A session is there; it may have taken the place of another."""

    def session_closed(self, session: Session) -> None:
        """The session is over, and no other one with this peer is open."""


class Network:
    """All peers that we have a session with, whatever it is for.

    Attributes:
        sessions: at most one per peer.
        dial_errors: why the last attempt to reach a peer failed, of peers without a session.
        address: what the listener is bound to.
        key_refusals: how often a peer has closed, as another node with our key answers it.
        keepers: each tells whether a session is wanted although nothing uses it just now.
        addresses_of: where a peer with a session may be found again, as the swarm says.
        ways: opens channels.
        listener: takes in channels that others have opened.
        on_whereabouts: told of peers that say themselves that they are somewhere else.
        on_moved: told of sessions that go on over another channel.
        resumed_total: how often sessions have gone on over another channel.
        also_listen: further addresses to listen on, as far as this machine lets us.
    """

    def __init__(
        self,
        *,
        identity: Identity,
        network_id: bytes,
        transport: Transport,
        services: Services,
        env: Env,
    ) -> None:
        self.sessions: dict[PeerId, Session] = {}
        self.address = ""
        self.watchers: list[SessionWatcher] = []
        self.on_session_end: Callable[[Session], None] = lambda _session: None
        self.keepers: list[Callable[[PeerId], bool]] = []
        self.addresses_of: Callable[[PeerId], tuple[str, ...]] = lambda _peer: ()
        self.ways = Ways(transport, env)
        self.listener = Listener(self._greet, env)
        self.on_moved: Callable[[Session], None] = lambda _session: None
        self.on_whereabouts: Callable[[PeerId], None] = lambda _peer: None
        self.also_listen: tuple[str, ...] = ()
        self.resumed_total = 0
        self.key_refusals = 0
        self.on_key_in_use: Callable[[KeyInUse], None] = lambda _error: None
        self._identity = identity
        self._network_id = network_id
        self._transport = transport
        self._services = services
        self._dialler = Dialler(
            self.ways,
            start=self._start,
            register=self._register,
            open_session=self._open_session,
        )
        self.dial_errors = self._dialler.errors
        self._env = env
        self._instance = env.token(_INSTANCE_BYTES)
        self._nursery: trio.Nursery | None = None
        self._used_at: dict[PeerId, float] = {}
        self._resumer: Resumer | None = None
        services.add_request(ALIVE_SERVICE, self._answer_alive)

    async def run(
        self, listen: str, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Listen and keep sessions until cancelled; ``start`` gives the bound address.

        With an empty ``listen`` no peer can dial us, and we can still dial others.
        """
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._resumer = Resumer(
                nursery=nursery,
                open_channel=self.ways.open_again,
                addresses_of=lambda peer: self.addresses_of(peer),
                on_moved=self._moved,
                env=self._env,
            )
            if listen:
                serve = functools.partial(self._transport.serve, admit=self.listener.admit)
                self.address = await nursery.start(serve, listen, self.listener.accept)
                for address in self.also_listen:
                    await self._listen_also(nursery, address)
            task_status.started(self.address)
            while True:
                await trio.sleep(limits.SESSION_SWEEP_S)
                self._close_idle()

    async def connect(
        self, peer: PeerId, addresses: tuple[str, ...], *, dial_anew: bool = False
    ) -> Session:
        """Return the session with a peer; without one it is dialled at each address in turn.

        Args:
            dial_anew: make sure that the peer can be dialled at one of these addresses, even
                if it has dialled us; the session that was there stays.

        Raises:
            DialFailed, DeadlineExceeded, ProtocolError: the last attempt's reason.
        """
        session = self.connected(peer, dial_anew=dial_anew)
        if session is not None:
            return session
        await self._wait_for_channel(peer, addresses)
        if self._open_session(peer) is None:
            assert self._nursery is not None
            await self._dialler.dial_shared(self._nursery, peer, addresses).wait()
        elif dial_anew:
            await self._dialler.probe(peer, addresses)
        session = self._open_session(peer)
        if session is None:
            raise self._dialler.error_again(peer)
        self._used_at[peer] = self._env.monotonic()
        return session

    def connected(self, peer: PeerId, *, dial_anew: bool = False) -> Session | None:
        """Return the session that :meth:`connect` would return at once, if there is one."""
        session = self._open_session(peer)
        if session is None or session.is_suspended or (dial_anew and not session.outbound):
            return None
        self._used_at[peer] = self._env.monotonic()
        return session

    async def _wait_for_channel(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """If the session with a peer has lost its channel, wait until it has one or is over."""
        session = self._open_session(peer)
        if session is None or not session.is_suspended:
            return
        assert self._resumer is not None
        self._resumer.may_be_at(session, addresses)
        with trio.move_on_after(limits.DIAL_DEADLINE_S):
            await session.wait_for_channel()
            return
        raise DeadlineExceeded(f"another channel to {peer.short}", limits.DIAL_DEADLINE_S)

    async def check_own_key(self, addresses: tuple[str, ...]) -> None:
        """Raise KeyInUse if another running node with our own key answers at an address."""
        for address in addresses:
            try:
                other = await self._dialler.shake_hands_only(self._identity.peer_id, address)
            except SwarmNodeError as error:
                _log.debug("nobody with our key", address=address, why=str(error))
                continue
            if other != self._instance:
                raise own_key_elsewhere(f"at {address}")

    async def shake_hands_only(self, peer: PeerId, address: str) -> bytes:
        """Return which process of ``peer`` answers at an address. Raises SwarmNodeError."""
        return await self._dialler.shake_hands_only(peer, address)

    def may_be_at(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """A peer is said to be there: whoever dials it, or searches for it, looks there as well."""
        self._dialler.may_be_at(peer, addresses)
        session = self.sessions.get(peer)
        if session is not None and self._resumer is not None:
            self._resumer.may_be_at(session, addresses)

    def was_dialled(self, session: Session) -> bool:
        """Whether we have opened the channel that a session has: its remote address listens."""
        return self._resumer is not None and self._resumer.is_where_dialled(session)

    async def migrate(self, session: Session, channel: Channel, address: str = "") -> None:
        """Take a session to a better channel that has been opened to its peer.

        The other end of the channel goes to the peer's :meth:`accept`. Whatever runs on the
        session goes on; its ``channel_description`` is another one afterwards. The channel is
        closed if nothing comes of it. ``address``: where it was dialled, if it was.

        Raises:
            Refused: the peer does not know the session.
            Overloaded: one of the two sides is taking it to another channel just now.
            SwarmNodeError: no peer answers as it should.
        """
        assert self._resumer is not None
        await self._resumer.take(session, channel, address)

    def give_up(self, peer: PeerId, why: str) -> None:
        """Wait no longer for a peer that has lost its channel: others know that it is gone."""
        session = self.sessions.get(peer)
        if session is not None and session.is_suspended:
            session.give_up(ChannelBroken(why))

    async def close(self, reason: str) -> None:
        """Close every session, all at once."""
        async with trio.open_nursery() as nursery:
            for session in list(self.sessions.values()):
                nursery.start_soon(session.aclose, reason)

    # --- accepting ----------------------------------------------------------------------

    async def _listen_also(self, nursery: trio.Nursery, address: str) -> None:
        serve = functools.partial(self._transport.serve, admit=self.listener.admit)
        try:
            bound = await nursery.start(serve, address, self.listener.accept)
            _log.info("listening also", address=bound)
        except ConfigError as error:
            _log.warning("not listening there", address=address, why=str(error))

    async def _greet(self, channel: Channel, first_bytes: bytes) -> Session | None:
        """Return the session that uses this channel now. Raises SwarmNodeError."""
        assert self._resumer is not None
        if MAGIC.startswith(first_bytes):
            return await self._resumer.serve(channel, first_bytes)
        if self._is_full() and self._least_used() is None:
            self.listener.note_refusal("TooManyPeers", "", "connected to enough peers")
            return None
        session = await self._start(channel, None, first_bytes=first_bytes)
        if not session.is_probe:
            await self._register(session)
        return session

    def _moved(self, session: Session) -> None:
        self.resumed_total += 1
        self.on_moved(session)

    # --- sessions -----------------------------------------------------------------------

    async def _start(
        self,
        channel: Channel,
        dialled: PeerId | None,
        *,
        is_probe: bool = False,
        first_bytes: bytes = b"",
    ) -> Session:
        """Return the session on a channel; it lives in our nursery.

        A refused handshake is raised here as it is.
        """
        assert self._nursery is not None
        start = functools.partial(
            run_session,
            channel,
            identity=self._identity,
            network_id=self._network_id,
            services=self._services,
            role=Role.SERVER if dialled is None else Role.CLIENT,
            expected=dialled,
            instance=self._instance,
            is_probe=is_probe,
            first_bytes=first_bytes,
        )
        session: Session = await self._nursery.start(start)
        return session

    def _open_session(self, peer: PeerId) -> Session | None:
        """Return the session with a peer, but not one that is just ending."""
        session = self.sessions.get(peer)
        return None if session is None or session.is_closed else session

    async def _register(self, session: Session, dialled: tuple[str, ...] = ()) -> None:
        """Make it the session with its peer, unless another one has the better right."""
        assert self._nursery is not None
        if session.peer == self._identity.peer_id:
            await session.aclose("this is your own key")
            return
        old = self._open_session(session.peer)
        if old is not None and old.instance != session.instance and await self._is_alive(old):
            why = f"another node with the key of {session.peer.short} is running and answers"
            _log.error("one key on two nodes", peer=session.peer.short, way=old.channel_description)
            await session.aclose(why, GoodbyeCode.KEY_IN_USE)
            return
        old = self._open_session(session.peer)
        have_crossed = old is not None and _have_crossed(session, old)
        if old is not None and have_crossed and self._loses(session):
            why = "a second connection between the same two peers"
            self._nursery.start_soon(self._retire, session, why)
            return
        if session.is_closed:
            return
        if old is not None and have_crossed:
            self._nursery.start_soon(self._retire, old, "replaced by a newer connection")
        elif old is not None:  # the peer has lost it
            old.close_nowait("replaced by a newer connection")
        elif not self._make_room() and not session.outbound:
            await session.aclose("connected to enough peers")
            return
        self._keep(session, dialled)

    async def _retire(self, session: Session, why: str) -> None:
        """Close the one of two crossing sessions that does not stay, when its requests are over.

        Nodes that start together dial each other at the same moments; a probe that was lost
        with such a session would be taken for a dead peer.
        """
        with trio.move_on_after(limits.SESSION_RETIRE_S):
            await session.wait_closed()
        await session.aclose(why)

    def _keep(self, session: Session, dialled: tuple[str, ...]) -> None:
        assert self._nursery is not None
        assert self._resumer is not None
        self.sessions[session.peer] = session
        self._used_at[session.peer] = self._env.monotonic()
        self._nursery.start_soon(self._watch, session)
        self._resumer.watch(session, dialled)
        self._dialler.found(session.peer)
        for watcher in self.watchers:
            watcher.session_opened(session)

    def _loses(self, session: Session) -> bool:
        """Of two that have crossed, the one stays that the smaller id dialled."""
        we_dial = self._identity.peer_id < session.peer
        return session.outbound != we_dial

    async def _is_alive(self, session: Session) -> bool:
        if session.is_suspended:
            return False
        try:
            await session.request(ALIVE_SERVICE, b"", deadline_s=limits.KEY_CHECK_S)
        except SwarmNodeError:
            return False
        return True

    async def _answer_alive(self, peer: PeerId, payload: bytes) -> bytes:  # noqa: ARG002
        return b""

    async def _watch(self, session: Session) -> None:
        try:
            await session.wait_closed()
        finally:
            if self._resumer is not None:
                self._resumer.forget(session)
            self.on_session_end(session)
            if isinstance(session.close_cause, KeyInUse):
                self._dialler.note_error(session.peer, session.close_cause)
                self.key_refusals += 1
                self.on_key_in_use(session.close_cause)
            if self.sessions.get(session.peer) is session:
                del self.sessions[session.peer]
                self._used_at.pop(session.peer, None)
                for watcher in self.watchers:
                    watcher.session_closed(session)

    # --- letting go ---------------------------------------------------------------------

    def _close_idle(self) -> None:
        """Close what we dialled for one question and no caller needs any more."""
        now = self._env.monotonic()
        for peer, session in self.sessions.items():
            idle_s = now - self._used_at[peer]
            is_idle = idle_s > limits.SESSION_IDLE_S and not session.is_busy
            if session.outbound and is_idle and not self._is_kept(peer):
                session.close_nowait("nothing to ask for now")

    def _is_kept(self, peer: PeerId) -> bool:
        return any(keeps(peer) for keeps in self.keepers)

    def _is_full(self) -> bool:
        n_open = sum(not session.is_closed for session in self.sessions.values())
        return n_open >= limits.SESSIONS_MAX

    def _make_room(self) -> bool:
        """Let go of what was not used for longest, for a newcomer who has shown its key.

        False if every session is one that we keep.
        """
        if not self._is_full():
            return True
        spare = self._least_used()
        if spare is not None:
            spare.close_nowait("room is needed for others")
        return spare is not None

    def _least_used(self) -> Session | None:
        spare = [
            session
            for peer, session in self.sessions.items()
            if not (session.is_closed or self._is_kept(peer))
        ]
        # Open streams do not protect a session: else a peer that opens some keeps others out.
        return min(spare, key=lambda each: (each.is_busy, self._used_at[each.peer]), default=None)


def _have_crossed(session: Session, old: Session) -> bool:
    """Whether two nodes have dialled each other at the same moment."""
    return (
        old.outbound != session.outbound
        and old.statistics().age_s < limits.SESSION_CROSSING_S
        and old.instance == session.instance
    )


def own_key_elsewhere(where: str) -> KeyInUse:
    """Return the error of a node whose home, or a copy of it, another node uses as well."""
    return KeyInUse(
        f"another node with this node's key is running {where}: two nodes must not share a home"
        " or a copy of it; stop one of them, or give this one a home of its own (--home)"
    )


def remote_address(session: Session) -> str:
    """Return the TCP address that the other side's bytes come from, "" if the way has none."""
    way = session.channel_description
    return "" if path_of(way) in ("relay", "rtc") else way.partition(" ")[2]
