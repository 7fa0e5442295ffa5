"""Handlers of the streams that the peer opens: a few at a time, and each concerns only its own."""

from __future__ import annotations

import functools
import logging
from collections import deque

import trio

from swarmnode import limits
from swarmnode.errors import Overloaded, Refused, SwarmNodeError
from swarmnode.net.calls import Answerer
from swarmnode.net.services import AnswerHandler, RequestHandler, Services, StreamHandler
from swarmnode.net.session import Session
from swarmnode.net.stream import Stream
from swarmnode.protocol.session.stream import StreamState
from swarmnode.wire.session import ResetCode

# Of the 64 streams that a peer may have open, those that are served at once.
HANDLERS_PER_SESSION_MAX = 32
# A peer that opens and resets leaves running handlers behind; the next streams wait here.
_ACCEPT_BACKLOG_MAX = 32

_log = logging.getLogger("swarmnode.session")


class Handlers:
    """What runs for the peer of one session.

    Attributes:
        running: handlers that have a task just now.
        failed: those that ended by a fault of their own.
        nursery: where they run; there before the first stream is.
    """

    def __init__(self, session: Session, services: Services) -> None:
        self.running = 0
        self.failed = 0
        self.nursery: trio.Nursery | None = None
        self._session = session
        self._services = services
        self._backlog: deque[Stream] = deque()

    def answerer(self, state: StreamState) -> Answerer | None:
        """Return what answers this stream without waiting, if its service has such a thing."""
        handler = self._services.answer_handler(state.service)
        return None if handler is None else functools.partial(self._answer, state, handler)

    def accept(self, stream: Stream) -> None:
        """Start the handler of a stream, or let it wait for one that ends."""
        if self.running < HANDLERS_PER_SESSION_MAX:
            self._start(stream)
        elif len(self._backlog) < _ACCEPT_BACKLOG_MAX:
            self._backlog.append(stream)
        else:
            stream.reset_nowait(ResetCode.OVERLOADED, "too many streams at once")

    def _answer(self, state: StreamState, handler: AnswerHandler, request: bytes) -> None:
        """Answer a request that is here whole, at once."""
        core = self._session.core
        try:
            answer = handler(self._session.peer, request)
        except Exception as error:  # noqa: BLE001 -- a handler's bug must not end the node
            self._note_failure(state, error)
            core.reset(state, *_reset_for(error))
            return
        core.queue(state, memoryview(answer))
        core.end(state)

    def _start(self, stream: Stream) -> None:
        assert self.nursery is not None
        self.running += 1
        self.nursery.start_soon(self._run, stream)

    async def _run(self, stream: Stream) -> None:
        """Supervise one handler: whatever it raises ends its own stream and nothing else."""
        try:
            request_handler = self._services.request_handler(stream.service)
            stream_handler = self._services.stream_handler(stream.service)
            if request_handler is not None:
                await self._answer_later(stream, request_handler)
            elif stream_handler is not None:
                await self._serve(stream, stream_handler)
            else:
                stream.reset_nowait(ResetCode.NO_SERVICE, f"no service {stream.service!r} here")
        except Exception as error:  # noqa: BLE001 -- a handler's bug must not end the node
            self._note_failure(stream.state, error)
            stream.reset_nowait(*_reset_for(error))
        finally:
            self.running -= 1
            if self._backlog and not self._session.is_closed:
                self._start(self._backlog.popleft())

    async def _serve(self, stream: Stream, handler: StreamHandler) -> None:
        await handler(self._session, stream)
        stream.finish_nowait()

    async def _answer_later(self, stream: Stream, handler: RequestHandler) -> None:
        """Run a request handler, for as long as the peer waits for the answer."""
        deadline_s = stream.deadline_s or float("inf")
        with trio.move_on_after(deadline_s) as stream.scope_to_cancel:
            request = await stream.receive_rest(limits.REQUEST_BYTES_MAX)
            answer = await handler(self._session.peer, request)
            stream.queue_last(answer)
            return
        stream.reset_nowait(ResetCode.DEADLINE, f"no answer within {deadline_s:g} s")

    def _note_failure(self, state: StreamState, error: Exception) -> None:
        is_left_by_peer = state.reset is not None and state.reset.by_peer
        if self._session.is_closed or is_left_by_peer or isinstance(error, Overloaded):
            return  # no fault of the handler
        self.failed += 1
        is_bug = not isinstance(error, SwarmNodeError)
        level = logging.DEBUG if isinstance(error, Refused) else logging.WARNING
        _log.log(
            level,
            "handler of %r for %s: %s",
            state.service,
            self._session.peer.short,
            error,
            exc_info=is_bug,
        )


def _reset_for(error: Exception) -> tuple[ResetCode, str]:
    """Return what the peer is told of a handler that raised."""
    match error:
        case Overloaded():
            return ResetCode.OVERLOADED, str(error)
        case SwarmNodeError():
            return ResetCode.REFUSED, str(error)
    return ResetCode.FAILED, type(error).__name__
