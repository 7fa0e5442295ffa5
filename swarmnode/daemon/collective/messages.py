"""Messages of gatherings over sessions: the Trio shell of ``protocol/gossip/gather.py``.

::

    core --Tell--> a request to each member            a member's request --Heard--> core
    core --Fetch--> a stream, SHA-256, check --Arrived, NotGiven--> core
    a member's stream --> the message from memory, GATHER_UPLOADS_MAX at once

A round holds its messages in memory until it is closed: all members have them by then, or go on
without.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

import trio

from swarmnode import limits
from swarmnode.daemon.driver import CoreDriver, Tasks
from swarmnode.errors import (
    DeadlineExceeded,
    MalformedMessage,
    Refused,
    RemoteProtocolError,
    SwarmNodeError,
)
from swarmnode.ids import PeerId
from swarmnode.net.session import Session
from swarmnode.net.stream import Stream
from swarmnode.protocol.gossip import gather_events as events
from swarmnode.protocol.gossip.gather import GatherCore
from swarmnode.protocol.gossip.gather_set import Announced, RunTerms
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.exchange import gather as wire
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.session import Priority

if TYPE_CHECKING:
    from swarmnode.daemon.membership.swarm import Communicator

WORD_SERVICE = "gather-word/1"
FETCH_SERVICE = "gather-fetch/1"
_WORD_S = 10.0  # a word is one small request; a lost one costs nothing but a detour
_MESSAGE: Any = wire.Message  # msgspec reads a union, which mypy does not know as a type
_log = get_logger("swarmnode.daemon.collective")


class Round:
    """The messages of one run, and the peers to ask for them. Made by :class:`GatherRounds`.

    Args:
        check: raises MalformedMessage if bytes are no message of this run.
    """

    def __init__(
        self, owner: GatherRounds, terms: RunTerms, check: Callable[[bytes], None], now: Clock
    ) -> None:
        self.terms = terms
        self._owner = owner
        self._check = check
        self._core = GatherCore(owner.self_id, terms)
        self._driver: CoreDriver[events.Event, events.Effect] = CoreDriver(
            self._core, self._carry_out, now=now
        )
        self._data: dict[bytes, bytes] = {}  # by digest
        self._fetches: dict[tuple[PeerId, bytes], trio.CancelScope] = {}
        self._given: Counter[tuple[PeerId, bytes]] = Counter()
        self._news = trio.Event()
        self._tasks = Tasks()
        self.scope = trio.CancelScope()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Fetch until closed."""
        with self.scope:
            async with self._tasks.open():
                task_status.started()
                await self._driver.run()

    # --- for the cargo -----------------------------------------------------------------------

    def publish(self, announced: Announced, data: bytes) -> None:
        """Offer the own message to all."""
        self._data[announced.digest] = data
        self._driver.feed(events.Publish(announced))

    def announce(self, announced: Announced) -> None:
        """Fetch what a member has signed."""
        self._driver.feed(events.Announce(announced))

    def settle(self, entries: Collection[Announced]) -> None:
        """Fetch what is in the set, and nothing else any more."""
        self._driver.feed(events.Settled(tuple(entries)))

    def held(self) -> tuple[Announced, ...]:
        """Return what is here whole, in ascending order of the authors."""
        return self._core.held()

    def known(self) -> tuple[Announced, ...]:
        """Return the announcements that have been checked."""
        return self._core.known()

    def data(self, digest: bytes) -> bytes:
        """Return a message that is held."""
        return self._data[digest]

    async def wait_for(self, entries: Collection[Announced], at_least: int | None = None) -> None:
        """Return when all of these are held, or so many of them."""
        enough = len(entries) if at_least is None else at_least
        while sum(self._core.is_held(each.digest) for each in entries) < enough:
            await self._news.wait()

    # --- for the service ---------------------------------------------------------------------

    def hear(self, peer: PeerId, message: wire.Have) -> None:
        """Take in a word. Raises RemoteProtocolError: it cannot be honest."""
        announced = None
        if message.announcement is not None:
            announced = self.terms.read(message.announcement)
        self._driver.feed(events.Heard(peer, message, announced))

    def take_for(self, peer: PeerId, digest: bytes) -> bytes | None:
        """Return a message that is held for a member that asks; None: not here, or not again."""
        data = self._data.get(digest)
        if data is None or peer not in self.terms.members:
            return None
        self._given[peer, digest] += 1
        return data if self._given[peer, digest] <= limits.GATHER_GIVEN_MAX else None

    def lose(self, peer: PeerId) -> None:
        """Ask this peer for nothing until it speaks again."""
        self._driver.feed(events.Lost(peer))

    # --- inside --------------------------------------------------------------------------------

    def _carry_out(self, effect: events.Effect) -> None:
        if not self._tasks.are_open:
            return
        match effect:
            case events.Tell(peer, message):
                self._tasks.start_soon(self._owner.tell, peer, message)
            case events.Fetch(peer, announced):
                scope = self._fetches[peer, announced.digest] = trio.CancelScope()
                self._tasks.start_soon(self._fetch, peer, announced, scope)
            case events.Cancel(peer, digest):
                if (peer, digest) in self._fetches:
                    self._fetches.pop((peer, digest)).cancel()
            case events.Forget(digest):
                self._data.pop(digest, None)
            case events.Held():
                self._news.set()
                self._news = trio.Event()

    async def _fetch(self, peer: PeerId, announced: Announced, scope: trio.CancelScope) -> None:
        digest = announced.digest
        with scope:
            try:
                data = await self._owner.fetch(peer, self.terms.gid, announced)
                self._check(data)
            except SwarmNodeError as error:
                is_wrong = isinstance(error, RemoteProtocolError)
                log = _log.warning if is_wrong else _log.debug
                log("a message was not given", peer=peer.short, why=str(error))
                outcome: events.Event = events.NotGiven(peer, digest, is_wrong)
            else:
                self._data[digest] = data
                outcome = events.Arrived(peer, digest)
            if self._fetches.get((peer, digest)) is scope:
                del self._fetches[peer, digest]
            self._driver.feed(outcome)


