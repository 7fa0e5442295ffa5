"""From a channel to an open session with the peer at its other end, or to one that goes on there.

Beside it, what runs for the peer of a session: handlers of the streams that it opens, a few at a
time, each of which concerns only its own. ``protocol/session/opening.py`` has the messages.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Callable

import trio

from swarmnode import limits
from swarmnode.errors import ChannelBroken, DeadlineExceeded, Overloaded, Refused, SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.net.calls import Answerer
from swarmnode.net.channel import Channel, aclose_forcefully, receive_exactly
from swarmnode.net.handshake import establish
from swarmnode.net.services import AnswerHandler, RequestHandler, Services, StreamHandler
from swarmnode.net.session import Session
from swarmnode.net.stream import Stream
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.session.opening import (
    ASK_BYTES,
    BUSY_NONCE,
    CLAIM_BYTES,
    NONCE_BYTES,
    UNKNOWN_NONCE,
    parse_ask,
)
from swarmnode.protocol.session.records import Role
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

    def __init__(self, services: Services) -> None:
        self.running = 0
        self.failed = 0
        self.nursery: trio.Nursery | None = None
        self._services = services
        self._backlog: deque[Stream] = deque()

    def answerer(self, session: Session, state: StreamState) -> Answerer | None:
        """Return what answers this stream without waiting, if its service has such a thing."""
        handler = self._services.answer_handler(state.service)
        return None if handler is None else functools.partial(self._answer, session, state, handler)

    def accept(self, session: Session, stream: Stream) -> None:
        """Start the handler of a stream, or let it wait for one that ends."""
        if self.running < HANDLERS_PER_SESSION_MAX:
            self._start(session, stream)
        elif len(self._backlog) < _ACCEPT_BACKLOG_MAX:
            self._backlog.append(stream)
        else:
            stream.reset_nowait(ResetCode.OVERLOADED, "too many streams at once")

    def _answer(
        self, session: Session, state: StreamState, handler: AnswerHandler, request: bytes
    ) -> None:
        """Answer a request that is here whole, at once."""
        core = session.core
        try:
            answer = handler(session.peer, request)
        except Exception as error:  # noqa: BLE001 -- a handler's bug must not end the node
            self._note_failure(session, state, error)
            core.reset(state, *_reset_for(error))
            return
        core.queue(state, memoryview(answer))
        core.end(state)

    def _start(self, session: Session, stream: Stream) -> None:
        assert self.nursery is not None
        self.running += 1
        self.nursery.start_soon(self._run, session, stream)

    async def _run(self, session: Session, stream: Stream) -> None:
        """Supervise one handler: whatever it raises ends its own stream and nothing else."""
        try:
            request_handler = self._services.request_handler(stream.service)
            stream_handler = self._services.stream_handler(stream.service)
            if request_handler is not None:
                await self._answer_later(session, stream, request_handler)
            elif stream_handler is not None:
                await self._serve(session, stream, stream_handler)
            else:
                stream.reset_nowait(ResetCode.NO_SERVICE, f"no service {stream.service!r} here")
        except Exception as error:  # noqa: BLE001 -- a handler's bug must not end the node
            self._note_failure(session, stream.state, error)
            stream.reset_nowait(*_reset_for(error))
        finally:
            self.running -= 1
            if self._backlog and not session.is_closed:
                self._start(session, self._backlog.popleft())

    async def _serve(self, session: Session, stream: Stream, handler: StreamHandler) -> None:
        await handler(session, stream)
        stream.finish_nowait()

    async def _answer_later(
        self, session: Session, stream: Stream, handler: RequestHandler
    ) -> None:
        """Run a request handler, for as long as the peer waits for the answer."""
        deadline_s = stream.deadline_s or float("inf")
        with trio.move_on_after(deadline_s) as stream.scope_to_cancel:
            request = await stream.receive_rest(limits.REQUEST_BYTES_MAX)
            answer = await handler(session.peer, request)
            stream.queue_last(answer)
            return
        stream.reset_nowait(ResetCode.DEADLINE, f"no answer within {deadline_s:g} s")

    def _note_failure(self, session: Session, state: StreamState, error: Exception) -> None:
        is_left_by_peer = state.reset is not None and state.reset.by_peer
        if session.is_closed or is_left_by_peer or isinstance(error, Overloaded):
            return  # no fault of the handler
        self.failed += 1
        is_bug = not isinstance(error, SwarmNodeError)
        level = logging.DEBUG if isinstance(error, Refused) else logging.WARNING
        _log.log(
            level,
            "handler of %r for %s: %s",
            state.service,
            session.peer.short,
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


async def run_session(
    channel: Channel,
    *,
    identity: Identity,
    network_id: bytes,
    services: Services,
    role: Role,
    expected: PeerId | None = None,
    instance: bytes = b"",
    is_probe: bool = False,
    first_bytes: bytes = b"",
    task_status: trio.TaskStatus[Session] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Authenticate the peer on ``channel`` and run the session until it is over.

    ``nursery.start`` gives the open Session. The channel is closed in any case, and no task
    is left. The dialler is the CLIENT and should know which peer it ``expected``; with a
    simultaneous open the smaller peer id is the SERVER. ``instance`` and ``is_probe`` are
    what the HELLO says of us. ``first_bytes``: TLS_HEADER_BYTES that have been read already.

    Raises:
        AuthenticationFailed, VersionMismatch, DeadlineExceeded, RemoteProtocolError,
        TransportError: no session came about. What ends an open session is not raised
        but kept as ``Session.close_cause``.
    """
    try:
        link = await establish(
            channel,
            identity=identity,
            network_id=network_id,
            role=role,
            expected=expected,
            instance=instance,
            is_probe=is_probe,
            first_bytes=first_bytes,
        )
        session = Session(link, channel, role, services.traffic, Handlers(services))
        await session.run(task_status)
    finally:
        await aclose_forcefully(channel)


