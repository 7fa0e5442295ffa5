"""Group means of whole daemons whose nodes differ in speed: all are in every mean, none waits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import trio

from swarmnode.daemon.exchange.group.groups import Groups
from swarmnode.daemon.exchange.group.payload import GroupPayload
from swarmnode.strategies.diloco import DiLoCo
from swarmnode.strategies.streaming import Streaming
from swarmnode.testing.swarm import SimSwarm, sim_swarm
from tests.sim.checks import are_one_swarm, until
from tests.sim.strategy_worker import StrategyWorker

_EVERY = 20
_WATCHED_S = 40
_STEP_S = 0.1
_GROUP = {"every": _EVERY, "meet": "group", "fragments": 2, "gamma": 0.0, "overlap": 0}
STREAMING = StrategyWorker(np.zeros(0), lambda x: Streaming(_GROUP, x), step_s=_STEP_S)
DILOCO = StrategyWorker(
    np.zeros(0), lambda x: DiLoCo({"every": _EVERY, "lr": 0.4}, x), step_s=_STEP_S
)


@pytest.fixture
def means(monkeypatch) -> list[tuple[int, tuple[float, ...]]]:
    """Return what is seen of each piece that is reduced: who takes part, and by which weights."""
    found: list[tuple[int, tuple[float, ...]]] = []
    reduce = GroupPayload.reduce

    async def watch(self: Any, plan: bytes, piece: int, contributors: Any, weights: Any) -> None:
        found.append((len(contributors), tuple(sorted(weights))))
        await reduce(self, plan, piece, contributors, weights)

    monkeypatch.setattr(GroupPayload, "reduce", watch)
    return found


async def _train(swarm: SimSwarm, worker: StrategyWorker, slower: tuple[int, ...]) -> None:
    """Bring up one more node for each of ``slower``, so many times slower than the first."""
    for times in slower:
        node = swarm.add(replace(worker, step_s=_STEP_S * times, initial=np.zeros(600)))
        await swarm.start(node.index)
    await until(lambda: are_one_swarm(swarm.nodes), 60, poll_s=0.1)
    await trio.sleep(15)  # the first rounds find out who is where


@pytest.mark.parametrize("worker", [DILOCO, STREAMING], ids=["diloco", "streaming"])
async def test_a_straggler_is_in_the_means_and_counts_by_its_tokens(
    tmp_path, autojump_clock, means, worker
) -> None:
    async with sim_swarm(tmp_path, 1, numel=600, worker=worker) as swarm:
        await _train(swarm, worker, (1, 4))
        means.clear()
        steps = [node.worker.step for node in swarm.nodes]
        await trio.sleep(_WATCHED_S)
        taken = [n.worker.step - s for n, s in zip(swarm.nodes, steps, strict=True)]
        assert taken[0] * _STEP_S > 0.95 * _WATCHED_S, "training goes on meanwhile"
        whole = [weights for n, weights in means if n == 3]
        assert len(whole) > 0.9 * len(means)
        assert np.median([weights[0] for weights in whole]) == pytest.approx(0.25, abs=0.06)
        assert np.median([weights[1] for weights in whole]) > 0.9
        n_rounds = taken[0] / _EVERY * (2 if worker is STREAMING else 1)
        assert len(means) / 3 > 0.8 * n_rounds, "a mean has three pieces here, one of each member"


async def test_without_a_call_the_straggler_is_rarely_there(
    tmp_path, autojump_clock, means, monkeypatch
) -> None:
    monkeypatch.setattr(Groups, "_pass_on", lambda *_: None)
    # Nobody paces the workers of these tests, as where a member says nothing of its speed.
    async with sim_swarm(tmp_path, 1, numel=600, worker=DILOCO) as swarm:
        await _train(swarm, DILOCO, (1, 4))
        means.clear()
        await trio.sleep(_WATCHED_S)
        assert sum(n == 3 for n, _ in means) < 0.5 * len(means)
