"""One stream of a session, as a task sees it, and how many of them may be open.

One task may send while another receives; two that do the same thing at once
are a bug (``trio.BusyResourceError``). A cancelled send or receive never
hurts the session or another stream, but on this stream some of the bytes may
be through: reset it, unless the protocol above can tell where it stands.
"""

from __future__ import annotations

import struct

import trio

from swarmnode import limits
from swarmnode.errors import (
    ChannelBroken,
    ChannelClosed,
    DeadlineExceeded,
    LimitExceeded,
    Overloaded,
    Refused,
    SwarmNodeError,
)
from swarmnode.net.pump import Pump
from swarmnode.protocol.session.stream import Reset, StreamState
from swarmnode.wire.session import Priority, ResetCode

Buffer = bytes | bytearray | memoryview
_MESSAGE = struct.Struct(">II")  # header bytes, payload bytes


class _OneTask:
    """A block that only one task may be in."""

    __slots__ = ("_doing", "_is_taken")

    def __init__(self, doing: str) -> None:
        self._doing = doing
        self._is_taken = False

    def __enter__(self) -> None:
        if self._is_taken:
            raise trio.BusyResourceError(f"another task is {self._doing} on this stream")
        self._is_taken = True

    def __exit__(self, *_: object) -> None:
        self._is_taken = False


