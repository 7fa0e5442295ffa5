"""Members whose workers rest, start or died cost the others no round, however many they are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import trio

from swarmnode.ipc.control import Configure
from swarmnode.strategies.pair_average import PairAverage
from swarmnode.strategies.sparse import Sparse
from swarmnode.strategies.streaming import Streaming
from swarmnode.testing.swarm import SimNode, SimSwarm, sim_swarm
from tests.sim.checks import are_one_swarm, until
from tests.sim.strategy_worker import StrategyWorker

NUMEL, EVERY, STEP_S = 64, 20, 0.05
ROUND_S = EVERY * STEP_S
WATCHED_ROUNDS = 20


@dataclass
class SlowToStart(StrategyWorker):
    """Each life begins so many seconds after it was asked for."""

    start_s: float = 0.0

    @asynccontextmanager
    async def start(self, configure: Configure) -> AsyncIterator[Any]:
        await trio.sleep(self.start_s)
        async with super().start(configure) as life:
            yield life


def streaming(x: Any) -> Streaming:
    return Streaming({"every": EVERY, "fragments": 1}, x)


def sparse(x: Any) -> Sparse:
    return Sparse({"every": EVERY, "kept": 32, "lr": 1.0}, x)


def pairs(x: Any) -> PairAverage:
    return PairAverage({"every": EVERY}, x)


def worker_of(make: Any) -> SlowToStart:
    # Gatherings take messages of two with one goal for copies.
    spread = 10.0 if make is sparse else 0.0
    return SlowToStart(np.zeros(NUMEL), make, step_s=STEP_S, spread=spread)


def rest(node: SimNode) -> None:
    node.running.view.training().trainer.pause()


def rounds(nodes: list[SimNode]) -> list[int]:
    return [node.status.exchanges_committed for node in nodes]


async def rounds_made(nodes: list[SimNode]) -> int:
    """Return how many each of them had a part in, the least, while so many were due."""
    before = rounds(nodes)
    await trio.sleep(WATCHED_ROUNDS * ROUND_S)
    return min(now - then for now, then in zip(rounds(nodes), before, strict=True))


async def begin(swarm: SimSwarm) -> None:
    await until(lambda: are_one_swarm(swarm.nodes), 30, poll_s=0.5)
    await until(lambda: min(rounds(swarm.nodes)) > 3, 60, poll_s=0.5)


@pytest.mark.parametrize("make", [streaming, sparse, pairs])
async def test_two_go_on_where_four_of_six_rest(tmp_path, autojump_clock, make) -> None:
    """Those that rest counted in the majority that a round needs: none was made any more."""
    worker = worker_of(make)
    async with sim_swarm(tmp_path, 6, numel=NUMEL, delay_s=0.005, worker=worker) as swarm:
        await begin(swarm)
        for node in swarm.nodes[2:]:
            rest(node)
        await trio.sleep(3 * ROUND_S)
        assert await rounds_made(swarm.nodes[:2]) >= 0.9 * WATCHED_ROUNDS
        for node in swarm.nodes[2:]:
            node.running.view.training().trainer.resume()
        await trio.sleep(5 * ROUND_S)
        # Pairs whose rounds differ look for others at the same time, and some find none.
        share = 0.5 if make is pairs else 0.8
        assert await rounds_made(swarm.nodes) >= share * WATCHED_ROUNDS


@pytest.mark.parametrize("make", [streaming, sparse])
@pytest.mark.parametrize("how", ["worker", "daemon"])
async def test_a_member_that_starts_again_is_not_waited_for(
    tmp_path, autojump_clock, make, how: str
) -> None:
    """Each round waited two seconds for one whose worker loads what it needs."""
    worker = worker_of(make)
    async with sim_swarm(tmp_path, 4, numel=NUMEL, delay_s=0.005, worker=worker) as swarm:
        await begin(swarm)
        lost = swarm.nodes[3]
        lost.worker.start_s = 2 * WATCHED_ROUNDS * ROUND_S
        if how == "worker":
            lost.worker.crash()
        else:
            await swarm.kill(3)
            await swarm.start(3)
        assert await rounds_made(swarm.nodes[:3]) >= 0.9 * WATCHED_ROUNDS
        await until(lambda: lost.status.state == "training", 120, poll_s=0.5)
        await trio.sleep(5 * ROUND_S)
        assert await rounds_made(swarm.nodes) >= 0.8 * WATCHED_ROUNDS
