"""Requests without tasks: for small questions that are asked often and answered from memory.

A task on either side costs more than all the rest of such a request. So the caller is called
back, and a handler that does not wait runs where the request was read. On the wire nothing is
different.

No task reads these streams piece by piece, so no credit is given back: request and answer are
bounded by the window with which a stream begins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from swarmnode.errors import DeadlineExceeded, SwarmNodeError
from swarmnode.net.pump import Pump
from swarmnode.net.stream import error_from_reset
from swarmnode.protocol.session.stream import StreamState
from swarmnode.wire.session import Priority, ResetCode

OnAnswer = Callable[[bytes | SwarmNodeError], None]
Answerer = Callable[[bytes], None]  # answers the stream that it was made for


@dataclass(slots=True, eq=False)
class _Call:
    """A question of ours."""

    state: StreamState
    on_answer: OnAnswer
    deadline_s: float
    gone_at: float


class Calls:
    """The requests of one session that have no task, ours and the peer's."""

    def __init__(self, pump: Pump) -> None:
        self._pump = pump
        self._core = pump.core
        self._asked: dict[int, _Call] = {}
        self._asking: dict[int, Answerer] = {}

    def ask(
        self, service: str, payload: bytes, *, deadline_s: float, now: float, on_answer: OnAnswer
    ) -> None:
        """Send a request; ``on_answer`` gets the answer, or why there is none, exactly once."""
        state = self._core.open_stream(service, Priority.CONTROL, int(deadline_s * 1000))
        self._asked[state.stream_id] = _Call(state, on_answer, deadline_s, now + deadline_s)
        self._core.queue(state, memoryview(payload))
        self._core.end(state)
        self._pump.flush()

    def accept(self, state: StreamState, answerer: Answerer) -> None:
        """Answer this stream of the peer once it is here whole."""
        self._asking[state.stream_id] = answerer

    def changed(self, state: StreamState) -> None:
        """Something came on a stream that may be one of these, or it ended."""
        if not (state.end_received or state.reset):
            return
        call = self._asked.pop(state.stream_id, None)
        if call is not None:
            call.on_answer(self._answer_of(call))
        elif (answer := self._asking.pop(state.stream_id, None)) is not None and not state.reset:
            answer(_take_all(state))

    def expire(self, now: float) -> None:
        """Give up what should have been answered by now."""
        for number in [n for n, call in self._asked.items() if now >= call.gone_at]:
            call = self._asked.pop(number)
            self._core.reset(call.state, ResetCode.CANCELLED, "")
            call.on_answer(DeadlineExceeded(f"request {call.state.service!r}", call.deadline_s))

    def close(self) -> None:
        """The session is over."""
        asked, self._asked = self._asked, {}
        self._asking.clear()
        for call in asked.values():
            error = self._pump.closed_error()
            assert error is not None
            call.on_answer(error)

    def _answer_of(self, call: _Call) -> bytes | SwarmNodeError:
        state = call.state
        if state.reset is None:
            return _take_all(state)
        name = f"stream {state.service!r} with {self._pump.peer.short}"
        return error_from_reset(name, state.reset, call.deadline_s)


def _take_all(state: StreamState) -> bytes:
    pieces = []
    while state.inbox.unread_bytes:
        pieces.append(state.inbox.take())
    return b"".join(pieces)
