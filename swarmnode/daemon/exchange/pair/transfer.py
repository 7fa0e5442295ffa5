"""The payload of one exchange: encode ours, decode theirs, chunk by chunk, in one slot.

The slot has two halves. Each chunk of the own half is encoded and replaced by what the partner
will decode, x̂; each chunk of the partner is decoded into the other half. So both nodes end with
the same two vectors, in exchanged places. The directions do not wait for each other.

The slot comes from the worker at its next step boundary. Until then nothing is sent, and the first
chunk of the partner that has come waits: the credits of its stream bound what else can come.

Codec calls run inline. A chunk takes well under a millisecond, and the GIL is
released meanwhile, so a thread would only add a hop.

The stream of one exchange: messages of the core in order, our chunks between them.

A stream begins with the offer and ends when both sides have ended their half of
the stream. Its exchange may be over long before: the last word of the core
(COMMIT, ABORT, BUSY) still has to leave, behind a chunk that is being sent. A
partner that then neither reads nor ends its half is left after
EXCHANGE_LINGER_S, so that no stream outlives its exchange by more than that.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import trio

from swarmnode import limits
from swarmnode.daemon.exchange.pair.intents import Piece
from swarmnode.errors import (
    ChannelBroken,
    DeadlineExceeded,
    MalformedMessage,
    SwarmNodeError,
    WorkerError,
)
from swarmnode.ids import PeerId
from swarmnode.ipc.control import Weighed
from swarmnode.ipc.names import GUARD_REFUSALS
from swarmnode.net.stream import Stream
from swarmnode.tensor.magnitude import UNKNOWN, Scale, Sizes
from swarmnode.wire.exchange import gossip as wire
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.session import ResetCode

# Of a number of so many bytes, as memoryview has it.
_FORMATS: dict[int, Literal["f", "d"]] = {4: "f", 8: "d"}


@dataclass
class TransferTimes:
    """Seconds of work in the codec, summed over chunks, for metrics and benchmarks."""

    encode_s: float = 0.0
    requantize_s: float = 0.0
    decode_s: float = 0.0


class Transfer:
    """Both directions of one exchange; see :meth:`lend` for the memory.

    Args:
        pieces: the chunks of both sides, in the order they are sent in.

    Attributes:
        encode_error_ratio: norm of what the codec lost by the norm of the values, over a sample
            of the first chunk; None before that.
        distance_ratio: how far the vectors of the two nodes are apart, norm of half the difference
            by norm of the mean, over a sample; None before :meth:`measure`.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = pieces
        self._own = self._room = memoryview(b"")
        self._encoded = 0
        self._decoded = 0
        self._sent = 0
        self._payload = memoryview(bytearray(max(piece.payload_bytes for piece in pieces)))
        self._is_over = False
        self._own_sizes, self._their_sizes = Sizes(), Sizes()
        self._weights = UNKNOWN
        self._settled = trio.Event()  # the slot is there, or will never be
        self.times = TransferTimes()
        self.sent_bytes = 0
        self.received_bytes = 0
        self.encode_error_ratio: float | None = None
        self.distance_ratio: float | None = None

    @property
    def is_complete(self) -> bool:
        """All of ours are sent and all of theirs are decoded."""
        return self._sent == self._decoded == len(self._pieces)

    def lend(self, own: memoryview, room: memoryview, weights: Scale = UNKNOWN) -> None:
        """Begin: writable bytes of the own views, [numel] numbers, and as many for the partner's.

        They are ours until the exchange ends. ``weights``: how large those of the model are.
        """
        self._own, self._room, self._weights = own, room, weights
        self._settled.set()

    def encode_next(self) -> tuple[int, memoryview] | None:
        """Encode the next chunk; the payload is valid until the next call.

        Returns None when all are encoded, the slot is not there yet, or the exchange is over. The
        caller sends the payload and then calls :meth:`note_sent`.

        Raises:
            WorkerError: a value is not finite.
        """
        index = self._encoded
        if self._is_over or index == len(self._pieces) or not self._settled.is_set():
            return None
        piece = self._pieces[index]
        payload, values = self._payload[: piece.payload_bytes], _values(self._own, piece)
        exact = _sample(values, piece.value_bytes) if index == 0 else []
        t0 = time.perf_counter()
        piece.codec.encode(values, payload)
        t1 = time.perf_counter()
        self._own_sizes.decode(piece, payload, values)
        self.times.encode_s += t1 - t0
        self.times.requantize_s += time.perf_counter() - t1
        if index == 0:
            lost = math.dist(exact, _sample(values, piece.value_bytes))
            self.encode_error_ratio = _ratio(lost, math.hypot(*exact))
        self._encoded = index + 1
        return index, payload

    def note_sent(self) -> None:
        """The chunk that was encoded last has left."""
        self.sent_bytes += self._pieces[self._sent].payload_bytes
        self._sent += 1

    async def take(self, index: int, payload: memoryview) -> None:
        """Decode a chunk of the partner as soon as the slot is there.

        Raises:
            MalformedMessage: the payload has the wrong length or is no valid payload.
        """
        piece = self._pieces[index]
        if len(payload) != piece.payload_bytes:
            raise MalformedMessage(
                f"chunk {index}: expected {piece.payload_bytes} bytes of {piece.codec.name},"
                f" got {len(payload)}"
            )
        await self._settled.wait()
        if self._is_over:
            return
        t0 = time.perf_counter()
        self._their_sizes.decode(piece, payload, _values(self._room, piece))
        self.times.decode_s += time.perf_counter() - t0
        self._decoded += 1
        self.received_bytes += len(payload)

    def refusal(self) -> str:
        """Return why what came, which is complete, must not count; empty: it may."""
        return self._their_sizes.refusal(self._own_sizes, self._weights)

    def measure(self) -> None:
        """See how far the two vectors are apart, once both are here."""
        value_bytes = self._pieces[0].value_bytes  # the same for all
        own, theirs = _sample(self._own, value_bytes), _sample(self._room, value_bytes)
        total = [a + b for a, b in zip(own, theirs, strict=True)]
        self.distance_ratio = _ratio(math.dist(own, theirs), math.hypot(*total))

    def end(self) -> None:
        """The exchange is over: touch the slot no more, wake what waits."""
        self._is_over = True
        self._own = self._room = memoryview(b"")
        self._settled.set()


