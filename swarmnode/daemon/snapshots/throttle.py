"""A bandwidth limit for many senders: first come, first served."""

from __future__ import annotations

import trio

from swarmnode.env import Env
from swarmnode.protocol.blobs.bucket import TokenBucket


class Throttle:
    """Lets bytes through at a rate, whoever sends them."""

    def __init__(self, rate_bytes_per_s: float, env: Env) -> None:
        self._bucket = TokenBucket(rate_bytes_per_s)
        self._env = env
        self._queue = trio.Lock()  # hands over in the order of arrival

    async def pay(self, n_bytes: int) -> None:
        """Wait until ``n_bytes`` may be sent."""
        async with self._queue:
            if not self._bucket.try_take(n_bytes, self._env.monotonic()):
                await trio.sleep(self._bucket.free_at() - self._env.monotonic())
                self._bucket.spend(n_bytes, self._env.monotonic())