Find = Callable[[bytes, bool], Session | None]


async def resume_over(channel: Channel, session: Session, nonce: bytes) -> None:
    """Ask the peer to go on with ``session`` over ``channel``, and do so.

    The session leaves its old channel only when the peer knows it. One asking at a time: what the
    peer is told of one would not be true any more after another. ``nonce``: NONCE_BYTES that were
    never used.

    Raises:
        Refused: the peer does not know the session (any more).
        Overloaded: the peer itself is asking just now.
        AuthenticationFailed, RemoteProtocolError: the other side is not the peer.
        ChannelBroken, DeadlineExceeded: no peer answers as it should.
    """
    keys, role, resumed_before = session.resume_keys, session.role, session.resumed
    with trio.move_on_after(limits.RESUME_HANDSHAKE_S):
        await channel.send_all(memoryview(keys.ask(nonce)))
        nonces = nonce + await _receive_nonce(channel, session)
        _check_is_current(session, resumed_before)
        claim = keys.claim(role, nonces, session.suspend())
        try:
            await channel.send_all(memoryview(claim))
            theirs = await _receive(channel, CLAIM_BYTES)
            received_bytes = keys.check_claim(role.other, nonces, theirs)
            session.attach(channel, received_bytes, resumed_before)
        finally:
            session.let_go()
        return
    raise DeadlineExceeded(
        f"{channel.description}: taking the session over", limits.RESUME_HANDSHAKE_S
    )


async def serve_resume(
    channel: Channel, first_bytes: bytes, find: Find, own_nonce: bytes
) -> Session | None:
    """Answer :func:`resume_over`, of whose first message ``first_bytes`` have been read.

    Args:
        find: returns the session of a name. It raises Overloaded while we ask for this session
            ourselves, if that is what counts. It is called again when the asker has proven to be
            the peer (its second argument), for we may have begun to meanwhile.
        own_nonce: NONCE_BYTES that were never used.

    Returns:
        The session, which goes on over ``channel``; None if there is none of this name.

    Raises:
        Overloaded: as ``find`` says.
        AuthenticationFailed, RemoteProtocolError: the other side is not the peer.
        ChannelBroken, DeadlineExceeded: it went away, or is too slow.
    """
    with trio.move_on_after(limits.RESUME_HANDSHAKE_S):
        name, nonce = parse_ask(first_bytes + await _receive(channel, ASK_BYTES - len(first_bytes)))
        try:
            session = find(name, False)
        except Overloaded:
            await channel.send_all(memoryview(BUSY_NONCE))
            raise
        if session is None:
            await channel.send_all(memoryview(UNKNOWN_NONCE))
            return None
        keys, role, resumed_before = session.resume_keys, session.role, session.resumed
        nonces = nonce + own_nonce
        await channel.send_all(memoryview(own_nonce))
        theirs = await _receive(channel, CLAIM_BYTES)
        received_bytes = keys.check_claim(role.other, nonces, theirs)
        find(name, True)
        _check_is_current(session, resumed_before)
        claim = keys.claim(role, nonces, session.suspend())
        try:
            await channel.send_all(memoryview(claim))
            session.attach(channel, received_bytes, resumed_before)
        finally:
            session.let_go()
        return session
    raise DeadlineExceeded(
        f"{channel.description}: being asked for a session", limits.RESUME_HANDSHAKE_S
    )


def _check_is_current(session: Session, resumed_before: int) -> None:
    """Raise ChannelBroken if the session has found another channel while two agreed on this one."""
    if session.resumed != resumed_before:
        raise ChannelBroken("the session has gone on over another channel meanwhile")


async def _receive_nonce(channel: Channel, session: Session) -> bytes:
    nonce = await _receive(channel, NONCE_BYTES)
    if nonce == UNKNOWN_NONCE:
        raise Refused(f"{session.peer.short} does not know the session any more")
    if nonce == BUSY_NONCE:
        raise Overloaded(f"{session.peer.short} is asking for the session itself")
    return nonce


async def _receive(channel: Channel, n_bytes: int) -> bytes:
    data = bytearray(n_bytes)
    await receive_exactly(channel, memoryview(data))
    return bytes(data)
