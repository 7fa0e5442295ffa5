"""The stream of one exchange: messages of the core in order, our chunks between them.

A lane begins with the offer and ends when both sides have ended their half of
the stream. Its exchange may be over long before: the last word of the core
(COMMIT, ABORT, BUSY) still has to leave, behind a chunk that is being sent. A
partner that then neither reads nor ends its half is left after
EXCHANGE_LINGER_S, so that no lane outlives its exchange by more than that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from swarmnode import limits
from swarmnode.daemon.exchange.pair.transfer import Transfer
from swarmnode.errors import ChannelBroken, MalformedMessage, SwarmNodeError, WorkerError
from swarmnode.ids import PeerId
from swarmnode.net.stream import Stream
from swarmnode.wire.exchange import gossip as wire
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.session import ResetCode


class LaneOwner(Protocol):
    """Who hears what happens on a lane."""

    async def heard(self, lane: Lane, message: wire.Message, payload: memoryview) -> None:
        """Take a message of the partner; whatever is raised resets the stream."""

    def chunk_sent(self, lane: Lane) -> None:
        """Note that one more of our chunks has left."""

    def cannot_encode(self, lane: Lane, why: str) -> None:
        """Abort the exchange: our own values are no valid payload."""


class Lane:
    """One stream with one partner; its messages all carry ``xid``."""

    def __init__(self, peer: PeerId, xid: bytes) -> None:
        self.peer = peer
        self.xid = xid
        self.transfer: Transfer | None = None
        self.scope = trio.CancelScope()  # around whatever is done for this lane
        self.takes_messages = True
        self._is_over = False
        self._outbox: deque[bytes] = deque()  # bounded: the core says a handful per exchange
        self._changed = trio.Event()

    def post(self, message: wire.Message) -> None:
        """Queue a message; it leaves before any chunk that is encoded later."""
        self._outbox.append(encode_record(message))
        self._changed.set()

    def start(self, transfer: Transfer) -> None:
        """From now on there are chunks to send, as soon as the transfer has its slot."""
        self.transfer = transfer
        self._changed.set()

    def wake(self) -> None:
        """There may be a chunk to send by now."""
        self._changed.set()

    def finish(self) -> None:
        """The exchange is over: our half ends once the outbox is empty, the rest soon."""
        self._is_over = True
        self.scope.deadline = trio.current_time() + limits.EXCHANGE_LINGER_S
        self._changed.set()

    async def run(self, stream: Stream, owner: LaneOwner) -> None:
        """Write and read until both halves have ended.

        Raises:
            SwarmNodeError: the stream broke, or the partner broke a rule; it is reset.
        """
        failures: list[SwarmNodeError] = []
        async with stream, trio.open_nursery() as nursery:

            async def guard(work: Callable[[Stream, LaneOwner], Awaitable[None]]) -> None:
                try:
                    await work(stream, owner)
                except SwarmNodeError as error:
                    failures.append(error)
                    stream.reset_nowait(ResetCode.REFUSED, str(error))
                    nursery.cancel_scope.cancel()

            nursery.start_soon(guard, self._write)
            nursery.start_soon(guard, self._read)
        if failures:
            raise failures[0]

    async def _write(self, stream: Stream, owner: LaneOwner) -> None:
        try:
            while True:
                while self._outbox:
                    await stream.send_message(self._outbox.popleft())
                if await self._send_chunk(stream, owner):
                    continue
                if self._is_over:
                    await stream.send_end()
                    return
                self._changed = trio.Event()
                await self._changed.wait()
        finally:
            self.takes_messages = False

    async def _send_chunk(self, stream: Stream, owner: LaneOwner) -> bool:
        """Encode and send the next chunk; False if nothing came of it and nothing is posted."""
        transfer = self.transfer
        try:
            chunk = transfer.encode_next() if transfer is not None else None
        except WorkerError as error:
            owner.cannot_encode(self, str(error))
            return True  # its ABORT is in the outbox
        if transfer is None or chunk is None:
            return False
        index, payload = chunk
        await stream.send_message(encode_record(wire.Chunk(xid=self.xid, index=index)), payload)
        transfer.note_sent()
        owner.chunk_sent(self)
        return True

    async def _read(self, stream: Stream, owner: LaneOwner) -> None:
        while True:
            try:
                header, payload = await stream.receive_message(limits.EXCHANGE_MESSAGE_BYTES_MAX)
            except trio.EndOfChannel:
                if self.transfer is not None and not self._is_over:
                    raise ChannelBroken("the partner ended its half of the exchange") from None
                return
            message = decode_message(header)
            if message.xid != self.xid:
                raise MalformedMessage("a message of another exchange", peer=str(self.peer))
            await owner.heard(self, message, payload)


def decode_message(data: bytes) -> wire.Message:
    """Read one message. Raises MalformedMessage."""
    message: wire.Message = decode_record(data, wire.Message)  # type: ignore[arg-type]
    return message
