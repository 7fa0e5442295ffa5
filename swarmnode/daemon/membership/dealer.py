"""Deals data shards to our worker: between the trainer, the shared state and the members.

Shards are agreed on among those who train on the same data. A node with other data than the
swarm's creator takes none, and trains on its own stream of batches.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from swarmnode import limits
from swarmnode.daemon.membership.shards import Shards, shard_view
from swarmnode.daemon.membership.swarm import SwarmPart
from swarmnode.env import Env
from swarmnode.ids import PeerId
from swarmnode.ipc.control import DropShard, TakeShard, WorkerReady
from swarmnode.protocol.shards.core import ShardCore
from swarmnode.protocol.shards.words import Shard
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.swarm import Manifest

_log = get_logger("swarmnode.daemon.membership")


class Dealer:
    """Part of a trainer: hears what the worker does, and tells it which shards to take.

    Args:
        post: sends a message to the worker, if there is one.
    """

    def __init__(
        self,
        part: SwarmPart,
        manifest: Manifest,
        *,
        self_id: PeerId,
        post: Callable[[TakeShard | DropShard], None],
        env: Env,
    ) -> None:
        self.shards: Shards | None = None
        self._part = part
        self._manifest = manifest
        self._self_id = self_id
        self._post = post
        self._env = env
        self._n_shards = 0
        self._made = trio.Event()

    async def run(self) -> None:
        """Keep the view of shards fresh until cancelled."""
        await self._made.wait()
        assert self.shards is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.shards.run)
            while True:
                await self._part.changed.wait()
                self._refresh()
                await trio.sleep(limits.SHARD_REFRESH_S)

    # --- what the trainer tells -------------------------------------------------------------

    def worker_ready(self, ready: WorkerReady) -> None:
        """The worker trains; it says how many shards its data makes."""
        creators = self._manifest.data_hash.hex()
        if ready.n_shards == 0 or (creators and ready.data_hash != creators):
            return
        if self.shards is None:
            self._n_shards = ready.n_shards
            core = ShardCore(self._self_id, self._manifest.seed, ready.n_shards)
            self.shards = Shards(
                core,
                say=self._part.state.say,
                assign=self._assign,
                withdraw=self._withdraw,
                env=self._env,
            )
            self._made.set()
        self._refresh()
        self.shards.worker_up()

    def worker_gone(self) -> None:
        """It died; what it had begun begins anew."""
        if self.shards is not None:
            self.shards.worker_gone()

    def rests(self) -> None:
        """It is paused, or has done all that was asked: others may have its shards."""
        if self.shards is not None:
            self.shards.rest()

    def goes_on(self) -> None:
        """It trains again."""
        if self.shards is not None:
            self._refresh()
            self.shards.worker_up()

    def finished(self, epoch: int, index: int) -> None:
        """It has trained a shard to the end."""
        _log.debug("shard done", epoch=epoch, shard=index)
        if self.shards is not None:
            self.shards.finished(Shard(epoch, index))

    # --- inside -----------------------------------------------------------------------------

    def _refresh(self) -> None:
        assert self.shards is not None
        now = self._env.monotonic()
        live = self._part.partners()
        view = shard_view(self._part.state.view, live, now, self_id=self._self_id)
        self.shards.refresh(view)

    def _assign(self, shard: Shard) -> None:
        _log.debug("shard taken", epoch=shard.epoch, shard=shard.index, of=self._n_shards)
        self._post(TakeShard(shard.epoch, shard.index, self._n_shards))

    def _withdraw(self, shard: Shard) -> None:
        _log.debug("shard given back", epoch=shard.epoch, shard=shard.index)
        self._post(DropShard(shard.epoch, shard.index))
