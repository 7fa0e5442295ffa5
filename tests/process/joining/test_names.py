"""Swarms by name, with real nodes: found through any node of the network, chosen by key."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from swarmnode.config import Paths
from swarmnode.ids import encode_base32
from swarmnode.processes.client import ControlClient
from swarmnode.protocol.swarm import Hint
from swarmnode.store.swarms import stored_link
from tests.kits.daemon_kit import (
    LOOPBACK,
    Daemon,
    Swarm,
    make_home,
    new_swarm,
    snapshots,
    swarmnode,
    wait_until,
)

MONITOR = ("--role", "monitor")


@dataclass
class Network:
    """Two swarms of one name and a third, one node each, all in one DHT."""

    folder: Path
    one: Swarm
    other: Swarm
    solo: Swarm
    nodes: list[Daemon]
    hint: str  # where the node of ``one`` is

    @property
    def bootstrap(self) -> tuple[str, str]:
        return "--bootstrap", self.hint


def key_of(swarm: Swarm) -> str:
    return encode_base32(swarm.key.public_key)


def known_names(node: Daemon, *names: str) -> set[str]:
    """Return the keys that a node finds under some names."""
    answer = ControlClient(Paths(node.home)).get(f"/swarms?names={','.join(names)}")
    return {swarm["key"] for swarm in answer["swarms"]}


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    folder = tmp_path_factory.mktemp("names")
    one, other, solo = new_swarm(), new_swarm(), new_swarm("solo")
    identity = make_home(folder / "one", one)
    nodes = [Daemon(folder / "one", "demo", *MONITOR)]
    hint = str(Hint(identity.peer_id, f"{LOOPBACK}:{nodes[0].port}"))
    try:
        nodes[0].wait(lambda s: s["state"] == "serving", "the first node")
        for name, swarm in (("other", other), ("solo", solo)):
            make_home(folder / name, swarm)
            nodes.append(Daemon(folder / name, swarm.name, *MONITOR, "--bootstrap", hint))
        keys = {key_of(swarm) for swarm in (one, other, solo)}
        for node in nodes:
            node.wait(lambda s: s["state"] == "serving", "every node")
            wait_until(
                lambda node=node: known_names(node, "demo", "solo") == keys,  # type: ignore[misc]
                "all three in the DHT",
            )
        yield Network(folder, one, other, solo, nodes, hint)
    finally:
        for node in nodes:
            node.kill()


def swarms_in(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {swarm["key"]: swarm for swarm in answer["swarms"]}


# --- swarms -------------------------------------------------------------------------------


def test_a_visitor_sees_all_swarms_of_a_name(network: Network, tmp_path: Path) -> None:
    home = tmp_path / "home"
    answer = swarmnode(home, "swarms", "demo", "solo", "nosuch", *network.bootstrap, "--json")
    assert answer.code == 0, answer.err
    assert answer.err == ""
    found = swarms_in(answer.json)
    assert found.keys() == {key_of(s) for s in (network.one, network.other, network.solo)}
    other = found[key_of(network.other)]
    assert (other["name"], other["members"], other["via"]) == ("demo", 1, ["dht"])
    assert other["created_at"] == network.other.manifest().created_at
    assert other["peers"][0].endswith(f"@{LOOPBACK}:{network.nodes[1].port}")
    assert answer.json["searched"]["dht_contacts"] >= 1
    assert answer.json["searched"]["lan_interfaces"] is None
    assert not home.exists()

    text = swarmnode(home, "swarms", "demo", *network.bootstrap)
    assert key_of(network.one)[:12] in text.out
    assert "the DHT has no list of all names: it was asked for demo" in text.out
    assert text.line == "swarmnode: asking 1 known nodes"


def test_a_running_node_is_asked_where_there_is_one(network: Network) -> None:
    answer = swarmnode(network.folder / "solo", "swarms", "demo", "--json")
    assert answer.code == 0, answer.err
    found = swarms_in(answer.json)
    assert found[key_of(network.solo)]["via"] == ["home", "dht"]
    assert found[key_of(network.one)]["via"] == ["dht"]
    refused = swarmnode(network.folder / "solo", "swarms", "Ü", "--json")
    assert refused.code == refused.json["exit_code"] == 2


# --- join ---------------------------------------------------------------------------------


def test_several_of_one_name_are_listed_and_none_is_joined(
    network: Network, tmp_path: Path
) -> None:
    answer = swarmnode(tmp_path / "home", "join", "demo", *network.bootstrap, "--metrics", "off")
    assert answer.code == 4
    assert answer.line.startswith("swarmnode: 2 swarms are named 'demo': key ")
    for swarm in (network.one, network.other):
        assert f"key {key_of(swarm)[:12]}…, 1 member, " in answer.line
    assert answer.line.endswith(
        "repeat with --key and the first 8 letters or more of the one you mean"
    )
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("letters", [8, 52])
def test_the_key_settles_which_is_joined(network: Network, tmp_path: Path, letters: int) -> None:
    key = key_of(network.other)[:letters]
    node = Daemon(tmp_path / "home", "demo", "--key", key, *network.bootstrap, *MONITOR)
    try:
        status = node.wait(lambda s: s["peers_connected"] == 1, "the other member")
        assert status["role"] == "monitor"
        (peer,) = (peer["peer"] for peer in node.peers() if peer["connected"])
        assert peer == network.nodes[1].status()["peer"]
        stored = stored_link("demo", Paths(node.home))
        assert stored is not None
        assert stored.swarm_key == network.other.key.public_key
        if letters == 8:
            assert f"found swarm demo: key {key_of(network.other)[:12]}…, " in node.log
    finally:
        node.kill()


def test_a_name_and_a_node_of_another_swarm_are_enough(network: Network, tmp_path: Path) -> None:
    """The one node that is known does not train the swarm that is looked for."""
    node = Daemon(tmp_path / "home", "solo", *network.bootstrap)
    try:
        status = node.wait_training()
        node.wait(lambda s: s["peers_connected"] == 1, "the member of the swarm")
        assert status["swarm"] == "solo"
        (peer,) = (peer["peer"] for peer in node.peers() if peer["connected"])
        assert peer == network.nodes[2].status()["peer"]
        node.ask("/snapshot")
        assert snapshots(node.home, "solo")
    finally:
        node.kill()


def test_a_name_that_no_swarm_has_says_where_was_looked(network: Network, tmp_path: Path) -> None:
    home = tmp_path / "home"
    answer = swarmnode(
        home, "join", "nosuch", "--wait", "0", *network.bootstrap, "--metrics", "off", "--json"
    )
    assert answer.code == answer.json["exit_code"] == 2
    error = answer.json["error"]
    assert "this home knows no swarm named 'nosuch', and none was found in the DHT (" in error
    assert "the LAN is switched off" in error
    assert "(0 nodes)" not in error
    nobody = swarmnode(home, "join", "nosuch", "--metrics", "off")
    assert "in the DHT (0 nodes)" in nobody.line


# --- trust --------------------------------------------------------------------------------


def test_trust_shows_a_swarm_and_joins_nothing(network: Network, tmp_path: Path) -> None:
    home = tmp_path / "home"
    by_name = swarmnode(home, "trust", "solo", *network.bootstrap, "--json")
    assert by_name.code == 0, by_name.err
    assert by_name.err == ""
    assert by_name.json["key"] == key_of(network.solo)
    assert by_name.json["task"] == "synthetic"
    assert by_name.json["obstacles"] == []
    bare = str(network.solo.link())  # names no peer: the DHT does
    by_link = swarmnode(home, "trust", bare, *network.bootstrap, "--json")
    assert by_link.json["link"] == bare
    # Each time anew, by a few steps and by what else the machine does.
    measured = dict.fromkeys(("link", "traffic", "memory", "share", "disk"))
    assert by_link.json | measured == by_name.json | measured
    text = swarmnode(home, "trust", by_name.json["link"])
    assert text.code == 0
    assert "what cannot happen:" in text.out
    assert text.out.splitlines()[-1] == f"to join: swarmnode join '{by_name.json['link']}'"
    assert not home.exists()


def test_trust_asks_through_the_running_node(network: Network) -> None:
    answer = swarmnode(network.folder / "one", "trust", "solo", "--json")
    assert answer.code == 0, answer.err
    assert answer.json["key"] == key_of(network.solo)
    assert not Paths(network.folder / "one").swarm("solo").directory.exists()


def test_trust_says_which_peers_were_asked_in_vain(network: Network, tmp_path: Path) -> None:
    link = str(new_swarm("stranger").link(Hint.parse(network.hint)))
    answer = swarmnode(tmp_path / "home", "trust", link)
    assert answer.code == 1
    assert answer.lines[-1].startswith(
        f"swarmnode: no peer gave the manifest of swarm 'stranger': {network.hint[:12]}: "
    )
    assert "I do not hold that manifest yet" in answer.lines[-1]


# --- the local network --------------------------------------------------------------------


def test_nodes_on_one_lan_need_no_address_at_all(tmp_path: Path) -> None:
    swarm = new_swarm("nearby")
    # Beacons of other tests on this machine are of other networks.
    network = f"test-{secrets.token_hex(8)}"
    flags = ("--network", network, "--lan", *MONITOR)
    make_home(tmp_path / "a", swarm)
    a = Daemon(tmp_path / "a", "nearby", *flags, host="*")
    b: Daemon | None = None
    try:
        a.wait(lambda s: s["state"] == "serving", "the first node")
        assert "looking for peers on the LAN: " in a.log

        def seen() -> Any:
            answer = swarmnode(tmp_path / "b", "swarms", "--network", network, "--lan", "--json")
            return answer.json["swarms"] and answer.json

        answer = wait_until(seen, "the beacon")
        (found,) = answer["swarms"]
        assert (found["name"], found["key"], found["members"]) == ("nearby", key_of(swarm), 1)
        assert found["via"] == ["lan"]
        assert answer["searched"]["lan_peers"] == 1
        assert answer["searched"]["lan_interfaces"]
        b = Daemon(tmp_path / "b", "nearby", *flags, host="*")
        b.wait(lambda s: s["peers_connected"] == 1, "the other one")
        a.wait(lambda s: s["peers_connected"] == 1, "the newcomer")
        elsewhere = swarmnode(
            tmp_path / "c", "swarms", "--network", f"{network}-2", "--lan", "--json"
        )
        assert elsewhere.json["swarms"] == []
    finally:
        a.kill()
        if b is not None:
            b.kill()
