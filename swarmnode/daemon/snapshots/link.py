"""One holder as a fetch sees it: requests out, answers in, on one bulk stream.

Answers come in the order of the requests. One that is not the next is a broken rule, so no holder
can send us what we did not ask for, and what is in memory is bounded by what is asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

import trio

from swarmnode import limits
from swarmnode.daemon.driver import run_concurrently
from swarmnode.daemon.snapshots.upload import BLOB_SERVICE
from swarmnode.env import Env
from swarmnode.errors import ChannelBroken, DeadlineExceeded, MalformedMessage
from swarmnode.ids import PeerId
from swarmnode.net.session import Session
from swarmnode.net.stream import Stream
from swarmnode.wire import blobs as wire
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.session import Priority

OpenSession = Callable[[PeerId], Awaitable[Session]]


def _bulk_bytes(session: Session) -> int:
    return session.statistics().core.received_bytes[Priority.BULK]


class LinkOwner(Protocol):
    """Who hears what a holder says."""

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
