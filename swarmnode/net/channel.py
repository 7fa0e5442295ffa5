"""Channels move bytes, transports make channels. Neither knows which peer is at the other end.

A channel is a TCP connection, a WebRTC data channel, a stream through a
relay, or a pair of buffers in a test. The same secure session runs on each.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable

import trio

from swarmnode.errors import ChannelBroken


class Channel(Protocol):
    """Bytes in order, both ways, to one other side that is not trusted."""

    @property
    def description(self) -> str:
        """What a person should read about this way, such as ``tcp 192.0.2.1:4001``."""

    async def send_all(self, data: memoryview) -> None:
        """Send every byte; if cancelled, some of them may have gone out.

        Raises:
            ChannelBroken, ChannelClosed: nothing can be sent any more.
        """

    def send_nowait(self, data: memoryview) -> int:
        """Send what goes out without waiting; return how many bytes did, perhaps none.

        Raises as :meth:`send_all`. Never while a ``send_all`` is under way.
        """

    async def receive_into(self, buffer: memoryview) -> int:
        """Wait for bytes, write at most ``len(buffer)``, return how many; 0 at the end.

        Raises:
            ChannelBroken, ChannelClosed: nothing can be received any more.
        """

    async def aclose(self) -> None:
        """Let go of it; also when cancelled. Never raises for what the other side did."""


ChannelHandler = Callable[[Channel], Awaitable[None]]


class Transport(Protocol):
    """One way of getting channels."""

    async def dial(self, address: str) -> Channel:
        """Connect. Raises DialFailed with the reason, ConfigError for no address of ours."""

    async def serve(
        self,
        address: str,
        handle_channel: ChannelHandler,
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept channels until cancelled; report the address that was really bound.

        Each channel runs ``handle_channel`` in a task of its own and is closed after it.
        An error of a peer or of the network ends that task only. How many strangers it talks to
        the handler bounds.

        Raises:
            ConfigError: the address is not one, or cannot be bound.
        """


@runtime_checkable
class Abandonable(Protocol):
    """A channel that the system would go on with for a while after it is closed."""

    def give_up(self) -> None:
        """Once it is closed, nothing is left of it: what it still carries is not wanted."""

    def stalled(self) -> None:
        """It is open, and nothing comes: larger packets than its first may not get through."""


def give_up(channel: object) -> None:
    """Let a channel, if it is one, leave nothing behind when it is closed."""
    if isinstance(channel, Abandonable):
        channel.give_up()


def note_stall(channel: object) -> None:
    """Tell a channel, if it is one that cares, that nothing comes on it."""
    if isinstance(channel, Abandonable):
        channel.stalled()


async def receive_exactly(channel: Channel, buffer: memoryview) -> None:
    """Fill ``buffer``. Raises ChannelBroken if the channel ends before."""
    filled = 0
    while filled < len(buffer):
        n_bytes = await channel.receive_into(buffer[filled:])
        if n_bytes == 0:
            raise ChannelBroken(
                f"{channel.description}: closed after {filled} of {len(buffer)} expected bytes"
            )
        filled += n_bytes


async def aclose_forcefully(channel: Channel) -> None:
    """Close without waiting for anything, even if this task is being cancelled."""
    with trio.CancelScope() as scope:
        scope.cancel()
        await channel.aclose()
