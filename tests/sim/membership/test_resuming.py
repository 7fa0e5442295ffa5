"""Links that go down for a while, machines that move or die: what it costs whole daemons."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import trio

from swarmnode import limits
from swarmnode.net.session import Session
from swarmnode.testing.fake_worker import FakeWorker
from swarmnode.testing.swarm import UNIX_START_S, SimNode, SimSwarm, sim_swarm
from tests.sim.checks import end, everybody_exchanges, pull, until

TRAINING = FakeWorker(np.zeros(0), drift=pull, save_every=20)


def session_of(one: SimNode, other: SimNode) -> Session:
    return one.running.view.node.network.sessions[other.peer]


def all_sessions(swarm: SimSwarm) -> set[Session]:
    return {
        session for node in swarm.up for session in node.running.view.node.network.sessions.values()
    }


async def meet(swarm: SimSwarm) -> None:
    everybody = len(swarm.nodes) - 1
    await until(lambda: all(n.status.peers_connected == everybody for n in swarm.nodes), 20)
    await trio.sleep(limits.SESSION_RETIRE_S + 1)


@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize("down_s", [4, 20])
async def test_a_link_is_down_for_a_while(
    tmp_path, autojump_clock, down_s: float, is_told: bool
) -> None:
    """``is_told``: connections break; else bytes are lost in silence."""
    async with sim_swarm(tmp_path, 3, delay_s=0.03, worker=TRAINING) as swarm:
        await meet(swarm)
        one, other, _ = swarm.nodes
        sessions = all_sessions(swarm)
        resumed = {session: session.resumed for session in sessions}
        swarm.partition(range(1), range(1, 2))
        if is_told:
            swarm.cut(0, 1)
        await trio.sleep(down_s)
        swarm.network.heal()
        await until(lambda: not session_of(one, other).is_suspended, limits.DIAL_DEADLINE_S)
        await until(lambda: not session_of(other, one).is_suspended, 1)
        await trio.sleep(20)
        assert all_sessions(swarm) == sessions
        for session in (session_of(one, other), session_of(other, one)):
            # A silence of a few seconds is none; the link still holds what was on its way.
            assert session.resumed - resumed[session] == (is_told or down_s > limits.SUSPECT_S)
        await everybody_exchanges(swarm)
        # One that was under way gives way to those with others, and an offer was withdrawn while
        # the word of it was cut off: each at both of its ends.
        assert aborted(swarm) <= 4
        audit = await end(swarm)
        assert audit.committed > 20


def aborted(swarm: SimSwarm) -> int:
    return sum(node.status.exchanges_aborted for node in swarm.nodes)


@pytest.mark.parametrize("index", [0, 3])
async def test_a_killed_process_is_missed_within_two_seconds(
    tmp_path, autojump_clock, index: int
) -> None:
    """Whichever side dialled: exchanges with it end, and back again it is dialled like any peer."""
    async with sim_swarm(tmp_path, 4, delay_s=0.03, worker=TRAINING) as swarm:
        await meet(swarm)
        victim = swarm.nodes[index]
        await swarm.kill(index)
        await until(lambda: not any(victim.peer in sessions_of(node) for node in swarm.up), 2)
        assert not any(flies_with(node, victim) for node in swarm.up)
        await everybody_exchanges(swarm)
        await swarm.start(index)
        await meet(swarm)
        await everybody_exchanges(swarm)
        await end(swarm, crashed=(victim,))


def sessions_of(node: SimNode) -> dict[object, Session]:
    return dict(node.running.view.node.network.sessions)


def flies_with(node: SimNode, other: SimNode) -> bool:
    exchanges = node.running.view.training().exchanges
    return any(exchange.peer == other.peer for exchange in exchanges._streams.values())


async def test_a_process_that_is_back_at_once_is_met_anew(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 4, delay_s=0.03, worker=TRAINING) as swarm:
        await meet(swarm)
        old = all_sessions(swarm)
        victim = swarm.nodes[2]
        await swarm.kill(2)
        await swarm.start(2)
        await until(lambda: victim.status.peers_connected == 3, 5)
        new = all_sessions(swarm) - old
        assert len(new) == 6
        await everybody_exchanges(swarm)
        await end(swarm, crashed=(victim,))


async def test_an_unreachable_machine_is_let_go_when_the_swarm_says_so(
    tmp_path, autojump_clock
) -> None:
    async with sim_swarm(tmp_path, 4, delay_s=0.03, worker=TRAINING) as swarm:
        await meet(swarm)
        victim = swarm.nodes[3]
        rest = [node for node in swarm.nodes if node is not victim]
        swarm.partition(range(3), range(3, 4))
        swarm.unplug(3)
        gone_s = await until(lambda: not any(victim.peer in sessions_of(n) for n in rest), 60)
        assert gone_s < limits.RESUME_S - 10
        assert all(node.view_of(victim).alive == "dead" for node in rest)
        swarm.network.heal()
        await until(lambda: all(n.status.peers_connected == 3 for n in swarm.nodes), 60)
        await everybody_exchanges(swarm)
        await end(swarm, but_doubts=True)


async def test_leaving_is_quick_while_peers_are_away(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 4, delay_s=0.03, worker=TRAINING) as swarm:
        await meet(swarm)
        swarm.partition(*(range(i, i + 1) for i in range(4)))
        for index in range(4):
            swarm.unplug(index)
        await trio.sleep(2)
        for node in swarm.nodes:
            assert all(session.is_suspended for session in sessions_of(node).values())
            assert node.status.peers_connected == 0
            assert await node.leave() < 2
        await end(swarm, but_doubts=True)


async def test_exchanges_go_on_with_others_while_one_is_away(tmp_path, autojump_clock) -> None:
    """No node offers to a session that has no way, only to wait for an answer."""
    quick = replace(TRAINING, every=2)
    async with sim_swarm(tmp_path, 4, delay_s=0.03, worker=quick) as swarm:
        await meet(swarm)
        swarm.partition(range(3), range(3, 4))
        swarm.unplug(3)
        await trio.sleep(limits.EXCHANGE_TRANSFER_S_MIN + 2)
        away_at = trio.current_time()
        await trio.sleep(8)
        victim = swarm.nodes[3]
        for node in swarm.nodes[:3]:
            done = [
                e
                for e in node.history
                if e["event"] == "finished" and e["unix_s"] >= since(away_at)
            ]
            assert len([e for e in done if e["outcome"] == "committed"]) > 10
            assert all(entry["peer"] != str(victim.peer) for entry in done)
        swarm.network.heal()
        await everybody_exchanges(swarm, 60)
        await end(swarm, but_doubts=True)


def since(virtual_s: float) -> float:
    return UNIX_START_S + virtual_s