class Stream:
    """Bytes in order, both ways, to one service of one peer."""

    def __init__(self, pump: Pump, state: StreamState) -> None:
        self.pump = pump
        self.state = state
        self._core = pump.core
        self._readable = trio.lowlevel.ParkingLot()
        self._written = trio.lowlevel.ParkingLot()
        self._sending = _OneTask(f"sending to {state.service}")
        self._receiving = _OneTask(f"receiving from {state.service}")
        self._is_attended = False
        # Set by the session for work whose only result would go to a peer that left.
        self.scope_to_cancel: trio.CancelScope | None = None

    @property
    def service(self) -> str:
        """The name that the opener asked for."""
        return self.state.service

    @property
    def deadline_s(self) -> float | None:
        """How long the opener said it would wait, from the moment of opening."""
        return self.state.deadline_ms / 1000 if self.state.deadline_ms else None

    # --- sending --------------------------------------------------------------------------

    async def send(self, data: Buffer) -> None:
        """Send ``data``, of any size; waits for the peer's credit. Checkpoint: yes.

        ``data`` is not copied: leave it unchanged until this returns.

        Raises:
            ChannelBroken: the peer or the network ended the stream or the session.
            ChannelClosed: this side did.
        """
        await self._send_parts(memoryview(data).cast("B"))

    async def send_message(self, header: bytes, payload: Buffer = b"") -> None:
        """Send a header and a payload that :meth:`receive_message` returns as one.

        Raises as :meth:`send`.
        """
        view = memoryview(payload).cast("B")
        prefix = _MESSAGE.pack(len(header), len(view)) + header
        await self._send_parts(memoryview(prefix), view)

    def queue_message(self, header: bytes) -> None:
        """Queue a message without a payload: it goes out together with what is sent next."""
        self._check_sendable()
        self._core.queue(self.state, memoryview(_MESSAGE.pack(len(header), 0) + header))

    async def send_last(self, data: Buffer) -> None:
        """Send ``data`` and the end behind it; see :meth:`send`. Checkpoint: yes.

        What is small goes out as one record, which wakes the peer once.
        """
        await self._send_parts(memoryview(data).cast("B"), is_last=True)

    async def send_end(self) -> None:
        """Tell the peer that no more comes; it can still send. Checkpoint: yes."""
        self._core.end(self.state)
        self.pump.kick()
        await trio.lowlevel.checkpoint()

    async def _send_parts(self, *parts: memoryview, is_last: bool = False) -> None:
        with self._sending:
            await trio.lowlevel.checkpoint_if_cancelled()
            self._check_sendable()
            for part in parts:
                self._core.queue(self.state, part)
            if is_last:
                self._core.end(self.state)
            self.pump.flush()
            try:
                if not self.state.pending:  # all of it is out already
                    await trio.lowlevel.cancel_shielded_checkpoint()
                while self.state.pending and not self.pump.is_closed:
                    await self._written.park()
            finally:
                self.state.withdraw()
            if self.state.is_cut:
                self._check_sendable()

    def _check_sendable(self) -> None:
        if not self.state.can_send or self.pump.is_closed:
            self._check_open()
            raise ChannelClosed(f"{self._name()}: its end was sent already")

    # --- receiving ------------------------------------------------------------------------

    async def receive(self) -> memoryview:
        """Return the next piece, now the caller's; empty at the end. Checkpoint: yes.

        Raises as :meth:`send`.
        """
        inbox = self.state.inbox
        with self._receiving:
            self._attend()
            await trio.lowlevel.checkpoint()
            while not inbox.unread_bytes:
                if self._is_at_end():
                    return memoryview(b"")
                await self._readable.park()
            piece = inbox.take()
            self._consumed(len(piece))
            return piece

    async def receive_into(self, buffer: memoryview) -> None:
        """Fill ``buffer``, without a copy where bytes come after this call. Checkpoint: yes.

        Raises as :meth:`send`, and ChannelBroken if the stream ends before.
        """
        with self._receiving:
            self._attend()
            await trio.lowlevel.checkpoint_if_cancelled()
            await self._fill_all(buffer.cast("B"))

    async def receive_message(self, max_bytes: int) -> tuple[bytes, memoryview]:
        """Return (header, payload) of the next message; both are the caller's.

        Raises:
            trio.EndOfChannel: the peer ended the stream, and there is no further message.
            LimitExceeded: the payload has more than ``max_bytes``, or the header more than
                any message may; the stream is reset.
            ChannelBroken, ChannelClosed: as :meth:`send`.
        """
        with self._receiving:
            self._attend()
            await trio.lowlevel.checkpoint_if_cancelled()
            prefix = bytearray(_MESSAGE.size)
            filled = await self._fill(memoryview(prefix))
            if filled == 0:
                raise trio.EndOfChannel
            if filled < _MESSAGE.size:
                raise self._ended_early(filled, _MESSAGE.size)
            header_bytes, payload_bytes = _MESSAGE.unpack(prefix)
            self._check_message(header_bytes, payload_bytes, max_bytes)
            header = bytearray(header_bytes)
            await self._fill_all(memoryview(header))
            return bytes(header), await self._receive_payload(payload_bytes)

    async def receive_rest(self, max_bytes: int) -> bytes:
        """Return everything up to the end of the stream.

        Raises as :meth:`send`, and LimitExceeded for more than ``max_bytes``: the stream is reset.
        """
        received = bytearray()
        inbox = self.state.inbox
        with self._receiving:
            self._attend()
            await trio.lowlevel.checkpoint_if_cancelled()
            while not self._is_at_end():
                if not inbox.unread_bytes:
                    await self._readable.park()
                    continue
                piece = inbox.take()
                received += piece
                if len(received) > max_bytes:
                    self._refuse(f"more than {max_bytes} bytes")
                self._consumed(len(piece))
        return bytes(received)

    async def receive_end(self) -> None:
        """Wait for the end alone: the peer is not given credit for what it has not to send.

        Raises as :meth:`send`, and LimitExceeded if bytes come: the stream is reset.
        """
        with self._receiving:
            await trio.lowlevel.checkpoint()
            while not self._is_at_end():
                if self.state.inbox.unread_bytes:
                    self._refuse("bytes in place of the end")
                await self._readable.park()

    async def _receive_payload(self, n_bytes: int) -> memoryview:
        payload = self.state.inbox.take_whole(n_bytes)
        if payload is None:
            payload = memoryview(self._core.pool.get(n_bytes))
            await self._fill_all(payload)
        else:  # it came in the same moment as its header: no copy
            self._consumed(n_bytes)
        return payload

    async def _fill_all(self, buffer: memoryview) -> None:
        filled = await self._fill(buffer)
        if filled < len(buffer):
            raise self._ended_early(filled, len(buffer))

    async def _fill(self, buffer: memoryview) -> int:
        """Fill ``buffer`` as far as bytes come; return how many."""
        inbox = self.state.inbox
        filled = 0
        while True:
            if inbox.unread_bytes:
                n_bytes = inbox.read_into(buffer[filled:] if filled else buffer)
                self._consumed(n_bytes)
                filled += n_bytes
            if filled == len(buffer) or self._is_at_end():
                return filled
            inbox.lend(buffer[filled:])
            try:
                await self._readable.park()
            finally:
                filled += inbox.take_back()

    def _consumed(self, n_bytes: int) -> None:
        if n_bytes and self._core.consumed(self.state, n_bytes):
            self.pump.kick()

    def _attend(self) -> None:
        if not self._is_attended:
            self._is_attended = True
            self._core.attend(self.state)
            self.pump.kick()

    def _is_at_end(self) -> bool:
        """Whether the inbox is all that there is. Raises if it ended in any other way than END."""
        if self.state.inbox.unread_bytes:
            return False
        if self.state.end_received and not self.state.is_discarding:
            return True
        self._check_open()
        return False

    def _check_message(self, header_bytes: int, payload_bytes: int, max_bytes: int) -> None:
        if header_bytes > limits.MESSAGE_BYTES_MAX or payload_bytes > max_bytes:
            self._refuse(
                f"message of {header_bytes} + {payload_bytes} bytes, at most "
                f"{limits.MESSAGE_BYTES_MAX} + {max_bytes} are allowed"
            )

    def _refuse(self, what: str) -> None:
        self.reset_nowait(ResetCode.REFUSED, what)
        raise LimitExceeded(f"{self._name()}: {what}", peer=str(self.pump.peer))

    def _ended_early(self, filled: int, wanted: int) -> ChannelBroken:
        return ChannelBroken(
            f"{self._name()}: the peer ended it after {filled} of {wanted} expected bytes"
        )

    # --- ending ---------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Leave the stream: what was sent is delivered, what comes is not wanted."""
        self.finish_nowait()
        await trio.lowlevel.checkpoint()

    async def reset(self, code: ResetCode = ResetCode.CANCELLED, reason: str = "") -> None:
        """End both directions now; the peer gets the code and the reason."""
        self.reset_nowait(code, reason)
        await trio.lowlevel.checkpoint()

    def finish_nowait(self) -> None:
        """:meth:`aclose` without a checkpoint."""
        self._core.finish(self.state)
        self.wake()
        self.pump.kick()

    def reset_nowait(self, code: ResetCode, reason: str) -> None:
        """:meth:`reset` without a checkpoint: for a task that is being cancelled."""
        self._core.reset(self.state, code, reason)
        self.wake()
        self.pump.kick()

    async def __aenter__(self) -> Stream:
        """Use the stream in a block: left politely after it, reset if it raises."""
        return self

    async def __aexit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        """Leave the stream."""
        if error_type is None:
            self.finish_nowait()
        else:
            self.reset_nowait(ResetCode.CANCELLED, "")

    # --- for the session ------------------------------------------------------------------

    def queue_last(self, data: bytes) -> None:
        """Queue ``data`` and the end behind it, without waiting for either to go out."""
        self._check_sendable()
        self._core.queue(self.state, memoryview(data))
        self._core.end(self.state)
        self.pump.flush()

    def wake(self) -> None:
        """Let waiting tasks look again."""
        if self._readable:  # mostly only one of the two has a task
            self._readable.unpark_all()
        if self._written and (not self.state.pending or self.pump.is_closed):
            self._written.unpark_all()
        if self.scope_to_cancel is not None and self.state.reset is not None:
            self.scope_to_cancel.cancel()

    def _check_open(self) -> None:
        """Raise why nothing passes any more, if so."""
        reset = self.state.reset
        if reset is not None and reset.by_peer:
            raise error_from_reset(self._name(), reset, self.deadline_s or 0.0)
        if reset is not None or self.state.is_discarding:
            raise ChannelClosed(f"{self._name()}: this side left it")
        self.pump.check_open()

    def _name(self) -> str:
        return f"stream {self.service!r} with {self.pump.peer.short}"


