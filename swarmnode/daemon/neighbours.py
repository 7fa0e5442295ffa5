"""Sessions with other nodes: dialled, accepted, replaced, and the lists passed over them.

The Trio shell of ``protocol/membership/peerbook.py``. There is at most one
session per peer. When two nodes dial each other at the same moment both keep
the session that the smaller id dialled; in any other case the newer session
wins, because a peer that dials again has lost the old one.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections import Counter
from collections.abc import Callable

import trio

from swarmnode import limits
from swarmnode.daemon.driver import CoreDriver
from swarmnode.env import Env
from swarmnode.errors import DeadlineExceeded, ProtocolError, SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.net.channel import Channel, Transport
from swarmnode.net.services import Services
from swarmnode.net.session import Session, run_session
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.membership.peerbook import (
    Dial,
    DialEnded,
    Effect,
    Event,
    ExchangeLists,
    HintsGiven,
    PeerBook,
    RecordsReceived,
    SessionClosed,
    SessionOpened,
)
from swarmnode.protocol.session.records import Role
from swarmnode.protocol.swarm import Hint
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.membership import PeerList
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.swarm import Signed

PEERS_SERVICE = "peers/1"
_log = get_logger(__name__)


class Neighbours:
    """Everybody we have a session with, and the book of everybody we know."""

    def __init__(
        self,
        *,
        identity: Identity,
        network_id: bytes,
        transport: Transport,
        services: Services,
        env: Env,
        sign_own_record: Callable[[str], Signed],
    ) -> None:
        self.book = PeerBook(identity.peer_id, network_id, env.rng)
        self.sessions: dict[PeerId, Session] = {}
        self.dial_errors: dict[PeerId, SwarmNodeError] = {}
        self.refused: Counter[str] = Counter()
        self._identity = identity
        self._network_id = network_id
        self._transport = transport
        self._services = services
        self._env = env
        self._sign_own_record = sign_own_record
        self._driver: CoreDriver[Event, Effect] = CoreDriver(
            self.book, self._carry_out, now=env.monotonic
        )
        self._nursery: trio.Nursery | None = None
        self._bound = ""
        self._strangers = 0
        self._refusals_unsaid = 0
        self._refusal_said_at = -math.inf
        self.on_session_opened: Callable[[], None] = lambda: None
        self.on_session_end: Callable[[Session], None] = lambda _session: None
        services.add_request(PEERS_SERVICE, self._answer_peer_list)

    async def run(
        self, listen: str, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Listen, dial and gossip until cancelled; ``start`` gives the bound address."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            serve = functools.partial(self._transport.serve, admit=self._admit)
            self._bound = await nursery.start(serve, listen, self._accept)
            self._refresh_own_record()
            task_status.started(self._bound)
            nursery.start_soon(self._driver.run)
            while True:
                await trio.sleep(limits.PEER_RECORD_REFRESH_S)
                self._refresh_own_record()

    def add_hints(self, hints: tuple[Hint, ...]) -> None:
        """Remember addresses from a link; they are dialled soon."""
        self._driver.feed(HintsGiven(hints))

    async def say_goodbye(self, reason: str) -> None:
        """Tell every neighbour that we leave, then close every session."""
        self._refresh_own_record()
        async with trio.open_nursery() as nursery:
            for session in list(self.sessions.values()):
                nursery.start_soon(self._leave, session, reason)

    def _refresh_own_record(self) -> None:
        # Addresses are looked up again: a laptop moves from one network to another.
        self.book.own = self._sign_own_record(self._bound)

    async def _leave(self, session: Session, reason: str) -> None:
        with contextlib.suppress(SwarmNodeError):  # it will notice by the closed session
            await self._exchange_lists(session, deadline_s=limits.GOODBYE_DEADLINE_S)
        await session.aclose(reason)

    # --- opening ------------------------------------------------------------------------

    def _admit(self) -> bool:
        """Bound what strangers cost who have proven nothing yet, and how many peers there are."""
        if self._strangers >= limits.STRANGERS_MAX:
            self._note_refusal("TooManyStrangers", "", "too many handshakes at once")
        elif len(self.sessions) >= limits.PEERS_ACCEPTED_MAX:
            self._note_refusal("TooManyPeers", "", "connected to enough peers")
        else:
            return True
        return False

    async def _accept(self, channel: Channel) -> None:
        try:
            await self._run_session(channel, dialled=None)
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

    async def _dial(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        for address in addresses:
            try:
                channel = await self._connect(address)
                if peer in self.sessions:  # it dialled us meanwhile, and got through first
                    await channel.aclose()
                    break
                await self._run_session(channel, dialled=peer)
                return
            except SwarmNodeError as error:
                self.dial_errors[peer] = error
                level = _log.warning if isinstance(error, ProtocolError) else _log.debug
                level("dial failed", peer=peer.short, address=address, why=str(error))
        self._driver.feed(DialEnded(peer))

    async def _connect(self, address: str) -> Channel:
        with trio.move_on_after(limits.DIAL_DEADLINE_S):
            return await self._transport.dial(address)
        raise DeadlineExceeded(f"connecting to {address}", limits.DIAL_DEADLINE_S)

    async def _run_session(self, channel: Channel, *, dialled: PeerId | None) -> None:
        """Run one session to its end; the book hears of it once the peer is proven.

        The session lives in our nursery, so that a refused handshake is raised here as it is.
        """
        assert self._nursery is not None
        is_stranger = dialled is None
        self._strangers += is_stranger
        try:
            session: Session = await self._nursery.start(self._start_session, channel, dialled)
        finally:
            self._strangers -= is_stranger
        registered = self._register(session)
        if dialled is not None:
            self._driver.feed(DialEnded(dialled))
        if not registered:
            await session.aclose("a second connection between the same two peers")
            return
        try:
            await session.wait_closed()
        finally:
            self._unregister(session)

    async def _start_session(
        self, channel: Channel, dialled: PeerId | None, *, task_status: trio.TaskStatus[Session]
    ) -> None:
        await run_session(
            channel,
            identity=self._identity,
            network_id=self._network_id,
            services=self._services,
            role=Role.SERVER if dialled is None else Role.CLIENT,
            expected=dialled,
            task_status=task_status,
        )

    def _register(self, session: Session) -> bool:
        old = self.sessions.get(session.peer)
        if old is not None:
            crossed = (
                old.outbound != session.outbound
                and old.statistics().age_s < limits.SESSION_CROSSING_S
            )
            we_dial = self._identity.peer_id < session.peer
            if crossed and session.outbound != we_dial:
                return False
            assert self._nursery is not None
            self._nursery.start_soon(old.aclose, "replaced by a newer connection")
        self.sessions[session.peer] = session
        self.dial_errors.pop(session.peer, None)
        self._driver.feed(SessionOpened(session.peer))
        self.on_session_opened()
        return True

    def _unregister(self, session: Session) -> None:
        self.on_session_end(session)
        if self.sessions.get(session.peer) is session:
            del self.sessions[session.peer]
            self._driver.feed(SessionClosed(session.peer))

    # --- lists --------------------------------------------------------------------------

    def _carry_out(self, effect: Effect) -> None:
        assert self._nursery is not None
        match effect:
            case Dial(peer, addresses):
                self._nursery.start_soon(self._dial, peer, addresses)
            case ExchangeLists(peer):
                session = self.sessions.get(peer)
                if session is not None:
                    self._nursery.start_soon(self._exchange_lists_quietly, session)

    async def _exchange_lists_quietly(self, session: Session) -> None:
        try:
            await self._exchange_lists(session, deadline_s=limits.PEER_REQUEST_DEADLINE_S)
        except SwarmNodeError as error:
            _log.debug("no peer list", peer=session.peer.short, why=str(error))

    async def _exchange_lists(self, session: Session, *, deadline_s: float) -> None:
        mine = encode_record(PeerList(self.book.list_for_peers(self._env.monotonic())))
        answer = await session.request(PEERS_SERVICE, mine, deadline_s=deadline_s)
        self._driver.feed(RecordsReceived(decode_record(answer, PeerList).records))

    async def _answer_peer_list(self, peer: PeerId, payload: bytes) -> bytes:  # noqa: ARG002
        received = decode_record(payload, PeerList)
        mine = encode_record(PeerList(self.book.list_for_peers(self._env.monotonic())))
        self._driver.feed(RecordsReceived(received.records))
        return mine
