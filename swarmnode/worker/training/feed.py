"""What the loop trains next: the shards it was told to take, else the node's own stream.

The daemon assigns a shard before the one in training is over. If none has come in time, the
node trains batches of its own rather than wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from swarmnode import limits
from swarmnode.errors import LocalProtocolError
from swarmnode.ipc.control import DropShard, ShardDone, TakeShard

_END = object()


class Feed:
    """A queue of shards.

    Args:
        batches_of: returns the batches of a shard.
        send: tells the daemon which shard is done.
    """

    def __init__(
        self, batches_of: Callable[[TakeShard], Iterator[Any]], send: Callable[[ShardDone], None]
    ) -> None:
        self._batches_of = batches_of
        self._send = send
        self._queue: deque[tuple[TakeShard, Iterator[Any]]] = deque()

    def take(self, order: TakeShard) -> None:
        """Train this shard after those taken before.

        Raises:
            LocalProtocolError: it is one more than the daemon may claim.
        """
        if len(self._queue) >= limits.SHARD_CLAIMS_MAX:
            raise LocalProtocolError(
                f"expected at most {limits.SHARD_CLAIMS_MAX} shards at once, got one more"
            )
        self._queue.append((order, self._batches_of(order)))

    def drop(self, order: DropShard) -> None:
        """Forget this shard, also if it is in training; one that is over is no news."""
        key = (order.epoch, order.index)
        kept = [held for held in self._queue if (held[0].epoch, held[0].index) != key]
        self._queue = deque(kept)

    def next_batch(self, own: Iterator[Any]) -> Any:
        """Return the next batch of the oldest shard taken, or one of ``own``.

        A shard is reported as done when the step after its last batch is about to begin.
        """
        while self._queue:
            order, batches = self._queue[0]
            batch = next(batches, _END)
            if batch is not _END:
                return batch
            self._queue.popleft()
            self._send(ShardDone(epoch=order.epoch, index=order.index))
        return next(own)
