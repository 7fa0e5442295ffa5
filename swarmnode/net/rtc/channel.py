"""The Trio side of an open data channel."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from swarmnode import limits
from swarmnode.errors import ChannelBroken, ChannelClosed
from swarmnode.net.rtc.bridge import Close, Command, Grant, Send
from swarmnode.protocol.nat.rtc_flow import ReadLedger, SendWindow


class RtcChannel:
    """A reliable ordered data channel as a stream of bytes.

    Bounds: the other side's unread bytes, one window; ours on their way to SCTP,
    RTC_SEND_BUFFER_BYTES. The first methods are a ``Channel``, the others are for the engine.
    """

    def __init__(
        self, link: int, remote: str, post: Callable[[Command], None], forget: Callable[[int], None]
    ) -> None:
        self._link = link
        self._description = f"rtc {remote}"
        self._post = post
        self._forget = forget
        self._inbox: deque[memoryview] = deque()
        self._message_bytes = 0  # of the first in the inbox, as it came
        self._send_window = SendWindow()
        self._ledger = ReadLedger()
        self._posted_bytes = 0
        self._drained_bytes = 0
        self._is_ended = False
        self._is_closed = False
        self._broken_by = ""
        self._changed = trio.lowlevel.ParkingLot()

    @property
    def description(self) -> str:
        """``rtc HOST:PORT`` of the other side."""
        return self._description

    async def send_all(self, data: memoryview) -> None:
        """Send every byte; waits while the buffer is full or the other side reads nothing."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            data = data[self.send_nowait(data) :]
            if not data:
                break
            await self._changed.park()
        await trio.lowlevel.cancel_shielded_checkpoint()

    def send_nowait(self, data: memoryview) -> int:
        """Send what window and buffer take now."""
        self._check_writable()
        n_sent = 0
        while n_sent < len(data):
            n_bytes = self._send_window.message_bytes(len(data) - n_sent)
            buffered_bytes = self._posted_bytes - self._drained_bytes
            if n_bytes == 0 or buffered_bytes + n_bytes > limits.RTC_SEND_BUFFER_BYTES:
                break
            self._send_window.sent(n_bytes)
            self._posted_bytes += n_bytes
            self._post(Send(self._link, bytes(data[n_sent : n_sent + n_bytes])))
            n_sent += n_bytes
        return n_sent

    async def receive_into(self, buffer: memoryview) -> int:
        """Receive at most ``len(buffer)`` bytes."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            if self._is_closed:
                raise ChannelClosed(f"{self._description}: this side closed it")
            if self._inbox:
                n_bytes = self._read(buffer)
                break
            if self._is_ended:
                n_bytes = 0
                break
            if self._broken_by:
                raise ChannelBroken(f"{self._description}: {self._broken_by}")
            await self._changed.park()
        await trio.lowlevel.cancel_shielded_checkpoint()
        return n_bytes

    async def aclose(self) -> None:
        """Close it; what was sent still goes out for a moment, and no caller waits for that."""
        if not self._is_closed:
            self._is_closed = True
            self._inbox.clear()
            self._post(Close(self._link))
            self._forget(self._link)
            self._changed.unpark_all()
        await trio.lowlevel.checkpoint()

    # --- for the engine ---------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        """A message came."""
        self._inbox.append(memoryview(data))
        if len(self._inbox) == 1:
            self._message_bytes = len(data)
        self._changed.unpark_all()

    def credited(self, total: int) -> None:
        """The other side has read more."""
        self._send_window.credited(total)
        self._changed.unpark_all()

    def drained(self, total: int) -> None:
        """So many bytes have left the buffer since the beginning."""
        self._drained_bytes = total
        self._changed.unpark_all()

    def ended(self) -> None:
        """The other side closed it."""
        self._is_ended = True
        self._changed.unpark_all()

    def broken(self, reason: str) -> None:
        """Nothing will come or go any more."""
        self._broken_by = reason
        self._changed.unpark_all()

    def _read(self, buffer: memoryview) -> int:
        """Copy as much as there is and fits."""
        filled = 0
        while self._inbox and filled < len(buffer):
            message = self._inbox.popleft()
            piece = message[: len(buffer) - filled]
            buffer[filled : filled + len(piece)] = piece
            filled += len(piece)
            if len(piece) < len(message):
                self._inbox.appendleft(message[len(piece) :])
            else:
                self._read_whole()
        return filled

    def _read_whole(self) -> None:
        total = self._ledger.read(self._message_bytes)
        if total is not None and not self._broken_by:
            self._post(Grant(self._link, total))
        if self._inbox:
            self._message_bytes = len(self._inbox[0])

    def _check_writable(self) -> None:
        if self._is_closed:
            raise ChannelClosed(f"{self._description}: this side closed it")
        if self._broken_by:
            raise ChannelBroken(f"{self._description}: {self._broken_by}")
        if self._is_ended:
            raise ChannelBroken(f"{self._description}: the other side closed it")
