"""Takes in channels that others have opened, and sorts them by how they begin.

::

    where/1     where do I seem to come from?            -> answered here
    relay/1     a leg of a relayed connection            -> ``uses``, where this node relays
    swarmrs1    another way for a session that there is  -> ``greet``
    TLS         a new session                            -> ``greet``
    (nothing)   the other end of a hole punch            -> ``claim``, before anything is read
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from swarmnode import limits
from swarmnode.env import Env
from swarmnode.errors import ChannelBroken, DeadlineExceeded, Overloaded, SwarmNodeError
from swarmnode.net.channel import Channel, receive_exactly
from swarmnode.net.tcp import TcpChannel
from swarmnode.net.tls import TLS_HEADER_BYTES
from swarmnode.net.where import answer_where
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.connect.reach import WHERE_MAGIC

_log = get_logger("swarmnode.daemon.transport")

WaitLeft = Callable[[], Awaitable[None]]
"""Returns when an accepted channel is of no use any more."""

Greet = Callable[[Channel, bytes], Awaitable[WaitLeft]]
"""Finds the session that uses a channel, of which these bytes were read, from now on."""

Use = Callable[[Channel, bytes], Awaitable[None]]
"""Takes an accepted channel, and what it began with, until it is of no use any more."""


class Listener:
    """See the module.

    Attributes:
        refused: connections of strangers that came to nothing, by the kind of error.
        claim: takes an accepted channel that belongs to a hole punch.
        uses: what takes channels that are for no session of ours, by what they begin with.
    """

    def __init__(self, greet: Greet, env: Env) -> None:
        self.refused: Counter[str] = Counter()
        self.claim: Callable[[TcpChannel], bool] = lambda _channel: False
        self.uses: dict[bytes, Use] = {WHERE_MAGIC: self._tell_where}
        self._greet = greet
        self._env = env
        self._strangers = 0
        self._askers = 0
        self._refusals_unsaid = 0
        self._refusal_said_at = -math.inf

    @property
    def strangers(self) -> int:
        """How many peers are being talked to that have proven nothing yet."""
        return self._strangers

    def admit(self) -> bool:
        """Bound what strangers cost that have proven nothing yet."""
        if self._strangers >= limits.STRANGERS_MAX:
            self.note_refusal("TooManyStrangers", "", "too many handshakes at once")
            return False
        return True

    async def accept(self, channel: Channel) -> None:
        """Take in a channel that a peer has opened; return when it is of no use any more.

        It brings a new session, or is another way for one that there is.
        """
        if isinstance(channel, TcpChannel) and self.claim(channel):
            return
        self._strangers += 1
        try:
            try:
                wait_left = await self._sort(channel, await _receive_first(channel))
            finally:
                self._strangers -= 1
            await wait_left()
        except ChannelBroken as error:  # it went away: often we were there first
            self.refused["ChannelBroken"] += 1
            _log.debug("gone before it was known", channel=channel.description, why=str(error))
        except SwarmNodeError as error:
            self.note_refusal(type(error).__name__, channel.description, str(error))

    def note_refusal(self, kind: str, channel: str, why: str) -> None:
        """Count it, and say so now and then."""
        self.refused[kind] += 1
        self._refusals_unsaid += 1
        now = self._env.monotonic()
        if now >= self._refusal_said_at + limits.REFUSAL_LOG_INTERVAL_S:
            count = self._refusals_unsaid
            _log.info("refused a connection", channel=channel, why=why, refusals=count)
            self._refusals_unsaid, self._refusal_said_at = 0, now

    async def _sort(self, channel: Channel, first_bytes: bytes) -> WaitLeft:
        """Return what is left to do with a channel that begins so. Raises SwarmNodeError."""
        for magic, use in self.uses.items():
            if magic.startswith(first_bytes):
                return partial(use, channel, first_bytes)
        return await self._greet(channel, first_bytes)

    async def _tell_where(self, channel: Channel, first_bytes: bytes) -> None:
        """Tell a caller where its bytes come from. Raises SwarmNodeError."""
        if isinstance(channel, TcpChannel) and channel.remote is not None:
            if self._askers >= limits.WHERE_ASKERS_MAX:
                raise Overloaded("too many ask at once where they are")
            self._askers += 1
            try:
                await answer_where(channel, first_bytes, channel.remote)
            finally:
                self._askers -= 1


async def _receive_first(channel: Channel) -> bytes:
    """Return the bytes that tell what a channel is for."""
    first = bytearray(TLS_HEADER_BYTES)
    with trio.move_on_after(limits.HANDSHAKE_S):
        await receive_exactly(channel, memoryview(first))
        return bytes(first)
    raise DeadlineExceeded(f"{channel.description}: the first bytes", limits.HANDSHAKE_S)
