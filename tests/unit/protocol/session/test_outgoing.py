"""What a session core sends, frame by frame: in which order, how much at once, and how often."""

from __future__ import annotations

import pytest

from swarmnode import limits
from swarmnode.protocol.session.core import SessionCore
from swarmnode.protocol.session.effects import Changed, Opened, Removed
from swarmnode.protocol.session.outgoing import ACK_EVERY_S
from swarmnode.protocol.session.records import Role
from swarmnode.protocol.session.stream import StreamState
from swarmnode.protocol.uplink import Purpose
from swarmnode.wire.frames import (
    FRAME_HEADER_BYTES,
    FrameKind,
    FrameParser,
    decode_ack,
    encode_ack,
    encode_credit,
    encode_frame,
)
from swarmnode.wire.session import (
    GoodbyeCode,
    Priority,
    ResetCode,
    decode_reason,
    encode_goodbye,
    encode_open,
    encode_reset,
)

WINDOW = limits.STREAM_WINDOW_BYTES
INLINE = limits.DATA_INLINE_BYTES_MAX
Frames = list[tuple[FrameKind, int, bytes]]
PING = (FrameKind.PING, 0, (1).to_bytes(8, "big"))


def quiet_core(role: Role = Role.CLIENT) -> SessionCore:
    """Return a core whose first ping is out and answered."""
    core = SessionCore(role, 0.0)
    assert turn(core) == [PING]
    hear(core, encode_frame(FrameKind.PONG, 0, PING[2]))
    return core


def hear(core: SessionCore, *frames: bytes) -> None:
    core.handle(memoryview(b"".join(frames)), 0.0)


def parsed(data: bytes | memoryview) -> Frames:
    found = FrameParser().feed(memoryview(data))
    return [(FrameKind(kind), stream_id, bytes(payload)) for kind, stream_id, payload in found]


def turn(core: SessionCore, now: float = 0.0, head_bytes: int = 32 * limits.KIB) -> Frames:
    """Take one turn; return its frames."""
    head = memoryview(bytearray(head_bytes))
    used, body = core.take(head, now)
    return parsed(bytes(head[:used]) + bytes(body or b""))


def kinds(frames: Frames) -> list[FrameKind]:
    return [kind for kind, _, _ in frames]


def open_stream(core: SessionCore, priority: Priority, service: str = "work") -> StreamState:
    """Open a stream and send the word of it."""
    stream = core.open_stream(service, priority)
    assert kinds(turn(core)) == [FrameKind.OPEN]
    return stream


def peers_stream(core: SessionCore, priority: Priority, stream_id: int = 1) -> StreamState:
    hear(core, encode_open(stream_id, "work", priority, 0))
    (stream,) = [e.stream for e in core.poll_effects() if isinstance(e, Opened)]
    return stream


# --- whether anything is due -------------------------------------------------------------------


def test_a_session_begins_with_a_ping_and_has_counted_nothing() -> None:
    core = SessionCore(Role.CLIENT, 0.0)
    counted = core.statistics()
    assert counted.sent_bytes == counted.received_bytes == (0, 0, 0)
    assert (counted.streams_open, counted.streams_opened) == (0, 0)
    assert (counted.resets_received, counted.unread_bytes, counted.rtt_s) == (0, 0, None)
    assert core.sent_for == core.received_for == [0] * len(Purpose)
    assert core.acknowledged_bytes == 0
    assert core.has_outgoing
    assert turn(core) == [PING]
    assert not core.has_outgoing
    assert turn(core) == []


def test_a_stream_begins_with_its_window_and_nothing_else() -> None:
    core = quiet_core()
    for stream in (core.open_stream("work", Priority.BULK), peers_stream(core, Priority.BULK, 2)):
        assert stream.send_credit == stream.receive_credit == stream.window_bytes == WINDOW
        assert (stream.arrived_bytes, stream.credit_due, stream.deadline_ms) == (0, 0, 0)
        assert (stream.is_cut, stream.is_stopped, stream.end_received) == (False, False, False)
        assert (stream.is_ended, stream.is_finished, stream.can_send) == (False, False, True)
        assert stream.reset is None


def test_whatever_is_due_is_said_to_be_and_no_more_once_it_is_out() -> None:
    core = quiet_core()
    assert not core.has_outgoing
    stream = core.open_stream("work", Priority.STATE)
    assert core.has_outgoing
    assert turn(core) == [parsed(encode_open(1, "work", Priority.STATE, 0))[0]]
    assert not core.has_outgoing
    core.queue(stream, memoryview(b""))
    assert not core.has_outgoing, "no bytes are no DATA"
    core.queue(stream, memoryview(b"data"))
    assert core.has_outgoing
    assert turn(core) == [(FrameKind.DATA, 1, b"data")]
    assert not core.has_outgoing
    core.end(stream)
    assert core.has_outgoing
    assert turn(core) == [(FrameKind.END, 1, b"")]
    assert not core.has_outgoing
    hear(core, encode_frame(FrameKind.PING, 0, b"12345678"))
    assert core.has_outgoing
    assert turn(core) == [(FrameKind.PONG, 0, b"12345678")]
    assert not core.has_outgoing


