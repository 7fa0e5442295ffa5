"""Records on a channel: buffers between the channel's bytes and the session's frames.

The channel may be replaced: what was sealed is kept until the peer has it
(``protocol/session/opening.py``). Both directions use one buffer for the whole life of the
session: fresh memory costs more than encrypting does. A buffer takes memory as far as it was
ever filled: of dozens of sessions most never carry a tensor.
"""

from __future__ import annotations

import contextlib
import mmap
from collections import deque

import trio

from swarmnode import limits
from swarmnode.errors import AuthenticationFailed, ChannelBroken, ChannelClosed
from swarmnode.net.channel import Channel
from swarmnode.net.tls import is_tls_alert
from swarmnode.protocol.session.core import SessionCore
from swarmnode.protocol.session.opening import Unacknowledged
from swarmnode.protocol.session.records import (
    LENGTH_BYTES,
    RECORD_BYTES_MAX,
    RECORD_OVERHEAD_BYTES,
    Opener,
    Sealer,
    plaintext_bytes,
)

# A turn that takes longer is made smaller: what is being sent is what a request waits behind.
SEND_TURN_S = 0.05
SEND_TURN_BYTES_MIN = 32 * limits.KIB
# A writer that has sealed less since the last ping was due is idle, and gives back spare memory.
_IDLE_SEALED_BYTES = 64 * limits.KIB

_TURN_BYTES_MAX = limits.RECORD_HEAD_BYTES_MAX + RECORD_OVERHEAD_BYTES + RECORD_BYTES_MAX
_REPLACED = "the session has left this channel"


class RecordWriter:
    """Seals frames and sends them, never more than one turn's worth at a time."""

    def __init__(self, channel: Channel, sealer: Sealer) -> None:
        self._channel: Channel | None = channel
        self._sealer = sealer
        self._head = _buffer(limits.RECORD_HEAD_BYTES_MAX)
        self._memory = mmap.mmap(-1, limits.UNACKNOWLEDGED_BYTES_MAX)
        self._kept = Unacknowledged(memoryview(self._memory), _TURN_BYTES_MAX)
        self._looked_at_bytes = 0
        self._untrimmed_bytes = 0
        self._rest: deque[memoryview] = deque()  # sealed, and not sent yet

    def seal_next(self, core: SessionCore, now: float) -> memoryview | None:
        """Take what is due from ``core``; return what :meth:`send` has to send.

        The body of a large DATA frame is a record of its own: it is encrypted from where
        its sender keeps it, and the peer can decrypt it to where its reader wants it.

        None: nothing is due, or all but ACK, PING and PONG waits for the peer to acknowledge
        what was sent before.
        """
        out = self._kept.room()
        if out is None:
            out = self._kept.urgent_room()
            if out is None:
                return None
            head_bytes, body = core.take_urgent(self._head, now), None
        else:
            head_bytes, body = core.take(self._head, now)
        if head_bytes == 0:
            return None
        end = self._sealer.seal_into(self._head[:head_bytes], out)
        if body is not None:
            end += self._sealer.seal_into(body, out[end:])
        return self._kept.keep(end)

    async def send(self, sealed: memoryview) -> float:
        """Send what was sealed; return how long it took, in seconds.

        It must not be cancelled unless the channel is given up.
        """
        start_s = trio.current_time()
        await self._current().send_all(sealed)
        return trio.current_time() - start_s

    def send_nowait(self, sealed: memoryview) -> bool:
        """Send what was sealed without waiting; False: :meth:`send_rest` has to go on."""
        sent_bytes = self._current().send_nowait(sealed)
        if sent_bytes < len(sealed):
            self._rest.append(sealed[sent_bytes:])
        return not self._rest

    async def send_rest(self) -> None:
        """Send what :meth:`send_nowait` has left. Not to be cancelled, like :meth:`send`."""
        while self._rest:
            channel = self._current()
            await channel.send_all(self._rest[0])
            if channel is not self._channel:  # what is left now is of another channel
                raise ChannelBroken(_REPLACED)
            self._rest.popleft()

    async def send_frame(self, frame: bytes) -> None:
        """Send one frame in a record of its own, for the time before there is a core."""
        out = self._kept.room()
        assert out is not None, "nothing else was sent yet"
        n_bytes = self._sealer.seal_into(memoryview(frame), out)
        await self.send(self._kept.keep(n_bytes))

    def acknowledged(self, received_bytes: int) -> None:
        """Forget what the peer has. Raises RemoteProtocolError: it cannot have so much."""
        self._kept.acknowledge(received_bytes)

    def trim(self) -> None:
        """Give back memory that was used a while ago. To be called now and then.

        Bulk leaves much behind at once; small requests go round the whole ring in time.
        """
        sealed_bytes = self._kept.sent_bytes - self._looked_at_bytes
        self._looked_at_bytes = self._kept.sent_bytes
        self._untrimmed_bytes += sealed_bytes
        if sealed_bytes <= _IDLE_SEALED_BYTES and self._untrimmed_bytes > mmap.PAGESIZE:
            self._untrimmed_bytes = self._kept.sent_bytes - self._kept.acknowledged_bytes
            for start, end in self._kept.spare():
                _give_back(self._memory, start, end)

    def detach(self) -> None:
        """Leave the channel; a task that sends on it gets ChannelBroken."""
        self._channel = None
        self._rest.clear()

    def attach(self, channel: Channel, received_bytes: int) -> None:
        """Go on with another channel, behind what the peer has. Raises RemoteProtocolError."""
        self._rest.extend(self._kept.since(received_bytes))
        self._channel = channel

    def close(self) -> None:
        """Let go of the memory, for good."""
        self._rest.clear()
        del self._head, self._kept, self._memory

    def _current(self) -> Channel:
        if self._channel is None:
            raise ChannelBroken(_REPLACED)
        return self._channel


