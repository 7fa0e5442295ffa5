"""Assigns data shards to our worker: between the trainer, the shared state and the members.

Shards are agreed on among members that train on the same data. A node with other data than the
swarm's creator takes none, and trains on its own stream of batches.

Data shards in a node: between the shared state, the failure detector and the worker.

Feed it a view whenever one of the two has changed, and before the node says anything after a
start: a peer's first record takes the place of those of its earlier life, and what that life
had trained is said again only if it was seen here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

import trio

from swarmnode import limits
from swarmnode.daemon.driver import CoreDriver
from swarmnode.daemon.membership.swarm import SwarmPart
from swarmnode.env import Env
from swarmnode.ids import PeerId
from swarmnode.ipc.control import DropShard, TakeShard, WorkerReady
from swarmnode.protocol.crdt import views
from swarmnode.protocol.crdt.events import Update
from swarmnode.protocol.shards import events
from swarmnode.protocol.shards.core import ShardCore
from swarmnode.protocol.shards.words import (
    CLAIMS,
    REGISTERS,
    Shard,
    read_element,
    read_progress,
)
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.swarm import Manifest

_log = get_logger("swarmnode.daemon.membership")


def shard_view(
    view: views.View, live: Collection[PeerId], now: float, *, self_id: PeerId
) -> events.View:
    """Return what the shared state says of shards. Cost: O(authors).

    Args:
        view: of the shared state.
        live: members that are alive and train, ourselves included.
        now: seconds, monotonic; decides which claims have expired.
        self_id: of this node.
    """
    done: dict[int, int] = {}
    mine: dict[int, int] = {}
    for author, contents in view.registers().items():
        for name in REGISTERS:
            progress = read_progress(name, contents.get(name, ""))
            if progress is None:
                continue
            epoch, bitmap = progress
            done[epoch] = done.get(epoch, 0) | bitmap
            if author == self_id:
                mine[epoch] = bitmap
    return events.View(frozenset(live), _claims(view, now), done, mine)


def _claims(view: views.View, now: float) -> dict[Shard, frozenset[PeerId]]:
    """Return which peers claim what; of an author that claims too much only so much counts."""
    counts: Counter[PeerId] = Counter()
    claims: dict[Shard, frozenset[PeerId]] = {}
    for element, peers in sorted(view.sets(now).get(CLAIMS, {}).items()):
        shard = read_element(element)
        if shard is None:
            continue
        counts.update(peers)
        claims[shard] = frozenset(p for p in peers if counts[p] <= limits.SHARD_CLAIMS_MAX)
    return claims


class Shards:
    """Runs the core of one swarm that is trained here.

    Args:
        say: takes what goes into the shared state.
        assign, withdraw: post TakeShard and DropShard to the worker.
    """

    def __init__(
        self,
        core: ShardCore,
        *,
        say: Callable[[Update], None],
        assign: Callable[[Shard], None],
        withdraw: Callable[[Shard], None],
        env: Env,
    ) -> None:
        self._core = core
        self._say, self._assign, self._withdraw = say, assign, withdraw
        self._driver = CoreDriver[events.Event, events.Effect](
            core, self._carry_out, now=env.monotonic
        )

    async def run(self) -> None:
        """Assign claims as they settle, until cancelled."""
        await self._driver.run()

    def refresh(self, view: events.View) -> None:
        """The shared state or the membership has changed; see :func:`shard_view`."""
        self._driver.feed(view)

    def worker_up(self) -> None:
        """The worker has said that it is ready, or trains again after a rest."""
        self._driver.feed(events.WorkerUp())

    def worker_gone(self) -> None:
        """The worker has died; it is started again."""
        self._driver.feed(events.WorkerGone())

    def rest(self) -> None:
        """The worker is paused or has done all its steps: give back what we claim."""
        self._driver.feed(events.Rest())

    def finished(self, shard: Shard) -> None:
        """The worker has trained a shard to its end."""
        self._driver.feed(events.Finished(shard))

    def statistics(self) -> events.ShardStatistics:
        """Return counters."""
        return self._core.statistics()

    def _carry_out(self, effect: events.Effect) -> None:
        match effect:
            case events.Say(leases, registers):
                self._say(Update(leases=leases, registers=registers))
            case events.Assign(shard):
                self._assign(shard)
            case events.Withdraw(shard):
                self._withdraw(shard)


class NoShards:
    """In place of ``Shards`` until a worker says what its data makes: nothing comes of anything.

    It stays so where the worker trains on other data than the swarm's creator.
    """

    def refresh(self, view: events.View) -> None:
        """See ``Shards``."""

    def worker_up(self) -> None:
        """See ``Shards``."""

    def worker_gone(self) -> None:
        """See ``Shards``."""

    def rest(self) -> None:
        """See ``Shards``."""

    def finished(self, shard: Shard) -> None:
        """See ``Shards``."""


class ShardAssigner:
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
        self.shards: Shards | NoShards = NoShards()
        self._part = part
        self._manifest = manifest
        self._self_id = self_id
        self._post = post
        self._env = env
        self._n_shards = 0
        self._made, self._to_run = trio.open_memory_channel[Shards](1)

    async def run(self) -> None:
        """Keep the view of shards fresh until cancelled."""
        shards = await self._to_run.receive()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shards.run)
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
        if not self._n_shards:
            self._begin(ready.n_shards)
        self._refresh()
        self.shards.worker_up()

    def _begin(self, n_shards: int) -> None:
        """The first worker has said how many shards there are; the next ones say the same."""
        self._n_shards = n_shards
        self.shards = shards = Shards(
            ShardCore(self._self_id, self._manifest.seed, n_shards),
            say=self._part.state.say,
            assign=self._assign,
            withdraw=self._withdraw,
            env=self._env,
        )
        self._made.send_nowait(shards)

    def worker_gone(self) -> None:
        """It died; what it had begun begins anew."""
        self.shards.worker_gone()

    def rests(self) -> None:
        """It is paused, or has done all that was asked: others may have its shards."""
        self.shards.rest()

    def goes_on(self) -> None:
        """It trains again."""
        self._refresh()
        self.shards.worker_up()

    def finished(self, epoch: int, index: int) -> None:
        """It has trained a shard to the end."""
        _log.debug("shard done", epoch=epoch, shard=index)
        self.shards.finished(Shard(epoch, index))

    # --- inside -----------------------------------------------------------------------------

    def _refresh(self) -> None:
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
