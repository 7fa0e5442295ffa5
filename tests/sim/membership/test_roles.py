"""Keepers and monitors: members without a worker, which no member takes for a partner."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import trio

from swarmnode.testing.fake_worker import FakeWorker
from swarmnode.testing.swarm import sim_swarm
from tests.sim.checks import are_one_swarm, check_atomic, everybody_exchanges, pull, until

TRAINING = FakeWorker(np.zeros(0), drift=pull)


@pytest.mark.parametrize("role", ["keeper", "monitor"])
async def test_a_member_without_a_worker(tmp_path, autojump_clock, role) -> None:
    async with sim_swarm(tmp_path, 3, worker=TRAINING) as swarm:
        helper = swarm.add(FakeWorker(np.zeros(640)), role=role)
        await swarm.start(3)
        await until(lambda: are_one_swarm(swarm.nodes), 20, poll_s=0.1)
        await trio.sleep(20)
        assert (helper.status.state, helper.status.role) == ("serving", role)
        assert helper.worker.lives == 0
        assert helper.status.exchanges_committed == 0
        assert helper.status.peers_connected == 3
        trainers = tuple(sorted(node.peer for node in swarm.nodes[:3]))
        for node in swarm.nodes[:3]:
            shown = node.view_of(helper)
            assert (shown.alive, shown.state, shown.role) == ("alive", "serving", role)
            assert node.part.partners() == trainers
            assert str(helper.peer) not in {entry.get("peer") for entry in node.history}
        assert helper.status.swarm_steps > 0
        assert helper.status.swarm_loss is not None
        swarm.nodes.remove(helper)
        await everybody_exchanges(swarm)
        assert await helper.leave() < 2
        await swarm.leave_all()
        check_atomic(swarm)


async def test_a_keeper_outlives_all_trainers(tmp_path, autojump_clock) -> None:
    """They all leave; the next to come gets the manifest and the model from the keeper's disk."""
    async with sim_swarm(tmp_path, 2, worker=replace(TRAINING, save_every=100)) as swarm:
        keeper = swarm.add(FakeWorker(np.zeros(640)), role="keeper")
        await swarm.start(2)
        await until(lambda: keeper.status.peers_connected == 2, 20)
        await trio.sleep(60)
        for node in swarm.nodes[:2]:
            await node.leave()
        await trio.sleep(10)
        newcomer = swarm.add(replace(TRAINING, initial=np.full(640, 9.0)), (2,))
        await swarm.start(3)
        await until(lambda: newcomer.status.state == "training", 30)
        assert abs(np.asarray(newcomer.worker.initial)).max() < 5.0
        await newcomer.leave()
        await keeper.leave()
        assert [node.failure for node in swarm.nodes] == [None] * 4
