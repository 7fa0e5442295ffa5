"""A visitor among simulated nodes: finds swarms and manifests, and leaves no trace."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from swarmnode import limits
from swarmnode.config import NodeConfig
from swarmnode.daemon.discovery.lookup import Visitor, visit
from swarmnode.daemon.status.control import ask_node
from swarmnode.env import Env
from swarmnode.errors import ConfigError, TransportError
from swarmnode.ids import encode_base32
from swarmnode.net.lan.beacon import LanBeacon, LanSwarm
from swarmnode.protocol.dht.keys import name_key, swarm_key_key
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.swarm import SwarmLink, network_id
from swarmnode.testing.swarm import SWARM_KEY, UNIX_START_S, SimSwarm, make_manifest, sim_swarm
from tests.kits.lan_kit import MemoryLan

NOBODY = SwarmLink("nosuch", Identity.from_seed(b"n" * 32).public_key)


def visitor_env() -> Env:
    return Env(trio.current_time, lambda: UNIX_START_S + trio.current_time(), random.Random(5))


@asynccontextmanager
async def visiting(
    swarm: SimSwarm, *bootstrap: int, lan: MemoryLan | None = None
) -> AsyncIterator[tuple[Visitor, list[str]]]:
    """Yield a visitor that knows some nodes, and what it says."""
    events: list[str] = []
    config = NodeConfig(
        home=swarm.home / "visitor",
        bootstrap=tuple(str(swarm.hint(index)) for index in bootstrap),
        lan=lan is not None,
    )
    async with visit(
        config,
        transport=swarm.network.transport("visitor"),
        env=visitor_env(),
        lan_net=lan.net("192.0.2.9") if lan is not None else None,
        on_event=events.append,
    ) as visitor:
        yield visitor, events


async def test_a_name_is_found_through_any_node_of_the_network(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with sim_swarm(tmp_path, 3) as swarm:
        await trio.sleep(limits.SWARM_REPUBLISH_S_MIN + 5)
        known = [node.status.dht_contacts for node in swarm.nodes]
        async with visiting(swarm, 2) as (visitor, events):
            findings = await visitor.find_swarms(["sim", "nosuch", "sim"])
        (found,) = findings.swarms
        assert (found.name, found.key) == ("sim", encode_base32(SWARM_KEY.public_key))
        assert (found.members, found.created_at, found.via) == (3, 1, ("dht",))
        assert events == ["asking 1 known nodes"]
        assert findings.searched.dht_contacts >= 1
        assert findings.searched.lan_interfaces is None
        await trio.sleep(limits.SESSION_IDLE_S)
        assert [node.status.dht_contacts for node in swarm.nodes] == known
        assert not (swarm.home / "visitor").exists()


async def test_a_running_node_tells_what_it_knows(tmp_path: Path, autojump_clock: Any) -> None:
    async with sim_swarm(tmp_path, 2) as swarm:
        await trio.sleep(limits.SWARM_REPUBLISH_S_MIN + 5)
        node = swarm.nodes[1].running
        findings = await ask_node(node.view, node.beacon, [], node.env)
        (own,) = findings.swarms
        assert (own.name, own.members, own.via) == ("sim", 2, ("home",))
        findings = await ask_node(node.view, node.beacon, ["sim"], node.env)
        (own,) = findings.swarms
        assert (own.members, own.via) == (2, ("home", "dht"))
        with pytest.raises(ConfigError, match="a swarm's name has"):
            await ask_node(node.view, node.beacon, ["../x"], node.env)
        too_many = [f"n{number}" for number in range(limits.LOOKUP_NAMES_MAX + 1)]
        with pytest.raises(ConfigError, match="expected at most 16 names of swarms, got 17"):
            await ask_node(node.view, node.beacon, too_many, node.env)


async def test_no_peer_to_ask_is_known_at_once(tmp_path: Path, autojump_clock: Any) -> None:
    async with sim_swarm(tmp_path, 0) as swarm, visiting(swarm) as (visitor, events):
        began = trio.current_time()
        assert (await visitor.find_swarms(["sim"])).swarms == ()
        assert trio.current_time() == began
        assert events == []


async def test_dead_contacts_cost_some_seconds(tmp_path: Path, autojump_clock: Any) -> None:
    async with sim_swarm(tmp_path, 1) as swarm:
        await swarm.nodes[0].leave()
        async with visiting(swarm, 0) as (visitor, _):
            began = trio.current_time()
            findings = await visitor.find_swarms(["sim"])
            assert findings.swarms == ()
            assert findings.searched.dht_contacts == 0
            assert trio.current_time() - began <= limits.LOOKUP_BOOTSTRAP_S
            with pytest.raises(TransportError, match="none was found"):
                await visitor.fetch_manifest(NOBODY)


async def test_a_manifest_is_fetched_with_and_without_peers_in_the_link(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with sim_swarm(tmp_path, 3) as swarm:
        await trio.sleep(limits.SWARM_REPUBLISH_S_MIN + 5)
        for link in (swarm.link((1,)), swarm.link(())):
            async with visiting(swarm, 2) as (visitor, _):
                assert await visitor.fetch_manifest(link) == make_manifest()
        async with visiting(swarm, 2) as (visitor, _):
            began = trio.current_time()
            with pytest.raises(TransportError, match="no peer gave the manifest of swarm 'nosuch'"):
                await visitor.fetch_manifest(NOBODY)
            longest_s = limits.LOOKUP_BOOTSTRAP_S + limits.LOOKUP_DHT_S
            assert trio.current_time() - began <= longest_s


async def test_the_lan_answers_within_a_second(tmp_path: Path, autojump_clock: Any) -> None:
    lan = MemoryLan()
    swarms = (LanSwarm("sim", SWARM_KEY.public_key, 4, 77),)
    met: list[object] = []
    beacon = LanBeacon(
        identity=Identity.from_seed(b"l" * 32),
        network_id=network_id("main"),
        port=lambda: 7337,
        swarms=lambda: swarms,
        on_peer=met.append,
        env=visitor_env(),
        net=lan.net("192.0.2.1"),
    )
    async with sim_swarm(tmp_path, 0) as swarm, trio.open_nursery() as nursery:
        await nursery.start(beacon.run)
        await trio.sleep(100)
        async with visiting(swarm, lan=lan) as (visitor, events):
            findings = await visitor.find_swarms([])
        (found,) = findings.swarms
        assert (found.name, found.members, found.created_at, found.via) == ("sim", 4, 77, ("lan",))
        (hint,) = found.link().hints
        assert (hint.peer, hint.address) == (
            Identity.from_seed(b"l" * 32).peer_id,
            "192.0.2.1:7337",
        )
        assert findings.searched.lan_interfaces == ("eth0",)
        assert findings.searched.lan_peers == 1
        assert events == ["asking the LAN (eth0)"]
        assert met == []  # no node is to dial a visitor
        nursery.cancel_scope.cancel()


async def test_a_node_that_was_just_restarted_is_found_by_name_though_all_it_knew_are_dead(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with sim_swarm(tmp_path, 5) as swarm:
        await trio.sleep(limits.SWARM_REPUBLISH_S_MIN + 5)
        node, *others = swarm.nodes[::-1]
        await node.leave()
        for other in others:
            await other.leave()
        # Dials to them hang, as to machines that are switched off.
        swarm.partition([node.name], [other.name for other in others])
        await swarm.start(node.index)
        await trio.sleep(1)
        own = node.running.view.node.discovery.core.store
        for key in (name_key("sim"), swarm_key_key(SWARM_KEY.public_key)):
            assert [each.author for each in own.get(key, trio.current_time())] == [node.peer]
        async with visiting(swarm, node.index) as (visitor, _):
            findings = await visitor.find_swarms(["sim"])
        assert [found.name for found in findings.swarms] == ["sim"]