Clock = Callable[[], float]


class GatherRounds:
    """The rounds that are open, and the two services through which members get their messages.

    Attributes:
        sent_bytes, received_bytes: of messages, since the start.
    """

    def __init__(self, communicator: Communicator) -> None:
        self.self_id = communicator.self_id
        self._partners = communicator.partners
        self._env = communicator.env
        self._rounds: dict[bytes, Round] = {}
        self._tasks = Tasks()
        self._uploads = 0
        self.sent_bytes = self.received_bytes = 0
        services = communicator.services
        self._word_name = services.name(WORD_SERVICE)
        self._fetch_name = services.name(FETCH_SERVICE)
        services.add_request(WORD_SERVICE, self._hear)
        services.add_stream(FETCH_SERVICE, self._give)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        async with self._tasks.open():
            task_status.started()
            await trio.sleep_forever()

    @contextlib.contextmanager
    def _uploading(self) -> Iterator[None]:
        self._uploads += 1
        try:
            yield
        finally:
            self._uploads -= 1

    async def open(self, terms: RunTerms, check: Callable[[bytes], None]) -> Round:
        """Return a round that fetches what is announced, until it is closed.

        Raises Refused: this node is leaving.
        """
        if not self._tasks.are_open:
            raise Refused("local: this node is leaving")
        opened = Round(self, terms, check, self._env.monotonic)
        self._rounds[terms.gid] = opened
        await self._tasks.start(opened.run)
        return opened

    def close(self, gid: bytes) -> None:
        """Let go of a round and its messages."""
        if gid in self._rounds:
            self._rounds.pop(gid).scope.cancel()

    def members_changed(self, live: Collection[PeerId]) -> None:
        """Ask the dead for nothing."""
        for each in self._rounds.values():
            for peer in sorted(each.terms.members - set(live) - {self.self_id}):
                each.lose(peer)

    # --- out -----------------------------------------------------------------------------------

    async def tell(self, peer: PeerId, message: wire.Have) -> None:
        """Send a word; what becomes of it does not matter."""
        sessions = self._partners.sessions
        if peer not in sessions or sessions[peer].is_closed:
            self._partners.want((peer,))
            return
        session = sessions[peer]
        try:
            await session.request(self._word_name, encode_record(message), deadline_s=_WORD_S)
        except SwarmNodeError as error:
            _log.debug("not told", peer=peer.short, why=str(error))

    async def fetch(self, peer: PeerId, gid: bytes, announced: Announced) -> bytes:
        """Return a message that a peer gives. Raises SwarmNodeError."""
        sessions = self._partners.sessions
        if peer not in sessions or sessions[peer].is_closed:
            self._partners.want((peer,))
            raise Refused(f"there is no session with {peer.short}")
        session, size_bytes = sessions[peer], announced.size_bytes
        limit_s = limits.EXCHANGE_TRANSFER_S_MIN
        limit_s += size_bytes / limits.EXCHANGE_RATE_BYTES_PER_S_MIN
        with trio.move_on_after(limit_s):
            async with await session.open_stream(
                self._fetch_name, priority=Priority.BULK
            ) as stream:
                await stream.send_message(encode_record(wire.Fetch(gid, announced.digest)))
                await stream.send_end()
                data = await _receive_given(stream, size_bytes)
            self.received_bytes += size_bytes
            if hashlib.sha256(data).digest() != announced.digest:
                raise MalformedMessage(f"expected a message by its hash, {peer.short} gave another")
            return data
        raise DeadlineExceeded(f"fetching a message from {peer.short}", limit_s)

    # --- in ------------------------------------------------------------------------------------

    async def _hear(self, peer: PeerId, payload: bytes) -> bytes:
        message = decode_record(payload, _MESSAGE)
        if not isinstance(message, wire.Have):
            raise MalformedMessage(f"expected what a member has, got {type(message).__name__}")
        if message.gid in self._rounds:
            self._rounds[message.gid].hear(peer, message)
        return b""

    async def _give(self, session: Session, stream: Stream) -> None:
        """Give one member one message."""
        data = None
        with trio.move_on_after(_WORD_S):
            header, _ = await stream.receive_message(max_bytes=0)
            request = decode_record(header, _MESSAGE)
            if not isinstance(request, wire.Fetch):
                raise MalformedMessage(f"expected a fetch, got {type(request).__name__}")
            is_open = request.gid in self._rounds
            is_busy = not is_open or self._uploads >= limits.GATHER_UPLOADS_MAX
            if not is_busy:
                data = self._rounds[request.gid].take_for(session.peer, request.digest)
            if data is None:
                await stream.send_message(encode_record(wire.NotGiven(is_busy)))
                return
        if data is not None:
            with self._uploading():
                await stream.send_message(encode_record(wire.GatherGiven(len(data))))
                await stream.send(data)
                self.sent_bytes += len(data)


async def _receive_given(stream: Stream, size_bytes: int) -> bytes:
    """Return a whole message. Raises SwarmNodeError."""
    try:
        header, _ = await stream.receive_message(max_bytes=0)
    except trio.EndOfChannel:
        raise MalformedMessage("expected a message, got the end of the stream") from None
    match decode_record(header, _MESSAGE):
        case wire.GatherGiven(size_bytes=said) if said == size_bytes:
            data = bytearray(size_bytes)
            await stream.receive_into(memoryview(data))
            return bytes(data)
        case wire.NotGiven(is_busy=is_busy):
            raise Refused("busy: ask again" if is_busy else "it is not there")
    raise MalformedMessage(f"expected a message of {size_bytes} bytes, got another answer")
