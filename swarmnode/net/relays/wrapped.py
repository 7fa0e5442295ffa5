"""What a connection begins with that has the shape of TLS; see ``wire/connect/disguise.py``."""

from __future__ import annotations

import trio

from swarmnode import limits
from swarmnode.errors import DeadlineExceeded
from swarmnode.net.channel import Channel, receive_exactly
from swarmnode.wire.connect.disguise import ANSWER_BYTES, rest_bytes, unwrap, unwrap_answer, wrap


async def receive_wrapped(channel: Channel, header: bytes) -> bytes:
    """Return what lies in a greeting in the shape of TLS, of which the header was read.

    Raises:
        MalformedMessage: it is none of ours.
        DeadlineExceeded, TransportError: it does not come.
    """
    rest = bytearray(rest_bytes(header))
    with trio.move_on_after(limits.HANDSHAKE_S):
        await receive_exactly(channel, memoryview(rest))
        return unwrap(header + rest)
    raise DeadlineExceeded(f"{channel.description}: the rest of a greeting", limits.HANDSHAKE_S)


async def greet_wrapped(channel: Channel, greeting: bytes) -> int:
    """Say a greeting in the shape of TLS; return the word of the answer.

    Raises:
        MalformedMessage: the answer is none of ours.
        TransportError: there is none.
    """
    await channel.send_all(memoryview(wrap(greeting)))
    answer = bytearray(ANSWER_BYTES)
    await receive_exactly(channel, memoryview(answer))
    return unwrap_answer(bytes(answer))
