"""Workers that die, dawdle or rest: the node goes on, and nothing is half applied."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import trio

from swarmnode import limits
from swarmnode.daemon.status.phases import Training
from swarmnode.errors import WorkerError
from swarmnode.protocol.gossip.events import Role
from swarmnode.protocol.gossip.flight import State
from swarmnode.testing.fake_worker import FakeWorker
from swarmnode.testing.swarm import SimNode, sim_swarm
from tests.sim.checks import check_atomic, check_conserved, end, everybody_exchanges, pull, until

TRAINING = FakeWorker(np.zeros(0), drift=pull, save_every=40)


def flight_is(node: SimNode, role: Role, state: State) -> bool:
    work = node.running.view.work
    flights = work.exchanges.core._flights if isinstance(work, Training) else ()
    return any((flight.role, flight.state) == (role, state) for flight in flights)


@pytest.mark.parametrize(
    ("role", "state"),
    [
        (Role.INITIATOR, State.OFFERED),
        (Role.INITIATOR, State.TRANSFER),
        (Role.RESPONDER, State.TRANSFER),
        (Role.RESPONDER, State.READY),
    ],
)
async def test_a_worker_dies_in_an_exchange(tmp_path, autojump_clock, role, state) -> None:
    async with sim_swarm(tmp_path, 2, delay_s=0.15, worker=TRAINING) as swarm:
        await everybody_exchanges(swarm)
        crashed: list[SimNode] = []
        for restarts in range(3):
            # Whose offers come first depends on when each began: either may be the one.
            await until(lambda: any(flight_is(n, role, state) for n in swarm.nodes), 60, 0.005)
            victim = next(node for node in swarm.nodes if flight_is(node, role, state))
            victim.worker.crash()
            crashed.append(victim)
            await everybody_exchanges(swarm)
            assert sum(node.status.worker_restarts for node in swarm.nodes) == restarts + 1
        audit = await end(swarm, crashed=tuple(crashed))
        lost = sum(entry["event"] == "lost" for node in swarm.nodes for entry in node.history)
        if state is State.READY:
            assert lost  # no protocol can take back what the initiator has decided
        assert audit.lost_in_kill == lost


async def test_a_worker_dies_before_it_merged_what_was_committed(tmp_path, autojump_clock) -> None:
    slow = FakeWorker(np.zeros(0), step_s=1.0, every=2)
    async with sim_swarm(tmp_path, 2, worker=slow) as swarm:
        victim = swarm.nodes[0]
        await until(lambda: victim.status.exchanges_committed > 0, 30)
        assert victim.status.exchanges_applied == 0
        victim.worker.crash()
        await trio.sleep(10)
        audit = await end(swarm, crashed=(victim,))
        assert audit.lost_in_kill == 1


async def test_a_slow_worker_does_not_slow_the_others(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 4, worker=TRAINING) as swarm:
        swarm.nodes[3].worker.step_s = 3.0
        await trio.sleep(60)
        committed = [node.status.exchanges_committed for node in swarm.nodes]
        assert min(committed[:3]) > 60
        assert committed[3] >= 1
        await end(swarm)


async def test_a_paused_node_rests_and_comes_back(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 3, worker=TRAINING) as swarm:
        await trio.sleep(5)
        sleeper = swarm.nodes[1]
        trainer = sleeper.running.view.training().trainer
        trainer.pause()
        await until(lambda: sleeper.status.state == "paused", 3)
        step = sleeper.worker.step
        await trio.sleep(2)
        done = sleeper.status.exchanges_committed
        others = swarm.nodes[0].status.exchanges_committed
        await trio.sleep(20)
        assert sleeper.worker.step == step
        assert sleeper.status.exchanges_committed <= done + 1  # with what it had to give
        assert swarm.nodes[0].status.exchanges_committed > others + 20
        sleeper.worker.crash()  # a new worker is paused as well
        await until(lambda: sleeper.worker.lives == 2, 5)
        await trio.sleep(3)
        assert sleeper.status.state == "paused"
        trainer.resume()
        await everybody_exchanges(swarm, 5)
        assert sleeper.status.state == "training"
        await end(swarm, crashed=(sleeper,))


async def test_a_worker_that_keeps_dying_ends_its_node(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 3, worker=TRAINING) as swarm:
        await trio.sleep(3)
        victim = swarm.nodes[1]
        while victim.node is not None:
            victim.worker.crash()
            await trio.sleep(1)
        assert isinstance(victim.failure, WorkerError)
        assert f"died {limits.WORKER_RESTARTS_MAX + 1} times in 10 minutes" in str(victim.failure)
        assert "SIGKILL" in str(victim.failure)
        await until(lambda: all(n.status.peers_connected == 1 for n in swarm.up), 5)
        victim.failure = None
        await everybody_exchanges(swarm)
        await swarm.leave_all()
        check_conserved(swarm, crashed=(victim,))
        check_atomic(swarm)


async def test_values_that_are_not_finite_are_not_sent(tmp_path, autojump_clock) -> None:
    unsaved = replace(TRAINING, save_every=0)
    async with sim_swarm(tmp_path, 3, worker=unsaved) as swarm:
        await trio.sleep(3)
        sick = swarm.nodes[1]
        sick.worker.x[5] = np.nan
        await trio.sleep(1)
        done = sick.status.exchanges_committed
        others = swarm.nodes[0].status.exchanges_committed
        await trio.sleep(10)
        assert sick.status.exchanges_committed == done
        assert sick.status.exchanges_aborted > 0
        reasons = {e["reason"] for e in sick.history if e.get("outcome") == "aborted"}
        assert any("finite" in reason for reason in reasons)
        assert swarm.nodes[0].status.exchanges_committed > others + 5
        assert all(np.isfinite(swarm.nodes[i].worker.x).all() for i in (0, 2))
        sick.worker.crash()
        await everybody_exchanges(swarm)
        await end(swarm, crashed=(sick,))
