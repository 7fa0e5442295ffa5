"""The other members of our swarm: sessions with them, and which of them are alive.

::

    addresses (link, LAN, DHT, state) -> contact book -Dial-> network -> hello -> neighbour
                                                                                     |
    members alive, members gone <- failure detector (SWIM) <-- swim/1 ---------------+

A *neighbour* is a peer with an open session on which both sides have said that they are of
this swarm, with a certificate where the swarm asks for one. A session may be there before,
for the DHT; and may go on after.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec
import trio

from swarmnode import limits
from swarmnode.daemon.driver import CoreDriver, Tasks
from swarmnode.daemon.transport.network import Network, remote_address
from swarmnode.env import Env
from swarmnode.errors import (
    DeadlineExceeded,
    DialFailed,
    Overloaded,
    ProtocolError,
    Refused,
    SwarmNodeError,
)
from swarmnode.ids import PeerId
from swarmnode.net.paths import path_of
from swarmnode.net.relays.address import relays_of
from swarmnode.net.services import ScopedServices, Services
from swarmnode.net.session import Session
from swarmnode.protocol.hosts import Identities, find_work, is_worked
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.membership import contacts, swim_events
from swarmnode.protocol.membership.claims import Ed25519Notary
from swarmnode.protocol.membership.contacts import ContactBook
from swarmnode.protocol.membership.swim import SwimCore
from swarmnode.protocol.membership.swim_events import MemberState
from swarmnode.protocol.swarm import Hint, SwarmLink
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire import swim as wire
from swarmnode.wire.admission import Credentials, Role
from swarmnode.wire.membership import SwarmHello
from swarmnode.wire.packing import decode_record, encode_record

HELLO_SERVICE = "swarm/1"
SWIM_SERVICE = "swim/1"
_WORK_WANTED = "expected a proof of work"  # in a refusal: the hello is said again, with one
_MESSAGE: Any = wire.Message  # msgspec reads a union, which mypy does not know as a type
_log = get_logger("swarmnode.daemon.membership")


class Gate(Protocol):
    """Which peers may be members; all, or those that ``daemon/membership/admission.py`` lets in."""

    is_open: bool

    def hello(self) -> SwarmHello:
        """Return what we say of ourselves."""

    def admit(self, peer: PeerId, hello: SwarmHello) -> None:
        """Raise Refused if this peer may not be a member."""

    def is_member(self, peer: PeerId) -> bool:
        """Whether it has been admitted, and still is."""

    def refresh(self) -> None:
        """Do what time brings. Raises Refused if we are no member any more."""


class OpenGate:
    """Admits every peer that has said hello, and shows nothing."""

    is_open = True

    def __init__(self, role: Role) -> None:
        self._role: Role = role
        self._greeted: set[PeerId] = set()

    def hello(self) -> SwarmHello:
        """Say what we do."""
        return SwarmHello(self._role, Credentials(None))

    def admit(self, peer: PeerId, hello: SwarmHello) -> None:  # noqa: ARG002 -- of a closed one
        """Take note of it."""
        self._greeted.add(peer)

    def is_member(self, peer: PeerId) -> bool:
        """Whether it has said hello."""
        return peer in self._greeted

    def refresh(self) -> None:
        """Time changes nothing here."""


class NeighbourWatcher(Protocol):
    """Hears of neighbours and of members. No method may wait."""

    def neighbour_up(self, session: Session) -> None:
        """A peer of our swarm can be talked to."""

    def neighbour_down(self, peer: PeerId) -> None:
        """It cannot any more."""


class Members:
    """See the module.

    Args:
        resolve: finds out where a member is that no peer has told us of.

    Attributes:
        sessions: of our neighbours.
        book: the peers that we know, and where they are.
        detector: which members are alive; to be read.
        refusals: why peers would not have us, or we them, newest last.
        dial_failures: how often a member could not be met, by one of DIAL_FAILURES.
        on_changed: told of each member whose state changes.
        on_key_conflict: another node signs with our key, in this boot epoch.
        on_expelled: told why we are no member any more.
    """

    def __init__(
        self,
        *,
        identity: Identity,
        link: SwarmLink,
        boot_epoch: int,
        network: Network,
        services: Services,
        gate: Gate,
        resolve: Callable[[PeerId], Awaitable[tuple[str, ...]]],
        env: Env,
    ) -> None:
        self.sessions: dict[PeerId, Session] = {}
        self.book = ContactBook(identity.peer_id, env.rng)
        self.detector = SwimCore(Ed25519Notary(identity, link.swarm_id), boot_epoch, env.rng)
        self.refusals: dict[PeerId, str] = {}
        self.dial_failures: Counter[str] = Counter()
        self.watchers: list[NeighbourWatcher] = []
        self.on_changed: Callable[[swim_events.Changed], None] = lambda _changed: None
        self.on_key_conflict: Callable[[int], None] = lambda _epoch: None
        self.on_expelled: Callable[[Refused], None] = lambda _why: None
        self.services = ScopedServices(services, link.tag, self._may_use)
        self._self_id = identity.peer_id
        self._rng = env.rng
        self._network = network
        self._gate = gate
        self._identities = Identities()
        self._swarm_id = link.swarm_id
        self._env = env
        self._work = b""  # of our key, once a peer has asked for it
        self._resolve = resolve
        self._tasks = Tasks()
        self._greetings: dict[PeerId, trio.Event] = {}
        self._is_leaving = False
        self._farewells: list[swim_events.Send] = []
        self._hello_name = self.services.name(HELLO_SERVICE)
        self._swim_name = self.services.name(SWIM_SERVICE)
        self._contacts: CoreDriver[contacts.Event, contacts.Effect] = CoreDriver(
            self.book, self._follow_book, now=env.monotonic
        )
        self._swim: CoreDriver[swim_events.Event, swim_events.Effect] = CoreDriver(
            self.detector, self._carry_out, now=env.monotonic
        )
        # A peer that says hello is no member yet: this one service is for all.
        services.add_request(self._hello_name, self._answer_hello)
        self.services.add_request(SWIM_SERVICE, self._receive)
        network.watchers.append(self)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep neighbours until cancelled."""
        async with self._tasks.open() as nursery:
            nursery.start_soon(self._contacts.run)
            nursery.start_soon(self._swim.run)
            nursery.start_soon(self._share_circuits)
            task_status.started()
            await self._stay_admitted()
            await trio.sleep_forever()

    def add_hints(self, hints: tuple[Hint, ...]) -> None:
        """Remember addresses from a link; they are dialled soon."""
        self._contacts.feed(contacts.HintsGiven(hints))

    def found(self, peer: PeerId, addresses: tuple[str, ...], *, is_own_word: bool = False) -> None:
        """A peer of our swarm is said to be there, or says so itself in the shared state."""
        if addresses and peer != self._self_id:
            self._contacts.feed(contacts.AddressesFound(peer, addresses, is_own_word))
            self._network.may_be_at(peer, addresses)

    def told(self, peer: PeerId, addresses: tuple[str, ...], *, is_own_word: bool = False) -> None:
        """As :meth:`found`, but strangers say so, which may name any host."""
        self.found(peer, self._network.usable(addresses), is_own_word=is_own_word)

    def live(self) -> tuple[PeerId, ...]:
        """Return the members alive, as far as we know, ourselves included, in id order."""
        return tuple(sorted((*self.detector.live_members(), self._self_id)))

    def want(self, peers: tuple[PeerId, ...]) -> None:
        """Exchanges would take these: what is reached through relays only is dialled for them."""
        if peers:
            self._contacts.feed(contacts.Sought(peers))

    async def connect(self, peer: PeerId) -> Session:
        """Return a session with a member, dialled if need be. Raises SwarmNodeError."""
        if peer in self.sessions:
            return self.sessions[peer]
        addresses = self.book.addresses_of(peer)
        addresses = addresses or self._network.usable(await self._resolve(peer))
        session = await self._network.connect(peer, addresses)
        await self._greet(session)
        return session

    def keeps(self, peer: PeerId) -> bool:
        """Whether the session with a peer is to stay open though nothing uses it just now.

        The failure detector talks to all members in turn: a large swarm would keep a session
        with each of us, so those of the first ones only are kept.
        """
        return peer in itertools.islice(self.sessions, limits.PEERS_CONNECTED_MAX)

    def is_member(self, peer: PeerId) -> bool:
        """Whether this peer has said hello and been admitted."""
        return self._gate.is_member(peer)

    async def leave(self, reason: str) -> None:
        """Tell some neighbours that we leave; they pass it on."""
        self._is_leaving = True
        self._swim.feed(swim_events.Leave(reason, frozenset(self.sessions)))
        async with trio.open_nursery() as nursery:
            for each in self._farewells:
                nursery.start_soon(self._send, each.peer, encode_record(each.message))

    # --- sessions -------------------------------------------------------------------------

    def session_opened(self, session: Session) -> None:
        """Part of ``SessionWatcher``: a new session takes the place of the old one."""
        if session.peer in self.sessions and self._tasks.are_open:
            self._lost(session.peer)
            self._tasks.start_soon(self._greet_quietly, session)

    def session_closed(self, session: Session) -> None:
        """Part of ``SessionWatcher``."""
        if self.sessions.get(session.peer) is session:
            self._lost(session.peer)

    def _lost(self, peer: PeerId) -> None:
        del self.sessions[peer]
        for watcher in self.watchers:
            watcher.neighbour_down(peer)
        self._contacts.feed(contacts.SessionClosed(peer))

    async def _stay_admitted(self) -> None:
        while True:
            await trio.sleep(limits.ADMISSION_REFRESH_S)
            try:
                self._gate.refresh()
            except Refused as error:
                self.on_expelled(error)
                return
            self._part_from_strangers()
            await self._greet_neighbour_again()

    def _part_from_strangers(self) -> None:
        """End with neighbours whose certificate has ended or was revoked."""
        for peer in [peer for peer in self.sessions if not self._gate.is_member(peer)]:
            _log.warning("no member of the swarm any more", peer=peer.short)
            self._lost(peer)

    async def _greet_neighbour_again(self) -> None:
        """In a closed swarm news about members and revocations travels with hellos."""
        if not self._gate.is_open and self.sessions:
            await self._greet_quietly(self._rng.choice(list(self.sessions.values())))

    def _follow_book(self, effect: contacts.Effect) -> None:
        if isinstance(effect, contacts.Dial):
            self._tasks.start_soon(self._meet, effect.peer, effect.addresses)
        elif effect.peer in self.sessions and self.sessions[effect.peer].bulk_idle_s:
            self.sessions[effect.peer].close_nowait("its circuit is another's turn")

    async def _share_circuits(self) -> None:
        """See which sessions go through relays, and give back the circuits that are not used."""
        circuits, before = 0, set[PeerId]()
        while True:
            await trio.sleep(limits.RELAYED_LOOK_S)
            if circuits != self._network.circuits():
                circuits = self._network.circuits()
                self._contacts.feed(contacts.RelayShare(circuits))
            relayed = {peer for peer, each in self.sessions.items() if _is_relayed(each)}
            for peer in (relayed ^ before) & self.sessions.keys():
                self._contacts.feed(contacts.SessionMoved(peer, peer in relayed))
            before = relayed
            for peer in sorted(relayed):
                if self._is_spare(self.sessions[peer]):
                    self.sessions[peer].close_nowait("its circuit was not used")

    def _is_spare(self, session: Session) -> bool:
        """Whether others need its circuit more: nothing was exchanged, and the swarm hears of us.

        The failure detector asks the relay for it then, which must be a neighbour.
        """
        is_idle = session.bulk_idle_s >= limits.RELAY_SPARE_S
        is_idle = is_idle and not self.book.is_sought(session.peer, self._env.monotonic())
        is_lonely = len(self.sessions) <= limits.SWARM_LONELY_NEIGHBOURS
        return is_idle and not is_lonely and bool(self._carriers(session.peer))

    def _carriers(self, peer: PeerId) -> tuple[PeerId, ...]:
        """Return neighbours of ours that are relays of a peer."""
        relays = relays_of(self.book.addresses_of(peer))
        return tuple(relay for relay in relays if relay in self.sessions)

    async def _meet(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        try:
            session = await self._network.connect(peer, addresses)
            await self._greet(session)
        except SwarmNodeError as error:
            _log.debug("did not meet", peer=peer.short, why=str(error))
            self.dial_failures[_why_not_met(error)] += 1
            self._note_refusal(peer, str(error))
        self._contacts.feed(contacts.DialEnded(peer))

    async def _greet_quietly(self, session: Session) -> None:
        try:
            await self._greet(session)
        except SwarmNodeError as error:
            _log.debug("no hello", peer=session.peer.short, why=str(error))

    async def _greet(self, session: Session) -> None:
        """Say hello and take in the answer. Raises SwarmNodeError."""
        done = self._greetings.setdefault(session.peer, trio.Event())
        try:
            try:
                answer = await self._say_hello(session)
            except Refused as error:
                if self._work or _WORK_WANTED not in str(error):
                    raise
                find = functools.partial(find_work, self._swarm_id, self._self_id)
                self._work = await self._env.in_thread(find)
                answer = await self._say_hello(session)
            self._admit(session, decode_record(answer, SwarmHello))
        finally:
            self._greetings.pop(session.peer, None)
            done.set()

    async def _say_hello(self, session: Session) -> bytes:
        return await session.request(
            self._hello_name, self._own_hello(), deadline_s=limits.PEER_REQUEST_DEADLINE_S
        )

    def _own_hello(self) -> bytes:
        return encode_record(msgspec.structs.replace(self._gate.hello(), work=self._work))

    async def _may_use(self, peer: PeerId) -> bool:
        """Whether a peer is a member; if its answer to our hello is on its way, wait for that."""
        if not self._gate.is_member(peer) and peer in self._greetings:
            await self._greetings[peer].wait()
        return self._gate.is_member(peer)

    async def _answer_hello(self, peer: PeerId, payload: bytes) -> bytes:
        if not self._tasks.are_open:
            raise Overloaded("this node is still starting: say hello again in a moment")
        if peer not in self._network.sessions:  # it is being replaced, or is only a probe
            raise Refused("say hello on the session that stays")
        self._admit(self._network.sessions[peer], decode_record(payload, SwarmHello))
        return self._own_hello()

    def _admit(self, session: Session, hello: SwarmHello) -> None:
        peer = session.peer
        if self._is_leaving:
            raise Refused("this node is leaving the swarm")
        if self._gate.is_open:
            self._check_identity(session, hello)
        self._gate.admit(peer, hello)
        if session.is_closed or self._network.sessions.get(peer) is not session:
            raise Refused("the session was replaced meanwhile")
        if self.sessions.get(peer) is session:
            return
        self.sessions[peer] = session
        self.refusals.pop(peer, None)
        dialled = remote_address(session) if session.outbound else ""
        is_relayed = _is_relayed(session)
        self._contacts.feed(contacts.SessionOpened(peer, dialled, is_relayed))
        self._swim.feed(swim_events.Contact(peer))
        for watcher in self.watchers:
            watcher.neighbour_up(session)

    def _check_identity(self, session: Session, hello: SwarmHello) -> None:
        """Raise Refused if its network has as many members as one may have."""
        peer, now = session.peer, self._env.monotonic()
        # A peer that we have dialled has an address of its own, which has cost it something.
        has_worked = session.outbound or is_worked(self._swarm_id, peer, hello.work)
        address = remote_address(session)
        if not self._identities.admit(address, peer, now, has_worked=has_worked):
            why = "too many" if has_worked else _WORK_WANTED
            raise Refused(f"your network has many members in this swarm: {why}")

    def _note_refusal(self, peer: PeerId, why: str) -> None:
        self.refusals.pop(peer, None)
        self.refusals[peer] = why
        while len(self.refusals) > limits.DIAL_ERRORS_KEPT_MAX:
            del self.refusals[next(iter(self.refusals))]

    # --- failure detector -----------------------------------------------------------------

    def _carry_out(self, effect: swim_events.Effect) -> None:
        match effect:
            case swim_events.Send(peer, message):
                if self._is_leaving:
                    self._farewells.append(effect)
                elif self._tasks.are_open:
                    self._tasks.start_soon(self._send, peer, encode_record(message))
            case swim_events.Changed():
                self._changed(effect)
            case swim_events.KeyConflict(epoch=epoch):
                self.on_key_conflict(epoch)

    def _changed(self, changed: swim_events.Changed) -> None:
        gone = changed.state in (MemberState.DEAD, MemberState.LEFT)
        event = contacts.MemberGone(changed.peer) if gone else contacts.MemberLives(changed.peer)
        self._contacts.feed(event)
        if gone:
            self._network.give_up(changed.peer, f"the swarm says that it is {changed.state}")
        self.on_changed(changed)

    async def _send(self, peer: PeerId, payload: bytes) -> None:
        carriers = self._carriers(peer) if self.book.needs_relay(peer) else ()
        if carriers and peer not in self.sessions:  # a word is no reason to take a circuit
            self._swim.feed(swim_events.SendFailed(peer, carriers))
            return
        try:
            session = await self.connect(peer)
            await session.request(
                self._swim_name, payload, deadline_s=limits.PEER_REQUEST_DEADLINE_S
            )
        except SwarmNodeError as error:
            _log.debug("not told", peer=peer.short, why=str(error))
            self._swim.feed(swim_events.SendFailed(peer))

    async def _receive(self, peer: PeerId, payload: bytes) -> bytes:
        message: wire.Message = decode_record(payload, _MESSAGE)
        self._swim.feed(swim_events.Received(peer, message))
        return b""


def _is_relayed(session: Session) -> bool:
    return path_of(session.channel_description) == "relay"


def _why_not_met(error: SwarmNodeError) -> str:
    """Return one of DIAL_FAILURES (telemetry/metrics.py)."""
    match error:
        case DeadlineExceeded():
            return "timeout"
        case DialFailed():
            return "unreachable"
        case ProtocolError():
            return "handshake"
        case Refused() | Overloaded():
            return "refused"
    return "other"
