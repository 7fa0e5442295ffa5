"""Whole daemons merge their models while members die and networks break."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import numpy as np
import pytest
import trio
from trio.testing import MockClock

from swarmnode import limits
from swarmnode.daemon.collective.finalize import Finalized, Finalizer
from swarmnode.errors import SwarmNodeError
from swarmnode.testing.fake_worker import FakeWorker
from swarmnode.testing.swarm import SimNode, SimSwarm, sim_swarm
from tests.sim.checks import end, pull, until

TRAINING = FakeWorker(np.zeros(0), drift=pull)
TRAINED_S = 15.0


def finalizer(node: SimNode) -> Finalizer:
    return node.running.view.training().finalizer


async def trained(swarm: SimSwarm) -> None:
    """Return when all know that all train."""
    n = len(swarm.nodes) - 1
    await until(lambda: all(node.status.peers_connected == n for node in swarm.nodes), 20)
    await until(
        lambda: all(
            peer.state == "training" for node in swarm.nodes for peer in node.running.view.peers()
        ),
        60,
    )


async def test_daemons_agree_and_train_on(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with sim_swarm(tmp_path, 4, worker=TRAINING) as swarm:
        await trained(swarm)
        steps = [node.status.step for node in swarm.nodes]
        found = await finalizer(swarm.nodes[2]).finalize("mean")
        assert (found.agreed, found.members, found.contributors) == (4, 4, 4)
        assert found.left_out == {}
        assert found.problem == ""
        await trio.sleep(5)
        assert all(n.status.step > step for n, step in zip(swarm.nodes, steps, strict=True))
        await end(swarm)


async def test_who_was_paused_takes_part(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with sim_swarm(tmp_path, 3, worker=TRAINING) as swarm:
        await trained(swarm)
        resting = swarm.nodes[1].running.view.training().trainer
        resting.pause()
        await until(lambda: swarm.nodes[0].running.view.peers()[0].state != "", 5)
        await trio.sleep(TRAINED_S)
        found = await finalizer(swarm.nodes[0]).finalize("mean")
        assert (found.agreed, found.members) == (3, 3)
        resting.resume()
        await end(swarm)


@pytest.mark.parametrize("seed", range(6))
async def test_a_death_at_any_moment_leaves_the_others_agreed(
    tmp_path: Path, autojump_clock: MockClock, seed: int
) -> None:
    rng = random.Random(seed)
    async with sim_swarm(tmp_path, 4, worker=TRAINING, seed=seed) as swarm:
        await trained(swarm)
        outcome: list[Finalized] = []

        async def ask() -> None:
            outcome.append(await finalizer(swarm.nodes[0]).finalize("mean"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(rng.uniform(0.0, 0.4))
            await swarm.nodes[rng.randrange(1, 4)].kill()
        (found,) = outcome
        assert found.members == 4
        assert found.agreed == 4 - len(found.left_out)
        assert found.agreed >= 3
        assert found.contributors in (3, 4)


async def test_a_partition_midway_ends_in_agreement_or_a_clear_refusal(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with sim_swarm(tmp_path, 4, worker=TRAINING) as swarm:
        await trained(swarm)
        found: Finalized | None = None
        with trio.move_on_after(limits.FINALIZE_MERGE_S) as scope:
            async with trio.open_nursery() as nursery:

                async def cut() -> None:
                    await trio.sleep(0.1)
                    swarm.partition(range(2), range(2, 4))

                nursery.start_soon(cut)
                with contextlib.suppress(SwarmNodeError):
                    found = await finalizer(swarm.nodes[0]).finalize("mean")
        assert not scope.cancelled_caught
        if found is not None:
            assert found.agreed + len(found.left_out) == found.members == 4


async def test_the_graph_of_exchanges_is_measured(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with sim_swarm(tmp_path, 4, worker=TRAINING) as swarm:
        await trained(swarm)
        await trio.sleep(3 * limits.MET_SAY_S)
        node = swarm.nodes[3]
        view = node.running.view
        before = view.mixing.figures
        assert before is None, "no caller has asked"
        await view.look_at_mixing(node.running.env.in_thread)
        figures = view.mixing.figures
        assert figures is not None
        # All meet all at about the same rate r: lambda2 = n r, and each takes part in 3 r.
        rate = node.status.exchanges_committed / (trio.current_time() - 10)
        assert figures.lambda2 == pytest.approx(4 / 3 * rate, rel=0.5)
        assert figures.chi2 <= figures.chi1 == pytest.approx(1 / figures.lambda2)
        assert node.status.swarm_lambda2 == figures.lambda2
        readings = node.running.readings.read()
        assert readings.get("swarm_lambda2") == figures.lambda2
        await end(swarm)
