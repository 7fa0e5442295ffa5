"""The session core alone: streams, credits, priorities, keepalive, and what is refused."""

from __future__ import annotations

import pytest

from swarmnode import limits
from swarmnode.errors import (
    DeadlineExceeded,
    LimitExceeded,
    LocalProtocolError,
    MalformedMessage,
    RemoteProtocolError,
)
from swarmnode.protocol.session.core import SessionCore
from swarmnode.protocol.session.effects import Changed, Ended, Opened, Removed
from swarmnode.protocol.session.keepalive import PONG_WAIT_S
from swarmnode.protocol.session.records import Role
from swarmnode.protocol.session.stream import StreamState
from swarmnode.wire.frames import (
    FRAME_HEADER_BYTES,
    FrameKind,
    FrameParser,
    encode_credit,
    encode_frame,
)
from swarmnode.wire.session import (
    GoodbyeCode,
    Priority,
    ResetCode,
    encode_goodbye,
    encode_open,
    encode_reset,
)
from tests.kits.session_kit import CorePair

WINDOW = limits.STREAM_WINDOW_BYTES


@pytest.fixture
def pair() -> CorePair:
    made = CorePair()
    made.pump()  # the first pings
    return made


def kinds(records: list[bytes]) -> list[FrameKind]:
    """Return the kinds of all whole frames in ``records``; a DATA frame counts per piece."""
    parser = FrameParser()
    return [FrameKind(f[0]) for r in records for f in parser.feed(memoryview(r))]


def opened_on(pair: CorePair) -> StreamState:
    """Deliver what the client has; return the one stream that the server sees opened."""
    _, effects = pair.pump()
    (stream,) = [effect.stream for effect in effects if isinstance(effect, Opened)]
    return stream


def read_all(core: SessionCore, stream: StreamState) -> bytes:
    data = bytearray()
    while piece := stream.inbox.take():
        data += piece
        core.consumed(stream, len(piece))
    return bytes(data)


def test_a_request_and_its_answer_travel_in_one_record_each(pair: CorePair) -> None:
    stream = pair.client.open_stream("echo", Priority.CONTROL, 1500)
    pair.client.queue(stream, memoryview(b"ping"))
    pair.client.end(stream)
    records = pair.records(pair.client)
    assert kinds(records) == [FrameKind.OPEN, FrameKind.DATA, FrameKind.END]
    assert len(records) == 1
    pair.deliver(records, pair.server)
    (opened,) = [e.stream for e in pair.server.poll_effects() if isinstance(e, Opened)]
    assert (opened.service, opened.priority, opened.deadline_ms) == ("echo", 0, 1500)
    assert read_all(pair.server, opened) == b"ping"
    assert opened.end_received
    pair.server.queue(opened, memoryview(b"pong"))
    pair.server.end(opened)
    client_effects, server_effects = pair.pump()
    assert read_all(pair.client, stream) == b"pong"
    assert Removed(stream) in client_effects
    assert Removed(opened) in server_effects
    assert pair.client.statistics().streams_open == pair.server.statistics().streams_open == 0


def test_an_unread_stream_holds_one_small_window(pair: CorePair) -> None:
    stream = pair.client.open_stream("bulk", Priority.BULK)
    pair.client.queue(stream, memoryview(bytes(20 * limits.MIB)))
    opened = opened_on(pair)
    assert opened.inbox.unread_bytes == WINDOW
    assert stream.pending


def test_reading_opens_the_bulk_window_and_returns_credit(pair: CorePair) -> None:
    data = bytes(range(256)) * (20 * 4096)  # 20 MiB
    stream = pair.client.open_stream("bulk", Priority.BULK)
    pair.client.queue(stream, memoryview(data))
    opened = opened_on(pair)
    pair.server.attend(opened)
    pair.pump()
    assert opened.inbox.unread_bytes == limits.BULK_WINDOW_BYTES
    received = b""
    while len(received) < len(data):
        received += read_all(pair.server, opened)
        pair.pump()
    assert received == data
    assert not stream.pending


