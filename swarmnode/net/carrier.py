"""What carries a session's records: a channel, or for a while none, then another one."""

from __future__ import annotations

import math

import trio

from swarmnode import limits
from swarmnode.errors import ChannelBroken
from swarmnode.net.channel import Channel, aclose_forcefully
from swarmnode.net.records import RecordReader, RecordWriter


class Carrier:
    """The channel of one session.

    Attributes:
        channel: that it uses now; None: it is suspended.
        description: of that channel, or of the last one.
        resumed: how often the session has gone on over another channel.
        deadline: a suspended session is not kept for longer, in Trio's time.
        changed: woken whenever ``channel`` may be another one, or one is let go.
    """

    def __init__(self, channel: Channel, reader: RecordReader, writer: RecordWriter) -> None:
        self.channel: Channel | None = channel
        self.description = channel.description
        self.resumed = 0
        self.deadline = math.inf
        self.changed = trio.lowlevel.ParkingLot()
        self._reader = reader
        self._writer = writer
        self._parting: Channel | None = None  # left, and still open

    def leave(self) -> None:
        """Use the channel no more. It stays open: the peer still uses it."""
        if self.channel is not None:
            self._parting, self.channel = self.channel, None
            self._reader.detach()
            self._writer.detach()
            self.deadline = trio.current_time() + limits.RESUME_S
            self.changed.unpark_all()

    def attach(self, channel: Channel, received_bytes: int, resumed_before: int) -> None:
        """Go on over ``channel``; see ``Session.attach``."""
        if self.channel is not None or self.resumed != resumed_before:
            raise ChannelBroken("the session has gone on over another channel meanwhile")
        self._writer.attach(channel, received_bytes)
        self._reader.attach(channel)
        self.channel = channel
        self.description = channel.description
        self.deadline = math.inf
        self.resumed += 1
        self.changed.unpark_all()

    def take_parting(self) -> Channel | None:
        """Return the channel that was left, to be closed, once."""
        parting, self._parting = self._parting, None
        self.changed.unpark_all()
        return parting

    def holds(self, channel: Channel) -> bool:
        """Whether this channel must stay open."""
        return channel in (self.channel, self._parting)

    async def aclose(self) -> None:
        """Close what there is, without waiting for anything."""
        for channel in (self.channel, self.take_parting()):
            if channel is not None:
                await aclose_forcefully(channel)
