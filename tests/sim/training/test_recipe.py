"""All members follow one recipe: the same learning rate, the same end, and what comes after it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trio
from trio.testing import MockClock

from swarmnode.errors import AuthenticationFailed, Refused
from swarmnode.ipc.lr_schedule import lr_factor
from swarmnode.limits import REPORT_S_MIN
from swarmnode.protocol.extension import sign_extension
from swarmnode.protocol.identity import Identity
from swarmnode.testing.fake_worker import FakeWorker
from swarmnode.testing.swarm import SWARM_KEY, SimNode, SimSwarm, sim_swarm
from swarmnode.wire.recipe import Extension, Recipe
from tests.sim.checks import end, pull, until

WORKER = FakeWorker(np.zeros(0), step_s=0.25, drift=pull)
# Of a member that begins: it is told, others hear of it, and of its pace.
SETTLED_S = 3 * REPORT_S_MIN + 1


def lr_of(node: SimNode, recipe: Recipe) -> float:
    """Return the factor that the worker of a node would take its next step with."""
    swarm = node.worker.swarm
    assert swarm.is_known
    tokens = swarm.tokens(node.worker.step)
    return lr_factor(recipe, tokens, swarm.horizon, swarm.members(tokens))


async def agree(
    swarm: SimSwarm, recipe: Recipe, seconds: float, *, within: float = 1.01
) -> list[float]:
    """Look at all learning rates for a while; return those of the first node."""
    found = []
    for _ in range(round(2 * seconds)):
        await trio.sleep(0.5)
        factors = [lr_of(node, recipe) for node in swarm.up]
        assert max(factors) <= within * min(factors)
        found.append(factors[0])
    return found


async def are_training(swarm: SimSwarm) -> None:
    await until(lambda: all(node.status.state == "training" for node in swarm.up), 60)


async def test_latecomers_and_restarted_ones_have_the_learning_rate_of_all_others(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    recipe = Recipe(
        schedule="cosine",
        warmup_tokens=100,
        members_exponent=0.86,
        members_max=8,
        target_tokens=4000,
    )
    async with sim_swarm(tmp_path, 3, worker=WORKER, recipe=recipe) as swarm:
        await are_training(swarm)
        await trio.sleep(15)
        three = await agree(swarm, recipe, 10)
        late = swarm.add(replace(WORKER, initial=np.ones(640)))
        await swarm.start(late.index)
        await are_training(swarm)
        await trio.sleep(SETTLED_S)
        # While it comes to count: half a second earlier at one than at another is a percent.
        four = await agree(swarm, recipe, 30, within=1.015)
        assert max(four) > 1.1 * max(three)
        await swarm.kill(1)
        await trio.sleep(10)
        await swarm.start(1)
        await are_training(swarm)
        await trio.sleep(SETTLED_S)
        known = swarm.nodes[1].worker.swarm
        assert known.tokens(swarm.nodes[1].worker.step) > 800
        last = await agree(swarm, recipe, 20)
        assert last[-1] < 0.8 * max(four)
        await end(swarm, crashed=(swarm.nodes[1],))


async def test_at_its_target_a_swarm_is_finished_and_its_creator_may_let_it_go_on(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    recipe = Recipe(schedule="wsd", target_tokens=400)
    async with sim_swarm(tmp_path, 3, worker=WORKER, recipe=recipe) as swarm:
        keeper = swarm.add(replace(WORKER, initial=np.ones(640)), role="keeper")
        await swarm.start(keeper.index)
        trainers = swarm.nodes[:3]
        await until(lambda: all(n.status.state == "finished" for n in trainers), 200, 0.25)
        steps = [node.worker.step for node in trainers]
        assert 400 <= sum(steps) <= 440
        assert lr_of(trainers[0], recipe) == pytest.approx(recipe.lr_final)
        written = keeper.paths.swarm("sim").final_model
        await until(written.exists, 120, 0.5)
        await trio.sleep(10)
        assert [node.worker.step for node in trainers] == steps

        target = trainers[1].running.view.member().progress.target
        forged = sign_extension(Extension(900), Identity.from_seed(b"x" * 32))
        with pytest.raises(AuthenticationFailed):
            target.extend(forged)
        more = sign_extension(Extension(700, resumed_tokens=400), SWARM_KEY)
        less = sign_extension(Extension(500), SWARM_KEY)
        target.extend(more)
        with pytest.raises(Refused, match="beyond 700 tokens"):
            target.extend(less)
        for node in trainers:
            node.running.view.member().progress.target.heard(less)
            node.running.view.member().progress.target.heard(forged)
        await until(lambda: all(n.status.target_tokens == 700 for n in swarm.nodes), 30, 0.25)
        await until(lambda: all(n.status.swarm_tokens >= 700 for n in swarm.nodes), 200, 0.25)
        await until(lambda: all(n.status.state == "finished" for n in trainers), 30, 0.25)
        assert 700 <= sum(node.worker.step for node in trainers) <= 750

        # A node that was away hears of it as well, and one that starts again remembers.
        await swarm.kill(2)
        await swarm.start(2)
        await until(lambda: trainers[2].status.target_tokens == 700, 10, 0.25)
        await end(swarm, crashed=(trainers[2],))
