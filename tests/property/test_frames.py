"""Frames and streams, whatever the bytes and however they are cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmnode import limits
from swarmnode.errors import RemoteProtocolError
from swarmnode.net.records import SEND_TURN_BYTES_MIN
from swarmnode.protocol.session.core import SessionCore
from swarmnode.protocol.session.effects import Effect, Opened
from swarmnode.protocol.session.records import Role
from swarmnode.protocol.session.stream import StreamState
from swarmnode.wire.frames import FrameKind, FrameParser, encode_credit, encode_frame
from swarmnode.wire.session import (
    GoodbyeCode,
    Hello,
    Priority,
    ResetCode,
    decode_hello,
    decode_open,
    decode_reason,
    encode_goodbye,
    encode_hello,
    encode_open,
    encode_reset,
)
from tests.kits.session_kit import CorePair

stream_ids = st.integers(1, 2**32 - 1)
reasons = st.text(max_size=300)
services = st.from_regex(r"[a-z0-9][a-z0-9._/-]{0,63}", fullmatch=True)
frames = st.one_of(
    st.builds(encode_open, stream_ids, services, st.sampled_from(Priority), stream_ids),
    st.builds(
        encode_frame, st.just(FrameKind.DATA), stream_ids, st.binary(min_size=1, max_size=300)
    ),
    st.builds(encode_credit, stream_ids, stream_ids),
    st.builds(encode_frame, st.just(FrameKind.END), stream_ids),
    st.builds(encode_reset, stream_ids, st.sampled_from(ResetCode), reasons),
    st.builds(encode_frame, st.just(FrameKind.PING), st.just(0), st.binary(min_size=8, max_size=8)),
    st.builds(encode_goodbye, st.sampled_from(GoodbyeCode), reasons),
)

Parsed = list[tuple[int, int, bytes]]


def parse(pieces: list[bytes]) -> Parsed:
    """Return the frames in ``pieces``, the parts of a DATA frame joined."""
    parser = FrameParser()
    parsed: Parsed = []
    is_inside = False
    for piece in pieces:
        for kind, stream_id, payload in parser.feed(memoryview(piece)):
            if kind == FrameKind.DATA and is_inside:
                parsed[-1] = (kind, stream_id, parsed[-1][2] + bytes(payload))
            else:
                parsed.append((kind, stream_id, bytes(payload)))
            is_inside = parser.data_left > 0
    return parsed


def cut(data: bytes, positions: list[int]) -> list[bytes]:
    edges = [0, *sorted(position % (len(data) + 1) for position in positions), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@given(st.lists(frames, max_size=8), st.lists(st.integers(0, 10_000), max_size=10))
def test_cutting_never_changes_what_is_read(sent: list[bytes], positions: list[int]) -> None:
    data = b"".join(sent)
    whole = parse([data])
    assert whole == parse([data[i : i + 1] for i in range(len(data))])
    assert whole == parse(cut(data, positions))
    assert b"".join(encode_frame(FrameKind(k), s, p) for k, s, p in whole) == data


def outcome(pieces: list[bytes]) -> tuple[Parsed, str]:
    """Return what was read before an error, and the error."""
    parser = FrameParser()
    parsed: Parsed = []
    try:
        for piece in pieces:
            for kind, stream_id, payload in parser.feed(memoryview(piece)):
                if kind != FrameKind.DATA:
                    parsed.append((kind, stream_id, bytes(payload)))
    except RemoteProtocolError as error:
        return parsed, str(error)
    return parsed, ""


likely_bytes = st.lists(
    st.one_of(
        st.binary(max_size=40),
        frames,
        st.tuples(st.integers(0, 11), st.integers(0, 3), st.integers(0, 600)).map(
            lambda t: bytes([t[0]]) + t[1].to_bytes(4, "big") + t[2].to_bytes(4, "big")
        ),
    ),
    max_size=6,
).map(b"".join)


@given(likely_bytes)
def test_random_bytes_are_read_or_refused_alike_in_any_cut(data: bytes) -> None:
    assert outcome([data]) == outcome([data[i : i + 1] for i in range(len(data))])


@settings(max_examples=300)
@given(st.sampled_from(Role), likely_bytes, st.lists(st.integers(0, 10_000), max_size=4))
def test_a_core_survives_any_bytes_or_says_which_rule_they_break(
    role: Role, data: bytes, positions: list[int]
) -> None:
    core = SessionCore(role, 0.0)
    head = memoryview(bytearray(limits.RECORD_HEAD_BYTES_MAX))
    try:
        for piece in cut(data, positions):
            core.handle(memoryview(piece), 1.0)
            core.poll_effects()
            while core.take(head, 1.0)[0]:
                pass
    except RemoteProtocolError:
        pass  # the only error that bytes may cause
    assert core.statistics().streams_open <= limits.STREAMS_PER_SIDE_MAX


@given(services, st.sampled_from(Priority), st.integers(0, 2**32 - 1))
def test_open_reads_back(service: str, priority: Priority, deadline_ms: int) -> None:
    ((_, stream_id, payload),) = parse([encode_open(7, service, priority, deadline_ms)])
    assert stream_id == 7
    assert decode_open(payload) == (service, priority, deadline_ms)


@given(reasons)
def test_reasons_are_one_printable_line_of_bounded_size(reason: str) -> None:
    ((_, _, payload),) = parse([encode_reset(1, ResetCode.REFUSED, reason)])
    code, text = decode_reason(payload)
    assert code == ResetCode.REFUSED
    assert len(payload) <= 2 + limits.REASON_BYTES_MAX
    assert text == "" or text.isprintable()


@given(st.binary(max_size=200))
def test_hello_is_read_or_refused(payload: bytes) -> None:
    try:
        hello = decode_hello(payload)
    except RemoteProtocolError:
        return
    assert parse([encode_hello(hello)])[0][0] == FrameKind.HELLO


def test_hello_reads_back() -> None:
    hello = Hello(version_min=1, version_max=3, network=bytes(32), software="x", expected=b"e" * 32)
    ((_, _, payload),) = parse([encode_hello(hello)])
    assert decode_hello(payload) == hello
    with pytest.raises(RemoteProtocolError, match="peer id of 5 bytes"):
        decode_hello(parse([encode_hello(Hello(1, 1, bytes(32), "x", b"short"))])[0][2])


# --- two cores --------------------------------------------------------------------------------

steps = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.sampled_from(Priority)),
        st.tuples(st.just("send"), st.integers(0, 5), st.integers(1, 400_000)),
        st.tuples(st.just("end"), st.integers(0, 5)),
        st.tuples(st.just("read"), st.integers(0, 5), st.integers(1, 300_000)),
        st.tuples(st.just("lend"), st.integers(0, 5), st.integers(1, 700_000)),
        st.tuples(st.just("pass"), st.integers(1, 4)),
        st.tuples(st.just("pace"), st.integers(1, 16)),
    ),
    max_size=40,
)


class _Reader:
    """One opened stream on the receiving side, with what its reader has so far."""

    def __init__(self, pair: CorePair, opened: Opened) -> None:
        self.core = pair.server
        self.stream = opened.stream
        self.got = bytearray()
        self.lent: bytearray | None = None

    def take_back(self) -> None:
        if self.lent is not None:
            self.got += self.lent[: self.stream.inbox.take_back()]
            self.lent = None

    def lend(self, size: int) -> None:
        self.take_back()
        if not self.stream.inbox.unread_bytes:
            self.core.attend(self.stream)
            self.lent = bytearray(size)
            self.stream.inbox.lend(memoryview(self.lent))

    def read(self, size: int) -> None:
        self.take_back()
        self.core.attend(self.stream)
        buffer = bytearray(size)
        n_bytes = self.stream.inbox.read_into(memoryview(buffer))
        self.core.consumed(self.stream, n_bytes)
        self.got += buffer[:n_bytes]


@settings(max_examples=60, deadline=None)
@given(steps)
def test_every_stream_delivers_its_bytes_in_order_whatever_the_interleaving(
    plan: list[tuple[object, ...]],
) -> None:
    pair = CorePair()
    sent: list[bytearray] = []
    senders: list[StreamState] = []
    readers: dict[int, _Reader] = {}

    def note_opened(effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Opened):
                readers[effect.stream.stream_id] = _Reader(pair, effect)

    for step in plan:
        match step:
            case ("open", Priority() as priority) if len(senders) < 6:
                senders.append(pair.client.open_stream("work", priority))
                sent.append(bytearray())
            case ("send", int() as index, int() as size) if index < len(senders):
                if senders[index].can_send and not senders[index].pending:
                    data = bytes((len(sent[index]) + i) % 251 for i in range(min(size, 997)))
                    data = (data * (size // len(data) + 1))[:size]
                    sent[index] += data
                    pair.client.queue(senders[index], memoryview(data))
            case ("end", int() as index) if index < len(senders):
                pair.client.end(senders[index])
            case ("pass", int() as turns):
                pair.deliver(pair.records(pair.client, turns), pair.server)
                pair.deliver(pair.records(pair.server), pair.client)
                note_opened(pair.server.poll_effects())
            case ("pace", int() as factor):
                pair.client.body_bytes_max = factor * SEND_TURN_BYTES_MIN
            case ("read" | "lend" as what, int() as index, int() as size) if index < len(senders):
                reader = readers.get(senders[index].stream_id)
                if reader is not None:
                    (reader.read if what == "read" else reader.lend)(size)
    for _ in range(200):
        note_opened(pair.pump()[1])
        for reader in readers.values():
            reader.read(limits.MIB)
        if not any(sender.pending for sender in senders):
            break
    pair.pump()
    for reader in readers.values():
        reader.read(20 * limits.MIB)
    got = {stream_id: bytes(reader.got) for stream_id, reader in readers.items()}
    assert got == {s.stream_id: bytes(d) for s, d in zip(senders, sent, strict=True)}
