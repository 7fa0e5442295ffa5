"""Ports in a real router: Debian's miniupnpd grants them, strangers get in, and out they go."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.hosts import Host
from tests.lab.natlab import NatLab
from tests.lab.plain import Plain, plain_sockets

PORT = 7337
ALL = ["PCP", "NAT-PMP", "UPnP"]


@pytest.fixture(scope="module")
def lab(able: None) -> Iterator[NatLab]:
    """c0 and c0b behind a symmetric NAT with UPnP, c1 behind two, c2 and c2b without, c3 public."""
    if shutil.which("miniupnpd") is None:
        pytest.skip("the port mapping tests need miniupnpd (Debian: miniupnpd-nftables)")
    sites = ("symmetric+upnp*2", "cgnat+upnp", "port-restricted*2", "none")
    with NatLab(sites) as built:
        yield built


@pytest.fixture
def plain(lab: NatLab) -> Iterator[Plain]:
    with plain_sockets(lab) as sockets:
        yield sockets


@pytest.fixture
def host(lab: NatLab) -> Iterator[Host]:
    """An agent on c0, listening on PORT; what it has mapped is given back."""
    agent = Host(lab, "c0")
    agent.ask("listen", port=PORT)
    yield agent
    agent.close()


def is_reached(plain: Plain, mapping: dict[str, Any]) -> bool:
    return plain.connects("pub0", (mapping["external"], mapping["port"]))


@pytest.mark.parametrize("method", ALL)
def test_a_mapped_port_is_reached_until_it_is_given_back(
    lab: NatLab, plain: Plain, host: Host, method: str
) -> None:
    assert not plain.connects("pub0", (lab.public_ip("c0"), PORT))
    answer = host.ask("map", port=PORT, methods=[method])
    mapping = answer["mapping"]
    assert answer["why"] == ""
    assert mapping == {
        "external": lab.public_ip("c0"),
        "port": PORT,
        "protocol": "tcp",
        "method": method,
        "lease_s": 3600,
    }
    assert is_reached(plain, mapping)
    host.ask("unmap")
    assert not is_reached(plain, mapping)
    assert "dnat" not in lab.run("r0", "nft", "list", "table", "inet", "upnp")


def test_pcp_comes_first(host: Host) -> None:
    assert host.ask("map", port=PORT, methods=ALL)["mapping"]["method"] == "PCP"
    host.ask("unmap")


@pytest.mark.parametrize("method", ALL)
def test_two_machines_of_one_home_get_two_ports(
    lab: NatLab, plain: Plain, host: Host, method: str
) -> None:
    other = Host(lab, "c0b")
    other.ask("listen", port=PORT)
    mappings = [each.ask("map", port=PORT, methods=[method])["mapping"] for each in (host, other)]
    assert mappings[0]["port"] != mappings[1]["port"]
    assert all(is_reached(plain, mapping) for mapping in mappings)
    for each in (host, other):
        each.ask("unmap")
    other.close()


@pytest.mark.parametrize("method", ALL)
def test_a_router_that_forgot_is_asked_again(
    lab: NatLab, plain: Plain, host: Host, method: str
) -> None:
    mapping = host.ask("map", port=PORT, methods=[method])["mapping"]
    lab.restart_miniupnpd("r0")
    assert not is_reached(plain, mapping)
    assert host.ask("refresh")["mapping"] == mapping
    assert is_reached(plain, mapping)
    host.ask("unmap")


def test_after_a_crash_the_mapping_is_taken_over(lab: NatLab, plain: Plain, host: Host) -> None:
    """By PCP too, which lets only a client that knows a mapping's nonce change it."""
    mapping = host.ask("map", port=PORT, methods=["PCP"])["mapping"]
    host.kill()
    heir = Host(lab, "c0")
    heir.ask("listen", port=PORT)
    assert is_reached(plain, mapping)
    assert heir.ask("map", port=PORT, methods=["PCP"])["mapping"] == mapping
    heir.ask("unmap")
    assert not is_reached(plain, mapping)
    heir.close()


def test_behind_a_carrier_nat_there_is_a_reason(lab: NatLab) -> None:
    host = Host(lab, "c1")
    answer = host.ask("map", port=PORT, methods=ALL)
    assert answer["mapping"] is None
    assert answer["why"].startswith("the router 192.168.11.1 maps no port (PCP: ")
    assert "no public address" in answer["why"]
    assert "forward TCP port 7337 to this machine" in answer["why"]
    host.close()


def test_a_router_without_it(lab: NatLab) -> None:
    host = Host(lab, "c2")
    answer = host.ask("map", port=PORT, methods=ALL)
    assert answer["mapping"] is None
    assert answer["why"].startswith("the router 192.168.12.1 maps no port (PCP: ")
    assert all(f"{name}: " in answer["why"] for name in ALL)
    host.close()


def test_a_machine_without_a_nat_asks_no_router(lab: NatLab) -> None:
    host = Host(lab, "c3")
    answer = host.ask("map", port=PORT, methods=ALL)
    assert answer == {
        "mapping": None,
        "why": "this machine's own address 11.11.11.103 is public: nothing to map",
    }
    host.close()


@pytest.mark.parametrize(("victim", "liar"), [("c0", "c0b"), ("c2", "c2b")])
def test_a_neighbour_that_plays_the_router_is_not_heard(
    lab: NatLab, victim: str, liar: str
) -> None:
    """It answers searches sooner than the router, or where the router knows nothing of them."""
    forger, host = Host(lab, liar), Host(lab, victim)
    gateway = lab.ip(victim).rpartition(".")[0] + ".1"
    forger.ask("lie", gateway=gateway)
    mapping = host.ask("map", port=PORT, methods=["UPnP"])["mapping"]
    assert (mapping is not None) == (victim == "c0")
    assert mapping is None or mapping["external"] == lab.public_ip("c0")
    asked = forger.ask("asked")
    # How many of its searches went out before the router answered one is the machine's affair.
    assert asked["searches"] >= 1
    assert asked["connections"] == 0
    host.ask("unmap")
    for each in (forger, host):
        each.close()
