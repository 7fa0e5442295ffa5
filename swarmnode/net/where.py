"""Where a connection seems to come from, asked of its other end before there is any session.

A hole punch needs to know what a NAT makes of the port that we listen on, so the question goes out
from that port. The answer is the one line HOST:PORT; it is believed for a punch only, which a lie
makes fail.
"""

from __future__ import annotations

import contextlib
from ipaddress import ip_address

import trio

from swarmnode import limits
from swarmnode.errors import ChannelBroken, ConfigError, DeadlineExceeded, MalformedMessage
from swarmnode.net.channel import Channel, receive_exactly
from swarmnode.net.tcp import format_address, parse_address
from swarmnode.wire.connect.reach import WHERE_ANSWER_BYTES_MAX, WHERE_MAGIC


async def ask_where(channel: Channel) -> tuple[str, int]:
    """Return the host and port that the other end sees us at.

    Raises:
        MalformedMessage: it answers something else.
        DeadlineExceeded, ChannelBroken: it does not answer.
    """
    with trio.move_on_after(limits.WHERE_S):
        await channel.send_all(memoryview(WHERE_MAGIC))
        line = (await _receive_line(channel)).decode("ascii", "replace")
        try:
            host, port = parse_address(line)
            return str(ip_address(host)), port
        except (ConfigError, ValueError):
            raise MalformedMessage(
                f"{channel.description}: expected HOST:PORT, got {line!r}"
            ) from None
    raise DeadlineExceeded(f"{channel.description}: where it sees us", limits.WHERE_S)


async def answer_where(channel: Channel, first_bytes: bytes, remote: tuple[str, int]) -> None:
    """Answer a connection that began with ``first_bytes``; wait until the asker has closed it.

    It holds it open as long as its punch takes, for its NAT forgets the port otherwise.

    Raises:
        MalformedMessage: that was no such question.
        ChannelBroken: the asker is gone.
    """
    with trio.move_on_after(limits.WHERE_HOLD_S):
        rest = bytearray(len(WHERE_MAGIC) - len(first_bytes))
        await receive_exactly(channel, memoryview(rest))
        if first_bytes + rest != WHERE_MAGIC:
            raise MalformedMessage(f"{channel.description}: expected {WHERE_MAGIC!r}")
        await channel.send_all(memoryview(f"{format_address(*remote)}\n".encode("ascii")))
        with contextlib.suppress(ChannelBroken):  # it resets it: it needs the port again
            await channel.receive_into(memoryview(bytearray(1)))


async def _receive_line(channel: Channel) -> bytes:
    buffer = memoryview(bytearray(WHERE_ANSWER_BYTES_MAX))
    filled = 0
    while filled < len(buffer):
        n_bytes = await channel.receive_into(buffer[filled:])
        if n_bytes == 0:
            raise ChannelBroken(f"{channel.description}: closed without an answer")
        filled += n_bytes
        line, newline, _ = bytes(buffer[:filled]).partition(b"\n")
        if newline:
            return line
    raise MalformedMessage(f"{channel.description}: expected HOST:PORT, got a longer line")
