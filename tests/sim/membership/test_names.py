"""Whole nodes say what they are called, and what they gave outlives them."""

from __future__ import annotations

import json
from pathlib import Path

from trio.testing import MockClock

from swarmnode.names import default_name
from swarmnode.protocol.crdt.events import Update
from swarmnode.testing.swarm import SimNode, SimSwarm, sim_swarm
from tests.sim.checks import end, until
from tests.sim.status.test_peer_metrics import path_of, scrape
from tests.sim.status.test_status import TRAINING


def named(node: SimNode, other: SimNode) -> str:
    """Return what ``node`` shows as the name of ``other``."""
    return next(each.name for each in node.running.view.peers() if each.peer == str(other.peer))


def call(node: SimNode, name: str) -> None:
    """Let a node say of itself what its own settings would refuse."""
    node.part.state.say(Update(registers={"name": name}))


async def restart_as(swarm: SimSwarm, index: int, name: str) -> None:
    await swarm.nodes[index].leave()
    swarm.nodes[index].node_name = name
    await swarm.start(index)


async def test_names_travel_and_ids_tell_twins_apart(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with sim_swarm(tmp_path, 3, worker=TRAINING) as swarm:
        watcher, one, other = swarm.nodes
        await until(lambda: all(n.status.peers_connected == 2 for n in swarm.nodes), 10)
        assert named(watcher, one) == default_name(one.peer)
        assert watcher.status.node_name == default_name(watcher.peer)
        for index in (1, 2):
            await restart_as(swarm, index, "kitchen-pi")
        await until(lambda: [named(watcher, n) for n in (one, other)] == ["kitchen-pi"] * 2, 30)
        seen = watcher.running.dashboard.overview().members
        assert [(m.node_name, m.peer) for m in seen[1:]] == [
            ("kitchen-pi", m.peer) for m in seen[1:]
        ]
        assert {m.peer for m in seen[1:]} == {str(one.peer), str(other.peer)}
        assert len({m.name for m in seen}) == 3
        page = await scrape(watcher, path_of(one))
        ((labels, _),) = page["swarmnode_node_info"]
        assert (labels["name"], labels["peer"]) == ("kitchen-pi", one.peer.short)
        await end(swarm)


async def test_what_is_no_name_is_not_shown(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with sim_swarm(tmp_path, 2, worker=TRAINING) as swarm:
        watcher, liar = swarm.nodes
        await until(lambda: all(n.status.peers_connected == 1 for n in swarm.nodes), 10)
        for name in ("\x1b[2Jroot", "x" * 33):
            call(liar, "fine")
            await until(lambda: named(watcher, liar) == "fine", 30)
            call(liar, name)
            await until(lambda: named(watcher, liar) == default_name(liar.peer), 30)
        call(liar, 'a"} 1\\')  # printable, and still no part of a metric's syntax
        await until(lambda: named(watcher, liar) == 'a"} 1\\', 30)
        page = await scrape(watcher, path_of(liar))
        ((labels, _),) = page["swarmnode_node_info"]
        assert labels["name"] == "a__ 1_"
        await end(swarm)


async def test_totals_outlive_the_node(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with sim_swarm(tmp_path, 2, worker=TRAINING) as swarm:
        node = swarm.nodes[1]
        await until(lambda: node.status.exchanges_committed > 5, 60)
        before = node.status
        assert before.totals.steps == before.totals.swarms["sim"].steps > 0
        await node.leave()
        saved = json.loads(node.paths.totals.read_text())["all"]
        assert saved["steps"] >= before.totals.steps
        assert saved["exchanges_committed"] >= before.totals.exchanges_committed > 5
        await swarm.start(1)
        after = node.status
        assert after.exchanges_committed == 0
        assert after.totals.exchanges_committed == saved["exchanges_committed"]
        assert after.totals.steps == saved["steps"]
        assert after.totals.sent_bytes >= saved["sent_bytes"] > 0
        await end(swarm)
