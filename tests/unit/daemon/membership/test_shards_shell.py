"""The shards of a node: the shared state read, the worker told, the time kept."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import trio

from swarmnode import limits
from swarmnode.daemon.membership.assignment import Shards, shard_view
from swarmnode.env import Env
from swarmnode.ipc.control import Configure, DropShard, ShardDone, TakeShard
from swarmnode.protocol.crdt.events import Update
from swarmnode.protocol.shards.core import ShardCore
from swarmnode.protocol.shards.events import View
from swarmnode.protocol.shards.words import Shard
from swarmnode.testing.fake_worker import FakeWorker
from tests.kits.crdt_world import World

LEASE_S = 300


@pytest.fixture
def world() -> Iterator[World]:
    world = World(3, seed=1)
    yield world
    world.check_vectors()


def look(world: World, number: int = 0) -> View:
    me = world.ids[number]
    return shard_view(world.states[me].view, world.ids, world.now, self_id=me)


def test_claims_and_progress_of_all_are_read(world: World) -> None:
    first, second, third = world.ids
    claim = {("shard", "0/5"): LEASE_S, ("role", "0/6"): LEASE_S}
    world.update(first, leases=claim, registers={"shards.0": "0:3", "loss": 1.5})
    world.update(second, leases=claim, registers={"shards.0": "4:1", "shards.1": "1:8"})
    world.update(third, registers={"shards.0": "0:c", "shards.1": "nonsense"})
    world.settle()
    view = look(world)
    assert view.members == frozenset(world.ids)
    assert view.claims == {Shard(0, 5): frozenset({first, second})}
    assert view.done == {0: 0xF, 1: 8, 4: 1}
    assert view.mine == {0: 3}


def test_an_author_that_claims_everything_has_two_claims(world: World) -> None:
    liar, honest = world.ids[:2]
    world.update(liar, leases={("shard", f"0/{index}"): LEASE_S for index in range(9)})
    world.update(honest, leases={("shard", "0/8"): LEASE_S, ("shard", "x/8"): LEASE_S})
    world.settle()
    claims = look(world).claims
    assert [shard.index for shard, peers in sorted(claims.items()) if liar in peers] == [0, 1]
    assert claims[Shard(0, 8)] == {honest}


def test_claims_end_with_their_lease(world: World) -> None:
    world.update(world.ids[1], leases={("shard", "0/1"): 10})
    world.settle()
    world.net.groups[world.ids[1]] = 1
    assert look(world).claims
    world.run(world.now + 11.0)
    assert not look(world).claims


async def test_a_worker_trains_shard_after_shard(tmp_path, autojump_clock) -> None:
    """Alone in its swarm, with a disk that takes a moment."""
    world = World(1, seed=2)
    me = world.ids[0]
    worker = FakeWorker(np.zeros(4), step_s=0.1, shard_steps=30)
    said: list[Update] = []
    env = Env(trio.current_time, trio.current_time, random.Random(1))
    core = ShardCore(me, 7, 16)

    def say(update: Update) -> None:
        said.append(update)
        changed.set()

    def assign(shard: Shard) -> None:
        orders.send_nowait(TakeShard(epoch=shard.epoch, index=shard.index, n_shards=16))

    def withdraw(shard: Shard) -> None:
        orders.send_nowait(DropShard(epoch=shard.epoch, index=shard.index))

    async def write_down() -> None:
        """Stand in for the shared state."""
        nonlocal changed
        n_seen = 0
        while True:
            await changed.wait()
            changed = trio.Event()
            await trio.sleep(0.02)
            for update in said[n_seen:]:
                world.update(me, leases=update.leases, registers=update.registers)
            n_seen = len(said)
            shards.refresh(shard_view(world.states[me].view, [me], world.now, self_id=me))

    async def obey() -> None:
        async for order in sent_orders:
            await link.send(order)

    changed = trio.Event()
    orders, sent_orders = trio.open_memory_channel[TakeShard | DropShard](4)
    shards = Shards(core, say=say, assign=assign, withdraw=withdraw, env=env)
    configure = Configure("fake", {}, "none", {}, 7, 7, str(tmp_path))
    async with worker.start(configure) as link, trio.open_nursery() as nursery:
        for task in (shards.run, write_down, obey):
            nursery.start_soon(task)
        shards.refresh(shard_view(world.states[me].view, [me], world.now, self_id=me))
        shards.worker_up()
        while len(worker.shards) < 20:
            message = await link.receive()
            if isinstance(message, ShardDone):
                shards.finished(Shard(message.epoch, message.index))
        elapsed_s = trio.current_time()
        assert {index for epoch, index in worker.shards[:16] if epoch == 0} == set(range(16))
        assert {epoch for epoch, _ in worker.shards[16:]} == {1}
        assert shards.statistics().finished_total == 20
        assert elapsed_s < 20 * 30 * 0.1 + limits.SHARD_SETTLE_S + 1.0, "it never waited between"

        shards.worker_gone()
        assert shards.statistics().claims == limits.SHARD_CLAIMS_MAX
        shards.rest()
        assert shards.statistics().claims == 0
        assert all(ttl_s == 0 for ttl_s in said[-1].leases.values())
        nursery.cancel_scope.cancel()
