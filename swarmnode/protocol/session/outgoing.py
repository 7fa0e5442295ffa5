"""What a session sends next, by priority.

Everything that is due is a flag or a number on a stream, and a stream stands
at most once in each ring, so nothing here can be made to grow by a peer::

    GOODBYE   then nothing
    ACK, PONG, PING
    control ring    OPEN, RESET, CREDIT of any stream
    data rings      DATA and END: control before state before exchanges before snapshots, streams
                    of one in turn
"""

from __future__ import annotations

import math
from collections import deque

from swarmnode import limits
from swarmnode.protocol.session.effects import Changed, Effect
from swarmnode.protocol.session.keepalive import Keepalive
from swarmnode.protocol.session.stream import Reset, StreamState
from swarmnode.protocol.session.table import StreamTable
from swarmnode.protocol.uplink import Purpose
from swarmnode.wire.frames import (
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    FrameKind,
    encode_ack,
    encode_credit,
    encode_frame,
)
from swarmnode.wire.session import Priority, ResetCode, encode_open, encode_reset

# What may be held has a ring for each purpose, behind those of control and state.
HELD_PURPOSES = (Purpose.EXCHANGE, Purpose.SNAPSHOTS)
_N_URGENT_RINGS = 2
# A peer that sends more than a few requests hears so often that they come.
ACK_EVERY_S = 3.0
_N_RINGS = _N_URGENT_RINGS + len(HELD_PURPOSES)
_CONTROL_FRAME_BYTES_MAX = FRAME_HEADER_BYTES + limits.FRAME_CONTROL_BYTES_MAX


