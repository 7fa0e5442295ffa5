"""Takes in channels that others have opened, and sorts them by how they begin.

::

    TLS         a new session                            -> ``greet``
    swarmrs1    another way for a session that there is  -> ``greet``
    relay/1     a leg of a relayed connection            -> ``serve_leg``
    where/1     where do I seem to come from?            -> answered here
    (nothing)   the other end of a hole punch            -> ``claim``, before anything is read
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable

import trio

from swarmnode import limits
from swarmnode.env import Env
from swarmnode.errors import ChannelBroken, DeadlineExceeded, Overloaded, SwarmNodeError
from swarmnode.net.channel import Channel, receive_exactly
from swarmnode.net.session import Session
from swarmnode.net.tcp import TcpChannel
from swarmnode.net.tls import TLS_HEADER_BYTES
from swarmnode.net.where import answer_where
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.connect.reach import WHERE_MAGIC
from swarmnode.wire.connect.relay import LEG_MAGIC

_log = get_logger("swarmnode.daemon.transport")

Greet = Callable[[Channel, bytes], Awaitable[Session | None]]
"""Returns the session that uses a channel, of which these bytes were read, now."""

Use = Callable[[Channel, bytes], Awaitable[None]]
"""Takes an accepted channel, and what it began with."""


class Listener:
    """See the module.

    Attributes:
        refused: connections of strangers that came to nothing, by the kind of error.
        claim: takes an accepted channel that belongs to a hole punch.
        serve_leg: takes a leg of a relayed connection; None where nothing is relayed.
    """

    def __init__(self, greet: Greet, env: Env) -> None:
        self.refused: Counter[str] = Counter()
        self.claim: Callable[[TcpChannel], bool] = lambda _channel: False
        self.serve_leg: Use | None = None
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
            session, other = None, None
            try:
                first_bytes = await _receive_first(channel)
                other = self._other_use(first_bytes)
                if other is None:
                    session = await self._greet(channel, first_bytes)
            finally:
                self._strangers -= 1
            if other is not None:
                await other(channel, first_bytes)
            elif session is not None:
                await session.wait_left(channel)
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

    def _other_use(self, first_bytes: bytes) -> Use | None:
        """Return what takes a channel that begins so, if it is for no session of ours."""
        if WHERE_MAGIC.startswith(first_bytes):
            return self._tell_where
        return self.serve_leg if LEG_MAGIC.startswith(first_bytes) else None

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
