"""Channels of a relay's legs: a connection of its own once the relay says GO, or a stream.

On a stream of one session another session may run. The two do not wait for each other: the inner
session's send task waits for the outer stream's credit, and nothing of the outer session ever
waits for the inner one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from swarmnode.errors import ChannelBroken, ChannelClosed, SwarmNodeError, TransportError
from swarmnode.ids import PeerId
from swarmnode.net.channel import Channel, give_up, note_stall
from swarmnode.net.stream import Stream
from swarmnode.net.tcp import TcpChannel
from swarmnode.protocol.uplink import Delays


class StreamChannel:
    """Both directions of a stream. Closing it leaves the stream politely.

    Attributes:
        is_within: what passes counts as that of the session whose stream it is.
    """

    is_within = True

    def __init__(self, stream: Stream, description: str) -> None:
        self._stream = stream
        self._description = description
        self._rest = memoryview(b"")  # received and not yet handed on
        self._is_closed = False

    @property
    def description(self) -> str:
        """What the side that opened the stream says of it."""
        return self._description

    async def send_all(self, data: memoryview) -> None:
        """Send every byte; waits for the stream's credit."""
        with self._translated():
            await self._stream.send(data)

    def send_nowait(self, data: memoryview) -> int:
        """Send a copy if it fits into the credit and nothing waits before it."""
        state, pump = self._stream.state, self._stream.pump
        if state.pending:
            return 0
        with self._translated():
            if not state.can_send or pump.is_closed:
                raise pump.closed_error() or ChannelBroken("the stream has ended")
            n_bytes = min(len(data), state.send_credit)
            if n_bytes:
                pump.core.queue(state, memoryview(bytes(data[:n_bytes])))
                pump.flush()
        return n_bytes

    async def receive_into(self, buffer: memoryview) -> int:
        """Receive at most ``len(buffer)`` bytes."""
        if self._rest:
            await trio.lowlevel.checkpoint()
        else:
            with self._translated():
                self._rest = await self._stream.receive()
        n_bytes = min(len(buffer), len(self._rest))
        buffer[:n_bytes] = self._rest[:n_bytes]
        self._rest = self._rest[n_bytes:]
        return n_bytes

    async def aclose(self) -> None:
        """Leave the stream; what was sent is delivered."""
        self._is_closed = True
        self._stream.finish_nowait()
        await trio.lowlevel.checkpoint()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Let out only what channels raise."""
        try:
            if self._is_closed:
                raise ChannelClosed("this side closed it")
            yield
        except TransportError as error:
            raise type(error)(f"{self._description}: {error}") from error
        except SwarmNodeError as error:
            raise ChannelBroken(f"{self._description}: {error}") from error


class RelayedChannel:
    """A leg whose relay has said GO: whatever comes now, the other side has sent."""

    def __init__(self, leg: Channel, description: str, relay: PeerId) -> None:
        self.relay = relay
        self.is_within = isinstance(leg, StreamChannel)
        self._leg = leg
        self._description = description

    @property
    def description(self) -> str:
        """``relay:PEER@HOST:PORT``."""
        return self._description

    def delays(self) -> Delays | None:
        """Return those of the way to the relay: what leaves this machine goes there."""
        return self._leg.delays() if isinstance(self._leg, TcpChannel) else None

    async def send_all(self, data: memoryview) -> None:
        """Send every byte."""
        await self._leg.send_all(data)

    def send_nowait(self, data: memoryview) -> int:
        """Send what goes out without waiting."""
        return self._leg.send_nowait(data)

    async def receive_into(self, buffer: memoryview) -> int:
        """Receive at most ``len(buffer)`` bytes."""
        return await self._leg.receive_into(buffer)

    def give_up(self) -> None:
        """See ``Abandonable``."""
        give_up(self._leg)

    def stalled(self) -> None:
        """See ``Abandonable``."""
        note_stall(self._leg)

    async def aclose(self) -> None:
        """Close the leg."""
        await self._leg.aclose()
