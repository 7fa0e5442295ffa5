"""Where a node says that it can be reached, for each way of listening."""

from __future__ import annotations

import socket
from ipaddress import IPv4Interface, IPv6Interface

import pytest
import trio

from swarmnode.daemon.transport import reach as addresses
from swarmnode.daemon.transport.reach import reachable_addresses
from swarmnode.net.channel import Channel
from swarmnode.net.lan.interfaces import Interface
from swarmnode.net.tcp import TcpTransport

UP, LOOPS, POINT_TO_POINT = 0x41, 0x8, 0x10
LOOPBACK = Interface("lo", 1, UP | LOOPS, (IPv4Interface("127.0.0.1/8"),))
LAN_ADDRESSES = (IPv4Interface("192.168.7.1/24"), IPv6Interface("fe80::1/64"))
LAN = Interface("eth0", 2, UP, (*LAN_ADDRESSES, IPv6Interface("fd00::1/64")))
TUNNEL = Interface("tun0", 3, UP | POINT_TO_POINT, (IPv4Interface("10.9.9.9/32"),))
OWN = {socket.AF_INET: "198.51.100.7", socket.AF_INET6: "2001:db8::7"}


@pytest.mark.parametrize(
    ("bound", "reachable"),
    [
        ("192.0.2.9:7337", ("192.0.2.9:7337",)),
        ("[::1]:80", ("[::1]:80",)),
        ("*:7337", ("198.51.100.7:7337", "[2001:db8::7]:7337")),
        ("0.0.0.0:7337", ("198.51.100.7:7337",)),
        ("[::]:7337", ("[2001:db8::7]:7337",)),
    ],
)
def test_every_family_that_is_listened_on_is_told(
    bound: str, reachable: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "_own_address", OWN.get)
    assert reachable_addresses(bound) == reachable


def test_without_a_network_only_this_machine_reaches_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(addresses, "_own_address", lambda _family: None)
    monkeypatch.setattr(addresses, "list_interfaces", lambda: (LOOPBACK,))
    assert reachable_addresses("*:7337") == ("127.0.0.1:7337",)
    assert reachable_addresses("[::]:7337") == ("[::1]:7337",)


def test_on_a_network_that_leads_nowhere_the_interfaces_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(addresses, "_own_address", lambda _family: None)
    monkeypatch.setattr(addresses, "list_interfaces", lambda: (LOOPBACK, LAN, TUNNEL))
    assert reachable_addresses("*:7337") == ("192.168.7.1:7337", "[fd00::1]:7337")
    assert reachable_addresses("0.0.0.0:7337") == ("192.168.7.1:7337",)


async def test_a_star_with_any_free_port_is_one_port_in_both_families() -> None:
    seen: list[str] = []

    async def accept(channel: Channel) -> None:
        seen.append(channel.description)

    async with trio.open_nursery() as nursery:
        bound = await nursery.start(TcpTransport().serve, "*:0", accept)
        host, _, port = bound.rpartition(":")
        assert host == "*"
        for loopback in ("127.0.0.1", "[::1]"):
            channel = await TcpTransport().dial(f"{loopback}:{port}")
            assert await channel.receive_into(memoryview(bytearray(1))) == 0  # closed after accept
            await channel.aclose()
        nursery.cancel_scope.cancel()
    assert [one.rpartition(":")[0] for one in seen] == ["tcp 127.0.0.1", "tcp [::1]"]
