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
import math
from collections import Counter
from collections.abc import Callable
from typing import Protocol

import trio

from swarmnode import limits
from swarmnode.env import Env
from swarmnode.errors import (
    ChannelBroken,
    DeadlineExceeded,
    DialFailed,
    KeyInUse,
    ProtocolError,
    SwarmNodeError,
)
from swarmnode.ids import PeerId
from swarmnode.net.channel import Channel, Transport
from swarmnode.net.services import Services
from swarmnode.net.session import Session, run_session
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.session.records import Role
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.session import GoodbyeCode

ALIVE_SERVICE = "alive/1"
_INSTANCE_BYTES = 16
_log = get_logger(__name__)


class SessionWatcher(Protocol):
    """Hears of every session. Both methods must not wait."""

    def session_opened(self, session: Session) -> None:
        """A session is there; it may have taken the place of another."""

    def session_closed(self, session: Session) -> None:
        """The session is over, and no other one with this peer is open."""


class Network:
    """Everybody we have a session with, whatever it is for.

    Attributes:
        sessions: at most one per peer.
        dial_errors: why the last attempt to reach a peer failed, of peers without a session.
        refused: connections of strangers that came to nothing, by the kind of error.
        address: what the listener is bound to.
        key_refusals: how often a peer has closed, as another node with our key answers it.
        keeps: tells whether a session is wanted although nobody uses it just now.
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
        self.dial_errors: dict[PeerId, SwarmNodeError] = {}
        self.refused: Counter[str] = Counter()
        self.address = ""
        self.watchers: list[SessionWatcher] = []
        self.on_session_end: Callable[[Session], None] = lambda _session: None
        self.keeps: Callable[[PeerId], bool] = lambda _peer: False
        self.key_refusals = 0
        self.on_key_in_use: Callable[[KeyInUse], None] = lambda _error: None
        self._identity = identity
        self._network_id = network_id
        self._transport = transport
        self._services = services
        self._env = env
        self._instance = env.token(_INSTANCE_BYTES)
        self._nursery: trio.Nursery | None = None
        self._dials: dict[PeerId, trio.Event] = {}
        self._dial_limit = trio.CapacityLimiter(limits.DIALS_CONCURRENT_MAX)
        self._used_at: dict[PeerId, float] = {}
        self._strangers = 0
        self._refusals_unsaid = 0
        self._refusal_said_at = -math.inf
        services.add_request(ALIVE_SERVICE, self._answer_alive)

    async def run(
        self, listen: str, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Listen and keep sessions until cancelled; ``start`` gives the bound address.

        With an empty ``listen`` nobody can dial us, and we can still dial others.
        """
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            if listen:
                serve = functools.partial(self._transport.serve, admit=self._admit)
                self.address = await nursery.start(serve, listen, self._accept)
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
        if self._open_session(peer) is not None:
            await self._probe(peer, addresses)
        else:
            await self._dial_shared(peer, addresses).wait()
        session = self._open_session(peer)
        if session is None:
            raise _again(self.dial_errors.get(peer), peer)
        self._used_at[peer] = self._env.monotonic()
        return session

    def connected(self, peer: PeerId, *, dial_anew: bool = False) -> Session | None:
        """Return the session that :meth:`connect` would return at once, if there is one."""
        session = self._open_session(peer)
        if session is None or (dial_anew and not session.outbound):
            return None
        self._used_at[peer] = self._env.monotonic()
        return session

    async def check_own_key(self, addresses: tuple[str, ...]) -> None:
        """Raise KeyInUse if another running node with our own key answers at an address."""
        for address in addresses:
            try:
                other = await self._shake_hands_only(self._identity.peer_id, address)
            except SwarmNodeError as error:
                _log.debug("nobody with our key", address=address, why=str(error))
                continue
            if other != self._instance:
                raise own_key_elsewhere(f"at {address}")

    async def close(self, reason: str) -> None:
        """Close every session, all at once."""
        async with trio.open_nursery() as nursery:
            for session in list(self.sessions.values()):
                nursery.start_soon(session.aclose, reason)

    # --- accepting ----------------------------------------------------------------------

    def _admit(self) -> bool:
        """Bound what strangers cost who have proven nothing yet, and how many peers there are."""
        if self._strangers >= limits.STRANGERS_MAX:
            self._note_refusal("TooManyStrangers", "", "too many handshakes at once")
        elif self._is_full() and self._least_used() is None:
            self._note_refusal("TooManyPeers", "", "connected to enough peers")
        else:
            return True
        return False

    async def _accept(self, channel: Channel) -> None:
        assert self._nursery is not None
        self._strangers += 1
        try:
            try:
                session = await self._start(channel, None)
            finally:
                self._strangers -= 1
            if not session.is_probe:
                await self._register(session)
            await session.wait_closed()
        except ChannelBroken as error:  # it went away: often we were there first
            self.refused["ChannelBroken"] += 1
            _log.debug("gone before it was known", channel=channel.description, why=str(error))
        except SwarmNodeError as error:
            self._note_refusal(type(error).__name__, channel.description, str(error))

    def _note_refusal(self, kind: str, channel: str, why: str) -> None:
        self.refused[kind] += 1
        self._refusals_unsaid += 1
        now = self._env.monotonic()
        if now >= self._refusal_said_at + limits.REFUSAL_LOG_INTERVAL_S:
            count = self._refusals_unsaid
            _log.info("refused a connection", channel=channel, why=why, refusals=count)
            self._refusals_unsaid, self._refusal_said_at = 0, now

    # --- dialling -----------------------------------------------------------------------

    def _dial_shared(self, peer: PeerId, addresses: tuple[str, ...]) -> trio.Event:
        """Return what is set when the dial is over that all who want this peer wait for.

        It goes on if one of them loses patience.
        """
        assert self._nursery is not None
        done = self._dials.get(peer)
        if done is None:
            done = self._dials[peer] = trio.Event()
            self._nursery.start_soon(self._dial_once, peer, addresses, done)
        return done

    async def _dial_once(self, peer: PeerId, addresses: tuple[str, ...], done: trio.Event) -> None:
        try:
            async with self._dial_limit:
                await self._dial(peer, addresses)
        finally:
            if self._dials.get(peer) is done:
                del self._dials[peer]
            done.set()

    async def _dial(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        if not addresses:
            self._note_dial_error(peer, DialFailed(f"no address of {peer.short} is known"))
        for address in addresses:
            try:
                channel = await self._open_channel(address)
                if self._open_session(peer) is not None:  # it got through to us first
                    await channel.aclose()
                    return
                session = await self._start(channel, peer)
                await self._register(session)
                return
            except SwarmNodeError as error:
                self._note_dial_error(peer, error)
                level = _log.warning if isinstance(error, ProtocolError) else _log.debug
                level("dial failed", peer=peer.short, address=address, why=str(error))

    def _note_dial_error(self, peer: PeerId, error: SwarmNodeError) -> None:
        self.dial_errors.pop(peer, None)
        self.dial_errors[peer] = error  # the newest last
        while len(self.dial_errors) > limits.DIAL_ERRORS_KEPT_MAX:
            del self.dial_errors[next(iter(self.dial_errors))]

    async def _open_channel(self, address: str) -> Channel:
        with trio.move_on_after(limits.DIAL_DEADLINE_S):
            return await self._transport.dial(address)
        raise DeadlineExceeded(f"connecting to {address}", limits.DIAL_DEADLINE_S)

    async def _probe(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """Return if the peer answers at one of the addresses. Raises what the last one said."""
        error: SwarmNodeError = DialFailed(f"no address of {peer.short} is known")
        async with self._dial_limit:
            for address in addresses:
                try:
                    await self._shake_hands_only(peer, address)
                    return
                except SwarmNodeError as failed:
                    error = failed
        raise error

    async def _shake_hands_only(self, peer: PeerId, address: str) -> bytes:
        """Return the instance of the node that proves to be ``peer`` at this address."""
        channel = await self._open_channel(address)
        session = await self._start(channel, peer, is_probe=True)
        await session.aclose("only looking whether you answer")
        return session.instance

    # --- sessions -----------------------------------------------------------------------

    async def _start(
        self, channel: Channel, dialled: PeerId | None, *, is_probe: bool = False
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
        )
        session: Session = await self._nursery.start(start)
        return session

    def _open_session(self, peer: PeerId) -> Session | None:
        """Return the session with a peer, but not one that is just ending."""
        session = self.sessions.get(peer)
        return None if session is None or session.is_closed else session

    async def _register(self, session: Session) -> None:
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
        self._keep(session)

    async def _retire(self, session: Session, why: str) -> None:
        """Close the one of two crossing sessions that does not stay, when its requests are over.

        Nodes that start together dial each other at the same moments; a probe that was lost
        with such a session would be taken for a dead peer.
        """
        with trio.move_on_after(limits.SESSION_RETIRE_S):
            await session.wait_closed()
        await session.aclose(why)

    def _keep(self, session: Session) -> None:
        assert self._nursery is not None
        self.sessions[session.peer] = session
        self.dial_errors.pop(session.peer, None)
        self._used_at[session.peer] = self._env.monotonic()
        self._nursery.start_soon(self._watch, session)
        dial = self._dials.pop(session.peer, None)
        if dial is not None:
            dial.set()  # whoever waits for a slow dial need not any more
        for watcher in self.watchers:
            watcher.session_opened(session)

    def _loses(self, session: Session) -> bool:
        """Of two that have crossed, the one stays that the smaller id dialled."""
        we_dial = self._identity.peer_id < session.peer
        return session.outbound != we_dial

    async def _is_alive(self, session: Session) -> bool:
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
            self.on_session_end(session)
            if isinstance(session.close_cause, KeyInUse):
                self._note_dial_error(session.peer, session.close_cause)
                self.key_refusals += 1
                self.on_key_in_use(session.close_cause)
            if self.sessions.get(session.peer) is session:
                del self.sessions[session.peer]
                self._used_at.pop(session.peer, None)
                for watcher in self.watchers:
                    watcher.session_closed(session)

    # --- letting go ---------------------------------------------------------------------

    def _close_idle(self) -> None:
        """Close what we dialled for one question and nobody needs any more."""
        now = self._env.monotonic()
        for peer, session in self.sessions.items():
            idle_s = now - self._used_at[peer]
            is_idle = idle_s > limits.SESSION_IDLE_S and not session.is_busy
            if session.outbound and is_idle and not self.keeps(peer):
                session.close_nowait("nothing to ask for now")

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
            if not (session.is_closed or self.keeps(peer))
        ]
        # Open streams do not protect a session: else whoever opens some keeps others out.
        return min(spare, key=lambda each: (each.is_busy, self._used_at[each.peer]), default=None)


def _have_crossed(session: Session, old: Session) -> bool:
    """Whether two nodes have dialled each other at the same moment."""
    return (
        old.outbound != session.outbound
        and old.statistics().age_s < limits.SESSION_CROSSING_S
        and old.instance == session.instance
    )


def _again(error: SwarmNodeError | None, peer: PeerId) -> SwarmNodeError:
    """Return an error of its own for each who waited for one dial."""
    if error is None:
        return ChannelBroken(f"the session with {peer.short} ended at once")
    return (
        type(error)(error.operation, error.limit_s)
        if isinstance(error, DeadlineExceeded)
        else type(error)(str(error))
    )


def own_key_elsewhere(where: str) -> KeyInUse:
    """Return the error of a node whose home, or a copy of it, another node uses as well."""
    return KeyInUse(
        f"another node with this node's key is running {where}: two nodes must not share a home"
        " or a copy of it; stop one of them, or give this one a home of its own (--home)"
    )


def remote_address(session: Session) -> str:
    """Return the address that the other side's bytes come from, "" if the way has none."""
    return session.channel_description.partition(" ")[2]
