"""What moves the bytes of a session between its core and its channel.

::

    streams -- kick, flush --> SessionCore --take--> send task ----> channel
    effects <----------------- SessionCore <-handle- receive task <- channel

Only the send task, or :meth:`Pump.flush` while that one is idle, writes to the channel, so
cancelling a task that waits for a stream never leaves half a record on the wire.

Closing: GOODBYE is sent after the record that is being sent, then the other
side has a moment to read it. Closing a TCP socket at once while unread bytes
lie in it would destroy the GOODBYE on its way.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import trio

from swarmnode import limits
from swarmnode.errors import (
    ChannelBroken,
    ChannelClosed,
    ProtocolError,
    SwarmNodeError,
    TransportError,
)
from swarmnode.net.carrier import Carrier
from swarmnode.net.channel import Channel, give_up
from swarmnode.net.handshake import Link
from swarmnode.net.records import next_body_bytes
from swarmnode.net.traffic import Tally, Traffic
from swarmnode.protocol.session.core import SessionCore
from swarmnode.wire.session import GoodbyeCode

_log = logging.getLogger("swarmnode.session")


class Pump:
    """The two tasks of a session that wait for its channel, and whether it is over.

    Args:
        carrier: of the channel that is used; another task may replace that.
        on_effects: called when the core may have effects.
        on_lost: called with a channel that has failed, perhaps one that was left already.
        on_close: called once, when nothing can be sent or received any more.

    Attributes:
        close_cause: why it is over.
    """

    def __init__(
        self,
        link: Link,
        core: SessionCore,
        carrier: Carrier,
        traffic: Traffic,
        *,
        on_effects: Callable[[], None],
        on_lost: Callable[[Channel | None, SwarmNodeError], None],
        on_close: Callable[[], None],
    ) -> None:
        self.peer = link.peer
        self.core = core
        self.close_cause: SwarmNodeError | None = None
        self._reader = link.reader
        self._writer = link.writer
        self._carrier = carrier
        self._traffic = traffic
        self._tally = Tally(traffic)
        self._on_effects = on_effects
        self._on_lost = on_lost
        self._on_close = on_close
        self._send_wanted = trio.lowlevel.ParkingLot()
        self._send_scope = trio.CancelScope(shield=True)
        self._closing = trio.Event()
        self._closed = trio.Event()
        self._must_linger = False

    # --- for streams ----------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be sent or received any more."""
        return self._closing.is_set()

    def closed_error(self) -> SwarmNodeError | None:
        """Return a new error to raise if the session is over."""
        return None if self.close_cause is None else self._over(self.close_cause)

    def check_open(self) -> None:
        """Raise a new error if the session is over.

        No frame that it goes through names it: one that does keeps itself, and the session.
        """
        if self.close_cause is not None:
            raise self._over(self.close_cause)

    def _over(self, cause: SwarmNodeError) -> SwarmNodeError:
        kind = ChannelClosed if isinstance(cause, ChannelClosed) else ChannelBroken
        return kind(f"session with {self.peer.short} is over: {cause}")

    def kick(self) -> None:
        """Wake the send task if the core has something to send."""
        if self._send_wanted and self.core.has_outgoing:
            self._send_wanted.unpark()

    def flush(self) -> None:
        """:meth:`kick`, but what fits into one record goes out at once if the send task is idle.

        For a request, or a small payload, the switch of tasks would cost as much as all the rest.
        """
        core = self.core
        if not (self._send_wanted and core.has_outgoing):
            return
        if self.is_closed or not core.is_small:
            self._send_wanted.unpark()
            return
        channel = self._carrier.channel
        sealed, look_again_at = self._seal_next()
        try:
            is_sent = sealed is None or self._writer.send_nowait(sealed)
        except TransportError as error:
            self._on_lost(channel, error)
            return
        if look_again_at < math.inf or not is_sent or core.has_outgoing:
            self._send_wanted.unpark()  # what is held goes out in time, and not with the next ping
        self._on_effects()

    # --- for the session ------------------------------------------------------------------

    def resend(self) -> None:
        """Wake the send task: what the peer does not have goes out again."""
        self._send_wanted.unpark_all()

    def trim(self) -> None:
        """Give back memory that was used a while ago; see ``RecordWriter.trim``."""
        self._writer.trim()

    async def wait_for_channel(self) -> bool:
        """Wait until there is a channel to use; False: the session is closed."""
        while self._carrier.channel is None and not self.is_closed:
            await self._carrier.changed.park()
        return self._carrier.channel is not None and (not self.is_closed or self._must_linger)

    async def wait_left(self, channel: Channel) -> None:
        """Wait until ``channel`` is not needed any more."""
        while self._carrier.holds(channel) and not self._closed.is_set():
            await self._carrier.changed.park()

    async def wait_closing(self) -> None:
        """Wait until nothing can be sent or received any more."""
        await self._closing.wait()

    async def wait_closed(self) -> None:
        """Wait until the channel is closed, too."""
        await self._closed.wait()

    def close(self, cause: SwarmNodeError, goodbye: tuple[GoodbyeCode, str] | None) -> None:
        """Begin the end; the first cause counts."""
        if self.is_closed:
            return
        self.close_cause = cause.with_traceback(None)  # whose frames name this pump
        if goodbye is not None:
            self.core.close(*goodbye)
            self._must_linger = True
        else:
            self._send_scope.cancel()
        self._closing.set()
        self._send_wanted.unpark_all()
        self._carrier.changed.unpark_all()
        self._on_close()

    def give_up(self, cause: SwarmNodeError) -> None:
        """End it without a goodbye: no peer is there to read one."""
        self._must_linger = False
        self.close(cause, None)

    def let_linger(self) -> None:
        """Give the send task a moment for the GOODBYE, and no more."""
        self._send_scope.deadline = trio.current_time() + limits.GOODBYE_LINGER_S

    async def finish(self) -> None:
        """Give the peer a moment to read the GOODBYE, then close the channel."""
        if self._must_linger and not self._send_scope.cancelled_caught:
            with trio.move_on_after(limits.GOODBYE_LINGER_S, shield=True):
                await self._reader.drain()
        elif not self._must_linger:
            give_up(self._carrier.channel)
        self._closed.set()
        self._carrier.changed.unpark_all()
        self._let_go()
        await self._carrier.aclose()

    def _let_go(self) -> None:
        """Leave nothing to the collector of cycles: it comes for it minutes later.

        The session names the pump, and errors that were raised name what it was at. So the buffers,
        megabytes each where tensors were sent, go by themselves.
        """
        self._on_effects = self._on_close = lambda: None
        self._on_lost = lambda _channel, _error: None
        self._reader.close()
        self._writer.close()
        self.core.pool.clear()

    # --- tasks ----------------------------------------------------------------------------

    async def send(self) -> None:
        """Send what the core has, on whatever channel there is, until the session is closed."""
        with self._send_scope:
            while await self.wait_for_channel():
                channel = self._carrier.channel
                try:
                    await self._send_all_due()
                    return
                except TransportError as error:
                    self._on_lost(channel, error)

    async def receive(self) -> None:
        """Hand the core what comes, from whatever channel there is, until it is closed."""
        core, reader = self.core, self._reader
        while await self.wait_for_channel() and not self.is_closed:
            channel = self._carrier.channel
            try:
                while True:
                    n_bytes = await reader.receive()
                    now = trio.current_time()
                    reader.open_all(core, now)
                    self._tally.received(n_bytes, reader.received_bytes, core, now)
                    self._writer.acknowledged(core.acknowledged_bytes)
                    self._on_effects()
                    self.flush()
            except TransportError as error:
                self._on_lost(channel, error)
            except ProtocolError as error:
                error.peer = str(self.peer)
                _log.warning("%s (%s): %s", self.peer.short, self._carrier.description, error)
                self.close(error, (GoodbyeCode.PROTOCOL_ERROR, str(error)))

    async def _send_all_due(self) -> None:
        """Send what is due on the channel that there is now, until the session is closed."""
        core, writer = self.core, self._writer
        while True:
            await writer.send_rest()
            sealed, look_again_at = self._seal_next()
            self._on_effects()
            if sealed is not None:
                taken_s = await writer.send(sealed)
                body_bytes_max = next_body_bytes(core.body_bytes_max, len(sealed), taken_s)
                turn_bytes_max = self._traffic.up.turn_bytes_max(is_far=self._tally.way.is_far)
                core.body_bytes_max = min(body_bytes_max, turn_bytes_max)
            elif self.is_closed:
                return
            elif look_again_at == math.inf:  # mostly: a scope costs as much as a switch of tasks
                await self._send_wanted.park()
            else:
                with trio.CancelScope(deadline=look_again_at):
                    await self._send_wanted.park()

    def _seal_next(self) -> tuple[memoryview | None, float]:
        """Seal what is due and may pass; also return when something that is held may."""
        now = trio.current_time()
        way = self._tally.way
        way.look(self._carrier.channel, now)
        look_again_at = self._traffic.hold_back(self.core, now, is_far=way.is_far)
        sealed = self._writer.seal_next(self.core, now)
        if sealed is not None:
            self._tally.sent(len(sealed), self.core, now)
        return sealed, look_again_at
