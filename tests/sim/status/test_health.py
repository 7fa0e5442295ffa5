"""What an orchestrator is told: healthy as long as it runs, ready as a member at work."""

from __future__ import annotations

import numpy as np
import pytest

from swarmnode.testing.fake_worker import FakeWorker
from swarmnode.testing.swarm import sim_swarm
from tests.sim.checks import end, pull, until
from tests.sim.status.test_peer_metrics import get

TRAINING = FakeWorker(np.zeros(0), drift=pull)


async def test_a_member_that_trains_is_ready_and_one_that_is_paused_says_why(
    tmp_path, autojump_clock
) -> None:
    async with sim_swarm(tmp_path, 2, worker=TRAINING) as swarm:
        node = swarm.nodes[1]
        early = await get(node, "/-/ready")
        assert early.status == 503
        assert early.body.startswith(b"not ready: no member of the swarm yet, syncing (")
        assert early.body.count(b"\n") == 1
        healthy = await get(node, "/-/healthy")
        assert (healthy.status, healthy.body) == (200, b"healthy\n")

        await until(lambda: node.status.state == "training", 30)
        ready = await get(node, "/-/ready")
        assert (ready.status, ready.body) == (200, b"ready: training\n")

        await node.running.volunteer.pause()
        await until(lambda: node.status.state == "paused", 30)
        paused = await get(node, "/-/ready")
        assert paused.status == 503
        assert b"paused by hand" in paused.body
        assert (await get(node, "/-/healthy")).status == 200
        await node.running.volunteer.resume()
        await until(lambda: node.status.state == "training", 30)
        await end(swarm)


@pytest.mark.parametrize("role", ["keeper", "monitor"])
async def test_a_member_without_a_worker_is_ready_once_it_serves(
    tmp_path, autojump_clock, role: str
) -> None:
    async with sim_swarm(tmp_path, 2, worker=TRAINING, role=role) as swarm:
        await until(lambda: swarm.nodes[1].status.state == "serving", 30)
        ready = await get(swarm.nodes[1], "/-/ready")
        assert (ready.status, ready.body) == (200, b"ready: serving\n")
        await end(swarm)
