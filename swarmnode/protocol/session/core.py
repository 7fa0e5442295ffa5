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
immediate.

Bounds: streams by STREAMS_PER_SIDE_MAX, unread bytes by each stream's window,
control frames by construction.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarmnode import limits
from swarmnode.errors import (
    ChannelBroken,
    KeyInUse,
    LimitExceeded,
    LocalProtocolError,
    MalformedMessage,
    SwarmNodeError,
)
from swarmnode.protocol.session.buffers import BufferPool
from swarmnode.protocol.session.effects import Changed, Effect, Ended, Opened
from swarmnode.protocol.session.keepalive import Keepalive
from swarmnode.protocol.session.outgoing import Outgoing
from swarmnode.protocol.session.records import Role
from swarmnode.protocol.session.stream import Reset, StreamState
from swarmnode.protocol.session.table import StreamTable
from swarmnode.protocol.uplink import Purpose
from swarmnode.wire.frames import FrameKind, FrameParser, decode_ack, decode_credit
from swarmnode.wire.session import (
    GoodbyeCode,
    Priority,
    ResetCode,
    decode_open,
    decode_reason,
    encode_goodbye,
)


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
        self._effects: list[Effect] = []
        self._parser = FrameParser()
        self._keepalive = Keepalive(role, now)
        self._table = StreamTable(role, self._effects)
        self._outgoing = Outgoing(self._table, self._keepalive, self._effects)
        self._received_bytes = [0 for _ in Priority]
        self.received_for = [0 for _ in Purpose]
        self.acknowledged_bytes = 0  # of the bytes that we have sealed, what the peer says it has
        self._resets_received = 0
        self.bulk_window_bytes = limits.BULK_WINDOW_BYTES  # of a stream that is read from now on

    @property
    def pool(self) -> BufferPool:
        """Memory for what streams receive."""
        return self._table.pool

    # --- the five methods -----------------------------------------------------------------

    def handle(self, plaintext: memoryview, now: float) -> None:
        """Take in the plaintext of one record.

        Raises:
            RemoteProtocolError: the peer broke a rule; the session must end.
        """
        self._keepalive.heard(now)
        for kind, stream_id, payload in self._parser.feed(plaintext):
            if kind == FrameKind.DATA:
                self._on_data(stream_id, memoryview(payload))
            else:
                self._on_control(kind, stream_id, bytes(payload), now)

    def heard(self, now: float) -> None:
        """Note that bytes came, perhaps no whole record: on a slow path one takes a while."""
        self._keepalive.heard(now)

    def opened(self, received_bytes: int, now: float) -> None:
        """Note that so many bytes of whole records were opened so far; now and then, say so."""
        self._outgoing.opened(received_bytes, now)

    def is_suspect(self, now: float) -> bool:
        """Whether the peer is silent for so long that another way should be looked for."""
        return self._keepalive.is_suspect(now)

    def begin_anew(self, now: float) -> None:
        """Go on with another channel."""
        self._keepalive.begin_anew(now)

    def poll_effects(self) -> list[Effect]:
        """Return what happened, in order, and forget it."""
        effects = self._effects.copy()
        self._effects.clear()
        return effects

    def next_deadline(self) -> float:
        """Return when :meth:`handle_deadline` wants to be called."""
        return self._keepalive.next_deadline()

    def handle_deadline(self, now: float) -> None:
        """Ping a quiet peer; end the session with a dead one."""
        cause = self._keepalive.check(now)
        if cause is not None:
            self._effects.append(Ended(cause, (GoodbyeCode.TIMEOUT, str(cause))))

    def statistics(self) -> CoreStatistics:
        """Return counters."""
        return CoreStatistics(
            sent_bytes=tuple(self._outgoing.sent_bytes),
            received_bytes=tuple(self._received_bytes),
            streams_open=len(self._table),
            streams_opened=self._table.opened_total,
            resets_received=self._resets_received,
            unread_bytes=sum(stream.inbox.unread_bytes for stream in self._table),
            rtt_s=self._keepalive.rtt_s,
        )

    # --- local commands -------------------------------------------------------------------

    def open_stream(self, service: str, priority: Priority, deadline_ms: int = 0) -> StreamState:
        """Start a stream. The shell keeps to STREAMS_PER_SIDE_MAX."""
        stream = self._table.add_own(service, priority, deadline_ms)
        stream.open_due = True
        self._outgoing.need_control(stream)
        return stream

    def queue(self, stream: StreamState, data: memoryview) -> None:
        """Lend ``data`` until ``stream.pending`` is empty; a Changed effect tells when."""
        if not stream.can_send:
            raise LocalProtocolError(f"stream {stream.stream_id}: DATA after its end")
        if len(data):
            stream.pending.append(data)
            self._outgoing.need_data(stream)

    def end(self, stream: StreamState) -> None:
        """Say, after everything queued, that no more comes; no-op on a stream that is over."""
        if stream.can_send:
            stream.end_due = True
            self._outgoing.need_data(stream)

    def reset(self, stream: StreamState, code: ResetCode, reason: str) -> None:
        """End both directions at once; what is queued or unread is lost."""
        if stream.is_finished or stream.reset is not None:
            return
        stream.reset = stream.reset_due = Reset(code, reason, by_peer=False)
        stream.withdraw()
        stream.end_due = stream.stop_due = False
        self._discard_inbound(stream)
        self._outgoing.need_control(stream)
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
        """Note that a task reads this stream: open its full window, if it is not yet."""
        window_bytes = limits.STREAM_WINDOW_BYTES
        if stream.priority is Priority.BULK:
            window_bytes = self.bulk_window_bytes
        if stream.window_bytes < window_bytes and not stream.is_ended:
            stream.credit_due += window_bytes - stream.window_bytes
            stream.window_bytes = window_bytes
            self._outgoing.need_control(stream)

    def consumed(self, stream: StreamState, n_bytes: int) -> bool:
        """Give back credit for bytes that the reader has; return whether a CREDIT is due."""
        if stream.is_ended:
            return False
        stream.credit_due += n_bytes
        # A quarter of the window in one frame: a sender never stalls on the way back.
        if stream.credit_due * 4 < stream.window_bytes:
            return False
        self._outgoing.need_control(stream)
        return True

    def close(self, code: GoodbyeCode, reason: str) -> None:
        """Send GOODBYE next and nothing after it."""
        self._outgoing.close(encode_goodbye(code, reason))

    # --- sending --------------------------------------------------------------------------

    @property
    def has_outgoing(self) -> bool:
        """Whether :meth:`take` may have something to give."""
        return self._outgoing.has_due

    @property
    def is_small(self) -> bool:
        """Whether one record takes all that is due."""
        return self._outgoing.is_small

    def take(self, head: memoryview, now: float) -> tuple[int, memoryview | None]:
        """Write the most urgent frames into ``head``; return (bytes written, body).

        A body is the payload of the DATA frame whose header is the last thing in ``head``.
        It is the sender's memory: encrypt it before anything else runs. (0, None) means
        that nothing is due.
        """
        return self._outgoing.take(head, now)

    def wants(self, purpose: Purpose) -> bool:
        """Whether there is DATA for one of HELD_PURPOSES to be sent, held or not."""
        return self._outgoing.wants(purpose)

    def hold(self, purpose: Purpose, *, is_held: bool) -> None:
        """Keep DATA for one of HELD_PURPOSES back, or not."""
        self._outgoing.hold(purpose, is_held=is_held)

    @property
    def sent_for(self) -> list[int]:
        """Bytes of DATA that :meth:`take` has given, by Purpose."""
        return self._outgoing.sent_for

    def hold_credit(self, is_held: bool) -> bool:
        """Keep the credit of bulk streams back or not; return whether a peer waits for it."""
        self._outgoing.hold_credit(is_held)
        return self._outgoing.has_credit_waiting

    def take_urgent(self, head: memoryview, now: float) -> int:
        """Write what cannot wait for the peer to acknowledge: ACK, PONG, PING; return its bytes."""
        return self._outgoing.take_urgent(head, now)

    @property
    def body_bytes_max(self) -> int:
        """The largest body of one turn; the shell lowers it where a turn takes long."""
        return self._outgoing.body_bytes_max

    @body_bytes_max.setter
    def body_bytes_max(self, n_bytes: int) -> None:
        self._outgoing.body_bytes_max = n_bytes

    # --- receiving ------------------------------------------------------------------------

    def body_destination(self, n_bytes: int) -> memoryview | None:
        """Return where to decrypt a record of ``n_bytes`` that lies inside one DATA frame.

        None: decrypt it anywhere and call :meth:`handle`, which also finds what is wrong.
        After decrypting to the destination call :meth:`body_received`.
        """
        if n_bytes > self._parser.data_left or n_bytes <= limits.DATA_INLINE_BYTES_MAX:
            return None
        stream = self._table.get(self._parser.data_stream)
        if stream is None or stream.is_ended or n_bytes > stream.receive_credit:
            return None
        return stream.inbox.destination(n_bytes)

    def body_received(self, n_bytes: int) -> None:
        """Note that the last destination holds ``n_bytes`` of authenticated data."""
        stream = self._table.receiving(self._parser.data_stream, FrameKind.DATA)
        self._parser.skip_data(n_bytes)
        stream.receive_credit -= n_bytes
        stream.arrived_bytes += n_bytes
        self._received_bytes[stream.priority] += n_bytes
        self.received_for[stream.purpose] += n_bytes
        read_bytes = stream.inbox.commit(n_bytes)
        if read_bytes:
            self.consumed(stream, read_bytes)
        if not stream.inbox.waits_for_more():
            self._effects.append(Changed(stream))

    def _on_data(self, stream_id: int, piece: memoryview) -> None:
        stream = self._table.receiving(stream_id, FrameKind.DATA)
        if len(piece) > stream.receive_credit:
            raise LimitExceeded(
                f"stream {stream_id}: {len(piece)} bytes of DATA, but the credit left is "
                f"{stream.receive_credit}"
            )
        stream.receive_credit -= len(piece)
        stream.arrived_bytes += len(piece)
        self._received_bytes[stream.priority] += len(piece)
        self.received_for[stream.purpose] += len(piece)
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
                self._keepalive.on_ping(payload)
            case FrameKind.PONG:
                self._keepalive.on_pong(payload, now)
            case FrameKind.ACK:
                self.acknowledged_bytes = decode_ack(payload)
            case FrameKind.GOODBYE:
                self._effects.append(Ended(_cause_of(*decode_reason(payload)), None))
            case _:
                raise MalformedMessage("a second HELLO")

    def _on_open(self, stream_id: int, payload: bytes) -> None:
        self._effects.append(Opened(self._table.add_peers(stream_id, *decode_open(payload))))

    def _on_credit(self, stream_id: int, n_bytes: int) -> None:
        stream = self._table.known(stream_id, FrameKind.CREDIT)
        if stream is None:
            return
        stream.send_credit += n_bytes
        if stream.send_credit > limits.CREDIT_BYTES_MAX:
            raise LimitExceeded(
                f"stream {stream_id}: {stream.send_credit} bytes of credit, at most "
                f"{limits.CREDIT_BYTES_MAX} are allowed"
            )
        self._outgoing.need_data(stream)

    def _on_end(self, stream_id: int) -> None:
        stream = self._table.receiving(stream_id, FrameKind.END)
        stream.receive_finished = stream.end_received = True
        self._effects.append(Changed(stream))
        self._table.remove_if_finished(stream)

    def _on_reset(self, stream_id: int, code: int, reason: str) -> None:
        stream = self._table.known(stream_id, FrameKind.RESET)
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
            self._outgoing.need_control(stream)
        self._effects.append(Changed(stream))
        self._table.remove_if_finished(stream)

    def _stop(self, stream: StreamState) -> None:
        """Tell the peer, once and after everything that we still send, to send no more."""
        if not (stream.is_stopped or stream.receive_finished or stream.reset):
            stream.is_stopped = stream.stop_due = True
            self._outgoing.need_data(stream)

    def _discard_inbound(self, stream: StreamState) -> None:
        stream.is_discarding = True
        stream.inbox.clear()


def _cause_of(code: int, reason: str) -> SwarmNodeError:
    """Return what a GOODBYE of an open session means."""
    if code == GoodbyeCode.KEY_IN_USE:
        return KeyInUse(f"a peer says: {reason}")
    return ChannelBroken(f"the peer closed the session: {reason or 'without a reason'}")
