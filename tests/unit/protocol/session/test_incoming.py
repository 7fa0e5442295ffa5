"""What a session core makes of what comes, frame by frame, and how long it waits for more."""

from __future__ import annotations

import pytest

from swarmnode import limits
from swarmnode.errors import (
    ChannelBroken,
    DeadlineExceeded,
    KeyInUse,
    LimitExceeded,
    MalformedMessage,
    RemoteProtocolError,
)
from swarmnode.protocol.session.effects import Changed, Ended, Opened, Removed
from swarmnode.protocol.session.keepalive import PONG_WAIT_S, Keepalive
from swarmnode.protocol.session.records import Role
from swarmnode.protocol.uplink import Purpose
from swarmnode.wire.frames import FrameKind, encode_credit, encode_frame
from swarmnode.wire.session import (
    GoodbyeCode,
    Priority,
    ResetCode,
    encode_goodbye,
    encode_open,
    encode_reset,
)
from tests.unit.protocol.session.test_outgoing import (
    INLINE,
    WINDOW,
    hear,
    kinds,
    open_stream,
    parsed,
    peers_stream,
    quiet_core,
    turn,
)

BULK_WINDOW = limits.BULK_WINDOW_BYTES


def data_of(stream_id: int, n_bytes: int) -> bytes:
    return encode_frame(FrameKind.DATA, stream_id, bytes(n_bytes))


# --- DATA --------------------------------------------------------------------------------------


def test_what_comes_is_counted_for_its_stream_its_priority_and_its_purpose() -> None:
    core = quiet_core(Role.SERVER)
    for number, (service, priority) in enumerate(
        [("work", Priority.CONTROL), ("blob/get", Priority.BULK), ("work", Priority.BULK)]
    ):
        hear(core, encode_open(2 * number + 1, service, priority, 0))
    streams = [e.stream for e in core.poll_effects() if isinstance(e, Opened)]
    for stream, sizes in zip(streams, ((1, 2), (30, 40), (500, 600)), strict=True):
        for n_bytes in sizes:
            hear(core, data_of(stream.stream_id, n_bytes))
            assert core.poll_effects() == [Changed(stream)]
        assert stream.arrived_bytes == sum(sizes)
        assert stream.receive_credit == WINDOW - sum(sizes)
    counted = core.statistics()
    assert counted.received_bytes == (3, 0, 1170)
    assert (counted.unread_bytes, counted.streams_open, counted.streams_opened) == (1173, 3, 3)
    by_purpose = dict(zip(Purpose, core.received_for, strict=True))
    assert by_purpose == {
        Purpose.STATE: 3,
        Purpose.SNAPSHOTS: 70,
        Purpose.EXCHANGE: 1100,
        Purpose.RELAYING: 0,
    }


def test_what_is_decrypted_to_its_place_is_counted_alike() -> None:
    core, size = quiet_core(Role.SERVER), INLINE + 1
    stream = peers_stream(core, Priority.BULK)
    buffer = bytearray(2 * size)
    for number in (1, 2, 3, 4):
        hear(core, data_of(1, size)[:-size])
        if number == 2:
            stream.inbox.take()
            stream.inbox.lend(memoryview(buffer))
        destination = core.body_destination(size)
        assert destination is not None
        destination[:] = bytes([number]) * size
        core.body_received(size)
        is_waiting = number == 2
        assert core.poll_effects() == [Changed(stream)] * (not is_waiting)
        assert stream.arrived_bytes == number * size
    assert stream.inbox.take_back() == 2 * size
    assert buffer == b"\2" * size + b"\3" * size
    assert bytes(stream.inbox.take()) == b"\4" * size
    assert core.statistics().received_bytes == (0, 0, 4 * size)
    assert core.received_for[Purpose.EXCHANGE] == 4 * size
    assert stream.credit_due == 2 * size, "of what went where it is read"
    assert stream.receive_credit == WINDOW - 4 * size


