"""Every NAT of the lab behaves as its name says, shown with plain sockets."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.lab.natlab import NAT_TYPES, NatLab
from tests.lab.plain import Plain, plain_sockets, reaches, received, seen_from

# A public host, and its second address.
FIRST, SECOND = "11.11.11.10", "11.11.11.11"


@dataclass(frozen=True)
class Behaviour:
    """What RFC 4787 calls it; UDP is blocked where a filtering is None."""

    is_translated: bool
    mapping_depends: bool = False  # on the destination
    filtering: str | None = "address and port"


EXPECTED = {
    "none": Behaviour(False, filtering="nothing"),
    "firewall": Behaviour(False),
    "full-cone": Behaviour(True, filtering="nothing"),
    "addr-restricted": Behaviour(True, filtering="address"),
    "port-restricted": Behaviour(True),
    "symmetric": Behaviour(True, mapping_depends=True),
    "cgnat": Behaviour(True),
    "cgnat-sym": Behaviour(True, mapping_depends=True),
    "udp-blocked": Behaviour(True, filtering=None),
    "tcp-443": Behaviour(True, filtering=None),
}
PORTS = itertools.count(20_000)


@pytest.fixture
def plain(every_type: NatLab) -> Iterator[Plain]:
    with plain_sockets(every_type) as sockets:
        yield sockets


def client_of(kind: str) -> str:
    return f"c{NAT_TYPES.index(kind)}"


@pytest.mark.parametrize("kind", NAT_TYPES)
def test_udp_mapping(plain: Plain, kind: str) -> None:
    """One socket, three destinations: how many addresses do they see, and whose?"""
    client, expected = client_of(kind), EXPECTED[kind]
    sender = plain.udp(client, port=next(PORTS))
    servers = [plain.udp("pub0", FIRST), plain.udp("pub0", FIRST), plain.udp("pub0", SECOND)]
    seen = [seen_from(sender, server) for server in servers]
    if expected.filtering is None:
        assert seen == [None, None, None]
        return
    hosts = {source[0] for source in seen if source}
    assert hosts == {plain.lab.public_ip(client)}
    assert (plain.lab.ip(client) in hosts) == (not expected.is_translated)
    assert len(set(seen)) == (3 if expected.mapping_depends else 1)


@pytest.mark.parametrize("kind", NAT_TYPES)
def test_udp_filtering(plain: Plain, kind: str) -> None:
    """Having sent to one address, a client hears: it, its other port, another address."""
    client, expected = client_of(kind), EXPECTED[kind]
    holder = plain.udp(client, port=next(PORTS))
    asked, other_port = plain.udp("pub0", FIRST), plain.udp("pub0", FIRST)
    other_address = plain.udp("pub0", SECOND)
    mapped = seen_from(holder, asked)
    if expected.filtering is None:
        assert mapped is None
        return
    assert mapped is not None
    assert reaches(asked, mapped, holder)
    assert reaches(other_port, mapped, holder) == (expected.filtering in ("address", "nothing"))
    assert reaches(other_address, mapped, holder) == (expected.filtering == "nothing")


@pytest.mark.parametrize("kind", NAT_TYPES)
def test_tcp_mapping(plain: Plain, kind: str) -> None:
    client, expected = client_of(kind), EXPECTED[kind]
    port = next(PORTS)
    listeners = [plain.listener("pub0", FIRST), plain.listener("pub0", SECOND)]
    seen = [plain.source_at(listener, client, port=port) for listener in listeners]
    if kind == "tcp-443":
        assert seen == [None, None]
        return
    assert {source[0] for source in seen if source} == {plain.lab.public_ip(client)}
    assert len(set(seen)) == (2 if expected.mapping_depends else 1)


@pytest.mark.parametrize("kind", NAT_TYPES)
def test_tcp_filtering(plain: Plain, kind: str) -> None:
    """A listening client is reached from outside only where there is no NAT and no firewall."""
    client = client_of(kind)
    port = next(PORTS)
    outside = plain.listener("pub0", FIRST, 443)
    mapped = plain.source_at(outside, client, port=port)  # opens what can be opened
    assert mapped is not None
    plain.listener(client, port=port)
    assert plain.connects("pub1", mapped) == (kind == "none")


@pytest.mark.parametrize(("port", "gets_out"), [(80, True), (443, True), (8443, False)])
def test_only_the_ports_of_the_web_get_out_of_tcp_443(
    plain: Plain, port: int, gets_out: bool
) -> None:
    plain.listener("pub1", port=port)
    assert plain.connects(client_of("tcp-443"), (plain.lab.ip("pub1"), port)) == gets_out
    assert plain.connects(client_of("udp-blocked"), (plain.lab.ip("pub1"), port))


def test_a_flush_forgets_every_mapping(plain: Plain) -> None:
    holder = plain.udp(client_of("full-cone"), port=next(PORTS))
    stranger = plain.udp("pub1", plain.lab.ip("pub1"))
    mapped = seen_from(holder, plain.udp("pub0", FIRST))
    assert mapped is not None
    assert reaches(stranger, mapped, holder)
    plain.lab.flush()
    assert not reaches(stranger, mapped, holder)


def test_a_cut_uplink_carries_nothing_until_it_is_mended(plain: Plain) -> None:
    for kind in ("none", "port-restricted", "cgnat"):
        client = client_of(kind)
        sender, server = plain.udp(client, port=next(PORTS)), plain.udp("pub0", FIRST)
        plain.lab.set_uplink(client, is_up=False)
        assert seen_from(sender, server) is None
        plain.lab.set_uplink(client, is_up=True)
        # The first ones may still find a bridge that learns its ports, where cores are shared.
        assert any(seen_from(sender, server) for _ in range(10))


@pytest.fixture(scope="module")
def shared(able: None) -> Iterator[NatLab]:
    """Two clients behind each router, which loops packets back or does not."""
    sites = ("full-cone+hairpin*2", "full-cone*2", "cgnat+hairpin*2", "cgnat*2")
    with NatLab(sites) as lab:
        yield lab


@pytest.mark.parametrize(("number", "loops"), [(0, True), (1, False), (2, True), (3, False)])
def test_hairpin(shared: NatLab, number: int, loops: bool) -> None:
    """A neighbour's public address is reached, and from a public address, where it is looped."""
    with plain_sockets(shared) as plain:
        holder = plain.udp(f"c{number}", port=7000)
        neighbour = plain.udp(f"c{number}b", port=7001)
        server = plain.udp("pub0", FIRST)
        mapped, theirs = seen_from(holder, server), seen_from(neighbour, server)
        assert mapped is not None
        assert theirs is not None
        holder.sendto(b"open", theirs)  # where filtering wants it
        neighbour.sendto(b"hello", mapped)
        heard = [got for got in (received(holder),) if got]
        assert heard == ([(b"hello", (shared.public_ip(f"c{number}"), 7001))] if loops else [])


def test_routers_route_ipv6_and_stop_strangers(able: None) -> None:
    with NatLab(["symmetric", "none"], ipv6=True) as lab:
        with lab.inside("pub0"):
            listener = socket.create_server((lab.ip6("pub0"), 7000), family=socket.AF_INET6)
        with listener, lab.inside("c0"):
            socket.create_connection((lab.ip6("pub0"), 7000), 5.0).close()
            inner = socket.create_server((lab.ip6("c0"), 7000), family=socket.AF_INET6)
        with inner, lab.inside("c1"), pytest.raises(TimeoutError):
            socket.create_connection((lab.ip6("c0"), 7000), 0.25)
