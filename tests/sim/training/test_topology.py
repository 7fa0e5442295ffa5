"""Whole daemons on a graph: only neighbours exchange, and all workers know which members train."""

from __future__ import annotations

import numpy as np
import pytest
import trio

from swarmnode.testing.fake_worker import FakeWorker
from swarmnode.testing.swarm import SimSwarm, sim_swarm
from tests.sim.checks import are_one_swarm, end, pull, until

TRAINING = FakeWorker(np.zeros(0), drift=pull)


def pairs_since(swarm: SimSwarm, since_s: float) -> set[tuple[int, int]]:
    """Return the pairs that have exchanged, by their ranks among the nodes that are up."""
    ranks = {str(peer): rank for rank, peer in enumerate(sorted(n.peer for n in swarm.up))}
    met = {
        (ranks[str(node.peer)], ranks.get(entry["peer"], -1))
        for node in swarm.up
        for entry in node.committed(since_s=since_s)
    }
    return {(one, other) for one, other in met if one < other}


@pytest.mark.parametrize(
    ("topology", "edges"),
    [
        ("ring", {(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)}),
        ("0-3 1-3 2-3 3-4 4-9", {(0, 3), (1, 3), (2, 3), (3, 4)}),
    ],
)
async def test_only_neighbours_exchange(tmp_path, autojump_clock, topology, edges) -> None:
    async with sim_swarm(tmp_path, 5, topology=topology, worker=TRAINING) as swarm:
        await until(lambda: are_one_swarm(swarm.nodes), 30, poll_s=0.1)
        await trio.sleep(2)
        began = trio.current_time()
        await trio.sleep(30)
        assert pairs_since(swarm, began) == edges
        await end(swarm)


async def test_a_graph_closes_over_the_members_that_stay(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 5, topology="ring", worker=TRAINING) as swarm:
        await until(lambda: are_one_swarm(swarm.nodes), 30, poll_s=0.1)
        await trio.sleep(2)
        everybody = tuple(sorted(node.peer for node in swarm.nodes))
        assert all(node.worker.members == everybody for node in swarm.nodes)
        await swarm.nodes[1].leave()
        await trio.sleep(5)
        stayed = tuple(sorted(node.peer for node in swarm.up))
        assert all(node.worker.members == stayed for node in swarm.up)
        began = trio.current_time()
        await trio.sleep(30)
        assert pairs_since(swarm, began) == {(0, 1), (1, 2), (2, 3), (0, 3)}
        await end(swarm)
