"""Group means of whole daemons whose nodes differ in speed: all are in every mean, none waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import trio

from swarmnode.strategies.base import Exchange, Kind, Strategy
from swarmnode.strategies.diloco import DiLoCo
from swarmnode.strategies.streaming import Streaming
from swarmnode.testing.swarm import SimSwarm, sim_swarm
from tests.sim.checks import are_one_swarm, until
from tests.sim.strategy_worker import StrategyWorker

_EVERY = 20
_WATCHED_S = 40
_STEP_S = 0.1
_GROUP = {"every": _EVERY, "meet": "group", "fragments": 2, "gamma": 0.0, "overlap": 0}
_OUTER = {"every": _EVERY, "lr": 0.4}

Means = list[tuple[int, float]]


class _Watched(Strategy):
    """Notes of each mean that is applied how many it is of, and what its own part weighs."""

    seen: Means

    def applying(self, exchange: Exchange) -> Iterator[None]:
        if exchange.intent.kind is Kind.GROUP:
            self.seen.append((len(exchange.present), exchange.meta.weight))
        return super().applying(exchange)


class _Groups(_Watched, Streaming):
    pass


class _Outer(_Watched, DiLoCo):
    pass


class _Uncalled(_Outer):
    """Comes when it is due itself."""

    def on_call(self, lineage: int) -> None:
        pass


def _worker(
    strategy: type[_Watched],
    settings: dict[str, Any],
    times: int,
    *,
    step_s: float = _STEP_S,
    is_paced: bool = False,
) -> tuple[StrategyWorker, Means]:
    """Return a worker so many times slower than the first, and the means it will have been in."""
    seen: Means = []

    def make(x: torch.Tensor) -> Strategy:
        made = strategy(settings, x)
        made.seen = seen
        return made

    return StrategyWorker(np.zeros(600), make, step_s=step_s * times, is_paced=is_paced), seen


async def _train(swarm: SimSwarm, workers: Sequence[StrategyWorker]) -> None:
    """Bring up one more node for each of ``workers``."""
    for worker in workers:
        await swarm.start(swarm.add(worker).index)
    await until(lambda: are_one_swarm(swarm.nodes), 60, poll_s=0.1)
    await trio.sleep(15)  # the first rounds find out where each node is


@pytest.mark.parametrize(
    ("strategy", "settings", "fragments"),
    [(_Outer, _OUTER, 1), (_Groups, _GROUP, 2)],
    ids=["diloco", "streaming"],
)
async def test_a_straggler_is_in_the_means_and_counts_by_its_tokens(
    tmp_path, autojump_clock, strategy, settings, fragments
) -> None:
    (first, fast), (equal, _), (last, slow) = (_worker(strategy, settings, n) for n in (1, 1, 4))
    async with sim_swarm(tmp_path, 1, numel=600, worker=first) as swarm:
        await _train(swarm, (equal, last))
        fast.clear()
        slow.clear()
        before = swarm.nodes[0].worker.step
        await trio.sleep(_WATCHED_S)
        taken = swarm.nodes[0].worker.step - before
        assert taken * _STEP_S > 0.95 * _WATCHED_S, "training goes on meanwhile"
        assert len(fast) > 0.8 * fragments * taken / _EVERY
        assert sum(n == 3 for n, _ in fast) > 0.9 * len(fast)
        assert len(slow) > 0.9 * len(fast)
        weights = [np.median([weight for _, weight in means]) for means in (slow, fast)]
        assert weights[0] / weights[1] == pytest.approx(0.25, abs=0.06)


async def test_without_a_call_the_straggler_is_rarely_there(tmp_path, autojump_clock) -> None:
    # No worker of these tests is paced, as where a member says nothing of its speed.
    (first, fast), (equal, _), (last, _) = (_worker(_Uncalled, _OUTER, n) for n in (1, 1, 4))
    async with sim_swarm(tmp_path, 1, numel=600, worker=first) as swarm:
        await _train(swarm, (equal, last))
        fast.clear()
        await trio.sleep(_WATCHED_S)
        assert sum(n == 3 for n, _ in fast) < 0.5 * len(fast)


async def test_as_shipped_a_node_of_an_eighth_of_the_speed_is_in_the_means(
    tmp_path, autojump_clock
) -> None:
    """Its step lasts longer than the time between two means: the others wait for its end."""
    step_s = 1.0
    (first, fast), (equal, _), (last, slow) = (
        _worker(_Groups, {}, n, step_s=step_s, is_paced=True) for n in (1, 1, 8)
    )
    async with sim_swarm(tmp_path, 1, numel=600, worker=first) as swarm:
        await _train(swarm, (equal, last))
        await trio.sleep(100)  # until all have said how fast they are, and all are in
        fast.clear()
        slow.clear()
        before = swarm.nodes[0].worker.step
        await trio.sleep(160)
        taken = swarm.nodes[0].worker.step - before
        assert taken * step_s > 0.95 * 160, "training goes on meanwhile"
        assert len(fast) >= 16  # the slowest takes twenty steps
        assert sum(n == 3 for n, _ in fast) > 0.9 * len(fast)
        assert len(slow) > 0.9 * len(fast)
