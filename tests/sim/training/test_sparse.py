"""Whole daemons that gather: one lineage, the same bits, and a node that was away comes back."""

from __future__ import annotations

import numpy as np
import torch
import trio

from swarmnode.strategies.sparse import Sparse
from swarmnode.testing.swarm import SimSwarm, sim_swarm
from tests.sim.checks import are_one_swarm, check_atomic, until
from tests.sim.strategy_worker import StrategyWorker

NUMEL = 64
SPARSE = StrategyWorker(np.zeros(NUMEL), lambda x: Sparse({"every": 40, "kept": 32, "lr": 1.0}, x))


def steps_of(swarm: SimSwarm) -> list[float]:
    """Return how many outer steps are behind each node's weights."""
    found = [node.worker.strategy for node in swarm.up]
    return [-1.0 if each is None else float(each.lineage[0]) for each in found]


def lineages(swarm: SimSwarm) -> set[tuple[float, ...]]:
    return {tuple(node.worker.strategy.lineage.tolist()) for node in swarm.up}


def weights(swarm: SimSwarm) -> set[bytes]:
    return {node.worker.strategy.phi.numpy().tobytes() for node in swarm.up}


async def agree(swarm: SimSwarm, limit_s: float = 60) -> None:
    """Wait until all stand at the same outer step; then all have the same bits."""
    await until(lambda: len(lineages(swarm)) == 1, limit_s, poll_s=0.1)
    assert len(weights(swarm)) == 1


async def test_daemons_take_the_same_steps_to_the_last_bit(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 4, numel=NUMEL, worker=SPARSE) as swarm:
        await until(lambda: are_one_swarm(swarm.nodes), 30, poll_s=0.1)
        await until(lambda: min(steps_of(swarm)) >= 6, 120, poll_s=0.1)
        await agree(swarm)
        assert all(node.status.exchanges_committed >= 6 for node in swarm.nodes)
        assert all(node.status.alarm == "" for node in swarm.nodes)
        for node in swarm.nodes:
            ended = [each for each in node.history if each["event"] == "finished"]
            took_s = [each["took_s"] for each in ended if each["outcome"] == "committed"]
            assert abs(node.status.exchange_s_mean - np.mean(took_s)) < 1e-3
        audit = check_atomic(swarm)
        assert audit.committed >= 6, "each round is in the histories, with one result on all nodes"
        phi = swarm.nodes[0].worker.strategy.phi
        assert float((phi - 100.0).abs().max()) > 0.1, "it has moved"
        # A message of 50 bytes to each of the three others, and announcements of half a kB.
        sent_bytes = swarm.nodes[0].running.readings.read().values["swarmnode_exchange_bytes_total"]
        assert sent_bytes["sent",] >= 6 * 3 * 50


async def test_one_that_was_killed_comes_back_and_takes_over(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 4, numel=NUMEL, worker=SPARSE) as swarm:
        await until(lambda: are_one_swarm(swarm.nodes), 30, poll_s=0.1)
        await until(lambda: min(steps_of(swarm)) >= 3, 120, poll_s=0.1)
        await swarm.kill(3)
        before = max(steps_of(swarm))
        await until(lambda: min(steps_of(swarm)) >= before + 3, 120, poll_s=0.1)
        await swarm.start(3)
        await until(lambda: min(steps_of(swarm)) > before, 120, poll_s=0.1)
        await agree(swarm)
        back = swarm.nodes[3].worker.strategy
        assert not torch.equal(back.phi, torch.full((NUMEL,), 100.0))
        after = min(steps_of(swarm))
        await trio.sleep(20)
        await until(lambda: min(steps_of(swarm)) >= after + 4, 60, poll_s=0.1)


async def test_two_halves_with_other_weights_become_one(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 4, numel=NUMEL, worker=SPARSE) as swarm:
        await until(lambda: are_one_swarm(swarm.nodes), 30, poll_s=0.1)
        await until(lambda: min(steps_of(swarm)) >= 3, 120, poll_s=0.1)
        count = max(steps_of(swarm)) + 1
        for number, side in enumerate(((0, 2), (1, 3)), 1):
            for index in side:
                strategy = swarm.nodes[index].worker.strategy
                strategy.phi += 10.0 * number
                strategy.lineage[0], strategy.lineage[1] = count, 1000.0 * number
        await until(lambda: len(lineages(swarm)) == 1, 60, poll_s=0.1)
        await agree(swarm)