def _values(half: memoryview, piece: Piece) -> memoryview:
    return half[piece.begin * piece.value_bytes : piece.end * piece.value_bytes]


@dataclass
class ExchangeTotals:
    """Sums over committed exchanges, for metrics."""

    committed: int = 0
    refused: int = 0  # payloads of partners, before they could be committed
    weighed: int = 0  # of those that were all there
    weighing_s: float = 0.0
    weighed_refusals: Counter[str] = field(default_factory=Counter)  # by one of GUARD_REFUSALS
    duration_s: float = 0.0
    encode_s: float = 0.0
    requantize_s: float = 0.0
    decode_s: float = 0.0
    payload_sent_bytes: int = 0
    payload_received_bytes: int = 0
    encode_error_ratio: float | None = None  # of the last one, as `distance_ratio`
    distance_ratio: float | None = None  # see transfer.py

    def phases(self) -> dict[str, float]:
        """Seconds in the codec so far, by what it did."""
        return {
            "encode_s": self.encode_s,
            "requantize_s": self.requantize_s,
            "decode_s": self.decode_s,
        }

    def note_weighed(self, weighed: Weighed) -> None:
        """Count what the worker said of a payload that was all there."""
        self.weighed += 1
        self.weighing_s += weighed.seconds
        if weighed.refusal in GUARD_REFUSALS:
            self.weighed_refusals[weighed.refusal] += 1

    def add(self, transfer: Transfer) -> None:
        """Count one committed transfer."""
        self.committed += 1
        self.encode_s += transfer.times.encode_s
        self.requantize_s += transfer.times.requantize_s
        self.decode_s += transfer.times.decode_s
        self.payload_sent_bytes += transfer.sent_bytes
        self.payload_received_bytes += transfer.received_bytes
        self.encode_error_ratio = transfer.encode_error_ratio
        self.distance_ratio = transfer.distance_ratio


