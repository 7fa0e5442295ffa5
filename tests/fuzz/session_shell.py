"""A session with the methods of the other cores, and what its shell does besides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from swarmnode import limits
from swarmnode.protocol.session.core import SessionCore
from swarmnode.protocol.session.effects import Ended
from swarmnode.protocol.session.records import Role
from swarmnode.wire import frames, session
from tests.fuzz.draw import Draw

_NETWORK = bytes(32)
_START_S = 100.0


@dataclass(frozen=True)
class Bytes:
    """Whatever a peer sends in a record."""

    data: bytes


@dataclass(frozen=True)
class Local:
    """What a shell does with one of the streams that there are."""

    what: int
    stream: int


class SessionUnderTest:
    """A session with the methods of the other cores: its shell is asked for what is to be sent."""

    def __init__(self) -> None:
        self.core = SessionCore(Role.SERVER, _START_S)
        self._streams: list[Any] = []
        self._is_over = False
        self._head = memoryview(bytearray(limits.RECORD_HEAD_BYTES_MAX))

    def handle(self, event: Bytes | Local, now: float) -> None:
        if self._is_over:
            return
        if isinstance(event, Bytes):
            self.core.handle(memoryview(event.data), now)
            return
        if event.what == 0 and len(self._streams) < limits.STREAMS_PER_SIDE_MAX:
            self._streams.append(self.core.open_stream("work", session.Priority.BULK))
        if not self._streams:
            return
        stream = self._streams[event.stream % len(self._streams)]
        match event.what:
            case 1 if stream.can_send and not stream.pending:
                self.core.queue(stream, memoryview(b"data"))
            case 2:
                self.core.end(stream)
            case 3:
                self.core.reset(stream, session.ResetCode.REFUSED, "no")
            case 4:
                self.core.finish(stream)
            case 5:
                self.core.attend(stream)
                buffer = bytearray(64)
                self.core.consumed(stream, stream.inbox.read_into(memoryview(buffer)))
            case 6:
                while self.core.take(self._head, now)[0]:
                    pass

    def poll_effects(self) -> list[Any]:
        effects = self.core.poll_effects()
        for effect in effects:
            self._is_over |= isinstance(effect, Ended)
            stream = getattr(effect, "stream", None)
            if stream is not None and stream not in self._streams:
                self._streams.append(stream)
        return effects

    def next_deadline(self) -> float | None:
        return None if self._is_over else self.core.next_deadline()

    def handle_deadline(self, now: float) -> None:
        self.core.handle_deadline(now)

    def statistics(self) -> Any:
        return self.core.statistics()


def some_frames(draw: Draw) -> Bytes:
    """Mostly sound ones: what no peer may send ends a session at once."""
    stream = draw.below(6)
    makers: tuple[Callable[[], bytes], ...] = (
        lambda: session.encode_hello(session.Hello(1, 1, _NETWORK, "x")),
        lambda: session.encode_open(
            stream, "work", draw.choose(tuple(session.Priority)), draw.below(3)
        ),
        lambda: frames.encode_frame(frames.FrameKind.DATA, stream, bytes(1 + draw.below(9))),
        lambda: frames.encode_credit(stream, draw.choose((1, 9, 2**20, 2**32 - 1))),
        lambda: frames.encode_frame(frames.FrameKind.END, stream),
        lambda: session.encode_reset(stream, draw.choose(tuple(session.ResetCode)), "no"),
        lambda: frames.encode_frame(frames.FrameKind.PING, 0, bytes(8)),
        lambda: frames.encode_frame(frames.FrameKind.PONG, 0, bytes([draw.byte()]) * 8),
        lambda: frames.encode_ack(draw.byte()),
        lambda: session.encode_goodbye(draw.choose(tuple(session.GoodbyeCode)), "bye"),
        lambda: bytes(draw.byte() for _ in range(draw.below(12))),
    )  # fmt: skip
    made = draw.choose(makers)()
    return Bytes(made[: draw.choose((len(made), len(made) - 1, 5))])


def check_session(under_test: SessionUnderTest) -> None:
    assert under_test.core.statistics().streams_open <= limits.STREAMS_PER_SIDE_MAX * 2
