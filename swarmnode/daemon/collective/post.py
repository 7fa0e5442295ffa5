"""What one node sends to another one in group runs: words in order, and payloads one by one.

Words (all control messages) go over a stream that is opened when there is something to say and
closed when there was nothing for a while; the next one is opened when the peer has read the last
to its end, so that nothing overtakes. Words may be lost with their session: the core repeats them.

A payload has a stream of its own and is sent once. One at a time to each peer: it is the link that
limits, and the peer reads one at a time. A stream that breaks is told as lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio

from swarmnode import limits
from swarmnode.daemon.driver import Tasks
from swarmnode.errors import DeadlineExceeded, MalformedMessage, Refused, SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.net.session import Session
from swarmnode.net.stream import Buffer, Stream
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.exchange import group as wire
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.session import Priority

if TYPE_CHECKING:
    from swarmnode.daemon.membership.swarm import Partners


MESSAGE: Any = wire.Message  # msgspec reads a union, which mypy does not know as a type
_log = get_logger("swarmnode.daemon.collective")
# Of a new measure of the line in the next: about four rounds tell.
_RATE_GAIN = 0.25
# What is out of a payload that breaks off is known by the piece: an eighth of a second of the line
# as it was measured, in no less than a home's uplink takes in that time. A fast line gets a codec's
# chunk at once: each piece takes some twenty microseconds, whatever its size.
_PIECE_S = 0.125
_PIECE_BYTES_MIN, _PIECE_BYTES_MAX = 16 * limits.KIB, limits.MIB


@dataclass(frozen=True)
class Parcel:
    """A payload that is to be sent.

    Attributes:
        load: gives its parts, which stay as they are until they are sent.
        is_wanted: whether its run still goes on.
        limit_s: how long it may take.
    """

    header: wire.Share | wire.Sum
    load: Callable[[], Awaitable[Sequence[Buffer]]]
    is_wanted: Callable[[], bool]
    limit_s: float


@dataclass(frozen=True)
class PostNames:
    """Services of words and of payloads, as they are called on the wire."""

    words: str
    payloads: str


class SendRate:
    """How fast payloads go out to all peers together, while any is on its way; for all posts.

    Measured to the end of the first payload after which half of all bytes were out: one peer that
    reads slowly says nothing of our line, and a thin line is slow to all of them alike. When a peer
    has read what is out is its own business: it does so once its worker has lent its view.

    Attributes:
        bytes_per_s: smoothed; 0: nothing was sent yet.
    """

    def __init__(self) -> None:
        self.bytes_per_s = 0.0
        self._under_way, self._began_at, self._n_bytes = 0, 0.0, 0
        self._marks: list[tuple[float, int]] = []  # at the end of each payload: all that was out
        self._are_whole = True

    @property
    def piece_bytes(self) -> int:
        """How much of a payload to send at once."""
        piece_bytes = int(_PIECE_S * self.bytes_per_s)
        return min(max(piece_bytes, _PIECE_BYTES_MIN), _PIECE_BYTES_MAX)

    def begin(self, now: float) -> None:
        """A payload is sent from now on."""
        if not self._under_way:
            self._began_at, self._n_bytes, self._are_whole = now, 0, True
            self._marks.clear()
        self._under_way += 1

    def sent(self, n_bytes: int) -> None:
        """So much of it is out."""
        self._n_bytes += n_bytes

    def end(self, now: float, *, is_whole: bool) -> None:
        """All of it is out, or it broke off."""
        self._under_way -= 1
        self._are_whole &= is_whole
        self._marks.append((now, self._n_bytes))
        if not self._under_way and self._n_bytes:
            at, n_bytes = next(mark for mark in self._marks if 2 * mark[1] >= self._n_bytes)
            if at > self._began_at:
                self._take(n_bytes / (at - self._began_at))

    def _take(self, bytes_per_s: float) -> None:
        # What broke off lies in part in buffers: the line is no faster than that.
        if self.bytes_per_s and (self._are_whole or bytes_per_s < self.bytes_per_s):
            self.bytes_per_s += _RATE_GAIN * (bytes_per_s - self.bytes_per_s)
        elif not self.bytes_per_s:
            self.bytes_per_s = bytes_per_s


class Post:
    """The way to one peer.

    Args:
        rate: measured over all peers.
        opened: a session is used: watch it.
        lost: the payload of this header did not arrive.
    """

    def __init__(
        self,
        peer: PeerId,
        names: PostNames,
        partners: Partners,
        tasks: Tasks,
        rate: SendRate,
        *,
        now: Callable[[], float],
        opened: Callable[[Session], None],
        lost: Callable[[PeerId, bytes], None],
    ) -> None:
        self._peer = peer
        self._names = names
        self._partners = partners
        self._tasks = tasks
        self._rate, self._now = rate, now
        self._opened = opened
        self._lost = lost
        self._words: deque[bytes] = deque(maxlen=limits.GROUP_OUTBOX_MAX)
        self._parcels: deque[Parcel] = deque()  # bounded: each piece of a run once
        self._news = trio.Event()
        self._is_talking = self._is_hauling = False
        self.sent_bytes = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not (self._is_talking or self._is_hauling)

    def say(self, message: wire.Message) -> None:
        """Send a word after those before it; it is lost if the peer is not connected."""
        self._words.append(encode_record(message))
        self._news.set()
        if not self._is_talking:
            self._is_talking = True
            self._tasks.start_while_open(self._talk)

    def send(self, parcel: Parcel) -> None:
        """Send a payload after those before it."""
        self._parcels.append(parcel)
        if not self._is_hauling:
            self._is_hauling = True
            self._tasks.start_while_open(self._haul)

    @property
    def _is_connected(self) -> bool:
        sessions = self._partners.sessions
        if self._peer in sessions and not sessions[self._peer].is_closed:
            return True
        self._partners.want((self._peer,))
        return False

    def _session(self) -> Session:
        """Return the open session, which is watched from now on."""
        session = self._partners.sessions[self._peer]
        self._opened(session)
        return session

    # --- words -----------------------------------------------------------------------------

    async def _talk(self) -> None:
        try:
            while self._words:
                if not self._is_connected:
                    self._words.clear()
                    break
                try:
                    await self._say_all(self._session())
                except SwarmNodeError as error:
                    _log.debug("not told", peer=self._peer.short, why=str(error))
                    self._words.clear()
        finally:
            self._is_talking = False

    async def _say_all(self, session: Session) -> None:
        name = self._names.words
        async with await session.open_stream(name, priority=Priority.CONTROL) as stream:
            while self._words:
                await stream.send_message(self._words.popleft())
                if not self._words:
                    self._news = trio.Event()
                    with trio.move_on_after(limits.GROUP_LINGER_S):
                        await self._news.wait()
            await stream.send_end()
            told = f"{self._peer.short} to read what it was told"
            await _read_to_the_end(stream, told, limits.GROUP_FLUSH_S)

    # --- payloads ----------------------------------------------------------------------------

    async def _haul(self) -> None:
        try:
            while self._parcels:
                parcel = self._parcels.popleft()
                try:
                    await self._deliver(parcel)
                except Refused as error:  # it needs it no more
                    _log.debug("payload refused", peer=self._peer.short, why=str(error))
                except SwarmNodeError as error:
                    _log.info("payload not delivered", peer=self._peer.short, why=str(error))
                    self._lost(self._peer, parcel.header.gid)
        finally:
            self._is_hauling = False

    async def _deliver(self, parcel: Parcel) -> None:
        with trio.move_on_after(parcel.limit_s):
            parts = await parcel.load()
            if not self._is_connected or not parcel.is_wanted():
                return  # what watches the session tells
            session = self._session()
            name = self._names.payloads
            async with await session.open_stream(name, priority=Priority.BULK) as stream:
                stream.queue_message(encode_record(parcel.header))
                self._rate.begin(self._now())
                is_whole = False
                try:
                    await self._send_all(stream, parts)
                    is_whole = True
                finally:
                    self._rate.end(self._now(), is_whole=is_whole)
                taken = f"{self._peer.short} to take a payload"
                await _read_to_the_end(stream, taken, parcel.limit_s)
            return
        raise DeadlineExceeded(f"sending a payload to {self._peer.short}", parcel.limit_s)

    async def _send_all(self, stream: Stream, parts: Sequence[Buffer]) -> None:
        for part in parts[:-1]:
            await self._send(stream, part)
        last = parts[-1] if parts else b""
        piece_bytes = self._rate.piece_bytes
        tail_bytes = len(last) % piece_bytes or min(len(last), piece_bytes)
        head = len(last) - tail_bytes
        await self._send(stream, memoryview(last)[:head])
        await stream.send_last(memoryview(last)[head:])
        self._count(tail_bytes)

    async def _send(self, stream: Stream, part: Buffer) -> None:
        """Send it in pieces, so that what is out of a payload that breaks off is known."""
        whole, piece_bytes = memoryview(part), self._rate.piece_bytes
        for begin in range(0, len(whole), piece_bytes):
            piece = whole[begin : begin + piece_bytes]
            await stream.send(piece)
            self._count(len(piece))

    def _count(self, n_bytes: int) -> None:
        self.sent_bytes += n_bytes
        self._rate.sent(n_bytes)


async def _read_to_the_end(stream: Stream, what: str, limit_s: float) -> None:
    """Wait until the peer has read our half, which has ended. Raises SwarmNodeError."""
    with trio.move_on_after(limit_s):
        await stream.receive_end()
        return
    raise DeadlineExceeded(f"waiting for {what}", limit_s)


async def receive_header(stream: Stream) -> wire.Share | wire.Sum:
    """Return the first message of a stream. Raises SwarmNodeError."""
    with trio.move_on_after(limits.EXCHANGE_VIEW_S):  # payloads to others share a thin line
        try:
            data, _ = await stream.receive_message(max_bytes=0)
        except trio.EndOfChannel:
            raise MalformedMessage("expected a payload, got the end of the stream") from None
        message = decode_record(data, MESSAGE)
        if not isinstance(message, wire.Share | wire.Sum):
            raise MalformedMessage(f"expected a payload, got {type(message).__name__}")
        return message
    raise DeadlineExceeded("waiting for the header of a payload", limits.EXCHANGE_VIEW_S)


def at_once(parts: Sequence[Buffer]) -> Callable[[], Awaitable[Sequence[Buffer]]]:
    """Return what a parcel loads, where it is here already."""

    async def load() -> Sequence[Buffer]:
        return parts

    return load
