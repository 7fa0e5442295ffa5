"""What nodes say of themselves reaches all others, whatever clocks some of them have."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import trio

from swarmnode.testing.fake_worker import FakeWorker
from swarmnode.testing.swarm import UNIX_START_S, SimNode, SimSwarm, sim_swarm
from tests.sim.checks import (
    are_one_swarm,
    cut_at_random,
    end,
    everybody_exchanges,
    pull,
    state_digests,
    until,
)

TRAINING = FakeWorker(np.zeros(0), drift=pull)
YEAR_S = 365 * 86_400.0


async def pause_all(swarm: SimSwarm) -> None:
    for node in swarm.up:
        node.running.view.training().trainer.pause()
    await until(lambda: all(node.status.state == "paused" for node in swarm.up), 3)


def shows(viewer: SimNode, other: SimNode) -> bool:
    """Whether a node's list of peers is right about another one."""
    view, truth = viewer.view_of(other), other.status
    return (view.state, view.step, view.tokens, view.eval_loss, view.role) == (
        truth.state,
        truth.step,
        truth.tokens,
        truth.eval_loss,
        truth.role,
    )


async def test_every_member_shows_all_others_as_they_are(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 5, worker=TRAINING) as swarm:
        await cut_at_random(swarm, 20)
        for viewer, other in itertools.permutations(swarm.nodes, 2):
            view = viewer.view_of(other)
            assert view.alive == "alive"
            # A report is two seconds old at most, and goes round in less than ten.
            assert 0 <= other.worker.step - view.step <= 12 / other.worker.step_s
        await pause_all(swarm)
        await trio.sleep(12)
        assert all(shows(*pair) for pair in itertools.permutations(swarm.nodes, 2))
        for viewer in swarm.nodes:
            assert viewer.status.swarm_steps == sum(node.worker.step for node in swarm.nodes)
        losses = [node.status.swarm_loss for node in swarm.nodes]
        assert losses == pytest.approx([np.mean([n.status.eval_loss for n in swarm.nodes])] * 5)
        await end(swarm)


async def test_equal_histories_are_equal_digests(tmp_path, autojump_clock) -> None:
    """Nodes speak every two seconds, and most of the time all of them have heard everything."""
    async with sim_swarm(tmp_path, 5, worker=TRAINING) as swarm:
        await cut_at_random(swarm, 20)
        await trio.sleep(10)
        n_agreed = 0
        for _ in range(200):
            await trio.sleep(0.1)
            states = [node.part.state for node in swarm.nodes]
            heard = {state.core.version_vector() for state in states}
            assert len(heard) == len(state_digests(swarm.nodes))
            n_agreed += len(heard) == 1
        assert n_agreed > 100
        await end(swarm)


async def test_totals_outlive_a_restart_and_a_leaver(tmp_path, autojump_clock) -> None:
    """Steps that were trained stay counted, once, after the end of whoever trained them."""
    async with sim_swarm(tmp_path, 4, worker=replace(TRAINING, save_every=20)) as swarm:
        await trio.sleep(20)
        leaver, victim, viewer = swarm.nodes[3], swarm.nodes[2], swarm.nodes[0]
        await leaver.leave()
        trained = viewer.view_of(leaver).step
        assert 0 <= leaver.worker.step - trained <= 3 / leaver.worker.step_s
        await victim.kill()
        await swarm.start(2)
        await everybody_exchanges(swarm)
        await pause_all(swarm)
        await trio.sleep(12)
        steps = trained + sum(node.status.step for node in swarm.up)
        for node in swarm.up:
            assert node.status.swarm_steps == steps
        await end(swarm, crashed=(victim,))


def stamps(node: SimNode) -> list[float]:
    """Return how far ahead the newest record of each author is, in seconds."""
    now_ms = (UNIX_START_S + trio.current_time()) * 1000
    chains = node.part.state.view.ledger.chains
    return [(chain.newest.stamp.wall_ms - now_ms) / 1000 for chain in chains.values()]


def skew_s(node: SimNode) -> float:
    """Return how far other clocks are ahead of this one's, as peers told it; inf if none did."""
    told_s = node.part.state.core.statistics().clock_skew_s
    return np.inf if told_s is None else told_s


@pytest.mark.parametrize("error_s", [YEAR_S, -YEAR_S])
async def test_a_clock_that_is_a_year_off(tmp_path, autojump_clock, error_s: float) -> None:
    """It harms no other node, is told, and takes part as soon as its clock is set."""
    async with sim_swarm(tmp_path, 3, worker=TRAINING) as swarm:
        await trio.sleep(5)
        wrong = swarm.add(replace(TRAINING, initial=np.ones(640)), clock_error_s=error_s)
        await swarm.start(3)
        await until(lambda: wrong.status.state == "training", 30)
        right = swarm.nodes[:3]
        await until(lambda: all(abs(skew_s(node)) < 1 for node in right), 90, poll_s=1)
        assert skew_s(wrong) == pytest.approx(-error_s, abs=1)
        for node in right:
            assert node.part.members.detector.state_of(wrong.peer) == "alive"
            assert max(stamps(node)) < 1, "no other node has its time"
            verdicts = node.part.state.core.statistics().records_total
            assert ("future" in verdicts) == (error_s > 0)
        committed = [node.status.exchanges_committed for node in right]
        await trio.sleep(20)
        for node, before in zip(right, committed, strict=True):
            assert node.status.exchanges_committed > before + 20
        wrong.clock_error_s = 0.0
        await until(lambda: are_one_swarm(swarm.nodes), 60, poll_s=0.1)
        await everybody_exchanges(swarm)
        assert wrong.peer in swarm.nodes[0].part.partners()
        await end(swarm)
