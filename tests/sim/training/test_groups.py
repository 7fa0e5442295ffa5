"""Group means of whole daemons: one lineage under churn, for diloco and for streaming in groups."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import trio

from swarmnode.cli.node.control import line_words
from swarmnode.processes.audit import audit_histories
from swarmnode.strategies.diloco import DiLoCo
from swarmnode.strategies.streaming import Streaming
from swarmnode.testing.swarm import SimSwarm, sim_swarm
from tests.sim.checks import are_one_swarm, until
from tests.sim.strategy_worker import StrategyWorker

GROUP = {"every": 20, "fragments": 1}
STREAMING = StrategyWorker(np.zeros(0), lambda x: Streaming(GROUP, x), step_s=0.1)
TWO_BITS = replace(STREAMING, make=lambda x: Streaming({**GROUP, "delta_codec": "Q2B64"}, x))
THREE_LEVELS = replace(STREAMING, make=lambda x: Streaming({**GROUP, "delta_codec": "T3B320"}, x))
DILOCO = StrategyWorker(np.zeros(0), lambda x: DiLoCo({"every": 20, "lr": 0.4}, x), step_s=0.1)


def training(swarm: SimSwarm) -> list[Any]:
    """Return the strategies of the workers that have begun."""
    found = [node.worker.strategy for node in swarm.up]
    return [strategy for strategy in found if strategy is not None]


def count(swarm: SimSwarm) -> int:
    """Return the means behind the node that is furthest."""
    return max((int(strategy.lineage[0]) for strategy in training(swarm)), default=0)


def lineages(swarm: SimSwarm) -> set[tuple[float, ...]]:
    return {tuple(strategy.lineage.tolist()) for strategy in training(swarm)}


def check_bits(swarm: SimSwarm) -> None:
    """Nodes that have the same means behind them hold the same slow weights."""
    found: dict[tuple[float, ...], torch.Tensor] = {}
    for strategy in training(swarm):
        phi = found.setdefault(tuple(strategy.lineage.tolist()), strategy.phi)
        assert torch.equal(phi, strategy.phi)


def check_audit(swarm: SimSwarm) -> None:
    audit = audit_histories(swarm.histories())
    assert audit.half_applied == ()
    assert audit.committed >= 5


@pytest.mark.parametrize("worker", [DILOCO, STREAMING], ids=["diloco", "streaming"])
async def test_rounds_of_two_seconds_commit(tmp_path, autojump_clock, worker) -> None:
    async with sim_swarm(tmp_path, 3, numel=600, worker=worker) as swarm:
        await until(lambda: are_one_swarm(swarm.nodes), 30, poll_s=0.1)
        await until(lambda: count(swarm) > 2, 60, poll_s=0.1)
        before = [(n.status.exchanges_committed, n.status.exchanges_aborted) for n in swarm.nodes]
        began = count(swarm)
        await trio.sleep(40)  # twenty rounds
        assert count(swarm) - began >= 16
        for node, (committed, aborted) in zip(swarm.nodes, before, strict=True):
            made = node.status.exchanges_committed - committed
            vain = node.status.exchanges_aborted - aborted
            assert made >= 0.8 * (made + vain)
        check_bits(swarm)
        check_audit(swarm)


async def test_status_says_how_long_a_mean_takes_on_this_line(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 2, numel=600, worker=STREAMING, delay_s=0.25) as swarm:
        await until(lambda: are_one_swarm(swarm.nodes), 30, poll_s=0.1)
        for node in swarm.nodes:
            assert "an exchange takes" not in line_words(msgspec.to_builtins(node.status))
        await until(lambda: count(swarm) > 2, 60, poll_s=0.1)
        for node in swarm.nodes:
            ended = [each for each in node.history if each["event"] == "finished"]
            took_s = [each["took_s"] for each in ended if each["outcome"] == "committed"]
            mean_s = node.status.exchange_s_mean
            assert mean_s == pytest.approx(np.mean(took_s), rel=1e-3)
            assert mean_s > 0.5  # a round trip at least
            said = line_words(msgspec.to_builtins(node.status))
            assert f"; an exchange takes {mean_s:.3g} s, the next waits for it" in said


@pytest.mark.parametrize("worker", [TWO_BITS, THREE_LEVELS], ids=["Q2B64", "T3B320"])
async def test_rounds_of_two_bits_and_less_commit(tmp_path, autojump_clock, worker) -> None:
    """What each has learnt goes to the mean, and the mean back to all, in the same codec."""
    async with sim_swarm(tmp_path, 4, numel=1400, worker=worker) as swarm:
        await until(lambda: are_one_swarm(swarm.nodes), 30, poll_s=0.1)
        await until(lambda: count(swarm) > 6, 60, poll_s=0.1)
        check_bits(swarm)
        check_audit(swarm)


async def test_rounds_commit_where_all_that_happens_is_late(tmp_path, autojump_clock) -> None:
    worker = replace(STREAMING, late_s=0.7)  # eight processes a core
    async with sim_swarm(tmp_path, 3, numel=600, worker=worker, delay_s=0.5) as swarm:
        await until(lambda: are_one_swarm(swarm.nodes), 60, poll_s=0.1)
        await until(lambda: count(swarm) > 2, 300, poll_s=0.1)
        before = [(n.status.exchanges_committed, n.status.exchanges_aborted) for n in swarm.nodes]
        steps, began = [node.worker.step for node in swarm.nodes], count(swarm)
        await trio.sleep(300)
        rounds = min(n.worker.step - s for n, s in zip(swarm.nodes, steps, strict=True)) / 20
        assert count(swarm) - began >= 0.8 * rounds
        for node, (committed, aborted) in zip(swarm.nodes, before, strict=True):
            made = node.status.exchanges_committed - committed
            vain = node.status.exchanges_aborted - aborted
            assert made >= 0.8 * (made + vain)
        check_bits(swarm)


@pytest.mark.parametrize("n", [2, 4])
async def test_streaming_in_groups_survives_deaths_with_one_lineage(
    tmp_path, autojump_clock, n
) -> None:
    async with sim_swarm(tmp_path, n, numel=600, worker=STREAMING) as swarm:
        await until(lambda: are_one_swarm(swarm.nodes), 30, poll_s=0.1)
        await until(lambda: count(swarm) > 1, 60, poll_s=0.1)
        rng = random.Random(n)
        for _ in range(3):
            victim = rng.randrange(n)
            await trio.sleep(rng.uniform(3, 6))
            await swarm.kill(victim)
            await trio.sleep(rng.uniform(0, 4))
            await swarm.start(victim)
        await until(lambda: are_one_swarm(swarm.nodes), 60, poll_s=0.1)
        began = count(swarm)
        await until(lambda: count(swarm) > began + 2 and len(lineages(swarm)) == 1, 60, poll_s=0.1)
        check_bits(swarm)
        audit = audit_histories(swarm.histories())
        assert audit.half_applied == ()
