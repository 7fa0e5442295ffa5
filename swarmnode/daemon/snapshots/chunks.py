"""Chunks of blobs on one bulk stream: the end that serves, and a holder as a fetch sees it.

Serving, answers come in the order of the requests::

    receive, read from disk --answers--> send (bandwidth limit)

While one chunk is on its way the next is read, so a stream has at most three chunks in memory.
Requests beyond wait in the stream, within its credit. A few peers at a time are sent chunks, the
others hear that we are busy. A peer that is being sent chunks goes on being sent them, so that some
finish soon. Only when others were turned away lately does a turn end, after BLOB_TURN_S; then all
may try for it. A bandwidth limit is for many senders: first come, first served.

Fetching, an answer that is not the next is a broken rule, so no holder can send us what we did not
ask for, and what is in memory is bounded by what is asked for.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import trio

from swarmnode import limits
from swarmnode.daemon.driver import run_concurrently
from swarmnode.env import Env
from swarmnode.errors import (
    ChannelBroken,
    CorruptRecord,
    DeadlineExceeded,
    MalformedMessage,
    Overloaded,
    Refused,
    StorageError,
)
from swarmnode.ids import PeerId
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.net.stream import Stream
from swarmnode.protocol.blobs.bucket import TokenBucket
from swarmnode.protocol.blobs.merkle import chunk_size
from swarmnode.protocol.session.buffers import BufferPool
from swarmnode.store.blobs import Blob
from swarmnode.store.shelf import NotHere, Shelf
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire import blobs as wire
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.session import Priority

OpenSession = Callable[[PeerId], Awaitable[Session]]
_log = get_logger("swarmnode.daemon.snapshots")


class Throttle:
    """Lets bytes through at a rate, whichever task sends them."""

    def __init__(self, rate_bytes_per_s: float, env: Env) -> None:
        self._bucket = TokenBucket(rate_bytes_per_s)
        self._env = env
        self._queue = trio.Lock()  # hands over in the order of arrival

    async def pay(self, n_bytes: int) -> None:
        """Wait until ``n_bytes`` may be sent."""
        async with self._queue:
            if not self._bucket.try_take(n_bytes, self._env.monotonic()):
                await trio.sleep(self._bucket.free_at() - self._env.monotonic())
                self._bucket.spend(n_bytes, self._env.monotonic())


@dataclass
class _Turn:
    since: float
    n_owed: int = 0
    is_over: bool = False


class Turns:
    """At most ``n_max`` peers at once. Times are monotonic seconds."""

    def __init__(self, rate_bytes_per_s: float | None) -> None:
        """``rate_bytes_per_s``: what all of them share, if it is limited."""
        self._n_max = limits.BLOB_UPLOADS_MAX
        if rate_bytes_per_s is not None:
            # A chunk each in half of the time after which a fetcher takes us for dead.
            chunks = rate_bytes_per_s * limits.BLOB_IDLE_S / 2 / limits.BLOB_CHUNK_BYTES
            self._n_max = max(1, min(self._n_max, int(chunks)))
        self._turns: dict[PeerId, _Turn] = {}
        self._refused_at = -math.inf

    @property
    def n_peers(self) -> int:
        """How many peers are owed chunks."""
        return sum(turn.n_owed > 0 for turn in self._turns.values())

    def admit(self, peer: PeerId, now: float) -> bool:
        """Whether a request of this peer is served; then :meth:`done` follows."""
        if peer not in self._turns and not self._begin(peer, now):
            self._refused_at = now
            return False
        turn = self._turns[peer]
        is_crowded = now - self._refused_at < limits.BLOB_TURN_S
        if turn.is_over or (is_crowded and now - turn.since > limits.BLOB_TURN_S):
            self._end(peer, turn)
            return False
        turn.n_owed += 1
        return True

    def done(self, peer: PeerId) -> None:
        """Note that a request which was admitted has been answered, or never will be."""
        turn = self._turns[peer]
        turn.n_owed -= 1
        if turn.is_over:
            self._end(peer, turn)

    def _begin(self, peer: PeerId, now: float) -> bool:
        """Whether there is room for a turn of this peer, perhaps that of an idle one."""
        if len(self._turns) >= self._n_max:
            idle = [each for each, turn in self._turns.items() if not turn.n_owed]
            if not idle:
                return False
            del self._turns[idle[0]]
        self._turns[peer] = _Turn(since=now)
        return True

    def _end(self, peer: PeerId, turn: _Turn) -> None:
        turn.is_over = True
        if not turn.n_owed:
            del self._turns[peer]


async def _let_through(_n_bytes: int) -> None:
    """There is no bandwidth limit."""


BLOB_SERVICE = "blob/1"


@dataclass
class UploadTally:
    """Counters of everything that was served."""

    chunks_sent: int = 0
    bytes_sent: int = 0
    busy_refusals: int = 0
    chunks_rotten: int = 0


class Uploads:
    """Answers the streams of all fetchers."""

    def __init__(
        self,
        shelf: Shelf,
        services: Services,
        env: Env,
        *,
        may_serve: Callable[[PeerId], bool],
        rate_bytes_per_s: float | None,
        found_rotten: Callable[[bytes], None],
    ) -> None:
        """Serve from now on; :attr:`pay` waits until the bandwidth limit lets bytes through.

        Args:
            found_rotten: this blob has a chunk that is not what was written.
        """
        self.tally = UploadTally()
        self.turns = Turns(rate_bytes_per_s)
        self._shelf = shelf
        self._env = env
        self._may_serve = may_serve
        self.pay: Callable[[int], Awaitable[None]] = _let_through
        if rate_bytes_per_s is not None:
            self.pay = Throttle(rate_bytes_per_s, env).pay
        self._found_rotten = found_rotten
        self._pool = BufferPool()
        self._streams: Counter[PeerId] = Counter()
        services.add_stream(BLOB_SERVICE, self._serve)

    async def _serve(self, session: Session, stream: Stream) -> None:
        peer = session.peer
        if not self._may_serve(peer):
            raise Refused("this node serves blobs to members of its swarms only")
        if self._streams[peer] >= limits.BLOB_STREAMS_PER_PEER_MAX:
            raise Overloaded(f"at most {limits.BLOB_STREAMS_PER_PEER_MAX} streams of blobs at once")
        self._streams[peer] += 1
        try:
            await self._serve_blob(peer, stream)
        finally:
            self._streams[peer] -= 1
            if not self._streams[peer]:
                del self._streams[peer]

    async def _serve_blob(self, peer: PeerId, stream: Stream) -> None:
        query = await _receive(stream)
        if not isinstance(query, wire.HoldingQuery):
            raise MalformedMessage("expected a holding-query first", peer=str(peer))
        try:
            async with self._shelf.open(query.blob) as blob:
                await _Upload(self, peer, stream, blob).run(query)
        except NotHere:
            await stream.send_message(encode_record(wire.Holding(query.blob, None)))
        except StorageError as error:
            # The words name a path of this machine: they are for our log only.
            _log.error("blob cannot be served", blob=query.blob.hex()[:16], why=str(error))
            raise Refused("this node cannot read the blob from its disk") from error

    # --- for one upload -------------------------------------------------------------------

    def admit(self, peer: PeerId) -> bool:
        """Whether a request is served now; then ``turns.done`` follows."""
        is_admitted = self.turns.admit(peer, self._env.monotonic())
        self.tally.busy_refusals += not is_admitted
        return is_admitted

    async def read(self, blob: Blob, index: int) -> tuple[bytearray, tuple[bytes, ...]]:
        """Return a chunk and its proof. Raises KeyError: it is not here, or not right any more."""
        if not blob.has(index):
            raise KeyError(index)
        buffer = self._pool.get(chunk_size(blob.manifest, index))
        try:
            return buffer, await self._shelf.run(partial(blob.read_into, index, buffer))
        except CorruptRecord as error:
            self.tally.chunks_rotten += 1
            _log.warning("chunk has rotted", blob=blob.name.hex()[:16], index=index, why=str(error))
            self._found_rotten(blob.name)
            raise KeyError(index) from error

    def count_sent(self, n_bytes: int) -> None:
        """Note that a chunk has left."""
        self.tally.chunks_sent += 1
        self.tally.bytes_sent += n_bytes


_Answer = tuple[bytes, bytes | bytearray]  # header and payload


class _Upload:
    """One stream, for one blob, until the fetcher ends it."""

    def __init__(self, uploads: Uploads, peer: PeerId, stream: Stream, blob: Blob) -> None:
        self._uploads = uploads
        self._peer = peer
        self._stream = stream
        self._blob = blob
        self._n_admitted = 0
        self._to_send, self._answers = trio.open_memory_channel[_Answer](1)

    async def run(self, query: wire.HoldingQuery) -> None:
        """Answer the query and everything that follows it."""
        try:
            await run_concurrently(partial(self._prepare, query), self._send)
        finally:
            for _ in range(self._n_admitted):
                self._uploads.turns.done(self._peer)

    async def _prepare(self, request: wire.Request) -> None:
        async with self._to_send:
            while True:
                await self._to_send.send(await self._answer(request))
                try:
                    request = await _receive(self._stream)
                except trio.EndOfChannel:
                    return

    async def _answer(self, request: wire.Request) -> _Answer:
        """Return the header and the payload that answer a request."""
        blob = self._blob
        if request.blob != blob.name:
            raise MalformedMessage("expected requests for one blob on a stream")
        match request:
            case wire.HoldingQuery():
                holding = wire.Holding(blob.name, blob.manifest, blob.have())
                return encode_record(holding), b""
            case wire.ChunkRequest(index=index):
                return await self._chunk(index)

    async def _chunk(self, index: int) -> _Answer:
        name = self._blob.name
        if not self._uploads.admit(self._peer):
            return encode_record(wire.ChunkRefusal(name, index, "busy")), b""
        self._n_admitted += 1
        try:
            chunk, proof = await self._uploads.read(self._blob, index)
        except KeyError:  # it was never here, or a reader has found it rotten
            self._release()
            return encode_record(wire.ChunkRefusal(name, index, "absent")), b""
        return encode_record(wire.ChunkHeader(name, index, proof)), chunk

    async def _send(self) -> None:
        async with self._answers:
            async for header, chunk in self._answers:
                if not chunk:
                    await self._stream.send_message(header)
                    continue
                await self._uploads.pay(len(chunk))
                with trio.move_on_after(limits.BLOB_SEND_S) as scope:
                    await self._stream.send_message(header, chunk)
                if scope.cancelled_caught:
                    raise DeadlineExceeded(
                        f"sending a chunk to {self._peer.short}", limits.BLOB_SEND_S
                    )
                self._uploads.count_sent(len(chunk))
                self._release()

    def _release(self) -> None:
        self._n_admitted -= 1
        self._uploads.turns.done(self._peer)


async def _receive(stream: Stream) -> wire.Request:
    """Return the next request; requests have no payload. Raises trio.EndOfChannel at the end."""
    header, _ = await stream.receive_message(0)
    request: wire.Request = decode_record(header, wire.Request)  # type: ignore[arg-type]
    return request


def _bulk_bytes(session: Session) -> int:
    return session.statistics().core.received_bytes[Priority.BULK]


class LinkOwner(Protocol):
    """Hears what a holder says."""

    def heard(self, link: Link, answer: wire.Answer, payload: memoryview) -> None:
        """Take the answer to our oldest request. Raises RemoteProtocolError if it is wrong."""


class Link:
    """A stream to one holder, for one blob."""

    def __init__(self, peer: PeerId, name: bytes, owner: LinkOwner, env: Env) -> None:
        self.peer = peer
        self.scope = trio.CancelScope()
        self.has_answered = False
        self.have = b""  # its bitmap, once it has answered; empty: nothing
        self.asked_at = 0.0  # when it was last asked what it has
        self._name = name
        self._owner = owner
        self._env = env
        self._received_bytes: Callable[[], int] = lambda: 0  # in bulk, over its session
        self._seen_bytes = 0
        self._n_in_hand = 0  # chunks that came and wait for our hash or disk
        self._all_taken_in = trio.Event()
        self._outbox: deque[wire.Request] = deque()  # bounded as _owed is
        # Bounded by BLOB_REQUESTS_PER_HOLDER_MAX, what was cancelled, and one query.
        self._owed: deque[wire.Request] = deque()
        self._changed = trio.Event()

    async def run(self, open_session: OpenSession) -> None:
        """Reach the holder, ask what it has, and carry requests and answers until cancelled.

        Raises:
            SwarmNodeError: it cannot be reached, left, or broke a rule.
        """
        with self.scope:
            self.scope.deadline = trio.current_time() + limits.BLOB_ANSWER_S
            session = await open_session(self.peer)
            self._received_bytes = partial(_bulk_bytes, session)
            stream = await session.open_stream(BLOB_SERVICE, priority=Priority.BULK)
            async with stream:
                self.query()
                await run_concurrently(partial(self._send, stream), partial(self._receive, stream))
        if self.scope.cancelled_caught and not self.has_answered:
            raise DeadlineExceeded(f"what {self.peer.short} has of a blob", limits.BLOB_ANSWER_S)

    def query(self) -> None:
        """Ask what it has, unless that is being asked."""
        if not any(isinstance(request, wire.HoldingQuery) for request in self._owed):
            self.asked_at = self._env.monotonic()
            self._post(wire.HoldingQuery(self._name))

    def request(self, index: int) -> None:
        """Ask for a chunk."""
        self._post(wire.ChunkRequest(self._name, index))

    def chunk_came(self) -> None:
        """Note a chunk that waits for our hash or disk; :meth:`chunk_taken_in` follows."""
        self._n_in_hand += 1

    def chunk_taken_in(self) -> None:
        """Note that the core knows of one more chunk."""
        self._n_in_hand -= 1
        if not self._n_in_hand:
            self._all_taken_in.set()

    async def wait_taken_in(self) -> None:
        """Wait until the core knows of every chunk that came."""
        while self._n_in_hand:
            self._all_taken_in = trio.Event()
            await self._all_taken_in.wait()

    def is_at_work(self) -> bool:
        """Whether parts of chunks came since the last call, BLOB_LOOK_S ago, or lie with us.

        Counted are all bulk bytes of its session: a holder whose line is full of other things
        that it sends us is not idle.
        """
        seen_bytes = self._received_bytes()
        came_bytes, self._seen_bytes = seen_bytes - self._seen_bytes, seen_bytes
        has_sent = bool(self._owed) and came_bytes >= limits.BLOB_LIFE_SIGN_BYTES
        return has_sent or self._n_in_hand > 0

    def _post(self, request: wire.Request) -> None:
        self._owed.append(request)
        self._outbox.append(request)
        self._changed.set()

    async def _send(self, stream: Stream) -> None:
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            while self._outbox:
                await stream.send_message(encode_record(self._outbox.popleft()))

    async def _receive(self, stream: Stream) -> None:
        while True:
            try:
                header, payload = await stream.receive_message(limits.BLOB_CHUNK_BYTES_MAX)
            except trio.EndOfChannel:
                raise ChannelBroken(f"{self.peer.short} serves this blob no more") from None
            answer: wire.Answer = decode_record(header, wire.Answer)  # type: ignore[arg-type]
            self._check_order(answer)
            self.has_answered, self.scope.deadline = True, float("inf")
            self._owner.heard(self, answer, payload)

    def _check_order(self, answer: wire.Answer) -> None:
        request = self._owed.popleft() if self._owed else None
        match request:
            case wire.HoldingQuery():
                is_next = isinstance(answer, wire.Holding)
            case wire.ChunkRequest(index=index):
                is_next = not isinstance(answer, wire.Holding) and answer.index == index
            case None:
                is_next = False
        if not is_next or answer.blob != self._name:
            raise MalformedMessage(
                "expected the answer to the oldest request, got another", peer=str(self.peer)
            )