class Outgoing:
    """Rings of streams that have something due."""

    def __init__(self, table: StreamTable, keepalive: Keepalive, effects: list[Effect]) -> None:
        self.body_bytes_max = limits.FRAME_DATA_BYTES_MAX
        self.sent_bytes = [0 for _ in Priority]
        self.sent_for = [0 for _ in Purpose]
        self._table = table
        self._keepalive = keepalive
        self._effects = effects
        self._held = [False for _ in range(_N_RINGS)]  # no DATA of these for now
        self.holds_credit = False  # no CREDIT of one
        self._credit_waiting: deque[StreamState] = deque()
        self._control_ring: deque[StreamState] = deque()
        self._data_rings: tuple[deque[StreamState], ...] = tuple(deque() for _ in range(_N_RINGS))
        self._goodbye: bytes | None = None
        self._is_closing = False
        self.opened_bytes = 0  # of whole records of the peer
        self._acknowledged_bytes = 0  # of these, what it has been told of
        self._acknowledged_at = -math.inf
        self._is_late = False  # to tell it

    @property
    def has_due(self) -> bool:
        """Whether :meth:`take` may have something to give."""
        if self._is_closing:
            return self._goodbye is not None
        if self._control_ring or self._keepalive.has_due or self._is_ack_due:
            return True
        return any(self._data_rings[:_N_URGENT_RINGS]) or self._is_bulk_due

    @property
    def _is_ack_due(self) -> bool:
        return (
            self._is_late or self.opened_bytes >= self._acknowledged_bytes + limits.ACK_EVERY_BYTES
        )

    def opened(self, received_bytes: int, now: float) -> None:
        """Note what came of whole records so far.

        On a slow way ACK_EVERY_BYTES take longer than a silent peer is waited for, and its pings
        wait behind as much as was sent: that it is heard, it has to be told in time.
        """
        self.opened_bytes = received_bytes
        new_bytes = received_bytes - self._acknowledged_bytes
        if new_bytes > limits.DATA_INLINE_BYTES_MAX and now >= self._acknowledged_at + ACK_EVERY_S:
            self._is_late = True

    @property
    def _is_bulk_due(self) -> bool:
        held = self._held[_N_URGENT_RINGS:]
        return any(ring and not kept for ring, kept in zip(self._bulk_rings, held, strict=True))

    @property
    def _bulk_rings(self) -> tuple[deque[StreamState], ...]:
        return self._data_rings[_N_URGENT_RINGS:]

    @property
    def is_small(self) -> bool:
        """Whether one record takes all that is due: nothing of a bulk stream, or little of one."""
        if not self._is_bulk_due:
            return True
        bulk = [stream for ring in self._bulk_rings for stream in ring]
        return len(bulk) == 1 and sum(map(len, bulk[0].pending)) <= limits.DATA_INLINE_BYTES_MAX

    def wants(self, purpose: Purpose) -> bool:
        """Whether something for this purpose waits to be sent, held or not."""
        return bool(self._data_rings[_N_URGENT_RINGS + HELD_PURPOSES.index(purpose)])

    def hold(self, purpose: Purpose, *, is_held: bool) -> None:
        """Keep DATA for this purpose back, or not."""
        self._held[_N_URGENT_RINGS + HELD_PURPOSES.index(purpose)] = is_held

    @property
    def has_credit_waiting(self) -> bool:
        """Whether a peer waits for credit that is held."""
        return bool(self._credit_waiting)

    def hold_credit(self, is_held: bool) -> None:
        """Give no credit to bulk streams, or give them what has come together."""
        self.holds_credit = is_held
        while self._credit_waiting and not is_held:
            self.need_control(self._credit_waiting.popleft())

    def close(self, goodbye: bytes) -> None:
        """Send this frame next, and nothing after it."""
        if not self._is_closing:
            self._is_closing = True
            self._goodbye = goodbye

    def need_control(self, stream: StreamState) -> None:
        """Note that a frame other than DATA or END is due for ``stream``."""
        if not stream.in_control_ring:
            stream.in_control_ring = True
            self._control_ring.append(stream)

    def need_data(self, stream: StreamState) -> None:
        """Note that DATA or the end of it may be due for ``stream``."""
        wants = stream.end_due or stream.stop_due
        if stream.pending:
            wants = stream.send_credit > 0
        if wants and not stream.in_data_ring:
            stream.in_data_ring = True
            self._data_rings[_ring_of(stream)].append(stream)

    def take(self, head: memoryview, now: float) -> tuple[int, memoryview | None]:
        """See ``SessionCore.take``."""
        if self._is_closing:
            goodbye, self._goodbye = self._goodbye, None
            return _put(head, 0, goodbye or b""), None
        used = self._take_control(head, now)
        if self._control_ring:  # the head is full; an OPEN must not come after its DATA
            return used, None
        for number, ring in enumerate(self._data_rings):
            while ring and not self._held[number]:
                if number >= _N_URGENT_RINGS and used >= self.body_bytes_max:
                    return used, None  # many small frames are no more than one turn
                if len(head) - used <= FRAME_HEADER_BYTES + _CONTROL_FRAME_BYTES_MAX:
                    return used, None
                used, body = self._take_data(ring, head, used)
                if body is not None:
                    return used, body
        return used, None

    def take_urgent(self, head: memoryview, now: float) -> int:
        """See ``SessionCore.take_urgent``."""
        used = 0
        if self._is_closing:
            return used
        has_news = self.opened_bytes > self._acknowledged_bytes
        if self._is_ack_due or (has_news and self._keepalive.has_due):
            self._acknowledged_bytes = self.opened_bytes
            self._acknowledged_at, self._is_late = now, False
            used = _put(head, used, encode_ack(self.opened_bytes))
        if self._keepalive.has_due:
            used = _put(head, used, self._keepalive.take(now))
        return used

    def _take_control(self, head: memoryview, now: float) -> int:
        used = self.take_urgent(head, now)
        while self._control_ring and len(head) - used >= 3 * _CONTROL_FRAME_BYTES_MAX:
            stream = self._control_ring.popleft()
            stream.in_control_ring = False
            used = self._take_stream_control(stream, head, used)
        return used

    def _take_stream_control(self, stream: StreamState, head: memoryview, used: int) -> int:
        if stream.open_due:
            stream.open_due = False
            frame = encode_open(
                stream.stream_id, stream.service, stream.priority, stream.deadline_ms
            )
            used = _put(head, used, frame)
        if stream.reset_due is not None:
            reset, stream.reset_due = stream.reset_due, None
            used = self._put_reset(stream, reset, head, used)
        elif stream.credit_due and self.holds_credit and stream.priority is Priority.BULK:
            if stream not in self._credit_waiting:
                self._credit_waiting.append(stream)
        elif stream.credit_due and not stream.is_ended:
            stream.receive_credit += stream.credit_due
            used = _put(head, used, encode_credit(stream.stream_id, stream.credit_due))
            stream.credit_due = 0
        return used

    def _take_data(
        self, ring: deque[StreamState], head: memoryview, used: int
    ) -> tuple[int, memoryview | None]:
        """Serve the first stream of ``ring`` once, and drop it from the ring or move it back."""
        stream = ring.popleft()
        stream.in_data_ring = False
        if not stream.pending:
            return self._take_end(stream, head, used), None
        first = stream.pending[0]
        size = min(len(first), stream.send_credit, self.body_bytes_max)
        if size == 0:  # comes back with the next CREDIT
            return used, None
        body: memoryview | None = None
        if size > limits.DATA_INLINE_BYTES_MAX:
            body = first[:size]
            FRAME_HEADER.pack_into(head, used, FrameKind.DATA, stream.stream_id, size)
            used += FRAME_HEADER_BYTES
        else:
            size = min(size, len(head) - used - FRAME_HEADER_BYTES)
            frame_end = used + FRAME_HEADER_BYTES + size
            FRAME_HEADER.pack_into(head, used, FrameKind.DATA, stream.stream_id, size)
            head[used + FRAME_HEADER_BYTES : frame_end] = first[:size]
            used = frame_end
        self._note_sent(stream, first, size)
        return used, body

    def _note_sent(self, stream: StreamState, first: memoryview, size: int) -> None:
        stream.send_credit -= size
        self.sent_bytes[stream.priority] += size
        self.sent_for[stream.purpose] += size
        if size == len(first):
            stream.pending.popleft()
            if not stream.pending:
                self._effects.append(Changed(stream))
        else:
            stream.pending[0] = first[size:]
        self.need_data(stream)

    def _take_end(self, stream: StreamState, head: memoryview, used: int) -> int:
        """Write END, or after it the word that no task reads any more."""
        if stream.end_due:
            stream.end_due = False
            stream.send_finished = True
            used = _put(head, used, encode_frame(FrameKind.END, stream.stream_id))
        if stream.stop_due and not stream.receive_finished:
            stream.stop_due = False
            stop = Reset(ResetCode.CANCELLED, "this stream is read no more", False)
            return self._put_reset(stream, stop, head, used)
        self._table.remove_if_finished(stream)
        return used

    def _put_reset(self, stream: StreamState, reset: Reset, head: memoryview, used: int) -> int:
        stream.send_finished = True
        code = reset.code if not reset.by_peer else ResetCode.CANCELLED
        reason = reset.reason if not reset.by_peer else ""
        used = _put(head, used, encode_reset(stream.stream_id, ResetCode(code), reason))
        self._table.remove_if_finished(stream)
        return used


def _ring_of(stream: StreamState) -> int:
    if stream.purpose in HELD_PURPOSES:
        return _N_URGENT_RINGS + HELD_PURPOSES.index(stream.purpose)
    return min(stream.priority, Priority.STATE)


def _put(head: memoryview, used: int, frame: bytes) -> int:
    end = used + len(frame)
    head[used:end] = frame
    return end
