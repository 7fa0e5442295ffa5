"""Members that come back take over slow weights, and are in the means of the others again.

What a member takes over is behind again at the next mean. Here the next always comes sooner than
the member, unless the others stay where they are until it has caught up.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from swarmnode.processes.audit import audit_histories
from swarmnode.strategies.diloco import DiLoCo
from swarmnode.strategies.streaming import Streaming
from swarmnode.testing.swarm import SimNode, SimSwarm, sim_swarm
from tests.sim.checks import until
from tests.sim.strategy_worker import StrategyWorker

STEP_S = 1.0
AWAY_S = 8.0
WATCHED_S = 200.0


def streaming(every: int, fragments: int) -> Any:
    settings = {"every": every, "fragments": fragments}
    return StrategyWorker(np.zeros(0), lambda x: Streaming(settings, x), step_s=STEP_S)


def means_of(node: SimNode) -> int:
    return node.status.exchanges_committed


async def come_back(swarm: SimSwarm) -> SimNode:
    """Kill a node after a few means, and start it again; its new life begins with no mean."""
    node = swarm.nodes[1]
    await until(lambda: all(means_of(each) >= 2 for each in swarm.nodes), 100, poll_s=0.5)
    await node.kill(unplug=True)
    await trio.sleep(AWAY_S)
    await swarm.start(node.index)
    await until(lambda: node.status.state == "training", 60, poll_s=0.5)
    return node


def check_bits(swarm: SimSwarm) -> None:
    """Nodes with the same means behind them hold the same slow weights, and no mean is half one."""
    found: dict[tuple[float, ...], bytes] = {}
    for node in swarm.nodes:
        worker: Any = node.worker
        strategy = worker.strategy
        phi = strategy.phi.numpy().tobytes()
        assert found.setdefault(tuple(strategy.lineage.tolist()), phi) == phi
    histories = {str(node.peer): node.history for node in swarm.nodes}
    assert not audit_histories(histories).half_applied


@pytest.mark.parametrize(("every", "fragments"), [(4, 2), (2, 1), (6, 2)])
async def test_one_that_comes_back_is_in_means_that_follow_each_other_at_once(
    tmp_path: Path, autojump_clock: object, every: int, fragments: int
) -> None:
    """A mean takes two steps here, so in rounds of two there is always one on its way."""
    async with sim_swarm(
        tmp_path, 3, numel=64, seed=853, delay_s=0.01, worker=streaming(every, fragments)
    ) as swarm:
        node = await come_back(swarm)
        await until(lambda: means_of(node) >= 1, 30, poll_s=0.5)
        before = [means_of(each) for each in swarm.nodes]
        await trio.sleep(WATCHED_S)
        made = [means_of(each) - b for each, b in zip(swarm.nodes, before, strict=True)]
        assert made[1] >= max(made) / 2
        assert min(made) >= WATCHED_S / (4 * every / fragments * STEP_S)
        check_bits(swarm)


async def test_one_that_fetches_slow_weights_for_several_rounds_is_in_means_again(
    tmp_path: Path, autojump_clock: object
) -> None:
    """Lines of 1 Mbit/s carry what it lacks, 8 MB, in 64 s, and a mean in a sixth of that."""
    async with sim_swarm(
        tmp_path, 3, numel=1_000_000, worker=streaming(10, 2), settings={"upload": "1 Mbit/s"}
    ) as swarm:
        node = await come_back(swarm)
        await until(lambda: means_of(node) >= 1, 200, poll_s=1.0)
        check_bits(swarm)
        before = [means_of(each) for each in swarm.nodes]
        await trio.sleep(WATCHED_S)
        made = [means_of(each) - b for each, b in zip(swarm.nodes, before, strict=True)]
        assert made[1] >= max(made) / 2
        check_bits(swarm)


async def test_a_mean_that_is_made_again_by_one_that_forgot_it_is_another_one(
    tmp_path: Path, autojump_clock: object
) -> None:
    """The one in both majorities was killed: it went over to the second with what it was before."""
    async with sim_swarm(tmp_path, 2, numel=64, delay_s=0.01, worker=streaming(4, 1)) as swarm:
        forgetful = swarm.nodes[1]
        late = swarm.add(replace(forgetful.worker), hints=(1,))
        await until(lambda: min(map(means_of, swarm.up)) >= 3, 100, poll_s=0.1)
        await swarm.kill(forgetful.index)
        swarm.partition(range(1), range(1, 3))
        # Away from the first they begin where it all began.
        await swarm.start(forgetful.index)
        await swarm.start(late.index)
        await until(lambda: min(means_of(forgetful), means_of(late)) >= 3, 300, poll_s=0.5)
        histories = {str(node.peer): node.history for node in swarm.nodes}
        assert not audit_histories(histories).half_applied


def diloco() -> Any:
    return StrategyWorker(np.zeros(0), lambda x: DiLoCo({"every": 4}, x), step_s=STEP_S)


@pytest.mark.parametrize("worker", [streaming(4, 2), diloco()], ids=["streaming", "diloco"])
@pytest.mark.parametrize("liars", [0, 1])
async def test_one_that_was_given_wrong_weights_takes_over_those_of_the_others(
    tmp_path: Path, autojump_clock: object, worker: Any, liars: int
) -> None:
    """Its place is the same as theirs, so nothing else tells it; a fifth one holds what it holds.

    Without the sketches it holds wrong ones for good.
    """
    async with sim_swarm(
        tmp_path, 4 + liars, numel=64, seed=853, delay_s=0.01, worker=worker
    ) as swarm:
        given, *right = swarm.nodes[:4]
        await until(lambda: all(means_of(each) >= 3 for each in swarm.nodes), 100, poll_s=0.5)
        for node in (given, *swarm.nodes[4:]):
            strategy: Any = node.worker
            strategy.strategy.phi.mul_(0.5)
            strategy.strategy.x.mul_(0.5)
        made = means_of(right[0])
        await until(lambda: holds_of(given) == holds_of(right[0]), 120, poll_s=0.1)
        assert means_of(right[0]) - made <= 12, "a few rounds"
        await until(lambda: holds_of(given) == holds_of(right[0]), 20, poll_s=0.1)


def holds_of(node: SimNode) -> tuple[list[float], bytes]:
    """Return where a node is, and its slow weights there."""
    worker: Any = node.worker
    return worker.strategy.lineage.tolist(), worker.strategy.phi.numpy().tobytes()