def test_credit_is_given_back_by_the_quarter_of_a_window(pair: CorePair) -> None:
    stream = pair.client.open_stream("bulk", Priority.BULK)
    pair.client.queue(stream, memoryview(bytes(limits.MIB)))
    opened = opened_on(pair)
    assert not pair.server.consumed(opened, WINDOW // 4 - 1)
    assert pair.server.consumed(opened, 1)


def test_a_peer_is_given_credit_for_what_was_read_and_no_byte_more(pair: CorePair) -> None:
    stream = pair.client.open_stream("bulk", Priority.BULK)
    opened = opened_on(pair)
    for _ in range(3):
        pair.client.queue(stream, memoryview(bytes(WINDOW // 2)))
        pair.pump()
        read_all(pair.server, opened)
        pair.pump()
        assert stream.send_credit == opened.receive_credit == WINDOW


def test_a_control_stream_keeps_its_small_window(pair: CorePair) -> None:
    stream = pair.client.open_stream("talk", Priority.CONTROL)
    pair.client.queue(stream, memoryview(bytes(limits.MIB)))
    opened = opened_on(pair)
    pair.server.attend(opened)
    pair.pump()
    assert opened.inbox.unread_bytes == WINDOW


def test_control_goes_before_state_before_bulk(pair: CorePair) -> None:
    streams = {
        priority: pair.client.open_stream(priority.name.lower(), priority)
        for priority in (Priority.BULK, Priority.STATE, Priority.CONTROL)
    }
    for stream in streams.values():
        pair.client.queue(stream, memoryview(bytes(limits.DATA_INLINE_BYTES_MAX + 1)))
    parser = FrameParser()
    order = []
    for record in pair.records(pair.client):
        for kind, stream_id, _ in parser.feed(memoryview(record)):
            if kind == FrameKind.DATA and stream_id not in order:
                order.append(stream_id)
    assert order == [streams[priority].stream_id for priority in Priority]


def test_what_a_control_frame_waits_for_is_one_turn(pair: CorePair) -> None:
    bulk = pair.client.open_stream("bulk", Priority.BULK)
    pair.client.queue(bulk, memoryview(bytes(WINDOW)))
    pair.client.body_bytes_max = 64 * limits.KIB
    pair.records(pair.client, turns=1)
    talk = pair.client.open_stream("talk", Priority.CONTROL)
    pair.client.queue(talk, memoryview(b"urgent"))
    head = pair.records(pair.client, turns=1)[0]
    frames = list(FrameParser().feed(memoryview(head)))
    assert [kind for kind, _, _ in frames] == [FrameKind.OPEN, FrameKind.DATA]
    assert bytes(frames[1][2]) == b"urgent"


def test_bulk_streams_take_turns(pair: CorePair) -> None:
    streams = [pair.client.open_stream(f"bulk{i}", Priority.BULK) for i in range(3)]
    pair.client.body_bytes_max = 32 * limits.KIB
    for stream in streams:
        pair.client.queue(stream, memoryview(bytes(WINDOW)))
    pair.records(pair.client, turns=6)
    assert {stream.send_credit for stream in streams} == {WINDOW - 64 * limits.KIB}


@pytest.mark.parametrize("room", range(12))
def test_a_head_that_is_nearly_full_waits_for_the_next_record(pair: CorePair, room: int) -> None:
    streams = [pair.client.open_stream(name, Priority.CONTROL) for name in ("first", "second")]
    pair.records(pair.client)
    head = memoryview(bytearray(4096))
    data = bytes(len(head) - room - FRAME_HEADER_BYTES)
    pair.client.queue(streams[0], memoryview(data))
    pair.client.queue(streams[1], memoryview(b"of the second"))
    records = []
    while (taken := pair.client.take(head, pair.now)) != (0, None):
        used, body = taken
        assert body is None
        records.append(bytes(head[:used]))
    sizes = [
        len(frame[2]) for record in records for frame in FrameParser().feed(memoryview(record))
    ]
    assert sizes == [len(data), len(b"of the second")]


def test_streams_that_one_head_has_no_room_for_are_opened_by_the_next(pair: CorePair) -> None:
    names = [f"{n}-with-a-long-name" for n in range(limits.STREAMS_PER_SIDE_MAX)]
    for name in names:
        pair.client.open_stream(name, Priority.CONTROL)
    head = memoryview(bytearray(2048))
    records = []
    while used := pair.client.take(head, pair.now)[0]:
        records.append(bytes(head[:used]))
    assert len(records) > 1
    pair.deliver(records, pair.server)
    opened = [e.stream.service for e in pair.server.poll_effects() if isinstance(e, Opened)]
    assert opened == names


def test_what_takes_one_record_is_small(pair: CorePair) -> None:
    assert pair.client.is_small, "nothing is due"
    stream = pair.client.open_stream("bulk", Priority.BULK)
    assert pair.client.is_small
    pair.client.queue(stream, memoryview(bytes(limits.MIB)))
    assert not pair.client.is_small


def test_a_piece_that_is_all_that_is_read_is_given_as_it_came(pair: CorePair) -> None:
    pair.client.queue(pair.client.open_stream("echo", Priority.CONTROL), memoryview(b"ping"))
    inbox = opened_on(pair).inbox
    assert inbox.take_whole(3) is None
    piece = inbox.take_whole(4)
    assert piece is not None
    assert bytes(piece) == b"ping"
    assert inbox.unread_bytes == 0
    assert inbox.take_whole(4) is None


def test_a_withdrawn_send_leaves_whole_frames(pair: CorePair) -> None:
    first = pair.client.open_stream("first", Priority.BULK)
    other = pair.client.open_stream("other", Priority.BULK)
    pair.client.body_bytes_max = 32 * limits.KIB
    pair.client.queue(first, memoryview(bytes(WINDOW)))
    records = pair.records(pair.client, turns=2)
    first.withdraw()
    pair.client.queue(other, memoryview(b"still works"))
    pair.deliver(records + pair.records(pair.client), pair.server)
    opened = [e.stream for e in pair.server.poll_effects() if isinstance(e, Opened)]
    assert len(read_all(pair.server, opened[0])) == 64 * limits.KIB
    assert read_all(pair.server, opened[1]) == b"still works"


def test_reset_drops_both_directions_and_is_answered(pair: CorePair) -> None:
    stream = pair.client.open_stream("work", Priority.BULK)
    pair.client.queue(stream, memoryview(bytes(3 * limits.MIB)))
    opened = opened_on(pair)
    pair.server.reset(opened, ResetCode.REFUSED, "not now")
    client_effects, server_effects = pair.pump()
    assert Changed(stream) in client_effects  # who waits for it wakes up
    assert pair.client.statistics().resets_received == 1
    assert stream.reset is not None
    assert (stream.reset.code, stream.reset.reason) == (ResetCode.REFUSED, "not now")
    assert stream.reset.by_peer
    assert not stream.pending
    assert Removed(stream) in client_effects
    assert Removed(opened) in server_effects


def test_a_second_reset_says_nothing_more(pair: CorePair) -> None:
    stream = pair.client.open_stream("work", Priority.BULK)
    opened_on(pair)
    pair.client.reset(stream, ResetCode.CANCELLED, "")
    records = pair.records(pair.client)
    pair.client.reset(stream, ResetCode.CANCELLED, "")
    pair.client.finish(stream)
    assert kinds(records + pair.records(pair.client)) == [FrameKind.RESET]


def test_crossing_resets_end_the_stream_on_both_sides(pair: CorePair) -> None:
    stream = pair.client.open_stream("work", Priority.BULK)
    opened = opened_on(pair)
    pair.client.reset(stream, ResetCode.CANCELLED, "")
    pair.server.reset(opened, ResetCode.FAILED, "")
    from_client, from_server = pair.records(pair.client), pair.records(pair.server)
    pair.deliver(from_client, pair.server)
    pair.deliver(from_server, pair.client)
    assert pair.records(pair.client) == pair.records(pair.server) == []
    assert pair.client.statistics().streams_open == pair.server.statistics().streams_open == 0


def test_leaving_a_stream_delivers_what_was_sent(pair: CorePair) -> None:
    stream = pair.client.open_stream("work", Priority.BULK)
    opened = opened_on(pair)
    pair.server.queue(opened, memoryview(b"answer"))
    pair.server.finish(opened)
    pair.pump()
    assert stream.can_send  # its END may simply be on its way: nothing is said
    assert read_all(pair.client, stream) == b"answer"
    pair.client.queue(stream, memoryview(b"but I go on"))
    pair.pump()
    assert stream.reset is not None
    assert pair.client.statistics().streams_open == pair.server.statistics().streams_open == 0


def test_leaving_with_unread_data_stops_the_peer_at_once(pair: CorePair) -> None:
    stream = pair.client.open_stream("work", Priority.BULK)
    pair.client.queue(stream, memoryview(bytes(limits.MIB)))
    opened = opened_on(pair)
    pair.server.finish(opened)
    pair.pump()
    assert stream.is_cut
    assert stream.end_received
    assert pair.server.statistics().streams_open == 0


def test_sending_after_the_end_is_our_bug(pair: CorePair) -> None:
    stream = pair.client.open_stream("work", Priority.BULK)
    pair.client.end(stream)
    with pytest.raises(LocalProtocolError, match="after its end"):
        pair.client.queue(stream, memoryview(b"x"))


# --- what a peer may not do ----------------------------------------------------------------


def open_frame(stream_id: int, priority: Priority = Priority.CONTROL) -> bytes:
    return encode_open(stream_id, "work", priority, 0)


@pytest.mark.parametrize(
    ("frames", "error", "words"),
    [
        ([open_frame(1), open_frame(1)], RemoteProtocolError, "expected 3"),
        ([open_frame(5), open_frame(3)], RemoteProtocolError, "expected 7"),
        ([open_frame(2)], RemoteProtocolError, "expected 1"),
        ([encode_frame(FrameKind.DATA, 1, b"x")], RemoteProtocolError, "not open"),
        ([encode_frame(FrameKind.END, 7)], RemoteProtocolError, "not open"),
        ([encode_credit(3, 1)], RemoteProtocolError, "never opened"),
        ([encode_credit(2, 1)], RemoteProtocolError, "never opened"),
        ([encode_reset(1, ResetCode.FAILED, "")], RemoteProtocolError, "never opened"),
        ([encode_frame(FrameKind.PONG, 0, bytes(8))], MalformedMessage, "PONG without"),
        ([encode_frame(FrameKind.HELLO, 0, b"x")], MalformedMessage, "second HELLO"),
        (
            [open_frame(1), encode_frame(FrameKind.END, 1), encode_frame(FrameKind.DATA, 1, b"x")],
            RemoteProtocolError,
            "not open",
        ),
        (
            [open_frame(1), encode_frame(FrameKind.END, 1), encode_frame(FrameKind.END, 1)],
            RemoteProtocolError,
            "not open",
        ),
        (
            [open_frame(1), encode_credit(1, 2**32 - 1)],
            LimitExceeded,
            "credit",
        ),
        (
            [open_frame(1), encode_frame(FrameKind.DATA, 1, bytes(WINDOW)),
             encode_frame(FrameKind.DATA, 1, b"x")],
            LimitExceeded,
            "the credit left is 0",
        ),
        ([open_frame(1, Priority.BULK)] * 1 + [open_frame(2 * i + 3, Priority.BULK)
          for i in range(limits.BULK_STREAMS_PER_SIDE_MAX)], LimitExceeded, "of them bulk"),
    ],
)  # fmt: skip
def test_broken_rules_are_named(
    frames: list[bytes], error: type[RemoteProtocolError], words: str
) -> None:
    server = SessionCore(Role.SERVER, 0.0)
    with pytest.raises(error, match=words):
        server.handle(memoryview(b"".join(frames)), 0.0)


def test_a_record_inside_a_data_frame_is_decrypted_to_where_it_is_read() -> None:
    server, size = SessionCore(Role.SERVER, 0.0), 2 * limits.DATA_INLINE_BYTES_MAX
    frames = open_frame(1) + encode_frame(FrameKind.DATA, 1, bytes(size))
    server.handle(memoryview(frames[:-size]), 0.0)
    (opened,) = [e.stream for e in server.poll_effects() if isinstance(e, Opened)]
    destination = server.body_destination(size)
    assert destination is not None
    destination[:] = b"x" * size
    server.body_received(size)
    assert read_all(server, opened) == b"x" * size


def test_a_record_inside_a_data_frame_of_no_stream_is_refused() -> None:
    server, size = SessionCore(Role.SERVER, 0.0), 2 * limits.DATA_INLINE_BYTES_MAX
    frame = encode_frame(FrameKind.DATA, 1, bytes(size))
    server.handle(memoryview(frame[:-size]), 0.0)
    assert server.body_destination(size) is None
    with pytest.raises(RemoteProtocolError, match="not open"):
        server.handle(memoryview(frame[-size:]), 0.0)


def test_bulk_streams_that_are_over_do_not_count(pair: CorePair) -> None:
    for _ in range(limits.BULK_STREAMS_PER_SIDE_MAX + 1):
        stream = pair.client.open_stream("work", Priority.BULK)
        pair.client.end(stream)
        pair.server.end(opened_on(pair))
        pair.pump()
    assert pair.server.statistics().streams_open == 0


def test_credit_and_reset_may_cross_our_end(pair: CorePair) -> None:
    stream = pair.client.open_stream("work", Priority.CONTROL)
    pair.client.end(stream)
    opened = opened_on(pair)
    pair.server.end(opened)
    pair.pump()
    late = encode_credit(stream.stream_id, 5) + encode_reset(
        stream.stream_id, ResetCode.CANCELLED, ""
    )
    pair.client.handle(memoryview(late), 0.0)  # no error
    assert pair.client.statistics().streams_open == 0


def test_opening_and_resetting_fast_is_bounded() -> None:
    """Our answers to RESET count until they are sent, so a flood runs into the limit."""
    server = SessionCore(Role.SERVER, 0.0)
    flood = b"".join(
        open_frame(2 * i + 1) + encode_reset(2 * i + 1, ResetCode.CANCELLED, "")
        for i in range(limits.STREAMS_PER_SIDE_MAX + 1)
    )
    with pytest.raises(LimitExceeded):
        server.handle(memoryview(flood), 0.0)


def test_a_flood_of_pings_gets_one_answer() -> None:
    server = SessionCore(Role.SERVER, 0.0)
    flood = b"".join(encode_frame(FrameKind.PING, 0, i.to_bytes(8, "big")) for i in range(1000))
    server.handle(memoryview(flood), 0.0)
    head = memoryview(bytearray(limits.RECORD_HEAD_BYTES_MAX))
    used, _ = server.take(head, 0.0)
    frames = [(kind, bytes(p)) for kind, _, p in FrameParser().feed(head[:used])]
    assert frames[0] == (FrameKind.PONG, (999).to_bytes(8, "big"))
    assert [kind for kind, _ in frames] == [FrameKind.PONG, FrameKind.PING]


def test_single_bytes_do_not_pile_up_as_objects() -> None:
    server = SessionCore(Role.SERVER, 0.0)
    server.handle(memoryview(open_frame(1)), 0.0)
    (opened,) = [e.stream for e in server.poll_effects() if isinstance(e, Opened)]
    one = encode_frame(FrameKind.DATA, 1, b"x")
    server.handle(memoryview(one * 20_000), 0.0)
    assert len(opened.inbox.take()) == limits.DATA_INLINE_BYTES_MAX


# --- time and the end ------------------------------------------------------------------------


def test_pings_measure_the_round_trip(pair: CorePair) -> None:
    pair.now = pair.client.next_deadline()
    assert pair.now == limits.PING_QUIET_S
    pair.client.handle_deadline(pair.now)
    ping = pair.records(pair.client)
    assert kinds(ping) == [FrameKind.PING]
    pair.now += 0.25
    pair.deliver(ping, pair.server)
    pair.deliver(pair.records(pair.server), pair.client)
    assert pair.client.statistics().rtt_s == pytest.approx(0.25 / 8)  # the first took 0


@pytest.mark.parametrize("role", [Role.CLIENT, Role.SERVER])
def test_a_talking_peer_is_pinged_seldom(role: Role) -> None:
    core, head = SessionCore(role, 0.0), memoryview(bytearray(limits.RECORD_HEAD_BYTES_MAX))
    assert core.take(head, 0.0)[0]  # the first ping
    core.handle(memoryview(encode_frame(FrameKind.PONG, 0, (1).to_bytes(8, "big"))), 0.0)
    pinged_at = None
    for tenths in range(1, 1000):
        core.heard(tenths / 10)
        core.handle_deadline(tenths / 10)
        if core.has_outgoing:
            pinged_at = tenths / 10
            break
    assert pinged_at == limits.PING_INTERVAL_S


def test_of_two_quiet_sides_one_asks() -> None:
    client, server = SessionCore(Role.CLIENT, 0.0), SessionCore(Role.SERVER, 0.0)
    assert client.next_deadline() == limits.PING_QUIET_S < server.next_deadline()


def test_a_silent_peer_is_dead_after_its_deadline() -> None:
    core = SessionCore(Role.CLIENT, 100.0)
    ended_at = None
    for _ in range(10):
        now = core.next_deadline()
        core.handle_deadline(now)
        ends = [e for e in core.poll_effects() if isinstance(e, Ended)]
        if ends:
            ended_at = now
            assert isinstance(ends[0].cause, DeadlineExceeded)
            assert "any byte from the peer" in str(ends[0].cause)
            break
    assert ended_at == 100.0 + limits.SILENCE_S


def test_a_peer_that_talks_but_never_answers_is_dead_too(pair: CorePair) -> None:
    pair.now = limits.PING_QUIET_S
    pair.client.handle_deadline(pair.now)
    pair.records(pair.client)  # the ping gets lost in a buffer
    end = pair.now + PONG_WAIT_S
    while pair.now < end:
        pair.now += 1.0
        pair.client.heard(pair.now)
        assert not pair.client.poll_effects()
        pair.client.handle_deadline(pair.now)
    (ended,) = pair.client.poll_effects()
    assert isinstance(ended, Ended)
    assert "answer to a ping" in str(ended.cause)


def test_goodbye_is_the_last_word(pair: CorePair) -> None:
    stream = pair.client.open_stream("work", Priority.CONTROL)
    pair.client.queue(stream, memoryview(b"lost"))
    pair.client.close(GoodbyeCode.DONE, "going home")
    records = pair.records(pair.client)
    assert records == [encode_goodbye(GoodbyeCode.DONE, "going home")]
    assert not pair.client.has_outgoing
    pair.deliver(records, pair.server)
    (ended,) = pair.server.poll_effects()
    assert isinstance(ended, Ended)
    assert ended.goodbye is None
    assert "going home" in str(ended.cause)
