"""Leaving in order: quick, told to everybody, with exchanges ended on both sides."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import trio

from swarmnode import limits
from swarmnode.protocol.gossip.events import Role
from swarmnode.protocol.gossip.flight import State
from swarmnode.testing.fake_worker import FakeWorker
from swarmnode.testing.memory_network import MemoryChannel
from swarmnode.testing.swarm import SimSwarm, sim_swarm
from tests.sim.checks import (
    are_one_swarm,
    check_atomic,
    check_conserved,
    end,
    everybody_exchanges,
    pull,
    until,
)
from tests.sim.training.test_workers import flight_is

TRAINING = FakeWorker(np.zeros(0), drift=pull)
SLOW = replace(TRAINING, step_s=0.5, every=4, save_every=20)


async def test_neighbours_are_told_and_no_task_is_left(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 4, worker=TRAINING) as swarm:
        await trio.sleep(10)
        leaver = swarm.nodes[2]
        assert await leaver.leave() < 2
        assert leaver.failure is None
        for node in swarm.up:
            shown = node.view_of(leaver)
            assert (shown.alive, shown.state, shown.connected) == ("left", "left", False)
            assert leaver.peer not in node.part.sessions
        dials = [node.part.members.book.statistics().dials for node in swarm.up]
        await trio.sleep(20)
        again = [node.part.members.book.statistics().dials for node in swarm.up]
        assert dials == again  # a member that has left is not dialled
        await everybody_exchanges(swarm)
        await swarm.start(2)
        await until(lambda: leaver.status.peers_connected == 3, 10)
        await everybody_exchanges(swarm)
        audit = await end(swarm)
        assert audit.lost_in_kill == 0
    # sim_swarm's nursery has ended: every task of every node has, too.
    assert trio.lowlevel.current_statistics().tasks_living < 10


def count_dials(swarm: SimSwarm, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count by address what is dialled from now on."""
    dials: Counter[str] = Counter()
    connect = swarm.network.connect

    async def counted(dialler: str, address: str) -> MemoryChannel:
        dials[address] += 1
        return await connect(dialler, address)

    monkeypatch.setattr(swarm.network, "connect", counted)
    return dials


@pytest.mark.parametrize(("index", "fewest"), [(0, 2), (2, 0)])
async def test_only_a_peer_of_the_link_is_dialled_once_it_has_left(
    tmp_path, autojump_clock, index: int, fewest: int
) -> None:
    """Newcomers arrive there, and it may come back knowing no peer."""
    async with sim_swarm(tmp_path, 3, worker=SLOW) as swarm:
        await until(lambda: are_one_swarm(swarm.nodes), 30, poll_s=0.1)
        await swarm.nodes[index].leave()
        books = [node.part.members.book for node in swarm.up if node is not swarm.nodes[0]]
        before = [book.statistics().dials for book in books]
        await trio.sleep(3 * limits.HINT_REDIAL_S)
        dials = [book.statistics().dials - n for book, n in zip(books, before, strict=True)]
        assert all(fewest <= n <= 3 * fewest for n in dials), dials


@pytest.mark.parametrize("index", [0, 4])
async def test_many_learn_within_two_seconds_which_member_has_left(
    tmp_path, autojump_clock, monkeypatch, index: int
) -> None:
    async with sim_swarm(tmp_path, 10, worker=SLOW) as swarm:
        await until(lambda: are_one_swarm(swarm.nodes), 30, poll_s=0.1)
        leaver = swarm.nodes[index]
        started = trio.current_time()
        await leaver.leave()
        await until(lambda: all(n.view_of(leaver).alive == "left" for n in swarm.up), 2)
        assert trio.current_time() - started < 2
        assert all(node.view_of(leaver).state == "left" for node in swarm.up)
        await trio.sleep(20)  # the DHT finds out by itself
        dials = count_dials(swarm, monkeypatch)
        await trio.sleep(60)
        # A peer of the link is looked for now and then, for it may come back knowing no peer.
        is_hinted = index == 0
        assert dials[f"mem:{leaver.name}"] <= 9 * (12 if is_hinted else 3)
        assert all(node.view_of(leaver).alive == "left" for node in swarm.up)
        await end(swarm)


