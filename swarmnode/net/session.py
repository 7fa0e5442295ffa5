"""The Trio shell of a session: one task that sends, one that receives, one for time.

::

    tasks of the node -- Stream --> SessionCore --take--> send task --> channel
                      <-- wake ---  SessionCore <-handle- receive task <-- channel

Only the send task writes to the channel, so cancelling whoever waits for a
stream never leaves half a record on the wire. A handler that raises or sleeps
concerns its own stream. No task outlives :func:`run_session`.

Where somebody looks after it (``on_lost``), a session outlives its channel: it is suspended, all
that waits goes on waiting, and :meth:`Session.attach` lets it go on over another channel.

Closing: GOODBYE is sent after the record that is being sent, then the other
side has a moment to read it. Closing a TCP socket at once while unread bytes
lie in it would destroy the GOODBYE on its way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import trio

from swarmnode import limits
from swarmnode.errors import (
    ChannelBroken,
    ChannelClosed,
    DeadlineExceeded,
    ProtocolError,
    SwarmNodeError,
    TransportError,
)
from swarmnode.ids import PeerId
from swarmnode.net.calls import Calls, OnAnswer
from swarmnode.net.carrier import Carrier
from swarmnode.net.channel import Channel, aclose_forcefully
from swarmnode.net.handlers import Handlers
from swarmnode.net.handshake import Link, establish
from swarmnode.net.records import next_body_bytes
from swarmnode.net.services import Services
from swarmnode.net.slots import StreamSlots
from swarmnode.net.stream import Stream
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.session.core import CoreStatistics, SessionCore
from swarmnode.protocol.session.effects import Changed, Opened, Removed
from swarmnode.protocol.session.records import Role
from swarmnode.protocol.session.stream import StreamState
from swarmnode.wire.session import DEADLINE_MS_MAX, GoodbyeCode, Priority, ResetCode

_log = logging.getLogger("swarmnode.session")


@dataclass(frozen=True, slots=True)
class SessionStatistics:
    """Counters of one session."""

    core: CoreStatistics
    age_s: float
    resumed: int  # how often it has gone on over another channel
    handlers_running: int
    handlers_failed: int

    @property
    def rtt_s(self) -> float | None:
        """Smoothed round trip of pings; None before the first answer."""
        return self.core.rtt_s


class Session:
    """An authenticated connection to one peer. Made by :func:`run_session` only."""

    def __init__(self, link: Link, channel: Channel, role: Role, services: Services) -> None:
        self.peer = link.peer
        self.outbound = role is Role.CLIENT
        self.version = link.version
        self.instance = link.theirs.instance  # of the peer's running process
        self.is_probe = link.theirs.is_probe
        self.close_cause: SwarmNodeError | None = None  # why it is over
        self.core = SessionCore(role, trio.current_time())
        self._reader = link.reader
        self._writer = link.writer
        self._traffic = services.traffic
        self.resume_keys = link.resume
        self.role = role
        self.on_lost: Callable[[Session, SwarmNodeError], None] | None = None
        self.on_silent: Callable[[Session], None] = lambda _session: None
        self._carrier = Carrier(channel, link.reader, link.writer)
        self._opened_at = trio.current_time()
        self._streams: dict[int, Stream] = {}
        self._calls = Calls(self)
        self._slots = StreamSlots()
        self._send_wanted = trio.lowlevel.ParkingLot()
        self._send_scope = trio.CancelScope(shield=True)
        self._closing = trio.Event()
        self._closed = trio.Event()
        self._must_linger = False
        self._workers: trio.Nursery | None = None
        self.handlers = Handlers(self, services)

    # --- for everybody --------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be sent or received any more."""
        return self._closing.is_set()

    @property
    def is_busy(self) -> bool:
        """Whether a stream is open, whoever opened it."""
        return bool(self._streams)

    @property
    def channel_description(self) -> str:
        """The way that it takes now, or took last."""
        return self._carrier.description

    @property
    def is_suspended(self) -> bool:
        """Whether it has lost its channel and waits for another one."""
        return self._carrier.channel is None and not self.is_closed

    async def open_stream(
        self, service: str, *, priority: Priority = Priority.BULK, deadline_s: float | None = None
    ) -> Stream:
        """Open a stream; waits while STREAMS_PER_SIDE_MAX of ours are open.

        ``deadline_s`` only tells the peer how long the answer is of use.

        Raises:
            ChannelBroken, ChannelClosed: the session is over.
            Overloaded: it is for tensors, and this node may carry none now.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if priority is Priority.BULK:
            await self._traffic.wait_for_turn()
        while (error := self.closed_error()) is None and not self._slots.has_room(priority):
            await self._slots.changed.park()
        if error is not None:
            raise error
        self._slots.take(priority)
        deadline_ms = 0
        if deadline_s is not None:
            deadline_ms = min(max(1, int(deadline_s * 1000)), DEADLINE_MS_MAX)
        return self._adopt(self.core.open_stream(service, priority, deadline_ms))

    async def request(
        self,
        service: str,
        payload: bytes,
        *,
        deadline_s: float,
        priority: Priority = Priority.CONTROL,
    ) -> bytes:
        """Send ``payload`` and return the answer; both up to REQUEST_BYTES_MAX.

        Raises:
            DeadlineExceeded: no answer in time; the peer is told to stop.
            Refused, Overloaded: the handler's own words.
            ChannelBroken: the handler failed, or the session ended.
            LimitExceeded: the answer is too long.
        """
        with trio.move_on_after(deadline_s):
            stream = await self.open_stream(service, priority=priority, deadline_s=deadline_s)
            async with stream:
                stream.queue_last(payload)
                return await stream.receive_rest(limits.REQUEST_BYTES_MAX)
        raise DeadlineExceeded(f"request {service!r} to {self.peer.short}", deadline_s)

    def ask(self, service: str, payload: bytes, *, deadline_s: float, on_answer: OnAnswer) -> bool:
        """:meth:`request` without a task: ``on_answer`` gets the answer or the error, once.

        It may be called before this returns, and must neither wait nor raise. An error of the
        deadline may be a few seconds late.

        Returns:
            False if nothing was asked: the session is over, or too many streams are open.
        """
        if self.is_closed or not self._slots.has_room(Priority.CONTROL):
            return False
        self._slots.take(Priority.CONTROL)
        now = trio.current_time()
        self._calls.ask(service, payload, deadline_s=deadline_s, now=now, on_answer=on_answer)
        return True

    def statistics(self) -> SessionStatistics:
        """Return counters."""
        return SessionStatistics(
            core=self.core.statistics(),
            age_s=trio.current_time() - self._opened_at,
            resumed=self._carrier.resumed,
            handlers_running=self.handlers.running,
            handlers_failed=self.handlers.failed,
        )

    async def aclose(self, reason: str = "", code: GoodbyeCode = GoodbyeCode.DONE) -> None:
        """Say goodbye and wait until the session is over; the peer is told ``reason``."""
        self.close_nowait(reason, code)
        await self._closed.wait()

    def close_nowait(self, reason: str = "", code: GoodbyeCode = GoodbyeCode.DONE) -> None:
        """Say goodbye; the session is closed now, and over a little later."""
        cause = ChannelClosed(f"session with {self.peer.short}: closed by this side: {reason}")
        self._close(cause, (code, reason))

    async def wait_closed(self) -> None:
        """Wait until the session is over; ``close_cause`` tells why."""
        await self._closed.wait()

    def closed_error(self) -> SwarmNodeError | None:
        """Return a new error to raise if the session is over."""
        cause = self.close_cause
        if cause is None:
            return None
        kind = ChannelClosed if isinstance(cause, ChannelClosed) else ChannelBroken
        return kind(f"session with {self.peer.short} is over: {cause}")

    # --- another channel ------------------------------------------------------------------

    @property
    def channel(self) -> Channel | None:
        """The channel that it uses now; None: it is suspended."""
        return self._carrier.channel

    @property
    def resumed(self) -> int:
        """How often it has gone on over another channel."""
        return self._carrier.resumed

    @property
    def is_silent(self) -> bool:
        """Whether nothing came from the peer for longer than its pings are apart."""
        return self.core.is_suspect(trio.current_time())

    def give_up(self, cause: SwarmNodeError) -> None:
        """End it without a goodbye: nobody is there to read one."""
        self._must_linger = False
        self._close(cause, None)

    def suspend(self) -> int:
        """Use the channel no more and wait RESUME_S for another one.

        The old one is closed by :meth:`attach` or :meth:`let_go`: the peer still uses it.

        Returns:
            How many bytes of the peer's records are here; it has to go on from there.
        """
        if not self.is_closed:
            self._carrier.leave()
        return self._reader.received_bytes

    def let_go(self) -> None:
        """Close the channel that the session has left."""
        if self._workers is None or self.is_closed:
            return  # it is closed with the session
        parting = self._carrier.take_parting()
        if parting is not None:
            self._workers.start_soon(aclose_forcefully, parting)

    def attach(self, channel: Channel, received_bytes: int, resumed_before: int) -> None:
        """Go on over ``channel``; the peer has ``received_bytes`` of our records.

        It has said so, or we have said the like, when :attr:`resumed` was ``resumed_before``:
        once the session has gone on over a third channel that is not true any more.

        Raises:
            ChannelBroken: it has.
            RemoteProtocolError: the peer cannot have so many, or had more.
            ChannelClosed: the session has ended meanwhile.
        """
        if self.is_closed:
            raise ChannelClosed(f"session with {self.peer.short} is over: {self.close_cause}")
        self._carrier.attach(channel, received_bytes, resumed_before)
        self.let_go()
        self.core.begin_anew(trio.current_time())
        self._send_wanted.unpark_all()  # what the peer does not have goes out again

    async def wait_for_channel(self) -> bool:
        """Wait until there is a channel to use; False: the session is closed."""
        while self.channel is None and not self.is_closed:
            await self._carrier.changed.park()
        return self.channel is not None and (not self.is_closed or self._must_linger)

    async def wait_left(self, channel: Channel) -> None:
        """Wait until the session does not need ``channel`` any more."""
        while self._carrier.holds(channel) and not self._closed.is_set():
            await self._carrier.changed.park()

    # --- for streams ----------------------------------------------------------------------

    def kick(self) -> None:
        """Wake the send task if the core has something to send."""
        if self._send_wanted and self.core.has_outgoing:
            self._send_wanted.unpark()

    def flush(self) -> None:
        """:meth:`kick`, but a few small frames go out at once if the send task is idle.

        For a request the switch of tasks would cost as much as all the rest of sending it.
        """
        core = self.core
        if not (self._send_wanted and core.has_outgoing):
            return
        if self.is_closed or not core.is_light:
            self._send_wanted.unpark()
            return
        channel = self.channel
        sealed, _ = self._seal_next()
        try:
            is_sent = sealed is None or self._writer.send_nowait(sealed)
        except TransportError as error:
            self._lose(channel, error)
            return
        if not is_sent or core.has_outgoing:
            self._send_wanted.unpark()
        self._apply_effects()

    # --- tasks ----------------------------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[Session]) -> None:
        """Run the session until it is over."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send)
                try:
                    await self._run_workers(task_status)
                finally:
                    self._close(
                        ChannelClosed(f"session with {self.peer.short}: this node stops it"),
                        (GoodbyeCode.DONE, "this node stops the session"),
                    )
                    self._send_scope.deadline = trio.current_time() + limits.GOODBYE_LINGER_S
        finally:
            if self._must_linger and not self._send_scope.cancelled_caught:
                with trio.move_on_after(limits.GOODBYE_LINGER_S, shield=True):
                    await self._reader.drain()
            self._closed.set()
            self._carrier.changed.unpark_all()
            await self._carrier.aclose()

    async def _run_workers(self, task_status: trio.TaskStatus[Session]) -> None:
        async with trio.open_nursery() as workers:
            self._workers = workers
            self.handlers.nursery = workers
            workers.start_soon(self._receive)
            workers.start_soon(self._keep_alive)
            task_status.started(self)
            await self._closing.wait()
            workers.cancel_scope.cancel()

    async def _send(self) -> None:
        with self._send_scope:
            while await self.wait_for_channel():
                channel = self.channel
                try:
                    await self._send_all_due()
                    return
                except TransportError as error:
                    self._lose(channel, error)

    async def _send_all_due(self) -> None:
        """Send what is due on the channel that there is now, until the session is closed."""
        core, writer = self.core, self._writer
        while True:
            await writer.send_rest()
            sealed, look_again_at = self._seal_next()
            self._apply_effects()
            if sealed is not None:
                taken_s = await writer.send(sealed)
                body_bytes_max = next_body_bytes(core.body_bytes_max, len(sealed), taken_s)
                core.body_bytes_max = min(body_bytes_max, self._traffic.up.turn_bytes_max)
            elif self.is_closed:
                return
            else:
                with trio.CancelScope(deadline=look_again_at):
                    await self._send_wanted.park()

    def _seal_next(self) -> tuple[memoryview | None, float]:
        """Seal what is due and may pass; also return when something that is held may."""
        now = trio.current_time()
        look_again_at = self._traffic.hold_back(self.core, now)
        sealed = self._writer.seal_next(self.core, now)
        if sealed is not None:
            self._traffic.up.spend(len(sealed), now)
        return sealed, look_again_at

    async def _receive(self) -> None:
        core, reader = self.core, self._reader
        while await self.wait_for_channel() and not self.is_closed:
            channel = self.channel
            try:
                while True:
                    n_bytes = await reader.receive()
                    self._traffic.down.spend(n_bytes, trio.current_time())
                    reader.open_all(core, trio.current_time())
                    self._writer.acknowledged(core.acknowledged_bytes)
                    self._apply_effects()
                    self.flush()
            except TransportError as error:
                self._lose(channel, error)
            except ProtocolError as error:
                error.peer = str(self.peer)
                _log.warning("%s (%s): %s", self.peer.short, self.channel_description, error)
                self._close(error, (GoodbyeCode.PROTOCOL_ERROR, str(error)))

    def _lose(self, channel: Channel | None, error: SwarmNodeError) -> None:
        """The channel is of no use any more: suspend the session, or end it."""
        if channel is None or self.channel is not channel:
            return  # it has been left already
        if self.on_lost is None or self.is_closed:
            self._must_linger = False
            self._close(error, None)
            return
        self.suspend()
        self.let_go()
        self.on_lost(self, error)

    async def _keep_alive(self) -> None:
        while True:
            await trio.sleep_until(self._next_deadline())
            # After a pause of the whole process, what lies in the socket is read first: our
            # own sleep is no silence of the peer.
            await trio.lowlevel.checkpoint()
            now = trio.current_time()
            if self.channel is not None:
                self.core.handle_deadline(now)
                if self.core.is_suspect(now):
                    self.on_silent(self)
            elif now >= self._carrier.deadline:
                waited_for = f"another channel to {self.peer.short}"
                self._close(DeadlineExceeded(waited_for, limits.RESUME_S), None)
            self._writer.trim()
            self._calls.expire(now)
            self._apply_effects()
            self.kick()

    def _next_deadline(self) -> float:
        if self.channel is not None:
            return self.core.next_deadline()
        return min(self._carrier.deadline, trio.current_time() + limits.PING_QUIET_S)

    # --- effects --------------------------------------------------------------------------

    def _apply_effects(self) -> None:
        for effect in self.core.poll_effects():
            if isinstance(effect, Changed):
                stream = self._streams.get(effect.stream.stream_id)
                if stream is not None:
                    stream.wake()
                else:
                    self._calls.changed(effect.stream)
            elif isinstance(effect, Opened):
                self._opened(effect.stream)
            elif isinstance(effect, Removed):
                self._remove(effect.stream)
            elif isinstance(effect.cause, DeadlineExceeded) and self.on_lost is not None:
                self._lose(self.channel, effect.cause)  # the peer is silent: perhaps its way is
            else:
                self._close(effect.cause, effect.goodbye)

    def _opened(self, state: StreamState) -> None:
        handler = self.handlers.answer_handler(state)
        if handler is None:
            stream = self._adopt(state)
            why = self._traffic.refusal(trio.current_time())
            if why and state.priority is Priority.BULK:
                stream.reset_nowait(ResetCode.OVERLOADED, why)
            else:
                self.handlers.accept(stream)
        else:
            self._calls.accept(state, handler)

    def _adopt(self, state: StreamState) -> Stream:
        stream = self._streams[state.stream_id] = Stream(self, state)
        return stream

    def _remove(self, state: StreamState) -> None:
        stream = self._streams.pop(state.stream_id, None)
        if stream is not None:
            stream.wake()
        if state.is_local:
            self._slots.give_back(state.priority)

    def _close(self, cause: SwarmNodeError, goodbye: tuple[GoodbyeCode, str] | None) -> None:
        """Begin the end; the first cause counts."""
        if self.is_closed:
            return
        self.close_cause = cause
        if goodbye is not None:
            self.core.close(*goodbye)
            self._must_linger = True
        else:
            self._send_scope.cancel()
        self._closing.set()
        self._send_wanted.unpark_all()
        self._carrier.changed.unpark_all()
        for stream in self._streams.values():
            stream.wake()
        self._slots.changed.unpark_all()
        self._calls.close()


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
    is left. Whoever dialled is the CLIENT and should know whom it ``expected``; with a
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
        await Session(link, channel, role, services).run(task_status)
    finally:
        await aclose_forcefully(channel)