def test_a_session_that_closes_says_its_first_reason_once_and_nothing_else() -> None:
    core = quiet_core()
    core.open_stream("work", Priority.CONTROL)
    core.opened(2 * limits.ACK_EVERY_BYTES, 0.0)
    core.close(GoodbyeCode.DONE, "first")
    core.close(GoodbyeCode.TIMEOUT, "second")
    assert core.has_outgoing
    assert core.take_urgent(memoryview(bytearray(256)), 0.0) == 0
    assert turn(core) == parsed(encode_goodbye(GoodbyeCode.DONE, "first"))
    core.close(GoodbyeCode.TIMEOUT, "third")
    assert not core.has_outgoing
    assert turn(core) == []


# --- acknowledgements --------------------------------------------------------------------------


def acks(frames: Frames) -> list[int]:
    return [decode_ack(payload) for kind, _, payload in frames if kind is FrameKind.ACK]


def test_what_came_is_acknowledged_at_once_by_the_mebibyte() -> None:
    core = quiet_core()
    core.opened(INLINE + 1, 10.0)
    assert acks(turn(core, 10.0)) == [INLINE + 1]
    core.opened(INLINE + limits.ACK_EVERY_BYTES, 10.0)
    assert not core.has_outgoing
    core.opened(INLINE + 1 + limits.ACK_EVERY_BYTES, 10.0)
    assert core.has_outgoing
    assert acks(turn(core, 10.0)) == [INLINE + 1 + limits.ACK_EVERY_BYTES]
    assert not core.has_outgoing


def test_on_a_slow_line_more_than_a_few_requests_are_acknowledged_in_time() -> None:
    core = quiet_core()
    core.opened(INLINE, 10.0)
    assert not core.has_outgoing, "no more than a few requests"
    core.opened(INLINE + 1, 10.0)
    assert acks(turn(core, 10.0)) == [INLINE + 1], "none was sent before"
    due_at = 10.0 + ACK_EVERY_S
    core.opened(2 * (INLINE + 1), due_at - 0.1)
    assert not core.has_outgoing
    core.opened(2 * INLINE + 1, due_at)
    assert not core.has_outgoing
    core.opened(2 * (INLINE + 1), due_at)
    assert acks(turn(core, due_at)) == [2 * (INLINE + 1)]
    assert not core.has_outgoing


def test_a_ping_or_its_answer_takes_along_what_else_came() -> None:
    head = memoryview(bytearray(256))
    core = quiet_core()
    core.opened(1, 0.0)
    assert core.take_urgent(head, 0.0) == 0
    for _ in range(2):
        hear(core, encode_frame(FrameKind.PING, 0, b"12345678"))
        used = core.take_urgent(head, 0.0)
        found = parsed(head[:used])
        assert found[-1] == (FrameKind.PONG, 0, b"12345678")
        core.opened(2, 0.0)
    assert acks(found) == [2]
    hear(core, encode_frame(FrameKind.PING, 0, b"12345678"))
    used = core.take_urgent(head, 0.0)
    assert kinds(parsed(head[:used])) == [FrameKind.PONG], "nothing came since"


def test_what_the_peer_acknowledges_is_known() -> None:
    core = quiet_core()
    hear(core, encode_ack(77))
    assert core.acknowledged_bytes == 77


# --- what is held ------------------------------------------------------------------------------

BULK_OF = {Purpose.EXCHANGE: "exchange", Purpose.SNAPSHOTS: "blob/get"}


@pytest.mark.parametrize("purpose", list(BULK_OF))
def test_what_is_held_for_one_purpose_holds_up_nothing_else(purpose: Purpose) -> None:
    (other,) = set(BULK_OF) - {purpose}
    core = quiet_core()
    streams = {each: open_stream(core, Priority.BULK, name) for each, name in BULK_OF.items()}
    core.hold(purpose, is_held=True)
    assert not core.wants(purpose)
    core.queue(streams[purpose], memoryview(bytes(INLINE + 1)))
    assert core.wants(purpose), "though it is held"
    assert not core.wants(other)
    assert not core.has_outgoing
    assert core.is_small, "what is held is not due"
    assert turn(core) == []
    core.queue(streams[other], memoryview(b"other"))
    assert core.has_outgoing
    assert turn(core) == [(FrameKind.DATA, streams[other].stream_id, b"other")]
    core.hold(purpose, is_held=False)
    assert core.has_outgoing
    assert kinds(turn(core)) == [FrameKind.DATA]
    assert not core.wants(purpose)
    expected = [0] * len(Purpose)
    expected[purpose], expected[other] = INLINE + 1, len(b"other")
    assert core.sent_for == expected
    assert core.statistics().sent_bytes == (0, 0, INLINE + 1 + len(b"other"))