def test_only_what_is_large_and_wanted_is_decrypted_to_its_place() -> None:
    core = quiet_core(Role.SERVER)
    stream = peers_stream(core, Priority.BULK)
    assert core.body_destination(INLINE + 1) is None, "no DATA has begun"
    hear(core, data_of(1, INLINE + 2)[: -(INLINE + 2)])
    assert core.body_destination(INLINE) is None
    assert core.body_destination(INLINE + 3) is None, "it goes on behind the frame"
    for size in (INLINE + 1, INLINE + 2):
        destination = core.body_destination(size)
        assert destination is not None
        assert len(destination) == size
    stream.receive_credit = INLINE + 2
    assert core.body_destination(INLINE + 2) is not None
    stream.receive_credit = INLINE + 1
    assert core.body_destination(INLINE + 2) is None
    stream.receive_credit = WINDOW
    core.finish(stream)
    assert core.body_destination(INLINE + 2) is None


def test_a_window_can_be_filled_to_the_byte() -> None:
    core = quiet_core(Role.SERVER)
    stream = peers_stream(core, Priority.BULK)
    hear(core, data_of(1, WINDOW - 1), data_of(1, 1))
    assert stream.receive_credit == 0
    assert core.statistics().unread_bytes == WINDOW
    with pytest.raises(LimitExceeded, match="1 bytes of DATA, but the credit left is 0"):
        hear(core, data_of(1, 1))


def test_what_still_comes_for_a_stream_that_was_reset_is_dropped_without_a_word() -> None:
    core = quiet_core(Role.SERVER)
    stream = peers_stream(core, Priority.BULK)
    hear(core, data_of(1, 10))
    core.reset(stream, ResetCode.REFUSED, "no")
    assert core.statistics().unread_bytes == 0
    turn(core)
    core.poll_effects()
    hear(core, data_of(1, 10))
    assert core.poll_effects() == []
    assert core.statistics().unread_bytes == 0
    assert turn(core) == []


# --- credit ------------------------------------------------------------------------------------


