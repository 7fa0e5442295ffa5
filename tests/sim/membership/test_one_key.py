"""Two nodes with one key: the one that came later stops and says why, and no other is harmed."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import trio

from swarmnode.errors import KeyInUse
from swarmnode.testing.fake_worker import FakeWorker
from swarmnode.testing.swarm import (
    SimNode,
    SimSwarm,
    give_manifest,
    make_manifest,
    sim_swarm,
)
from tests.sim.checks import are_one_swarm, check_atomic, everybody_exchanges, pull, until

TRAINING = FakeWorker(np.zeros(0), drift=pull)


async def start_three(swarm: SimSwarm, boots: int) -> None:
    """Start a swarm in which node 1 was started so many times before."""
    for place in range(3):
        swarm.add(replace(TRAINING, initial=np.full(640, float(place))))
    swarm.nodes[1].boots = boots
    give_manifest(swarm.nodes[0], make_manifest())
    for index in range(3):
        await swarm.start(index)
    await until(lambda: are_one_swarm(swarm.nodes), 20, poll_s=0.1)


def copy_of(swarm: SimSwarm, index: int, hints: tuple[int, ...], boots: int) -> SimNode:
    """Add a node with the key of another one, whose home was started so many times."""
    copy = swarm.add(FakeWorker(np.zeros(640)), hints, boots=boots)
    copy.identity = swarm.nodes[index].identity
    return copy


async def check_original_goes_on(swarm: SimSwarm, copy: SimNode) -> None:
    """The copy has ended as it should, and the swarm is as if it had never been."""
    assert isinstance(copy.failure, KeyInUse)
    assert copy.failure.exit_code == 4
    swarm.nodes.remove(copy)
    await until(lambda: are_one_swarm(swarm.nodes), 30, poll_s=0.1)
    for node in swarm.nodes:
        assert not node.part.state.core.statistics().bans
        assert node.status.alarm == ""
    await everybody_exchanges(swarm)
    await swarm.leave_all()
    assert [node.failure for node in swarm.nodes] == [None] * len(swarm.nodes)
    check_atomic(swarm)


@pytest.mark.parametrize(("original_boots", "copy_boots"), [(0, 0), (0, 5), (5, 0)])
async def test_a_copy_meets_a_peer_that_knows_the_original(
    tmp_path, autojump_clock, expected_errors, original_boots: int, copy_boots: int
) -> None:
    expected_errors.add("one key on two nodes")
    async with sim_swarm(tmp_path, 0) as swarm:
        await start_three(swarm, original_boots)
        copy = copy_of(swarm, 1, (0,), copy_boots)
        await swarm.start(3)
        with trio.fail_after(30):
            await copy.down.wait()
        await check_original_goes_on(swarm, copy)


async def test_a_copy_of_a_whole_home_knows_all(tmp_path, autojump_clock, expected_errors) -> None:
    """It has the manifest, contacts and what all have said, so it comes to every node at once."""
    expected_errors.add("one key on two nodes")
    async with sim_swarm(tmp_path, 0) as swarm:
        await start_three(swarm, 0)
        await trio.sleep(15)
        copy = copy_of(swarm, 1, (), 1)
        shutil.copytree(swarm.home / "n1", swarm.home / "n3", ignore=shutil.ignore_patterns("run"))
        await swarm.start(3)
        with trio.fail_after(30):
            await copy.down.wait()
        await check_original_goes_on(swarm, copy)


async def test_a_copy_is_started_with_the_link_to_its_original(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 0) as swarm:
        await start_three(swarm, 0)
        copy = copy_of(swarm, 1, (1,), 1)
        await swarm.start(3)
        with trio.fail_after(5):
            await copy.down.wait()
        assert "mem:n1" in str(copy.failure)
        await check_original_goes_on(swarm, copy)
