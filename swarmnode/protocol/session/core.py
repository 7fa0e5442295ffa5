"""The session core: streams, credits, priorities, keepalive and the rules of closing.

It sees plaintext records and gives plaintext frames; it encrypts nothing and
waits for nothing. Its event is the plaintext of one record. It departs from
the five methods in two places, because bulk data passes here at gigabytes a
second and an object for each piece would cost more than its encryption:

* Sending is pulled. When the channel is ready the shell calls :meth:`take`,
  which picks by priority among all that is due and hands out the sender's
  own memory. So nothing is queued twice, and a withdrawn send never leaves
  half a frame behind.
* Receiving has a short cut. If a whole record is the inside of one DATA
  frame, :meth:`body_destination` says where to decrypt it to.

Local commands (open, queue, end, reset …) are methods, as their result is
immediate. Everything that is due to be sent is a flag or a number on a
stream, never a queue that a peer could grow.

Bounds: streams by STREAMS_PER_SIDE_MAX, unread bytes by each stream's window,
control frames by construction.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from swarmnode import limits
from swarmnode.errors import (
    ChannelBroken,
    DeadlineExceeded,
    LimitExceeded,
    LocalProtocolError,
    MalformedMessage,
    RemoteProtocolError,
    SwarmNodeError,
)
from swarmnode.protocol.session.buffers import BufferPool
from swarmnode.protocol.session.inbox import Inbox
from swarmnode.protocol.session.records import Role
from swarmnode.protocol.session.stream import Reset, StreamState
from swarmnode.wire.frames import (
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    PING_BYTES,
    FrameKind,
    FrameParser,
    decode_credit,
    encode_credit,
    encode_frame,
)
from swarmnode.wire.session import (
    GoodbyeCode,
    Priority,
    ResetCode,
    decode_open,
    decode_reason,
    encode_goodbye,
    encode_open,
    encode_reset,
)

_CONTROL_FRAME_BYTES_MAX = FRAME_HEADER_BYTES + limits.FRAME_CONTROL_BYTES_MAX
_WINDOWS = {
    Priority.CONTROL: limits.STREAM_WINDOW_BYTES,
    Priority.STATE: limits.STREAM_WINDOW_BYTES,
    Priority.BULK: limits.BULK_WINDOW_BYTES,
}
_RTT_WEIGHT = 0.125  # of a new sample, as in RFC 6298


@dataclass(frozen=True, slots=True)
class Opened:
    """The peer opened a stream."""

    stream: StreamState


@dataclass(frozen=True, slots=True)
class Changed:
    """Something that a task may wait for happened to this stream: look again."""

    stream: StreamState


@dataclass(frozen=True, slots=True)
class Removed:
    """Both directions of this stream are over; its id is never used again."""

    stream: StreamState


@dataclass(frozen=True, slots=True)
class Ended:
    """The session is over; ``goodbye`` is what to tell the peer, if it may still listen."""

    cause: SwarmNodeError
    goodbye: tuple[GoodbyeCode, str] | None


Effect = Opened | Changed | Removed | Ended


@dataclass(frozen=True, slots=True)
class CoreStatistics:
    """Counters of one session; the tuples are indexed by Priority."""

    sent_bytes: tuple[int, ...]
    received_bytes: tuple[int, ...]
    streams_open: int
    streams_opened: int
    resets_received: int
    unread_bytes: int
    rtt_s: float | None


class SessionCore:
    """One side of an authenticated session."""

    def __init__(self, role: Role, now: float) -> None:
        self.pool = BufferPool()
        self.body_bytes_max = limits.FRAME_DATA_BYTES_MAX  # the shell lowers it on slow paths
        self._parser = FrameParser()
        self._streams: dict[int, StreamState] = {}
        # As in HTTP/2: odd ids are the client's, even ones the server's.
        self._next_id = 1 if role is Role.CLIENT else 2
        self._peer_id_next = 2 if role is Role.CLIENT else 1
        self._peer_open = 0
        self._peer_open_bulk = 0
        self._effects: list[Effect] = []

        self._control_ring: deque[StreamState] = deque()
        self._data_rings: tuple[deque[StreamState], ...] = tuple(deque() for _ in Priority)
        self._goodbye_due: bytes | None = None
        self._is_closing = False
        self._pong_due: bytes | None = None  # only the newest: a flood of pings queues nothing

        self._ping_due = True  # at once, so that the round trip is known early
        self._ping_number = 0
        self._ping_sent_at: float | None = None
        self._next_ping_at = now + limits.PING_INTERVAL_S
        self._heard_at = now

        self._sent_bytes = [0 for _ in Priority]
        self._received_bytes = [0 for _ in Priority]
        self._streams_opened = 0
        self._resets_received = 0
        self._rtt_s: float | None = None

    # --- the five methods -----------------------------------------------------------------

    def handle(self, plaintext: memoryview, now: float) -> None:
        """Take in the plaintext of one record.

        Raises:
            RemoteProtocolError: the peer broke a rule; the session must end.
        """
        self._heard_at = now
        for kind, stream_id, payload in self._parser.feed(plaintext):
            if kind == FrameKind.DATA:
                self._on_data(stream_id, memoryview(payload))
            else:
                self._on_control(kind, stream_id, bytes(payload), now)

    def heard(self, now: float) -> None:
        """Note that bytes came, perhaps no whole record: on a slow path one takes a while."""
        self._heard_at = now

    def poll_effects(self) -> list[Effect]:
        """Return what happened, in order, and forget it."""
        effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> float:
        """Return when :meth:`handle_deadline` wants to be called."""
        deadline = self._heard_at + limits.SILENCE_S
        if self._ping_sent_at is not None:
            return min(deadline, self._ping_sent_at + limits.PONG_WAIT_S)
        return min(deadline, self._next_ping_at)

    def handle_deadline(self, now: float) -> None:
        """Ping a quiet peer; end the session with a dead one."""
        pinged_at = self._ping_sent_at
        if now >= self._heard_at + limits.SILENCE_S:
            self._end(DeadlineExceeded("any byte from the peer", limits.SILENCE_S))
        elif pinged_at is not None and now >= pinged_at + limits.PONG_WAIT_S:
            self._end(DeadlineExceeded("the peer's answer to a ping", limits.PONG_WAIT_S))
        elif pinged_at is None and now >= self._next_ping_at:
            self._ping_due = True
            self._next_ping_at = now + limits.PING_INTERVAL_S

    def statistics(self) -> CoreStatistics:
        """Return counters."""
        return CoreStatistics(
            sent_bytes=tuple(self._sent_bytes),
            received_bytes=tuple(self._received_bytes),
            streams_open=len(self._streams),
            streams_opened=self._streams_opened,
            resets_received=self._resets_received,
            unread_bytes=sum(s.inbox.unread_bytes for s in self._streams.values()),
            rtt_s=self._rtt_s,
        )

    # --- local commands -------------------------------------------------------------------

    def open_stream(self, service: str, priority: Priority, deadline_ms: int = 0) -> StreamState:
        """Start a stream. The shell keeps to STREAMS_PER_SIDE_MAX."""
        inbox = Inbox(self.pool)
        stream = StreamState(self._next_id, service, priority, is_local=True, inbox=inbox)
        stream.deadline_ms = deadline_ms
        stream.open_due = True
        self._next_id += 2
        self._add(stream)
        self._need_control(stream)
        return stream

    def queue(self, stream: StreamState, data: memoryview) -> None:
        """Lend ``data`` until ``stream.pending`` is empty; a Changed effect tells when."""
        if not stream.can_send:
            raise LocalProtocolError(f"stream {stream.stream_id}: DATA after its end")
        if len(data):
            stream.pending.append(data)
            self._need_data(stream)

    def end(self, stream: StreamState) -> None:
        """Say, after everything queued, that no more comes; no-op on a stream that is over."""
        if stream.can_send:
            stream.end_due = True
            self._need_data(stream)

    def reset(self, stream: StreamState, code: ResetCode, reason: str) -> None:
        """End both directions at once; what is queued or unread is lost."""
        if stream.is_finished or stream.reset is not None:
            return
        stream.reset = stream.reset_due = Reset(code, reason, by_peer=False)
        stream.withdraw()
        stream.end_due = stream.stop_due = False
        self._discard_inbound(stream)
        self._need_control(stream)
        self._effects.append(Changed(stream))

    def finish(self, stream: StreamState) -> None:
        """Leave a stream politely: what is queued still goes out, what comes is not wanted."""
        if stream.reset is not None:
            return
        self.end(stream)
        has_unread = bool(stream.inbox.unread_bytes)
        self._discard_inbound(stream)
        # Mostly the peer's END is all that is still to come, and needs no answer.
        if has_unread:
            self._stop(stream)

    def attend(self, stream: StreamState) -> None:
        """Note that somebody reads this stream: open its full window."""
        if stream.window_bytes < _WINDOWS[stream.priority] and not stream.is_ended:
            stream.credit_due += _WINDOWS[stream.priority] - stream.window_bytes
            stream.window_bytes = _WINDOWS[stream.priority]
            self._need_control(stream)

    def consumed(self, stream: StreamState, n_bytes: int) -> None:
        """Give back credit for bytes that the reader has."""
        if stream.is_ended:
            return
        stream.credit_due += n_bytes
        # A quarter of the window in one frame: a sender never stalls on the way back.
        if stream.credit_due * 4 >= stream.window_bytes:
            self._need_control(stream)

    def close(self, code: GoodbyeCode, reason: str) -> None:
        """Send GOODBYE next and nothing after it."""
        if not self._is_closing:
            self._is_closing = True
            self._goodbye_due = encode_goodbye(code, reason)

    # --- sending --------------------------------------------------------------------------

    @property
    def has_outgoing(self) -> bool:
        """Whether :meth:`take` may have something to give."""
        if self._is_closing:
            return self._goodbye_due is not None
        return bool(self._control_ring or self._ping_due or self._pong_due or any(self._data_rings))

    def take(self, head: memoryview, now: float) -> tuple[int, memoryview | None]:
        """Write the most urgent frames into ``head``; return (bytes written, body).

        A body is the payload of the DATA frame whose header is the last thing in ``head``.
        It is the sender's memory: encrypt it before anything else runs. (0, None) means
        that nothing is due.
        """
        if self._is_closing:
            goodbye, self._goodbye_due = self._goodbye_due, None
            return _put(head, 0, goodbye or b""), None
        used = self._take_control(head, now)
        if self._control_ring:  # the head is full; an OPEN must not come after its DATA
            return used, None
        for ring in self._data_rings:
            while ring:
                if len(head) - used <= FRAME_HEADER_BYTES + _CONTROL_FRAME_BYTES_MAX:
                    return used, None
                used, body = self._take_data(ring, head, used)
                if body is not None:
                    return used, body
        return used, None

    def _take_control(self, head: memoryview, now: float) -> int:
        used = 0
        if self._pong_due is not None:
            used = _put(head, used, encode_frame(FrameKind.PONG, 0, self._pong_due))
            self._pong_due = None
        if self._ping_due:
            self._ping_due = False
            self._ping_number += 1
            self._ping_sent_at = now
            number = self._ping_number.to_bytes(PING_BYTES, "big")
            used = _put(head, used, encode_frame(FrameKind.PING, 0, number))
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
        self._sent_bytes[stream.priority] += size
        if size == len(first):
            stream.pending.popleft()
            if not stream.pending:
                self._effects.append(Changed(stream))
        else:
            stream.pending[0] = first[size:]
        self._need_data(stream)

    def _take_end(self, stream: StreamState, head: memoryview, used: int) -> int:
        """Write END, or after it the word that nobody reads any more."""
        if stream.end_due:
            stream.end_due = False
            stream.send_finished = True
            used = _put(head, used, encode_frame(FrameKind.END, stream.stream_id))
        if stream.stop_due and not stream.receive_finished:
            stream.stop_due = False
            stop = Reset(ResetCode.CANCELLED, "nobody reads this stream any more", False)
            return self._put_reset(stream, stop, head, used)
        self._remove_if_finished(stream)
        return used

    def _put_reset(self, stream: StreamState, reset: Reset, head: memoryview, used: int) -> int:
        stream.send_finished = True
        code = reset.code if not reset.by_peer else ResetCode.CANCELLED
        reason = reset.reason if not reset.by_peer else ""
        used = _put(head, used, encode_reset(stream.stream_id, ResetCode(code), reason))
        self._remove_if_finished(stream)
        return used

    def _need_control(self, stream: StreamState) -> None:
        if not stream.in_control_ring:
            stream.in_control_ring = True
            self._control_ring.append(stream)

    def _need_data(self, stream: StreamState) -> None:
        wants = stream.end_due or stream.stop_due
        if stream.pending:
            wants = stream.send_credit > 0
        if wants and not stream.in_data_ring:
            stream.in_data_ring = True
            self._data_rings[stream.priority].append(stream)

    # --- receiving ------------------------------------------------------------------------

    def body_destination(self, n_bytes: int) -> memoryview | None:
        """Return where to decrypt a record of ``n_bytes`` that lies inside one DATA frame.

        None: decrypt it anywhere and call :meth:`handle`, which also finds what is wrong.
        After decrypting to the destination call :meth:`body_received`.
        """
        if n_bytes > self._parser.data_left or n_bytes <= limits.DATA_INLINE_BYTES_MAX:
            return None
        stream = self._streams.get(self._parser.data_stream)
        if stream is None or stream.is_ended or n_bytes > stream.receive_credit:
            return None
        return stream.inbox.destination(n_bytes)

    def body_received(self, n_bytes: int) -> None:
        """Note that the last destination holds ``n_bytes`` of authenticated data."""
        stream = self._streams[self._parser.data_stream]
        self._parser.skip_data(n_bytes)
        stream.receive_credit -= n_bytes
        self._received_bytes[stream.priority] += n_bytes
        read_bytes = stream.inbox.commit(n_bytes)
        if read_bytes:
            self.consumed(stream, read_bytes)
        if not stream.inbox.is_waiting_for_more:
            self._effects.append(Changed(stream))

    def _on_data(self, stream_id: int, piece: memoryview) -> None:
        stream = self._streams.get(stream_id)
        if stream is None or stream.receive_finished:
            raise RemoteProtocolError(f"DATA for stream {stream_id}, which is not open")
        if len(piece) > stream.receive_credit:
            raise LimitExceeded(
                f"stream {stream_id}: {len(piece)} bytes of DATA, but the credit left is "
                f"{stream.receive_credit}"
            )
        stream.receive_credit -= len(piece)
        self._received_bytes[stream.priority] += len(piece)
        if stream.is_discarding:
            self._stop(stream)
        else:
            stream.inbox.append(piece)
            self._effects.append(Changed(stream))

    def _on_control(self, kind: int, stream_id: int, payload: bytes, now: float) -> None:
        match kind:
            case FrameKind.OPEN:
                self._on_open(stream_id, payload)
            case FrameKind.CREDIT:
                self._on_credit(stream_id, decode_credit(payload))
            case FrameKind.END:
                self._on_end(stream_id)
            case FrameKind.RESET:
                self._on_reset(stream_id, *decode_reason(payload))
            case FrameKind.PING:
                self._pong_due = payload
            case FrameKind.PONG:
                self._on_pong(payload, now)
            case FrameKind.GOODBYE:
                _, reason = decode_reason(payload)
                text = reason or "without a reason"
                self._end_silently(ChannelBroken(f"the peer closed the session: {text}"))
            case _:
                raise MalformedMessage("a second HELLO")

    def _on_open(self, stream_id: int, payload: bytes) -> None:
        if stream_id % 2 != self._peer_id_next % 2 or stream_id < self._peer_id_next:
            raise RemoteProtocolError(
                f"OPEN with stream id {stream_id}, expected {self._peer_id_next}"
            )
        service, priority, deadline_ms = decode_open(payload)
        is_bulk = priority is Priority.BULK
        if (
            self._peer_open >= limits.STREAMS_PER_SIDE_MAX
            or self._peer_open_bulk + is_bulk > limits.BULK_STREAMS_PER_SIDE_MAX
        ):
            raise LimitExceeded(
                f"more than {limits.STREAMS_PER_SIDE_MAX} open streams, or more than "
                f"{limits.BULK_STREAMS_PER_SIDE_MAX} of them bulk"
            )
        self._peer_id_next = stream_id + 2
        inbox = Inbox(self.pool)
        stream = StreamState(stream_id, service, priority, is_local=False, inbox=inbox)
        stream.deadline_ms = deadline_ms
        self._add(stream)
        self._effects.append(Opened(stream))

    def _on_credit(self, stream_id: int, n_bytes: int) -> None:
        stream = self._known(stream_id, FrameKind.CREDIT)
        if stream is None:
            return
        stream.send_credit += n_bytes
        if stream.send_credit > limits.CREDIT_BYTES_MAX:
            raise LimitExceeded(
                f"stream {stream_id}: {stream.send_credit} bytes of credit, at most "
                f"{limits.CREDIT_BYTES_MAX} are allowed"
            )
        self._need_data(stream)

    def _on_end(self, stream_id: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is None or stream.receive_finished:
            raise RemoteProtocolError(f"END for stream {stream_id}, which is not open")
        stream.receive_finished = stream.end_received = True
        self._effects.append(Changed(stream))
        self._remove_if_finished(stream)

    def _on_reset(self, stream_id: int, code: int, reason: str) -> None:
        stream = self._known(stream_id, FrameKind.RESET)
        if stream is None:
            return
        self._resets_received += 1
        if stream.reset is None:
            stream.reset = Reset(code, reason, by_peer=True)
        if not stream.receive_finished:
            stream.receive_finished = True
            stream.inbox.clear()
        stream.withdraw()
        stream.end_due = stream.stop_due = False
        if not stream.send_finished and stream.reset_due is None:
            stream.reset_due = stream.reset
            self._need_control(stream)
        self._effects.append(Changed(stream))
        self._remove_if_finished(stream)

    def _on_pong(self, payload: bytes, now: float) -> None:
        if self._ping_sent_at is None or int.from_bytes(payload, "big") != self._ping_number:
            raise MalformedMessage("PONG without a PING")
        sample_s = now - self._ping_sent_at
        self._ping_sent_at = None
        if self._rtt_s is None:
            self._rtt_s = sample_s
        else:
            self._rtt_s += _RTT_WEIGHT * (sample_s - self._rtt_s)

    # --- the table ------------------------------------------------------------------------

    def _add(self, stream: StreamState) -> None:
        self._streams[stream.stream_id] = stream
        self._streams_opened += 1
        if not stream.is_local:
            self._peer_open += 1
            self._peer_open_bulk += stream.priority is Priority.BULK

    def _remove_if_finished(self, stream: StreamState) -> None:
        if stream.is_finished and self._streams.pop(stream.stream_id, None) is not None:
            if not stream.is_local:
                self._peer_open -= 1
                self._peer_open_bulk -= stream.priority is Priority.BULK
            self._effects.append(Removed(stream))

    def _known(self, stream_id: int, kind: FrameKind) -> StreamState | None:
        """Return the stream; None if it is over, as CREDIT and RESET may cross our END."""
        stream = self._streams.get(stream_id)
        if stream is None:
            is_peers = stream_id % 2 == self._peer_id_next % 2
            if stream_id >= (self._peer_id_next if is_peers else self._next_id):
                raise RemoteProtocolError(f"{kind.name} for stream {stream_id}, never opened")
        return stream

    def _stop(self, stream: StreamState) -> None:
        """Tell the peer, once and after everything that we still send, to send no more."""
        if not (stream.is_stopped or stream.receive_finished or stream.reset):
            stream.is_stopped = stream.stop_due = True
            self._need_data(stream)

    def _discard_inbound(self, stream: StreamState) -> None:
        stream.is_discarding = True
        stream.inbox.clear()

    def _end(self, cause: SwarmNodeError) -> None:
        self._effects.append(Ended(cause, (GoodbyeCode.TIMEOUT, str(cause))))

    def _end_silently(self, cause: SwarmNodeError) -> None:
        self._effects.append(Ended(cause, None))


def _put(head: memoryview, used: int, frame: bytes) -> int:
    end = used + len(frame)
    head[used:end] = frame
    return end
