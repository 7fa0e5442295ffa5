"""Nodes without an address of their swarm find it; swarms stay apart; halves become one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import trio
from msgspec import structs

from swarmnode.protocol.identity import Identity
from swarmnode.protocol.swarm import SwarmLink
from swarmnode.testing.fake_worker import FakeWorker
from swarmnode.testing.swarm import (
    SimNode,
    SimSwarm,
    give_manifest,
    make_manifest,
    sim_swarm,
)
from swarmnode.wire.swarm import Manifest
from tests.sim.checks import are_one_swarm, end, everybody_exchanges, pull, until

TRAINING = FakeWorker(np.zeros(0), drift=pull)
OTHER_KEY = Identity.from_seed(b"o" * 32)


def worker(place: int) -> FakeWorker:
    return replace(TRAINING, initial=np.full(640, float(place)))


def other_manifest() -> Manifest:
    return structs.replace(make_manifest(), name="other", swarm_key=OTHER_KEY.public_key)


def add_other(swarm: SimSwarm, hints: tuple[int, ...], bootstrap: tuple[int, ...]) -> SimNode:
    """Add a node of another swarm on the same network."""
    link = SwarmLink("other", OTHER_KEY.public_key, tuple(map(swarm.hint, hints)))
    place = 10 + len(swarm.nodes)
    return swarm.add(worker(place), link=link, bootstrap=bootstrap)


def check_apart(nodes: Sequence[SimNode]) -> None:
    """None of them has heard of a node of its swarm beyond these, or exchanged with one."""
    own = {node.peer for node in nodes}
    for node in nodes:
        members = node.part.members
        assert {*members.sessions, *members.book.entries, *members.detector.members()} < own
        assert node.part.state.view.ledger.chains.keys() <= own
        assert {entry["peer"] for entry in node.committed()} <= {str(peer) for peer in own}


def exchanges_across(halves: Sequence[Sequence[SimNode]], since_s: float) -> bool:
    """Whether every node has exchanged with one of the other half."""
    return all(
        any(entry["peer"] not in side for entry in node.committed(since_s=since_s))
        for half in halves
        for side in [{str(node.peer) for node in half}]
        for node in half
    )


async def test_a_swarm_is_found_through_the_members_of_another(tmp_path, autojump_clock) -> None:
    """They share a network and its DHT, and nothing else."""
    async with sim_swarm(tmp_path, 3, worker=TRAINING) as swarm:
        first = add_other(swarm, (), bootstrap=(1,))
        give_manifest(first, other_manifest(), OTHER_KEY)
        add_other(swarm, (3,), ())
        for index in (3, 4):
            await swarm.start(index)
        await trio.sleep(30)
        newcomer = swarm.add(worker(6), (), bootstrap=(4,))
        await swarm.start(5)
        await until(lambda: newcomer.running.view.membership.terms.task, 30)
        await until(lambda: newcomer.status.state == "training", 20)
        ours, theirs = [*swarm.nodes[:3], newcomer], swarm.nodes[3:5]
        await until(lambda: are_one_swarm(ours) and are_one_swarm(theirs), 30, poll_s=0.1)
        await everybody_exchanges(swarm)
        check_apart(ours)
        check_apart(theirs)
        assert all(node.status.dht_contacts == 5 for node in swarm.nodes)
        assert newcomer.worker.initial[0] != 6.0, "it began with the swarm's model"
        await end(swarm)


async def test_halves_that_were_parted_for_five_minutes(tmp_path, autojump_clock) -> None:
    slow = replace(TRAINING, step_s=0.5, every=4)
    async with sim_swarm(tmp_path, 6, worker=slow) as swarm:
        await until(lambda: are_one_swarm(swarm.nodes), 20, poll_s=0.1)
        halves = swarm.nodes[:3], swarm.nodes[3:]
        swarm.partition(range(3), range(3, 6))
        await trio.sleep(120)
        for half in halves:
            assert all(len(node.part.members.live()) == 3 for node in half)
        await trio.sleep(180)
        swarm.network.heal()
        healed = trio.current_time()
        await until(lambda: are_one_swarm(swarm.nodes), 60, poll_s=0.25)
        await until(lambda: exchanges_across(halves, healed), 60, poll_s=0.5)
        await end(swarm)


@pytest.mark.parametrize("contact_is", ["a member", "of another swarm"])
async def test_halves_that_started_apart(tmp_path, autojump_clock, contact_is: str) -> None:
    """They learn of each other by one contact that both come to know."""
    async with sim_swarm(tmp_path, 0) as swarm:
        bootstrap = () if contact_is == "a member" else (6,)
        for index in range(6):
            swarm.add(worker(index), (index - index % 3,), bootstrap=bootstrap)
        for index in (0, 3):
            give_manifest(swarm.nodes[index], make_manifest())
        for index in range(6):
            await swarm.start(index)
        halves = swarm.nodes[:3], swarm.nodes[3:6]
        await until(lambda: all(are_one_swarm(half) for half in halves), 60, poll_s=0.25)
        for half in halves:
            check_apart(half)
        if contact_is == "a member":
            swarm.add(worker(6), (0, 3))
        else:
            give_manifest(add_other(swarm, (), ()), other_manifest(), OTHER_KEY)
        await swarm.start(6)
        met = trio.current_time()
        ours = swarm.nodes if contact_is == "a member" else swarm.nodes[:6]
        await until(lambda: are_one_swarm(ours), 120, poll_s=0.5)
        await until(lambda: exchanges_across(halves, met), 60, poll_s=0.5)
        await end(swarm)
