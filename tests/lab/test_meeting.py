"""A stranger with a name, behind a NAT, finds the one public member that lives.

The creator is dead, and so is each node that the link names. The mainline DHT has twenty nodes of
libtorrent, each in a network of its own and under the rules of the real one but that it hears
nothing from 11.0.0.0/8, where this laboratory is; a real DNS server answers as well.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from swarmnode.config import Paths
from swarmnode.net.mainline import open_mainline
from swarmnode.protocol.meeting import SALT, decode_item, hints_in, make_grant
from swarmnode.protocol.swarm import Hint, SwarmLink
from swarmnode.store.keys import load_or_create_identity
from tests.kits.daemon_kit import make_home, new_swarm, wait_until
from tests.lab import namespaces
from tests.lab.lab_daemon import LabDaemon
from tests.lab.natlab import ROOT, NatLab

pytest.importorskip("libtorrent", reason="the extra `rendezvous` is not installed")
from tests.kits.meeting_kit import dns_server, mainline_dht

MONITOR = ("--role", "monitor")
N_NODES = 20
PORT = 7337
JOINED_S = 15.0
# A member says where it is once it knows that it can be reached, and the DHT has to hear it.
PUBLISHED_S, READ_S = 120.0, 15.0
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
        (self.folder / home).mkdir()
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
        # One of each network: the real DHT takes no more of them into a search.
        hosts = [f"5.20.{number}.1" for number in range(N_NODES)]
        for host in hosts:
            name = lab.namespace("pub0")
            namespaces.run("ip", "-n", name, "addr", "add", f"{host}/32", "dev", "eth0")
        for host in ("pub1", "pub2", "r0"):
            way = ("5.20.0.0/16", "via", lab.ip("pub0"))
            namespaces.run("ip", "-n", lab.namespace(host), "route", "add", *way)
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
    wait_until(lambda: address in item(lab, nodes, meeting.public_key), "the item", PUBLISHED_S)
    creator.kill()
    own = load_or_create_identity(Paths(folder / "pub2").node_key)
    return World(lab, folder, mainline, link, Hint(own.peer_id, address))


def item(lab: NatLab, nodes: Sequence[str], meeting_key: bytes) -> list[str]:
    """Return the addresses that the item in the DHT has, as a process on pub1 reads it."""
    command = [sys.executable, "-m", "tests.lab.test_meeting", meeting_key.hex(), *nodes]
    return lab.run("pub1", "env", "-C", str(ROOT), *command).split()


async def _tell_item(meeting_key: bytes, nodes: Sequence[str]) -> None:
    with trio.move_on_after(READ_S):
        async with open_mainline(nodes, is_local=False) as store:
            found = await store.get(meeting_key, SALT)
            hints = hints_in(decode_item(found.value, time.time())) if found else []
            print(*(hint.address for hint in hints))


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


if __name__ == "__main__":
    trio.run(_tell_item, bytes.fromhex(sys.argv[1]), sys.argv[2:])
