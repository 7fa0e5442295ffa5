"""Opens channels to addresses of every kind: ``HOST:PORT``, and ``relay:PEER@HOST:PORT/PEER``.

Few TCP connections are dialled at once, and not in step: the table of a home router is small.
A relayed one is built of several, each of which counts by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

import trio

from swarmnode import limits
from swarmnode.env import Env
from swarmnode.errors import DeadlineExceeded, DialFailed, SwarmNodeError
from swarmnode.net.channel import Channel, Transport
from swarmnode.net.relays.address import is_relayed

DialRelayed = Callable[[str], Awaitable[Channel]]


class Ways:
    """See the module.

    Attributes:
        dial_relayed: dials through relays; None where this node does not use any.
        tried: (path, "ok" or "failed"), counted also by those who find ways of other kinds.
    """

    def __init__(self, transport: Transport, env: Env) -> None:
        self.dial_relayed: DialRelayed | None = None
        self.tried: Counter[tuple[str, str]] = Counter()
        self._transport = transport
        self._env = env
        self._dials = trio.CapacityLimiter(limits.DIALS_CONCURRENT_MAX)
        self._searches = trio.CapacityLimiter(limits.SEARCH_DIALS_CONCURRENT_MAX)

    async def open(self, address: str) -> Channel:
        """Connect. Raises DialFailed, DeadlineExceeded, ConfigError."""
        return await self._open(address, self._dials)

    async def open_again(self, address: str) -> Channel:
        """Connect to somebody whose session has lost its channel: these do not wait for others."""
        return await self._open(address, self._searches)

    async def _open(self, address: str, limiter: trio.CapacityLimiter) -> Channel:
        path = "relay" if is_relayed(address) else "direct"
        try:
            if path == "relay":
                channel = await self._open_relayed(address)
            else:
                channel = await self._open_direct(address, limiter)
        except SwarmNodeError:
            self.tried[path, "failed"] += 1
            raise
        self.tried[path, "ok"] += 1
        return channel

    async def _open_relayed(self, address: str) -> Channel:
        if self.dial_relayed is None:
            raise DialFailed(f"{address}: this node uses no relays", address=address)
        return await self.dial_relayed(address)

    async def _open_direct(self, address: str, limiter: trio.CapacityLimiter) -> Channel:
        async with limiter:
            if limiter.borrowed_tokens > 1:
                await trio.sleep(self._env.rng.uniform(0, limits.DIAL_JITTER_S))
            with trio.move_on_after(limits.DIAL_DEADLINE_S):
                return await self._transport.dial(address)
        raise DeadlineExceeded(f"connecting to {address}", limits.DIAL_DEADLINE_S)