def _buffer(n_bytes: int) -> memoryview:
    """Return zeros that the system hands out page by page; a bytearray would touch them all."""
    return memoryview(mmap.mmap(-1, n_bytes))


def _give_back(memory: mmap.mmap, start: int, end: int) -> None:
    """Let the system have whole pages again, where it can take them; they are zeros then."""
    start = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    end = end // mmap.PAGESIZE * mmap.PAGESIZE
    if start < end and hasattr(mmap, "MADV_REMOVE"):
        memory.madvise(mmap.MADV_REMOVE, start, end - start)


def next_body_bytes(body_bytes: int, sent_bytes: int, taken_s: float) -> int:
    """Return how large the next turn's body may be, after one that took ``taken_s``.

    On a home uplink of 10 Mbit/s a full record would keep a request waiting for 0.4 s.
    """
    if taken_s > SEND_TURN_S and sent_bytes >= body_bytes:
        return max(SEND_TURN_BYTES_MIN, body_bytes // 2)
    if taken_s < SEND_TURN_S / 4:
        return min(limits.FRAME_DATA_BYTES_MAX, body_bytes * 2)
    return body_bytes


class RecordReader:
    """Receives bytes and opens the records in them."""

    def __init__(self, channel: Channel, opener: Opener) -> None:
        self._channel: Channel | None = channel
        self._opener = opener
        self.received_bytes = 0  # of whole records, opened
        # Room for a whole record behind the rest of another.
        self._buffer = _buffer(2 * RECORD_BYTES_MAX)
        self._start = 0
        self._end = 0
        self._plaintext = _buffer(limits.RECORD_PLAINTEXT_BYTES_MAX)

    async def receive(self) -> int:
        """Wait for more bytes; return how many came.

        Raises:
            ChannelBroken: the channel is at its end, or has been left.
        """
        channel = self._channel
        if channel is None:
            raise ChannelBroken(_REPLACED)
        if self._start == self._end:
            self._start = self._end = 0
        elif len(self._buffer) - self._start < RECORD_BYTES_MAX:
            rest_bytes = self._end - self._start
            self._buffer[:rest_bytes] = self._buffer[self._start : self._end]
            self._start, self._end = 0, rest_bytes
        n_bytes = await channel.receive_into(self._buffer[self._end :])
        if channel is not self._channel:  # it came after we have said how much we have
            raise ChannelBroken(_REPLACED)
        if n_bytes == 0:
            raise ChannelBroken(f"{channel.description}: closed without a goodbye")
        self._end += n_bytes
        return n_bytes

    def open_all(self, core: SessionCore, now: float) -> None:
        """Pass every whole record to ``core``.

        Raises:
            RemoteProtocolError: the peer broke a rule, or the bytes are not the peer's.
        """
        core.heard(now)
        while (n_bytes := self._next_plaintext_bytes()) is not None:
            destination = core.body_destination(n_bytes)
            if destination is not None:
                self._open_next(destination)
                core.body_received(n_bytes)
            else:
                plaintext = self._plaintext[:n_bytes]
                self._open_next(plaintext)
                core.handle(plaintext, now)
        core.opened(self.received_bytes, now)

    def detach(self) -> None:
        """Leave the channel: part of a record that came on it will come again."""
        self._channel = None
        self._start = self._end = 0

    def attach(self, channel: Channel) -> None:
        """Go on with another channel."""
        self._channel = channel

    def close(self) -> None:
        """Let go of the memory, for good."""
        del self._buffer, self._plaintext

    async def receive_frame(self) -> bytes:
        """Return the plaintext of one record, for the time before there is a core."""
        while (n_bytes := self._next_plaintext_bytes()) is None:
            await self.receive()
        plaintext = bytearray(n_bytes)
        self._open_next(memoryview(plaintext))
        return bytes(plaintext)

    async def drain(self) -> None:
        """Throw away what comes until the channel is closed, by either side."""
        with contextlib.suppress(ChannelBroken, ChannelClosed):
            while self._channel and await self._channel.receive_into(self._buffer):
                await trio.lowlevel.checkpoint()

    def _next_plaintext_bytes(self) -> int | None:
        """Return the plaintext size of the next record if it is here whole."""
        available = self._end - self._start
        if available < LENGTH_BYTES:
            return None
        header = self._buffer[self._start : self._start + LENGTH_BYTES]
        if is_tls_alert(header):
            raise AuthenticationFailed("the peer refused the TLS handshake at its end")
        n_bytes = plaintext_bytes(header)
        return n_bytes if available >= n_bytes + RECORD_OVERHEAD_BYTES else None

    def _open_next(self, out: memoryview) -> None:
        record_end = self._start + len(out) + RECORD_OVERHEAD_BYTES
        self._opener.open_into(self._buffer[self._start : record_end], out)
        self._start = record_end
        self.received_bytes += len(out) + RECORD_OVERHEAD_BYTES
