"""Members that rest, start, hang or lost their worker cost the others no round, though most do."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import trio

from swarmnode import limits
from swarmnode.ipc.control import Configure
from swarmnode.processes.audit import audit_histories
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
    """Each life begins so many seconds after it was asked for, the first ones as given."""

    start_s: float = 0.0
    first_s: list[float] = field(default_factory=list)  # of all workers like this one

    @asynccontextmanager
    async def start(self, configure: Configure) -> AsyncIterator[Any]:
        await trio.sleep(self.first_s.pop() if self.first_s else self.start_s)
        async with super().start(configure) as life:
            yield life


def streaming_in(every: int) -> Callable[[Any], Streaming]:
    return lambda x: Streaming({"every": every, "fragments": 1}, x)


streaming = streaming_in(EVERY)


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


@pytest.mark.parametrize("delay_s", [0.005, 0.3])
@pytest.mark.parametrize("make", [streaming, sparse])
async def test_most_that_come_back_at_once_take_over_what_the_few_have_learnt(
    tmp_path, autojump_clock, make, delay_s: float
) -> None:
    """As at the hour at which the schedules of many begin: they could go on with what they had."""

    def means(node: SimNode) -> int:
        return int(node.worker.strategy.lineage[0])

    worker = worker_of(make)
    async with sim_swarm(tmp_path, 6, numel=NUMEL, delay_s=delay_s, worker=worker) as swarm:
        await begin(swarm)
        few, most = swarm.nodes[:2], swarm.nodes[2:]
        for node in most:
            rest(node)
        await trio.sleep(30 * ROUND_S)
        learnt = max(map(means, few))
        assert learnt > 2 * max(map(means, most))
        for node in most:
            node.running.view.training().trainer.resume()
        await trio.sleep(10 * ROUND_S)
        made = [means(node) for node in swarm.nodes]
        assert min(made) > learnt
        assert max(made) - min(made) <= 1, "by two lineages"


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


@pytest.mark.parametrize("make", [streaming, sparse, pairs])
async def test_two_go_on_where_the_workers_of_four_of_six_stand_still(
    tmp_path, autojump_clock, make
) -> None:
    """There was no round until their daemons ended them, after a minute."""
    worker = worker_of(make)
    async with sim_swarm(tmp_path, 6, numel=NUMEL, delay_s=0.005, worker=worker) as swarm:
        await begin(swarm)
        for node in swarm.nodes[2:]:
            node.worker.step_s = 1.5 * WATCHED_ROUNDS * ROUND_S + limits.WORKER_QUIET_S
        await trio.sleep(2 * STEP_S)  # they are in that step
        for node in swarm.nodes[2:]:
            node.worker.step_s = STEP_S
        await trio.sleep(limits.WORKER_QUIET_S + 3 * ROUND_S)
        assert [node.status.state for node in swarm.nodes] == 2 * ["training"] + 4 * ["starting"]
        assert await rounds_made(swarm.nodes[:2]) >= 0.9 * WATCHED_ROUNDS
        await until(lambda: {n.status.state for n in swarm.nodes} == {"training"}, 60, poll_s=0.5)
        await trio.sleep(5 * ROUND_S)
        share = 0.5 if make is pairs else 0.8  # as of those that rested
        assert await rounds_made(swarm.nodes) >= share * WATCHED_ROUNDS


@pytest.mark.parametrize("make", [streaming, sparse])
async def test_most_that_stood_still_take_over_what_the_few_have_learnt(
    tmp_path, autojump_clock, make
) -> None:
    """Their own next mean is due long after they are known to train again: they ask before."""

    def means(node: SimNode) -> int:
        return int(node.worker.strategy.lineage[0])

    step_s = 5 * STEP_S
    round_s = EVERY * step_s
    worker = replace(worker_of(make), step_s=step_s)
    async with sim_swarm(tmp_path, 5, numel=NUMEL, delay_s=0.005, worker=worker) as swarm:
        await begin(swarm)
        few, most = swarm.nodes[:2], swarm.nodes[2:]
        for node in most:
            node.worker.step_s = 7 * round_s
        await trio.sleep(2 * step_s)
        for node in most:
            node.worker.step_s = step_s
        await trio.sleep(6 * round_s)
        learnt = max(map(means, few))
        assert learnt > max(map(means, most)) + 2
        await trio.sleep(5 * round_s)
        made = [means(node) for node in swarm.nodes]
        assert min(made) > learnt
        assert max(made) - min(made) <= 1, "by two lineages"


@pytest.mark.parametrize("make", [streaming, sparse])
async def test_all_that_come_at_first_are_part_of_the_first_mean(
    tmp_path, autojump_clock, make
) -> None:
    """Those whose workers came last found the weights of the others worse than what they knew."""
    worker = worker_of(make)
    worker = replace(worker, first_s=[2.0, 5.0, 0.5, 3.0, 4.0, 1.0])
    async with sim_swarm(tmp_path, 6, numel=NUMEL, delay_s=0.005, worker=worker) as swarm:
        await until(lambda: max(rounds(swarm.nodes)) > 3, 30, poll_s=0.5)
        await trio.sleep(ROUND_S / 2)
        for node in swarm.nodes:
            assert len(node.committed()[0]["present"]) == 6


@pytest.mark.slow
@pytest.mark.parametrize("seed", [9, 10, 11])
async def test_five_of_six_that_come_and_go_leave_most_of_the_rounds(
    tmp_path, autojump_clock, seed: int
) -> None:
    """A worker takes four seconds to start, each node lasts twenty, rounds take a sixth of one.

    A third was left at the best where those that start counted in majorities, and were waited for.
    """
    watched_s, lasts_s, step_s = 60.0, 20.0, 0.01
    worker = SlowToStart(
        np.zeros(NUMEL), streaming_in(16), step_s=0.7 * step_s, late_s=0.3 * step_s
    )
    async with sim_swarm(
        tmp_path, 6, numel=NUMEL, seed=seed, delay_s=0.002, worker=worker
    ) as swarm:
        await begin(swarm)
        for node in swarm.nodes:
            node.worker.start_s = 4.0

        async def come_and_go(index: int) -> None:
            rng = random.Random(f"{seed}/{index}")
            while True:
                await trio.sleep(rng.expovariate(1 / lasts_s))
                if rng.random() < 1 / 3:
                    swarm.nodes[index].worker.crash()
                else:
                    await swarm.kill(index)
                    await trio.sleep(rng.uniform(0.2, 4.0))
                    await swarm.start(index)

        before = swarm.nodes[0].status.exchanges_committed
        async with trio.open_nursery() as nursery:
            for index in range(1, 6):
                nursery.start_soon(come_and_go, index)
            await trio.sleep(watched_s)
            nursery.cancel_scope.cancel()
        made = swarm.nodes[0].status.exchanges_committed - before
        assert made >= 0.55 * watched_s / (16 * step_s), "now and then one is alone"
        histories = {str(node.peer): node.history for node in swarm.nodes}
        assert not audit_histories(histories).half_applied
