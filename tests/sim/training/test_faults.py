"""Eight whole daemons under faults: atomic exchanges, a mean that stays, and life afterwards."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import trio

from swarmnode import limits
from swarmnode.net.session import Session
from swarmnode.testing.fake_worker import FakeWorker
from swarmnode.testing.swarm import SimNode, SimSwarm, sim_swarm
from tests.sim.checks import (
    check_atomic,
    check_conserved,
    cut_at_random,
    end,
    everybody_exchanges,
    pull,
    until,
)

TRAINING = FakeWorker(np.zeros(0), drift=pull, save_every=100)


async def test_they_find_each_other_and_agree(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 8) as swarm:
        before = swarm.variance()
        await until(lambda: all(n.status.peers_connected == 7 for n in swarm.nodes), 10)
        await trio.sleep(50)
        audit = await end(swarm)
        # Of 500 that eight nodes can have in that time: whoever is a little ahead of the
        # others finds them without intents, and busy when they have some.
        assert audit.committed > 350
        # What is left is the noise of eight bits; a perfect matching would halve it each round.
        assert swarm.variance() < before / 10_000


@pytest.mark.parametrize("seed", [1, 2])
async def test_links_that_break_at_any_moment(tmp_path, autojump_clock, seed: int) -> None:
    async with sim_swarm(tmp_path, 8, seed=seed, delay_s=0.03, worker=TRAINING) as swarm:
        before = swarm.variance()
        await until(lambda: all(n.status.peers_connected == 7 for n in swarm.nodes), 10)
        await trio.sleep(limits.SESSION_RETIRE_S)
        sessions = sessions_of(swarm)
        broken = await cut_at_random(swarm, 60)
        assert broken > 50
        await everybody_exchanges(swarm)
        assert sessions_of(swarm) == sessions
        audit = await end(swarm)
        assert aborts(swarm) <= {"local: leaving"}
        assert audit.committed > 150
        assert swarm.variance() < before / 100


@pytest.mark.parametrize("seed", [1, 2])
async def test_sessions_that_break_at_any_moment(
    tmp_path, autojump_clock, channels_are_all, seed: int
) -> None:
    async with sim_swarm(tmp_path, 8, seed=seed, delay_s=0.03, worker=TRAINING) as swarm:
        before = swarm.variance()
        broken = await cut_at_random(swarm, 60)
        assert broken > 50
        await everybody_exchanges(swarm)
        audit = await end(swarm)
        assert audit.aborted > 0
        assert audit.committed > 150
        assert swarm.variance() < before / 100


def aborts(swarm: SimSwarm) -> set[str]:
    """Why exchanges ended with nothing although both sides had agreed to them."""
    entries = (entry for node in swarm.nodes for entry in node.history)
    return {entry["reason"] for entry in entries if entry.get("outcome") == "aborted"}


def sessions_of(swarm: SimSwarm) -> dict[str, Session]:
    return {
        f"{node.name} {peer}": session
        for node in swarm.nodes
        for peer, session in node.running.view.node.network.sessions.items()
    }


async def test_a_daemon_is_killed_and_comes_back(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 8, seed=3, delay_s=0.03, worker=TRAINING) as swarm:
        async with trio.open_nursery() as faults:
            faults.start_soon(functools.partial(cut_at_random, swarm, 60, mean_pause_s=2))
            await trio.sleep(23)
            victim = swarm.nodes[5]
            worker = victim.worker
            lost = worker.ledger.keys() - worker._saved.ledger.keys()  # what a crash now takes back
            undecided = in_flight(victim)
            assert lost
            await victim.kill()
            await trio.sleep(10)
            await swarm.start(5)
            await until(lambda: victim.status.peers_connected == 7, 10)
            await trio.sleep(15)
            assert victim.worker.lives == 2
        await everybody_exchanges(swarm)
        audit = await end(swarm, crashed=(victim,))
        # What counts on one side only is what the victim had merged and not saved, and what it
        # was about to merge.
        assert lost <= set(swarm.one_sided()) <= lost | undecided
        assert audit.committed > 150


def in_flight(node: SimNode) -> set[bytes]:
    """Return the exchanges that a node is in, or has not merged yet."""
    training = node.running.view.training()
    undecided = (flight.xid for flight in training.exchanges.core._flights)
    return {*training.trainer.lessor.unmerged, *undecided}


async def test_both_halves_of_a_partition_go_on(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 8, seed=4, delay_s=0.03, worker=TRAINING) as swarm:
        await trio.sleep(20)
        halves = range(4), range(4, 8)
        swarm.partition(*halves)
        await trio.sleep(25)  # the sessions across are found dead, doubts are settled
        parted = trio.current_time()
        await trio.sleep(35)
        sides = [{str(swarm.nodes[i].peer) for i in half} for half in halves]
        for half, side in zip(halves, sides, strict=True):
            for index in half:
                within = swarm.nodes[index].committed(since_s=parted)
                assert len(within) > 10
                assert {entry["peer"] for entry in within} <= side
        swarm.network.heal()
        healed = trio.current_time()

        def across() -> bool:
            return all(
                any(e["peer"] not in side for e in swarm.nodes[i].committed(since_s=healed))
                for half, side in zip(halves, sides, strict=True)
                for i in half
            )

        await until(across, 30, poll_s=0.5)
        await end(swarm)


async def test_training_does_not_notice_a_partition(tmp_path, autojump_clock) -> None:
    steps = []
    for is_parted in (False, True):
        async with sim_swarm(tmp_path / str(is_parted), 4, worker=TRAINING) as swarm:
            await trio.sleep(5)
            if is_parted:
                swarm.partition(*(range(i, i + 1) for i in range(4)))
            before = [node.worker.step for node in swarm.nodes]
            await trio.sleep(60)
            after = [node.worker.step for node in swarm.nodes]
            steps.append([b - a for a, b in zip(before, after, strict=True)])
            if is_parted:
                assert all(node.status.state == "training" for node in swarm.nodes)
                swarm.network.heal()
                await everybody_exchanges(swarm, 40)
            await end(swarm)
    assert all(abs(one - other) <= 1 for one, other in zip(*steps, strict=True))


async def test_the_checks_see_what_they_should(tmp_path, autojump_clock) -> None:
    """A crash unknown to the checks must show as a sum that is off and as lone exchanges."""
    async with sim_swarm(tmp_path, 4, seed=5, worker=TRAINING) as swarm:
        await trio.sleep(8)
        await swarm.kill(2)
        await swarm.leave_all()
        with pytest.raises(AssertionError, match="counts on"):
            check_conserved(swarm)
        check_atomic(swarm, killed=(swarm.nodes[2],))