@pytest.mark.parametrize(
    ("n_bytes", "is_small"), [((INLINE,), True), ((INLINE + 1,), False), ((1, 1), False)]
)
def test_small_is_one_stream_with_little(n_bytes: tuple[int, ...], is_small: bool) -> None:
    core = quiet_core()
    for stream in [open_stream(core, Priority.BULK) for _ in n_bytes]:
        core.queue(stream, memoryview(bytes(n_bytes[0])))
    assert core.is_small is is_small


def test_credit_of_bulk_that_is_held_is_given_in_one_once_it_is_not() -> None:
    core = quiet_core(Role.SERVER)
    core.hold_credit(False)
    bulk, talk = peers_stream(core, Priority.BULK), peers_stream(core, Priority.CONTROL, 3)
    assert not core.hold_credit(True), "no peer waits for any"
    for stream in (bulk, talk, bulk):
        assert core.consumed(stream, WINDOW // 4)
        turn_of = turn(core)
        assert [stream_id for _, stream_id, _ in turn_of] == [3] * (stream is talk)
    assert core.hold_credit(True), "the peer waits for it"
    assert not core.has_outgoing
    assert not core.hold_credit(False)
    assert turn(core) == parsed(encode_credit(1, 2 * (WINDOW // 4)))
    assert turn(core) == []
    assert bulk.receive_credit == WINDOW + 2 * (WINDOW // 4)


# --- how much in one turn ----------------------------------------------------------------------


def test_what_is_larger_than_a_few_requests_is_given_out_as_it_lies_with_its_owner() -> None:
    for n_bytes in (INLINE, INLINE + 1):
        core = quiet_core()
        stream = open_stream(core, Priority.BULK)
        data = bytearray(n_bytes)
        core.queue(stream, memoryview(data))
        used, body = core.take(memoryview(bytearray(32 * limits.KIB)), 0.0)
        if n_bytes == INLINE:
            assert (used, body) == (FRAME_HEADER_BYTES + n_bytes, None)
        else:
            assert used == FRAME_HEADER_BYTES
            assert body is not None
            assert body.obj is data
            assert len(body) == n_bytes


@pytest.mark.parametrize(("service", "is_one_turn"), [("exchange", True), ("relay-leg/", False)])
def test_many_small_frames_of_bulk_are_no_more_than_one_turn(
    service: str, is_one_turn: bool
) -> None:
    core = quiet_core()
    streams = [open_stream(core, Priority.BULK, service) for _ in range(6)]
    frame_bytes = FRAME_HEADER_BYTES + 100
    core.body_bytes_max = 3 * frame_bytes
    assert core.body_bytes_max == 3 * frame_bytes
    for stream in streams:
        core.queue(stream, memoryview(bytes(100)))
    assert len(turn(core)) == (3 if is_one_turn else 6)


def test_streams_take_turns_however_many_pieces_each_was_lent() -> None:
    core = quiet_core()
    first, second = open_stream(core, Priority.BULK), open_stream(core, Priority.BULK)
    for stream in (first, first, first, second):
        core.queue(stream, memoryview(bytes(INLINE + 1)))
    order = [stream_id for _ in range(4) for _, stream_id, _ in turn(core)]
    assert order == [first.stream_id, second.stream_id, first.stream_id, first.stream_id]


def test_small_data_that_a_head_has_no_room_for_goes_on_in_the_next() -> None:
    core = quiet_core()
    first, second = open_stream(core, Priority.CONTROL), open_stream(core, Priority.CONTROL)
    core.queue(first, memoryview(bytes(2000)))
    core.queue(second, memoryview(bytes(3000)))
    sizes = [[len(payload) for _, _, payload in turn(core, head_bytes=4096)] for _ in range(3)]
    left = 4096 - 2000 - 2 * FRAME_HEADER_BYTES
    assert sizes == [[2000, left], [3000 - left], []]


def test_data_goes_as_far_as_the_credit_to_the_byte() -> None:
    core = quiet_core()
    stream = open_stream(core, Priority.CONTROL)
    core.queue(stream, memoryview(bytes(WINDOW + 3)))
    sent = 0
    while frames := turn(core):
        sent += sum(len(payload) for _, _, payload in frames)
    assert (sent, stream.send_credit) == (WINDOW, 0)
    assert not core.has_outgoing
    hear(core, encode_credit(1, 1))
    assert core.has_outgoing
    assert turn(core) == [(FrameKind.DATA, 1, b"\0")]
    assert turn(core) == []
    hear(core, encode_credit(1, 9))
    assert turn(core) == [(FrameKind.DATA, 1, b"\0\0")]
    assert stream.send_credit == 7
    assert core.statistics().sent_bytes == (WINDOW + 3, 0, 0)


def test_a_sender_is_woken_once_all_that_it_lent_is_out() -> None:
    core = quiet_core()
    stream = open_stream(core, Priority.CONTROL)
    for _ in range(2):
        core.queue(stream, memoryview(bytes(INLINE + 1)))
    turn(core)
    assert core.poll_effects() == []
    turn(core)
    assert core.poll_effects() == [Changed(stream)]
    assert core.poll_effects() == []


def test_a_stream_that_is_noted_twice_before_a_full_head_leaves_nothing_due() -> None:
    core = SessionCore(Role.CLIENT, 0.0)
    for _ in range(3):
        core.reset(core.open_stream("work", Priority.CONTROL), ResetCode.CANCELLED, "x" * 300)
    found: Frames = []
    while core.has_outgoing:
        frames = turn(core, head_bytes=1600)
        assert frames, "something was due"
        found += frames
    assert kinds(found) == [FrameKind.PING, *[FrameKind.OPEN, FrameKind.RESET] * 3]


# --- ends --------------------------------------------------------------------------------------


def test_a_reset_is_all_that_is_said_of_a_stream_with_its_end_still_to_come() -> None:
    core = quiet_core()
    stream = open_stream(core, Priority.CONTROL)
    core.queue(stream, memoryview(b"lost"))
    core.end(stream)
    core.reset(stream, ResetCode.REFUSED, "no")
    assert core.poll_effects() == [Changed(stream)]
    assert stream.reset is not None
    assert not stream.reset.by_peer
    assert stream.is_cut
    assert turn(core) == parsed(encode_reset(1, ResetCode.REFUSED, "no"))
    hear(core, encode_credit(1, 5))
    assert turn(core) == []
    assert core.statistics().streams_open == 1, "until the peer has answered"
    hear(core, encode_reset(1, ResetCode.CANCELLED, ""))
    assert turn(core) == []
    assert core.statistics().streams_open == 0


def test_the_answer_to_a_reset_repeats_neither_its_code_nor_its_reason() -> None:
    core = quiet_core()
    stream = open_stream(core, Priority.CONTROL)
    core.queue(stream, memoryview(b"lost"))
    core.end(stream)
    hear(core, encode_reset(1, ResetCode.FAILED, "a bug"))
    assert turn(core) == parsed(encode_reset(1, ResetCode.CANCELLED, ""))
    assert core.poll_effects() == [Changed(stream), Removed(stream)]
    core.reset(stream, ResetCode.FAILED, "late")
    assert core.poll_effects() == []
    assert turn(core) == []


def test_one_that_is_left_unread_is_stopped_after_its_end_and_only_once() -> None:
    core = quiet_core(Role.SERVER)
    stream = peers_stream(core, Priority.CONTROL)
    hear(core, encode_frame(FrameKind.DATA, 1, b"unread"))
    core.queue(stream, memoryview(b"answer"))
    core.finish(stream)
    core.finish(stream)
    found = turn(core)
    assert kinds(found) == [FrameKind.DATA, FrameKind.END, FrameKind.RESET]
    code, reason = decode_reason(found[-1][2])
    assert code == ResetCode.CANCELLED
    assert "read no more" in reason
    hear(core, encode_frame(FrameKind.DATA, 1, b"crossed"), encode_credit(1, 5))
    assert turn(core) == []
    assert core.statistics().unread_bytes == 0
    hear(core, encode_frame(FrameKind.END, 1))
    assert core.statistics().streams_open == 0
    assert turn(core) == []


def test_one_that_is_left_is_not_stopped_when_the_peer_has_ended_meanwhile() -> None:
    core = quiet_core(Role.SERVER)
    stream = peers_stream(core, Priority.CONTROL)
    hear(core, encode_frame(FrameKind.DATA, 1, b"unread"))
    core.finish(stream)
    hear(core, encode_frame(FrameKind.END, 1))
    assert kinds(turn(core)) == [FrameKind.END]
    assert core.statistics().streams_open == 0


def test_no_credit_is_given_for_a_stream_that_is_read_no_more() -> None:
    core = quiet_core(Role.SERVER)
    stream = peers_stream(core, Priority.CONTROL)
    assert turn(core) == [], "no credit of nothing"
    assert core.consumed(stream, WINDOW // 2)
    hear(core, encode_frame(FrameKind.END, 1))
    assert turn(core) == []
    assert not core.consumed(stream, WINDOW)
