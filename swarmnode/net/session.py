"""A session with one peer: its streams and requests, and one channel after the other.

The core (``protocol/session``) is what the two sides agree on, the pump (``net/pump.py``) moves
its bytes; here its effects become streams, handlers and answers. A handler that raises or sleeps
concerns its own stream. No task outlives :meth:`Session.run`.

Where a caller looks after it (``on_lost``), a session outlives its channel: it is suspended, all
that waits goes on waiting, and :meth:`Session.attach` lets it go on over another channel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import trio

from swarmnode import limits
from swarmnode.errors import ChannelClosed, DeadlineExceeded, SwarmNodeError
from swarmnode.net.calls import Answerer, Calls, OnAnswer
from swarmnode.net.carrier import Carrier
from swarmnode.net.channel import Channel, aclose_forcefully, give_up, note_stall
from swarmnode.net.handshake import Link
from swarmnode.net.pump import Pump
from swarmnode.net.stream import Stream, StreamSlots
from swarmnode.net.traffic import Traffic
from swarmnode.protocol.session.core import CoreStatistics, SessionCore
from swarmnode.protocol.session.effects import Changed, Opened, Removed
from swarmnode.protocol.session.records import Role
from swarmnode.protocol.session.stream import StreamState
from swarmnode.protocol.uplink import purpose_of
from swarmnode.wire.session import DEADLINE_MS_MAX, GoodbyeCode, Priority, ResetCode


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


class Acceptor(Protocol):
    """What takes the streams that the peer opens; see ``net/peering.py``.

    Attributes:
        running: handlers that have a task just now.
        failed: those that ended by a fault of their own.
        nursery: where they run; there before the first stream is.
    """

    running: int
    failed: int
    nursery: trio.Nursery | None

    def answerer(self, session: Session, state: StreamState) -> Answerer | None:
        """Return what answers this stream without waiting, if its service has such a thing."""

    def accept(self, session: Session, stream: Stream) -> None:
        """Start the handler of a stream, or let it wait for one that ends."""


class Session:
    """An authenticated connection to one peer. Made by ``net/peering.py`` only."""

    def __init__(
        self,
        link: Link,
        channel: Channel,
        role: Role,
        traffic: Traffic,
        acceptor: Acceptor,
    ) -> None:
        self.peer = link.peer
        self.outbound = role is Role.CLIENT
        self.version = link.version
        self.instance = link.theirs.instance  # of the peer's running process
        self.is_probe = link.theirs.is_probe
        self.role = role
        self.resume_keys = link.resume
        self.core = SessionCore(role, trio.current_time())
        self.on_lost: Callable[[Session, SwarmNodeError], None] | None = None
        self.on_silent: Callable[[Session], None] = lambda _session: None
        self._opened_at = trio.current_time()
        self._reader = link.reader
        self._traffic = traffic
        self._carrier = Carrier(channel, link.reader, link.writer)
        self.pump = Pump(
            link,
            self.core,
            self._carrier,
            traffic,
            on_effects=self._apply_effects,
            on_lost=self._lose,
            on_close=self._wake_all,
        )
        self._streams: dict[int, Stream] = {}
        self._n_bulk = 0
        self._bulk_at = self._opened_at
        self._calls = Calls(self.pump)
        self._slots = StreamSlots()
        self._workers: trio.Nursery | None = None
        self._acceptor = acceptor

    # --- for all --------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be sent or received any more."""
        return self.pump.is_closed

    @property
    def close_cause(self) -> SwarmNodeError | None:
        """Why it is over."""
        return self.pump.close_cause

    @property
    def is_busy(self) -> bool:
        """Whether a stream is open, whichever side opened it."""
        return bool(self._streams)

    @property
    def bulk_idle_s(self) -> float:
        """For how long no tensors were sent or received, as in exchanges and snapshots."""
        return 0.0 if self._n_bulk else trio.current_time() - self._bulk_at

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
            await self._traffic.wait_for_turn(purpose_of(service, is_bulk=True))
        self.pump.check_open()
        while not self._slots.has_room(priority):
            await self._slots.changed.park()
            self.pump.check_open()
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
            handlers_running=self._acceptor.running,
            handlers_failed=self._acceptor.failed,
        )

    async def aclose(self, reason: str = "", code: GoodbyeCode = GoodbyeCode.DONE) -> None:
        """Say goodbye and wait until the session is over; the peer is told ``reason``."""
        self.close_nowait(reason, code)
        await self.pump.wait_closed()

    def close_nowait(self, reason: str = "", code: GoodbyeCode = GoodbyeCode.DONE) -> None:
        """Say goodbye; the session is closed now, and over a little later."""
        cause = ChannelClosed(f"session with {self.peer.short}: closed by this side: {reason}")
        self.pump.close(cause, (code, reason))

    async def wait_closed(self) -> None:
        """Wait until the session is over; ``close_cause`` tells why."""
        await self.pump.wait_closed()

    def closed_error(self) -> SwarmNodeError | None:
        """Return a new error to raise if the session is over."""
        return self.pump.closed_error()

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
        """End it without a goodbye: no peer is there to read one."""
        self.pump.give_up(cause)

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
            give_up(parting)  # what it has not delivered goes out again over another one
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
        self.pump.resend()

    async def wait_for_channel(self) -> bool:
        """Wait until there is a channel to use; False: the session is closed."""
        return await self.pump.wait_for_channel()

    async def wait_left(self, channel: Channel) -> None:
        """Wait until the session does not need ``channel`` any more."""
        await self.pump.wait_left(channel)

    # --- tasks ----------------------------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[Session]) -> None:
        """Run the session until it is over."""
        pump = self.pump
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pump.send)
                try:
                    await self._run_workers(task_status)
                finally:
                    pump.close(
                        ChannelClosed(f"session with {self.peer.short}: this node stops it"),
                        (GoodbyeCode.DONE, "this node stops the session"),
                    )
                    pump.let_linger()
        finally:
            await pump.finish()

    async def _run_workers(self, task_status: trio.TaskStatus[Session]) -> None:
        async with trio.open_nursery() as workers:
            self._workers = workers
            self._acceptor.nursery = workers
            workers.start_soon(self.pump.receive)
            workers.start_soon(self._keep_alive)
            task_status.started(self)
            await self.pump.wait_closing()
            workers.cancel_scope.cancel()

    def _lose(self, channel: Channel | None, error: SwarmNodeError) -> None:
        """The channel is of no use any more: suspend the session, or end it."""
        if channel is None or self.channel is not channel:
            return  # it has been left already
        if self.on_lost is None or self.is_closed:
            self.pump.give_up(error)
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
                    note_stall(self.channel)
                    self.on_silent(self)
            elif now >= self._carrier.deadline:
                waited_for = f"another channel to {self.peer.short}"
                self.pump.close(DeadlineExceeded(waited_for, limits.RESUME_S), None)
            self.pump.trim()
            self._calls.expire(now)
            self._apply_effects()
            self.pump.kick()

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
                self.pump.close(effect.cause, effect.goodbye)

    def _opened(self, state: StreamState) -> None:
        answerer = self._acceptor.answerer(self, state)
        if answerer is None:
            stream = self._adopt(state)
            why = self._traffic.refusal(trio.current_time())
            if why and state.priority is Priority.BULK:
                stream.reset_nowait(ResetCode.OVERLOADED, why)
            else:
                self._acceptor.accept(self, stream)
        else:
            self._calls.accept(state, answerer)

    def _adopt(self, state: StreamState) -> Stream:
        stream = self._streams[state.stream_id] = Stream(self.pump, state)
        self._n_bulk += state.priority is Priority.BULK
        return stream

    def _remove(self, state: StreamState) -> None:
        stream = self._streams.pop(state.stream_id, None)
        if stream is not None:
            stream.wake()
            if state.priority is Priority.BULK:
                self._n_bulk, self._bulk_at = self._n_bulk - 1, trio.current_time()
        if state.is_local:
            self._slots.give_back(state.priority)

    def _wake_all(self) -> None:
        """Let everything that waits see that the session is over."""
        for stream in self._streams.values():
            stream.wake()
        self._slots.changed.unpark_all()
        self._calls.close()