def _sample(values: memoryview, value_bytes: int) -> list[float]:
    """Return some of the values in these bytes, evenly spread, always the same ones."""
    floats = values.cast("B").cast(_FORMATS[value_bytes])
    return list(map(float, floats[:: max(1, len(floats) // limits.TRANSFER_SAMPLE_ELEMS)]))


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 and math.isfinite(part) else None


class ExchangeStreamOwner(Protocol):
    """Is told what happens on a stream."""

    async def heard(
        self, exchange: ExchangeStream, message: wire.Message, payload: memoryview
    ) -> None:
        """Take a message of the partner; whatever is raised resets the stream."""

    def chunk_sent(self, exchange: ExchangeStream) -> None:
        """Note that one more of our chunks has left."""

    def cannot_encode(self, exchange: ExchangeStream, why: str) -> None:
        """Abort the exchange: our own values are no valid payload."""


class NoTransfer:
    """In place of a transfer that has not begun."""

    def encode_next(self) -> tuple[int, memoryview] | None:
        """Return None: there is nothing to send."""
        return None

    def note_sent(self) -> None:
        """Nothing leaves."""


class ExchangeStream:
    """One stream with one partner; its messages all carry ``xid``."""

    def __init__(self, peer: PeerId, xid: bytes) -> None:
        self.peer = peer
        self.xid = xid
        self.has_started = False
        self._transfer: Transfer | NoTransfer = NoTransfer()
        self.scope = trio.CancelScope()  # around whatever is done for this stream
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
        self.has_started, self._transfer = True, transfer
        self._changed.set()

    def wake(self) -> None:
        """There may be a chunk to send by now."""
        self._changed.set()

    def finish(self) -> None:
        """The exchange is over: our half ends once the outbox is empty, the rest soon."""
        self._is_over = True
        self.scope.deadline = trio.current_time() + limits.EXCHANGE_LINGER_S
        self._changed.set()

    async def run(self, stream: Stream, owner: ExchangeStreamOwner) -> None:
        """Write and read until both halves have ended.

        Raises:
            SwarmNodeError: the stream broke, or the partner broke a rule; it is reset.
        """
        failures: list[SwarmNodeError] = []
        async with stream, trio.open_nursery() as nursery:

            async def guard(work: Callable[[Stream, ExchangeStreamOwner], Awaitable[None]]) -> None:
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

    async def _write(self, stream: Stream, owner: ExchangeStreamOwner) -> None:
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

    async def _send_chunk(self, stream: Stream, owner: ExchangeStreamOwner) -> bool:
        """Encode and send the next chunk; False if nothing came of it and nothing is posted."""
        transfer = self._transfer
        try:
            chunk = transfer.encode_next()
        except WorkerError as error:
            owner.cannot_encode(self, str(error))
            return True  # its ABORT is in the outbox
        if chunk is None:
            return False
        index, payload = chunk
        await stream.send_message(encode_record(wire.Chunk(xid=self.xid, index=index)), payload)
        transfer.note_sent()
        owner.chunk_sent(self)
        return True

    async def _read(self, stream: Stream, owner: ExchangeStreamOwner) -> None:
        while True:
            try:
                header, payload = await stream.receive_message(limits.EXCHANGE_MESSAGE_BYTES_MAX)
            except trio.EndOfChannel:
                if self.has_started and not self._is_over:
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


async def receive_offer(stream: Stream) -> wire.Offer:
    """Return the first message of a stream. Raises SwarmNodeError."""
    try:
        with trio.fail_after(limits.EXCHANGE_OFFER_S):
            header, _ = await stream.receive_message(max_bytes=0)
    except trio.TooSlowError as error:
        raise DeadlineExceeded("the OFFER of a new stream", limits.EXCHANGE_OFFER_S) from error
    except trio.EndOfChannel as error:
        raise MalformedMessage("expected an OFFER, got the end of the stream") from error
    message = decode_message(header)
    if not isinstance(message, wire.Offer):
        raise MalformedMessage(f"expected an OFFER first, got {type(message).__name__}")
    return message