@pytest.mark.parametrize("is_told", [True, False])
async def test_who_was_killed_is_dead_within_a_minute(
    tmp_path, autojump_clock, monkeypatch, is_told: bool
) -> None:
    """``is_told``: its machine still runs and resets its connections; else they are silent."""
    async with sim_swarm(tmp_path, 8, worker=SLOW) as swarm:
        await until(lambda: are_one_swarm(swarm.nodes), 30, poll_s=0.1)
        victim = swarm.nodes[4]
        if not is_told:
            swarm.network.partition(["n4"], [node.name for node in swarm.nodes if node != victim])
        await victim.kill(unplug=is_told)
        await until(lambda: all(n.view_of(victim).alive == "dead" for n in swarm.up), 60)
        assert all(node.view_of(victim).state == "dead" for node in swarm.up)
        assert all(victim.peer not in node.part.partners() for node in swarm.up)
        dials = count_dials(swarm, monkeypatch)
        await trio.sleep(60)
        # All members together call a dead one about once a second: it may be a partition.
        assert 6 < dials["mem:n4"] < 120
        swarm.network.heal()
        await swarm.start(4)
        await until(lambda: are_one_swarm(swarm.nodes), 30, poll_s=0.1)
        await end(swarm, crashed=(victim,))


@pytest.mark.parametrize("seed", range(6))
async def test_all_leave_in_the_middle_of_exchanges(tmp_path, autojump_clock, seed: int) -> None:
    async with sim_swarm(tmp_path, 6, seed=seed, delay_s=0.04, worker=TRAINING) as swarm:
        await trio.sleep(8 + 0.05 * seed)
        started = trio.current_time()
        audit = await end(swarm)
        assert trio.current_time() - started < 2
        assert audit.committed > 20


@pytest.mark.parametrize(
    ("role", "state"),
    [
        (Role.INITIATOR, State.OFFERED),
        (Role.INITIATOR, State.TRANSFER),
        (Role.RESPONDER, State.TRANSFER),
        (Role.RESPONDER, State.READY),
    ],
)
@pytest.mark.parametrize("delay_s", [0.05, 0.2])
async def test_one_leaves_in_the_middle_of_an_exchange(
    tmp_path, autojump_clock, role, state, delay_s: float
) -> None:
    async with sim_swarm(tmp_path, 3, delay_s=delay_s, worker=TRAINING) as swarm:
        await everybody_exchanges(swarm)
        await until(lambda: any(flight_is(n, role, state) for n in swarm.nodes), 60, poll_s=0.005)
        leaver = next(node for node in swarm.nodes if flight_is(node, role, state))
        assert await leaver.leave() < 2
        since = trio.current_time()
        # A partner that is left in doubt would be busy for EXCHANGE_IN_DOUBT_S.
        await everybody_exchanges(swarm, 10)
        assert trio.current_time() - since < 10
        audit = await end(swarm)
        assert audit.lost_in_kill == 0


@pytest.mark.parametrize("role", list(Role))
async def test_one_leaves_whose_transfer_would_take_too_long(
    tmp_path, autojump_clock, role: Role
) -> None:
    """The partner is told, in time, and is not left in doubt."""
    async with sim_swarm(tmp_path, 2, delay_s=0.25, worker=TRAINING) as swarm:
        await everybody_exchanges(swarm)
        begun = (role, State.TRANSFER)
        await until(lambda: not any(flight_is(n, *begun) for n in swarm.nodes), 60, poll_s=0.005)
        await until(lambda: any(flight_is(n, *begun) for n in swarm.nodes), 60, poll_s=0.005)
        leaver = next(node for node in swarm.nodes if flight_is(node, *begun))
        assert await leaver.leave() < 2
        await trio.sleep(0.25)  # what was sent last arrives
        (partner,) = swarm.up
        aborted = [e for e in partner.history if e.get("outcome") == "aborted"]
        assert [e["reason"] for e in aborted] == ["local: leaving"]
        assert not any(flight_is(partner, r, State.READY) for r in Role)
        await end(swarm)


async def test_one_leaves_whose_worker_is_in_a_long_step(tmp_path, autojump_clock) -> None:
    """What was committed is merged before the worker saves, though no peer waits to hear it."""
    slow = replace(TRAINING, step_s=5.0, every=1)
    async with sim_swarm(tmp_path, 2, worker=slow) as swarm:
        leaver = swarm.nodes[0]
        await until(lambda: leaver.status.exchanges_committed > 0, 60)
        assert leaver.status.exchanges_applied == 0
        assert await leaver.leave() < 2
        await swarm.leave_all()
        check_conserved(swarm)
        audit = check_atomic(swarm)
        assert audit.unconfirmed == 2


async def test_a_node_that_stops_by_itself_says_goodbye(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 2, worker=TRAINING) as swarm:
        await trio.sleep(3)
        for node in swarm.nodes:
            node.running.stop("asked to leave")
        for node in swarm.nodes:
            await node.down.wait()
        assert trio.current_time() < 5
        check_conserved(swarm)
        check_atomic(swarm)
