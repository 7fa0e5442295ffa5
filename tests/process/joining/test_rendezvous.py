"""A stranger with a name or a link joins while one member lives: by each way that there is.

A real mainline DHT of twenty nodes of libtorrent, a real DNS server, real daemons; the creator is
gone, and so is each node that the link names.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from swarmnode.config import Paths
from swarmnode.ids import encode_base32
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.meeting import make_grant, sign_entries
from swarmnode.protocol.swarm import Hint, SwarmLink
from swarmnode.store.keys import load_or_create_identity
from tests.kits.daemon_kit import LOOPBACK, Daemon, make_home, new_swarm, swarmnode

pytest.importorskip("libtorrent", reason="the extra `rendezvous` is not installed")
from tests.kits.meeting_kit import dns_server, mainline_dht

MONITOR = ("--role", "monitor")
NODES = 20
# What a stranger waits for at most, the start of two Pythons among it; measured: 6 to 10 s where
# three other processes want each core.
JOINED_S = 15.0


@dataclass
class World:
    """A swarm whose creator is dead; one member lives."""

    folder: Path
    nodes: tuple[str, ...]
    link: SwarmLink
    member: Hint

    def env(self, *ways: str, **more: str) -> dict[str, str]:
        mainline = {"SWARMNODE_MAINLINE_NODES": ",".join(self.nodes)}
        return mainline | {"SWARMNODE_RENDEZVOUS": ",".join(ways)} | more

    def join(self, home: str, what: str, env: dict[str, str]) -> None:
        """Let a stranger join: it is a member soon, or the next one, if this machine was busy."""
        took_s = self._join(home, what, env)
        if took_s > JOINED_S:
            took_s = self._join(f"{home}-again", what, env)
        assert took_s <= JOINED_S

    def _join(self, home: str, what: str, env: dict[str, str]) -> float:
        begin = time.monotonic()
        node = Daemon(self.folder / home, what, *MONITOR, env=env)
        try:
            node.wait(lambda s: s["peers_connected"] and s["state"] == "serving", "a member")
            took_s = time.monotonic() - begin
        finally:
            node.kill()
        print(f"{home}: a member after {took_s:.1f} s")
        return took_s


def is_neighbour(status: dict[str, Any]) -> bool:
    return bool(status["peers_connected"])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("rendezvous")
    swarm = new_swarm()
    with mainline_dht(NODES) as nodes:
        env = {"SWARMNODE_MAINLINE_NODES": ",".join(nodes)}
        env["SWARMNODE_RENDEZVOUS"] = "link,mainline"
        meeting = load_or_create_identity(Paths(folder / "creator").swarm("demo").meeting_key)
        grant = make_grant("demo", swarm.key, meeting.public_key)
        identity = make_home(folder / "creator", swarm, swarm.signed(grant=grant))
        creator = Daemon(folder / "creator", "demo", *MONITOR, env=env)
        hint = Hint(identity.peer_id, f"{LOOPBACK}:{creator.port}")
        link = SwarmLink("demo", swarm.key.public_key, (hint,), meeting=meeting.public_key)
        member = Daemon(folder / "member", str(link), *MONITOR, env=env)
        try:
            creator.wait(is_neighbour, "the member")
            wait_for_member_in_item(nodes, meeting.public_key, member)
            creator.kill()
            own = load_or_create_identity(Paths(folder / "member").node_key)
            at = Hint(own.peer_id, f"{LOOPBACK}:{member.port}")
            yield World(folder, nodes, link, at)
        finally:
            creator.kill()
            member.kill()


def wait_for_member_in_item(nodes: tuple[str, ...], meeting_key: bytes, member: Daemon) -> None:
    """Return once the item names this member."""
    import trio

    from swarmnode.net.mainline import open_mainline
    from swarmnode.protocol.meeting import SALT, decode_item, hints_in

    async def look() -> None:
        with trio.fail_after(60):
            async with open_mainline(nodes, is_local=True) as store:
                while True:
                    found = await store.get(meeting_key, SALT)
                    hints = hints_in(decode_item(found.value, time.time())) if found else []
                    if any(hint.address.endswith(f":{member.port}") for hint in hints):
                        return
                    await trio.sleep(0.5)

    trio.run(look)


def test_a_link_whose_nodes_are_dead_leads_on_by_the_mainline_dht(world: World) -> None:
    world.join("by-link", str(world.link), world.env("link", "mainline"))


def test_a_name_alone_leads_to_a_member_by_the_mainline_dht(world: World) -> None:
    world.join("by-name", "demo", world.env("mainline"))


def test_without_that_way_neither_of_them_does(world: World) -> None:
    env = world.env("link", "contacts")
    name = swarmnode(world.folder / "none", "join", "demo", *MONITOR, "--wait", "0", env=env)
    assert name.code == 2
    assert "none was found" in name.err


@pytest.mark.parametrize("says", ["hint", "link"])
def test_a_zone_of_dns_leads_to_a_member(world: World, says: str) -> None:
    link = SwarmLink("demo", world.link.swarm_key, (world.member,))
    records = {"hint": {"_swarmnode.example.test": [str(world.member), "v=spf1 -all", "sn1junk"]}}
    records["link"] = {"demo._swarmnode.example.test": [str(link)]}
    with dns_server(records[says]) as server:
        env = world.env("dns", SWARMNODE_DNS_SEEDS="example.test", SWARMNODE_DNS_SERVERS=server)
        world.join(f"by-dns-{says}", "demo", env)


def test_a_signed_list_of_entry_nodes_leads_to_a_member_and_a_forged_one_does_not(
    world: World,
) -> None:
    signer, path = Identity.generate(), world.folder / "entries"
    path.write_text(sign_entries([world.member], int(time.time()) + 3600, signer))
    key = encode_base32(signer.public_key)
    env = world.env("entries", SWARMNODE_ENTRY_NODES=str(path), SWARMNODE_ENTRY_NODES_KEY=key)
    world.join("by-list", "demo", env)
    other = encode_base32(Identity.generate().public_key)
    env["SWARMNODE_ENTRY_NODES_KEY"] = other
    home = world.folder / "forged"
    forged = swarmnode(home, "join", "demo", *MONITOR, "--wait", "0", env=env)
    assert forged.code == 2
    assert "none was found" in forged.err