def test_a_reader_opens_the_full_window_once() -> None:
    for priority, window in ((Priority.BULK, BULK_WINDOW), (Priority.STATE, WINDOW)):
        core = quiet_core(Role.SERVER)
        stream = peers_stream(core, priority)
        core.attend(stream)
        more = window - WINDOW
        assert turn(core) == (parsed(encode_credit(1, more)) if more else [])
        assert (stream.window_bytes, stream.receive_credit) == (window, window)
        core.attend(stream)
        assert not core.has_outgoing
        assert not core.consumed(stream, window // 4 - 1)
        assert turn(core) == []
        assert core.consumed(stream, 1)
        assert turn(core) == parsed(encode_credit(1, window // 4))


def test_a_window_that_the_shell_makes_larger_is_opened_by_the_difference() -> None:
    core = quiet_core(Role.SERVER)
    stream = peers_stream(core, Priority.BULK)
    core.attend(stream)
    turn(core)
    core.bulk_window_bytes = BULK_WINDOW + 100
    core.attend(stream)
    assert turn(core) == parsed(encode_credit(1, 100))
    core.bulk_window_bytes = WINDOW
    core.attend(stream)
    assert turn(core) == [], "what was given is given"
    assert stream.window_bytes == BULK_WINDOW + 100


def test_no_window_is_opened_where_nothing_more_comes() -> None:
    core = quiet_core(Role.SERVER)
    stream = peers_stream(core, Priority.BULK)
    hear(core, encode_frame(FrameKind.END, 1))
    core.attend(stream)
    assert turn(core) == []
    assert stream.credit_due == 0


def test_a_peer_gives_credit_up_to_a_bound_and_no_byte_beyond_it() -> None:
    core = quiet_core()
    stream = open_stream(core, Priority.BULK)
    hear(core, encode_credit(1, limits.CREDIT_BYTES_MAX - WINDOW))
    assert stream.send_credit == limits.CREDIT_BYTES_MAX
    with pytest.raises(LimitExceeded, match="bytes of credit"):
        hear(core, encode_credit(1, 1))


# --- OPEN, END and RESET -------------------------------------------------------------------------


def test_each_side_numbers_its_streams_by_twos() -> None:
    for role, own, peers in ((Role.CLIENT, (1, 3, 5), (2, 4)), (Role.SERVER, (2, 4, 6), (1, 3))):
        core = quiet_core(role)
        assert [open_stream(core, Priority.STATE).stream_id for _ in own] == list(own)
        found = [peers_stream(core, Priority.CONTROL, number) for number in peers]
        assert [stream.is_local for stream in found] == [False, False]
        assert core.statistics().streams_opened == 5
        for stream_id in (own[-1] + 2, peers[-1] + 2):
            with pytest.raises(RemoteProtocolError, match="never opened"):
                hear(core, encode_credit(stream_id, 1))
        for stream_id in (*own, *peers):
            hear(core, encode_credit(stream_id, 1))


def test_a_peer_may_leave_out_numbers_but_not_go_back() -> None:
    core = quiet_core(Role.SERVER)
    hear(core, encode_open(7, "work", Priority.STATE, 0))
    hear(core, encode_credit(5, 1))  # one that is over, for all we know
    for stream_id in (5, 7, 8):
        with pytest.raises(RemoteProtocolError, match=f"stream id {stream_id}, expected 9"):
            hear(core, encode_open(stream_id, "work", Priority.STATE, 0))
    hear(core, encode_open(9, "work", Priority.STATE, 0))


@pytest.mark.parametrize(
    ("priority", "most"),
    [
        (Priority.STATE, limits.STREAMS_PER_SIDE_MAX),
        (Priority.BULK, limits.BULK_STREAMS_PER_SIDE_MAX),
    ],
)
def test_a_peer_has_so_many_streams_open_and_another_once_one_is_over(
    priority: Priority, most: int
) -> None:
    core = quiet_core(Role.SERVER)
    for number in range(most + 3):
        if number >= most:
            ended = 2 * (number - most) + 1
            hear(core, encode_reset(ended, ResetCode.CANCELLED, ""))
            assert kinds(turn(core)) == [FrameKind.RESET]
        hear(core, encode_open(2 * number + 1, "work", priority, 0))
    with pytest.raises(LimitExceeded, match="open streams"):
        hear(core, encode_open(2 * most + 7, "work", priority, 0))
    assert core.statistics().streams_open == most
    if priority is Priority.BULK:
        hear(core, encode_open(2 * most + 7, "work", Priority.STATE, 0))


def test_streams_of_ours_that_end_make_no_room_for_more_of_the_peer() -> None:
    core = quiet_core(Role.SERVER)
    for number in range(limits.BULK_STREAMS_PER_SIDE_MAX):
        hear(core, encode_open(2 * number + 1, "work", Priority.BULK, 0))
    own = open_stream(core, Priority.BULK)
    core.end(own)
    turn(core)
    hear(core, encode_frame(FrameKind.END, own.stream_id))
    assert core.poll_effects()[-1] == Removed(own)
    with pytest.raises(LimitExceeded, match="of them bulk"):
        hear(core, encode_open(99, "work", Priority.BULK, 0))


def test_small_streams_that_are_over_make_no_room_for_bulk() -> None:
    core = quiet_core(Role.SERVER)
    hear(core, encode_open(1, "work", Priority.STATE, 0))
    for number in range(limits.BULK_STREAMS_PER_SIDE_MAX):
        hear(core, encode_open(2 * number + 3, "work", Priority.BULK, 0))
    hear(core, encode_reset(1, ResetCode.CANCELLED, ""))
    turn(core)
    with pytest.raises(LimitExceeded, match="of them bulk"):
        hear(core, encode_open(99, "work", Priority.BULK, 0))


def test_what_came_whole_stays_to_be_read_when_a_reset_follows() -> None:
    core = quiet_core(Role.SERVER)
    stream = peers_stream(core, Priority.CONTROL)
    hear(core, data_of(1, 3), encode_frame(FrameKind.END, 1))
    assert core.poll_effects() == [Changed(stream), Changed(stream)]
    hear(core, encode_reset(1, ResetCode.CANCELLED, ""))
    assert stream.inbox.unread_bytes == 3
    assert stream.end_received
    assert core.statistics().resets_received == 1


def test_a_reset_takes_what_lies_unread_and_the_first_one_stands() -> None:
    core = quiet_core(Role.SERVER)
    stream = peers_stream(core, Priority.CONTROL)
    core.queue(stream, memoryview(b"lost"))
    hear(core, data_of(1, 3))
    core.poll_effects()
    hear(core, encode_reset(1, ResetCode.FAILED, "first"))
    assert core.poll_effects() == [Changed(stream)]
    assert stream.inbox.unread_bytes == 0
    assert (stream.is_cut, stream.end_received) == (True, False)
    hear(core, encode_reset(1, ResetCode.REFUSED, "second"))
    assert stream.reset is not None
    assert (stream.reset.code, stream.reset.reason) == (ResetCode.FAILED, "first")
    assert core.statistics().resets_received == 2
    assert turn(core) == parsed(encode_reset(1, ResetCode.CANCELLED, ""))


def test_a_reset_of_ours_that_waits_goes_out_as_it_is_though_the_peers_comes_first() -> None:
    core = quiet_core(Role.SERVER)
    stream = peers_stream(core, Priority.CONTROL)
    core.reset(stream, ResetCode.REFUSED, "ours")
    hear(core, encode_reset(1, ResetCode.FAILED, "theirs"))
    assert stream.reset is not None
    assert stream.reset.reason == "ours"
    assert turn(core) == parsed(encode_reset(1, ResetCode.REFUSED, "ours"))
    assert core.statistics().streams_open == 0


def test_a_reset_after_our_end_is_not_answered() -> None:
    core = quiet_core()
    stream = open_stream(core, Priority.CONTROL)
    core.end(stream)
    turn(core)
    hear(core, encode_reset(1, ResetCode.FAILED, ""))
    assert turn(core) == []
    assert core.poll_effects() == [Changed(stream), Removed(stream)]


@pytest.mark.parametrize(
    ("code", "reason", "error", "words"),
    [
        (GoodbyeCode.DONE, "going home", ChannelBroken, "closed the session: going home"),
        (GoodbyeCode.DONE, "", ChannelBroken, "closed the session: without a reason"),
        (GoodbyeCode.KEY_IN_USE, "two of you", KeyInUse, "a peer says: two of you"),
    ],
)
def test_a_goodbye_ends_the_session_and_is_not_answered(
    code: GoodbyeCode, reason: str, error: type[Exception], words: str
) -> None:
    core = quiet_core()
    hear(core, encode_goodbye(code, reason))
    (ended,) = core.poll_effects()
    assert isinstance(ended, Ended)
    assert isinstance(ended.cause, error)
    assert words in str(ended.cause)
    assert ended.goodbye is None


# --- time --------------------------------------------------------------------------------------


def test_bytes_of_any_kind_put_off_the_ping_and_the_end() -> None:
    core = quiet_core()
    assert core.next_deadline() == limits.PING_QUIET_S
    core.handle(memoryview(encode_open(2, "work", Priority.STATE, 0)), 4.0)
    assert core.next_deadline() == 4.0 + limits.PING_QUIET_S
    core.heard(5.0)
    assert core.next_deadline() == 5.0 + limits.PING_QUIET_S
    assert not core.is_suspect(5.0 + limits.SUSPECT_S - 0.1)
    assert core.is_suspect(5.0 + limits.SUSPECT_S)
    core.begin_anew(9.0)
    assert not core.is_suspect(9.0 + limits.SUSPECT_S - 0.1)
    assert core.next_deadline() == 9.0 + limits.PING_QUIET_S


def test_a_silent_peer_is_told_why_the_session_ends() -> None:
    core = quiet_core()
    core.handle_deadline(limits.SILENCE_S - 0.1)
    assert core.poll_effects() == []
    core.handle_deadline(limits.SILENCE_S)
    (ended,) = core.poll_effects()
    assert isinstance(ended, Ended)
    assert ended.goodbye == (GoodbyeCode.TIMEOUT, str(ended.cause))


def answered(role: Role = Role.CLIENT) -> Keepalive:
    """Return a clock whose first ping came back at once, at 0."""
    keepalive = Keepalive(role, 0.0)
    assert keepalive.has_due
    frames = keepalive.take(0.0)
    assert frames == encode_frame(FrameKind.PING, 0, (1).to_bytes(8, "big"))
    assert not keepalive.has_due
    keepalive.on_pong((1).to_bytes(8, "big"), 0.0)
    return keepalive


@pytest.mark.parametrize(("role", "times"), [(Role.CLIENT, 1.0), (Role.SERVER, 1.5)])
def test_one_ping_is_due_after_a_quiet_while(role: Role, times: float) -> None:
    keepalive = answered(role)
    quiet_s = times * limits.PING_QUIET_S
    assert keepalive.next_deadline() == quiet_s
    assert keepalive.check(quiet_s - 0.1) is None
    assert not keepalive.has_due
    assert keepalive.check(quiet_s) is None
    assert keepalive.has_due
    assert keepalive.take(quiet_s) == encode_frame(FrameKind.PING, 0, (2).to_bytes(8, "big"))
    assert keepalive.take(quiet_s) == b""


def test_the_shell_is_woken_once_when_a_peer_becomes_suspect() -> None:
    keepalive = answered()
    keepalive.check(limits.PING_QUIET_S)
    keepalive.take(limits.PING_QUIET_S)
    assert keepalive.next_deadline() == limits.SUSPECT_S
    assert keepalive.check(limits.SUSPECT_S) is None
    assert keepalive.next_deadline() == 2 * limits.PING_QUIET_S
    keepalive.check(2 * limits.PING_QUIET_S)
    assert keepalive.next_deadline() == limits.SILENCE_S
    keepalive.heard(12.0)
    assert keepalive.next_deadline() == 12.0 + limits.PING_QUIET_S
    keepalive.check(12.0 + limits.PING_QUIET_S)
    assert keepalive.next_deadline() == 12.0 + limits.SUSPECT_S, "heard: it may be suspect again"


def test_an_answer_is_waited_for_so_long_and_anew_on_another_channel() -> None:
    keepalive = Keepalive(Role.CLIENT, 0.0)
    keepalive.take(1.0)
    for now in range(1, int(PONG_WAIT_S) + 1):
        keepalive.heard(float(now))
        assert keepalive.check(float(now)) is None
        assert not keepalive.has_due, "one at a time"
    assert keepalive.next_deadline() == 1.0 + PONG_WAIT_S
    keepalive.begin_anew(PONG_WAIT_S)
    keepalive.heard(2 * PONG_WAIT_S - 1.0)
    keepalive.check(2 * PONG_WAIT_S - 1.0)
    assert keepalive.next_deadline() == 2 * PONG_WAIT_S
    assert keepalive.check(2 * PONG_WAIT_S - 0.1) is None
    dead = keepalive.check(2 * PONG_WAIT_S)
    assert isinstance(dead, DeadlineExceeded)
    assert "answer to a ping" in str(dead)


def test_a_new_channel_after_an_answer_waits_for_no_other() -> None:
    keepalive = answered()
    keepalive.begin_anew(1.0)
    assert keepalive.next_deadline() == 1.0 + limits.PING_QUIET_S
    with pytest.raises(MalformedMessage, match="PONG without"):
        keepalive.on_pong((1).to_bytes(8, "big"), 1.0)


def test_a_talking_peer_is_pinged_at_the_interval() -> None:
    keepalive = answered()
    keepalive.heard(limits.PING_INTERVAL_S - 1.0)
    assert keepalive.next_deadline() == limits.PING_INTERVAL_S
    keepalive.check(limits.PING_INTERVAL_S - 0.1)
    assert not keepalive.has_due
    keepalive.check(limits.PING_INTERVAL_S)
    assert keepalive.has_due


def test_an_answer_and_a_ping_go_out_together_and_each_once() -> None:
    keepalive = answered()
    keepalive.check(limits.PING_QUIET_S)
    keepalive.on_ping(b"12345678")
    assert keepalive.has_due
    assert keepalive.take(limits.PING_QUIET_S) == encode_frame(
        FrameKind.PONG, 0, b"12345678"
    ) + encode_frame(FrameKind.PING, 0, (2).to_bytes(8, "big"))
    assert not keepalive.has_due
    for number in (1, 3):
        with pytest.raises(MalformedMessage, match="PONG without"):
            keepalive.on_pong(number.to_bytes(8, "big"), 9.0)


def test_the_round_trip_is_the_first_sample_and_then_an_eighth_of_each() -> None:
    keepalive = Keepalive(Role.CLIENT, 0.0)
    keepalive.take(1.0)
    keepalive.on_pong((1).to_bytes(8, "big"), 3.0)
    assert keepalive.rtt_s == 2.0
    keepalive.heard(29.0)
    keepalive.check(30.0)
    keepalive.take(30.0)
    keepalive.on_pong((2).to_bytes(8, "big"), 40.0)
    assert keepalive.rtt_s == 2.0 + (10.0 - 2.0) / 8
