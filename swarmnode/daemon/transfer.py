"""The payload of one exchange: encode ours, merge theirs, chunk by chunk, in one slot.

The slot begins as our snapshot x. Each chunk of it is encoded and replaced by
what the partner will decode, x̂. When the partner's chunk arrives it is merged
in place, so the slot ends as m = x̂_partner − x̂_own: exactly the negative of
what the partner holds. Both directions run at once; a chunk of theirs waits
until ours is encoded, which cannot deadlock: of two nodes only one is behind.

Codec calls run inline. A chunk takes well under a millisecond, and the GIL is
released meanwhile, so a thread would only add a hop.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import trio

from swarmnode.errors import MalformedMessage
from swarmnode.limits import CODEC_CHUNK_ELEMS
from swarmnode.tensor.codec import Codec
from swarmnode.tensor.layout import chunks

FLOAT32_BYTES = 4


@dataclass
class TransferTimes:
    """Seconds of work in the codec, summed over chunks, for metrics and benchmarks."""

    encode_s: float = 0.0
    requantize_s: float = 0.0
    merge_s: float = 0.0


class Transfer:
    """Both directions of one exchange over one slot.

    Args:
        slot: float32 [numel] as writable bytes; ours until the exchange ends.
        codec: how payloads are written.
    """

    def __init__(self, slot: memoryview, codec: Codec) -> None:
        self._slot = slot
        self._codec = codec
        numel = len(slot) // FLOAT32_BYTES
        self._ranges = list(chunks(numel, CODEC_CHUNK_ELEMS))
        self._encoded = 0
        self._merged = 0
        self._sent = 0
        self._payload = memoryview(bytearray(codec.payload_bytes(CODEC_CHUNK_ELEMS)))
        self._ended = False
        self._progress = trio.Event()
        self.times = TransferTimes()
        self.sent_bytes = 0
        self.received_bytes = 0

    @property
    def is_complete(self) -> bool:
        """All of ours are sent and all of theirs are merged."""
        return self._sent == self._merged == len(self._ranges)

    def encode_next(self) -> tuple[int, memoryview] | None:
        """Encode the next chunk; the payload is valid until the next call.

        Returns None when all are encoded or the exchange is over. The caller sends the
        payload and then calls :meth:`note_sent`.
        """
        index = self._encoded
        if self._ended or index == len(self._ranges):
            return None
        piece = self._payload[: self._payload_bytes(index)]
        values = self._values(index)
        t0 = time.perf_counter()
        self._codec.encode(values, piece)
        t1 = time.perf_counter()
        self._codec.decode(piece, values)
        self.times.encode_s += t1 - t0
        self.times.requantize_s += time.perf_counter() - t1
        self._encoded = index + 1
        self._signal()
        return index, piece

    def note_sent(self) -> None:
        """The chunk that was encoded last has left."""
        self._sent += 1
        self.sent_bytes += self._payload_bytes(self._sent - 1)

    async def merge(self, index: int, payload: memoryview) -> None:
        """Merge the partner's chunk, after ours at the same place is encoded.

        Raises:
            MalformedMessage: the payload has the wrong length or is no valid payload.
        """
        expected = self._payload_bytes(index)
        if len(payload) != expected:
            raise MalformedMessage(
                f"chunk {index}: expected {expected} bytes of {self._codec.name},"
                f" got {len(payload)}"
            )
        while self._encoded <= index and not self._ended:
            await self._progress.wait()
        if self._ended:
            return
        t0 = time.perf_counter()
        self._codec.merge(payload, self._values(index), -1.0, 1.0)
        self.times.merge_s += time.perf_counter() - t0
        self._merged += 1
        self.received_bytes += len(payload)

    def end(self) -> None:
        """The exchange is over: touch the slot no more, wake whoever waits."""
        self._ended = True
        self._signal()

    def _values(self, index: int) -> memoryview:
        start, end = self._ranges[index]
        return self._slot[start * FLOAT32_BYTES : end * FLOAT32_BYTES]

    def _payload_bytes(self, index: int) -> int:
        start, end = self._ranges[index]
        return self._codec.payload_bytes(end - start)

    def _signal(self) -> None:
        self._progress.set()
        self._progress = trio.Event()
