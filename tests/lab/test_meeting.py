"""A stranger with a name, behind a NAT, finds the one public member that lives.

The creator is dead, and so is each node that the link names. The mainline DHT has twenty nodes of
libtorrent, each at an address of its own and under all rules of the real one; a real DNS server
answers as well.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from swarmnode.config import Paths
from swarmnode.protocol.meeting import SALT, decode_item, hints_in, make_grant
from swarmnode.protocol.swarm import Hint, SwarmLink
from swarmnode.store.keys import load_or_create_identity
from tests.kits.daemon_kit import make_home, new_swarm
from tests.lab import namespaces
from tests.lab.lab_daemon import LabDaemon
from tests.lab.natlab import NatLab

pytest.importorskip("libtorrent", reason="the extra `rendezvous` is not installed")
from swarmnode.net.mainline import open_mainline
from tests.kits.meeting_kit import dns_server, mainline_dht

MONITOR = ("--role", "monitor")
N_NODES = 20
PORT = 7337
JOINED_S = 15.0
# A member says where it is once it knows that it can be reached, and the DHT has to hear it.
PUBLISHED_S = 120.0
ZONE = "example.test"


@dataclass
class World:
    """A swarm whose creator is dead; one member lives, at a public address."""

    lab: NatLab
    folder: Path
    mainline: Mapping[str, str]
    link: SwarmLink
    member: Hint

    def joined_s(self, home: str, what: str, env: Mapping[str, str]) -> float:
        """Let a stranger join on c0; return how long it took, or the second one did.

        Two Pythons start in that time, which is long on a machine that is busy with other things.
        """
        took_s = self._joined_s(home, what, env)
        return took_s if took_s <= JOINED_S else self._joined_s(f"{home}-again", what, env)

    def _joined_s(self, home: str, what: str, env: Mapping[str, str]) -> float:
        begin = time.monotonic()
        node = LabDaemon(self.lab, "c0", self.folder / home, what, *MONITOR, port=PORT, env=env)
        try:
            node.wait(lambda s: s["peers_connected"] and s["state"] == "serving", "a member")
            took_s = time.monotonic() - begin
        finally:
            node.kill()
        print(f"{home}: a member after {took_s:.1f} s")
        return took_s


@pytest.fixture(scope="module")
def world(able: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("meeting")
    with NatLab(["port-restricted"], public=3) as lab, contextlib.ExitStack() as at_end:
        hosts = [f"11.11.11.{number}" for number in range(200, 200 + N_NODES)]
        for host in hosts:
            name = lab.namespace("pub0")
            namespaces.run("ip", "-n", name, "addr", "add", f"{host}/24", "dev", "eth0")
        with lab.inside("pub0"):
            nodes = at_end.enter_context(mainline_dht(N_NODES, hosts))
        yield _with_a_member(lab, folder, nodes, at_end)


def _with_a_member(
    lab: NatLab, folder: Path, nodes: Sequence[str], at_end: contextlib.ExitStack
) -> World:
    """Return once the creator is dead, and the item in the DHT names the member."""
    swarm = new_swarm()
    mainline = {"SWARMNODE_MAINLINE_NODES": ",".join(nodes)}
    env = mainline | {"SWARMNODE_RENDEZVOUS": "link,mainline"}
    meeting = load_or_create_identity(Paths(folder / "pub1").swarm("demo").meeting_key)
    grant = make_grant("demo", swarm.key, meeting.public_key)
    dead = make_home(folder / "pub1", swarm, swarm.signed(grant=grant)).peer_id
    creator = LabDaemon(lab, "pub1", folder, "demo", *MONITOR, port=PORT, env=env)
    at_end.callback(creator.kill)
    hint = Hint(dead, f"{lab.ip('pub1')}:{PORT}")
    link = SwarmLink("demo", swarm.key.public_key, (hint,), meeting=meeting.public_key)
    member = LabDaemon(lab, "pub2", folder, str(link), *MONITOR, port=PORT, env=env)
    at_end.callback(member.kill)
    creator.wait(lambda status: status["peers_connected"], "the member")
    address = f"{lab.ip('pub2')}:{PORT}"
    with lab.inside("pub1"):
        wait_for_item(nodes, meeting.public_key, address)
    creator.kill()
    own = load_or_create_identity(Paths(folder / "pub2").node_key)
    return World(lab, folder, mainline, link, Hint(own.peer_id, address))


def wait_for_item(nodes: Sequence[str], meeting_key: bytes, address: str) -> None:
    """Return once the item in the DHT names this address."""

    async def look() -> None:
        with trio.fail_after(PUBLISHED_S):
            async with open_mainline(nodes, is_local=False) as store:
                while True:
                    found = await store.get(meeting_key, SALT)
                    hints = hints_in(decode_item(found.value, time.time())) if found else []
                    if any(hint.address == address for hint in hints):
                        return
                    await trio.sleep(1.0)

    trio.run(look)


def test_a_link_whose_nodes_are_dead_leads_on_by_the_mainline_dht(world: World) -> None:
    env = {**world.mainline, "SWARMNODE_RENDEZVOUS": "link,mainline"}
    assert world.joined_s("by-link", str(world.link), env) <= JOINED_S


def test_a_name_alone_leads_to_a_member_by_the_mainline_dht(world: World) -> None:
    env = {**world.mainline, "SWARMNODE_RENDEZVOUS": "mainline"}
    assert world.joined_s("by-name", "demo", env) <= JOINED_S


def test_a_zone_of_dns_leads_to_a_member(world: World) -> None:
    records = {f"_swarmnode.{ZONE}": [str(world.member), "v=spf1 -all"]}
    with contextlib.ExitStack() as at_end:
        with world.lab.inside("pub0"):
            server = at_end.enter_context(dns_server(records, world.lab.ip("pub0")))
        env = {"SWARMNODE_RENDEZVOUS": "dns", "SWARMNODE_DNS_SEEDS": ZONE}
        env["SWARMNODE_DNS_SERVERS"] = server
        assert world.joined_s("by-dns", "demo", env) <= JOINED_S
