"""Sessions with other nodes: dialled, accepted, replaced, let go.

There is at most one session per peer, and everything that two nodes have to say to each other
runs on it. When two nodes dial each other at the same moment both keep the session that the
smaller id dialled; in any other case the newer session wins, because a peer that dials again
has lost the old one::

    new session, same running process as the old     -> crossing rule above, else the newer
    new session, another process, old one answers    -> refused: two nodes with one key
    new session, another process, old one is silent  -> it has started again: the newer

A caller that needs a peer asks for :meth:`Network.connect`; sessions that no caller keeps or has
asked for lately are closed again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Protocol

import trio

from swarmnode import limits
from swarmnode.daemon.driver import Tasks
from swarmnode.daemon.transport.channels import Dialler, Listener, WaitLeft, Ways
from swarmnode.daemon.transport.reach import own_networks
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
from swarmnode.net.channel import Channel, Transport, aclose_forcefully
from swarmnode.net.paths import path_of
from swarmnode.net.peering import run_session
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.protocol.dht.keys import Network as IpNetwork
from swarmnode.protocol.hosts import SharedNetworks
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
        dial_failures: the same of addresses.
        address: what the listener is bound to.
        key_refusals: how often a peer has closed, as another node with our key answers it.
        keepers: each tells whether a session is wanted although nothing uses it just now.
        addresses_of: where a peer with a session may be found again, as the swarm says.
        ways: opens channels.
        listener: takes in channels that others have opened.
        on_whereabouts: told of peers that say themselves that they are somewhere else.
        on_moved: told of sessions that go on over another channel.
        resumed_total: how often sessions have gone on over another channel.
        circuits: how many circuits our relays leave us; 0: they do not say.
        sessions_max: past these, a peer that has not been asked lately makes room for others.
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
        self.sessions_max = limits.SESSIONS_MAX
        self.circuits: Callable[[], int] = lambda: 0
        self.resumed_total = 0
        self.key_refusals = 0
        self.on_key_in_use: Callable[[KeyInUse], None] = lambda _error: None
        self._identity = identity
        self._network_id = network_id
        self._transport = transport
        self._services = services
        self._tasks = Tasks()
        self._dialler = Dialler(
            self.ways,
            start_soon=self._tasks.start_soon,
            start=self._start,
            register=self._register,
            has_session=self._has_open,
        )
        self.dial_errors = self._dialler.errors
        self.dial_failures = self._dialler.failures
        self._env = env
        self._instance = env.token(_INSTANCE_BYTES)
        self._used_at: dict[PeerId, float] = {}
        self._resumer = Resumer(
            start_soon=self._tasks.start_soon,
            open_channel=self.ways.open_again,
            addresses_of=lambda peer: self.addresses_of(peer),
            on_moved=self._moved,
            env=env,
        )
        self._shared = SharedNetworks(self._own_networks, self._met_at)
        self._networks: tuple[IpNetwork, ...] = ()
        self._networks_looked_at = -math.inf
        services.add_request(ALIVE_SERVICE, self._answer_alive)

    async def run(
        self, listen: str, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Listen and keep sessions until cancelled; ``start`` gives the bound address.

        With an empty ``listen`` no peer can dial us, and we can still dial others.
        """
        async with self._tasks.open() as nursery:
            if listen:
                self.address = await nursery.start(
                    self._transport.serve, listen, self.listener.accept
                )
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
        if self._is_usable(peer, dial_anew=dial_anew):
            return self._use(peer)
        await self._wait_for_channel(peer, addresses)
        if not self._has_open(peer):
            await self._dialler.dial_shared(peer, addresses).wait()
        elif dial_anew:
            await self._dialler.probe(peer, addresses)
        if not self._has_open(peer):
            raise self._dialler.error_again(peer)
        return self._use(peer)

    def connected(self, peer: PeerId, *, dial_anew: bool = False) -> Session | None:
        """Return the session that :meth:`connect` would return at once, if there is one."""
        return self._use(peer) if self._is_usable(peer, dial_anew=dial_anew) else None

    def _is_usable(self, peer: PeerId, *, dial_anew: bool) -> bool:
        if not self._has_open(peer):
            return False
        session = self.sessions[peer]
        return not session.is_suspended and (session.outbound or not dial_anew)

    def _use(self, peer: PeerId) -> Session:
        self._used_at[peer] = self._env.monotonic()
        return self.sessions[peer]

    async def _wait_for_channel(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """If the session with a peer has lost its channel, wait until it has one or is over."""
        if not self._has_open(peer) or not self.sessions[peer].is_suspended:
            return
        session = self.sessions[peer]
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
                _log.debug("no node with our key", address=address, why=str(error))
                continue
            if other != self._instance:
                raise KeyInUse.of_node(f"at {address}")

    async def shake_hands_only(self, peer: PeerId, address: str) -> bytes:
        """Return which process of ``peer`` answers at an address. Raises SwarmNodeError."""
        return await self._dialler.shake_hands_only(peer, address)

    def may_be_at(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """A peer is said to be there: a dial of it, or a search for it, looks there as well."""
        self._dialler.may_be_at(peer, addresses)
        if peer in self.sessions:
            self._resumer.may_be_at(self.sessions[peer], addresses)

    def usable(self, addresses: tuple[str, ...]) -> tuple[str, ...]:
        """Return those that others tell and that may be dialled; see ``protocol/hosts.py``."""
        return self._shared.usable(addresses)

    def trust(self, addresses: tuple[str, ...]) -> None:
        """Count addresses as usable that the owner gave, or that were heard on the LAN."""
        self._shared.trust(addresses)

    def _own_networks(self) -> tuple[IpNetwork, ...]:
        now = self._env.monotonic()
        if now >= self._networks_looked_at + limits.OWN_NETWORKS_KEEP_S:
            self._networks_looked_at = now
            try:
                self._networks = own_networks()
            except OSError as error:  # then no private network is known to be shared
                _log.warning("own networks are not known", why=str(error))
        return self._networks

    def _met_at(self) -> tuple[str, ...]:
        """Where we listen, and where peers are that we have a session with."""
        return (self.address, *map(remote_address, self.sessions.values()))

    def remote_address_of(self, peer: PeerId) -> str:
        """Return where a peer's bytes come from, "" without a session or where its way has none."""
        return remote_address(self.sessions[peer]) if peer in self.sessions else ""

    def was_dialled(self, session: Session) -> bool:
        """Whether we have opened the channel that a session has: its remote address listens."""
        return self._resumer.is_where_dialled(session)

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
        await self._resumer.take(session, channel, address)

    async def meet(self, peer: PeerId, channel: Channel) -> None:
        """Begin a session on what both have opened; the greater id speaks first."""
        if self._identity.peer_id > peer and not self._has_open(peer):
            await self._register(await self._start(channel, peer))
            return
        try:
            await self.listener.accept(channel)
        finally:
            await aclose_forcefully(channel)

    def give_up(self, peer: PeerId, why: str) -> None:
        """Wait no longer for a peer that has lost its channel: others know that it is gone."""
        if peer in self.sessions and self.sessions[peer].is_suspended:
            self.sessions[peer].give_up(ChannelBroken(why))

    async def close(self, reason: str) -> None:
        """Close every session, all at once."""
        async with trio.open_nursery() as nursery:
            for session in list(self.sessions.values()):
                nursery.start_soon(session.aclose, reason)

    # --- accepting ----------------------------------------------------------------------

    async def _listen_also(self, nursery: trio.Nursery, address: str) -> None:
        try:
            bound = await nursery.start(self._transport.serve, address, self.listener.accept)
            _log.info("listening also", address=bound)
        except ConfigError as error:
            _log.warning("not listening there", address=address, why=str(error))

    async def _greet(self, channel: Channel, first_bytes: bytes) -> WaitLeft:
        """Find the session that uses this channel now; see ``Greet``. Raises SwarmNodeError."""
        if MAGIC.startswith(first_bytes):
            return await self._resumer.serve(channel, first_bytes)
        if self._is_full() and not self._spare():
            self.listener.note_refusal("TooManyPeers", "", "connected to enough peers")
            return trio.lowlevel.checkpoint
        session = await self._start(channel, None, first_bytes=first_bytes)
        if not session.is_probe:
            await self._register(session)
        return functools.partial(session.wait_left, channel)

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
        session: Session = await self._tasks.start(start)
        return session

    def _has_open(self, peer: PeerId) -> bool:
        """Whether there is a session with a peer that is not just ending."""
        return peer in self.sessions and not self.sessions[peer].is_closed

    async def _register(self, session: Session, dialled: tuple[str, ...] = ()) -> None:
        """Make it the session with its peer, unless another one has the better right."""
        if session.peer == self._identity.peer_id:
            await session.aclose("this is your own key")
            return
        if await self._is_of_second_node(session):
            why = f"another node with the key of {session.peer.short} is running and answers"
            await session.aclose(why, GoodbyeCode.KEY_IN_USE)
        elif self._has_open(session.peer):
            self._register_again(session, self.sessions[session.peer], dialled)
        elif session.is_closed:
            return
        elif self._make_room() or session.outbound:
            self._keep(session, dialled)
        else:
            await session.aclose("connected to enough peers")

    async def _is_of_second_node(self, session: Session) -> bool:
        """Whether another node with this peer's key has a session with us, and answers on it."""
        if not self._has_open(session.peer):
            return False
        old = self.sessions[session.peer]
        if old.instance == session.instance or not await self._is_alive(old):
            return False
        _log.error("one key on two nodes", peer=session.peer.short, way=old.channel_description)
        return True

    def _register_again(self, session: Session, old: Session, dialled: tuple[str, ...]) -> None:
        """Decide between two sessions with one peer."""
        have_crossed = _have_crossed(session, old)
        if have_crossed and self._loses(session):
            why = "a second connection between the same two peers"
            self._tasks.start_soon(self._retire, session, why)
        elif not session.is_closed:
            why = "replaced by a newer connection"
            if have_crossed:
                self._tasks.start_soon(self._retire, old, why)
            else:  # the peer has lost it
                old.close_nowait(why)
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
        self.sessions[session.peer] = session
        self._used_at[session.peer] = self._env.monotonic()
        self._tasks.start_soon(self._watch, session)
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
        return n_open >= self.sessions_max

    def _make_room(self) -> bool:
        """Let go of what was not used for longest, for a newcomer that has shown its key.

        False if every session is one that we keep.
        """
        if not self._is_full():
            return True
        # Open streams do not protect a session: else a peer that opens some keeps others out.
        spare = sorted(self._spare(), key=lambda each: (each.is_busy, self._used_at[each.peer]))
        for least_used in spare[:1]:
            least_used.close_nowait("room is needed for others")
        return bool(spare)

    def _spare(self) -> list[Session]:
        """Return the sessions that make room for others."""
        return [
            session
            for peer, session in self.sessions.items()
            if not (session.is_closed or self._is_kept(peer))
        ]


def _have_crossed(session: Session, old: Session) -> bool:
    """Whether two nodes have dialled each other at the same moment."""
    return (
        old.outbound != session.outbound
        and old.statistics().age_s < limits.SESSION_CROSSING_S
        and old.instance == session.instance
    )


def remote_address(session: Session) -> str:
    """Return the TCP address that the other side's bytes come from, "" if the way has none."""
    way = session.channel_description
    return "" if path_of(way) in ("relay", "rtc") else way.partition(" ")[2]