def error_from_reset(name: str, reset: Reset, deadline_s: float) -> SwarmNodeError:
    """Return what it means that the peer reset a stream."""
    message = f"{name}: {reset.reason or 'the peer left it'}"
    match reset.code:
        case ResetCode.REFUSED | ResetCode.NO_SERVICE:
            return Refused(message)
        case ResetCode.OVERLOADED:
            return Overloaded(message)
        case ResetCode.DEADLINE:
            return DeadlineExceeded(f"{name} at the peer", deadline_s)
        case ResetCode.FAILED:
            return ChannelBroken(f"{name}: failed at the peer: {reset.reason}")
        case _:
            return ChannelBroken(message)


class StreamSlots:
    """How many streams one side of a session has open that it opened itself.

    ``changed`` is woken when there may be room for more.
    """

    def __init__(self) -> None:
        self.changed = trio.lowlevel.ParkingLot()
        self._streams = 0
        self._bulk_streams = 0

    def has_room(self, priority: Priority) -> bool:
        """Whether one more may be opened."""
        return self._streams < limits.STREAMS_PER_SIDE_MAX and (
            priority is not Priority.BULK or self._bulk_streams < limits.BULK_STREAMS_PER_SIDE_MAX
        )

    def take(self, priority: Priority) -> None:
        """Count one that is opened."""
        self._streams += 1
        self._bulk_streams += priority is Priority.BULK

    def give_back(self, priority: Priority) -> None:
        """Count one that is over."""
        self._streams -= 1
        self._bulk_streams -= priority is Priority.BULK
        self.changed.unpark_all()
