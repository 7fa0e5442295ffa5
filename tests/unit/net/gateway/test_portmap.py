"""When a port is mapped, renewed, lost and given back: a virtual clock, scripted routers."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest
import trio
from trio.testing import MockClock

from swarmnode.errors import Refused, TransportError
from swarmnode.net.gateway.mapping import Granted
from swarmnode.net.gateway.portmap import PORTMAP_LOOK_S, PORTMAP_RETRY_S, Mapping
from swarmnode.net.gateway.routes import Place, parse_gateway
from tests.unit.net.gateway.router_kit import EXTERNAL, PORT, Script, Where, mapper_of

GRANTED = Granted(EXTERNAL, PORT, 3600)
MAPPED = Mapping(str(EXTERNAL), PORT, "tcp", "PCP", 3600)
REFUSED = Refused("the router says no")


async def test_the_first_way_that_works_is_kept_and_given_back(
    autojump_clock: MockClock,
) -> None:
    pcp = Script("PCP", [REFUSED])
    natpmp = Script("NAT-PMP", [Granted(EXTERNAL, 40_000, 3600)])
    upnp = Script("UPnP", [GRANTED])
    mapper = mapper_of(pcp, natpmp, upnp)
    assert mapper.mapping is None
    assert mapper.why == "the router was not asked yet"
    async with trio.open_nursery() as running:
        await running.start(mapper.run)
        found = await mapper.wait_changed(None)
        assert found == Mapping(str(EXTERNAL), 40_000, "tcp", "NAT-PMP", 3600)
        assert found.address == "11.11.11.100:40000"
        assert mapper.why == ""
        running.cancel_scope.cancel()
    assert await mapper.wait_changed(found) is None
    asked = [[what for _, what in script.asked] for script in (pcp, natpmp, upnp)]
    assert asked[0] == ["new for 192.168.1.2", "map 7337"]
    assert asked[1] == ["new for 192.168.1.2", "map 7337", "release 40000"]
    assert asked[2] == []


async def test_a_lease_is_renewed_at_half_of_it(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    script = Script(answers=[Granted(EXTERNAL, 40_000, 3600)])
    await nursery.start(mapper_of(script).run)
    await trio.sleep(2 * 3600 + 1)
    times = [at for at, what in script.asked if what.startswith("map")]
    assert times == pytest.approx([0, 1800, 3600, 5400, 7200])
    assert [what for _, what in script.asked[1:]] == ["map 7337"] + ["map 40000"] * 4
    nursery.cancel_scope.cancel()


async def test_a_short_lease_keeps_no_router_busy(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    script = Script(answers=[Granted(EXTERNAL, PORT, 1)])
    await nursery.start(mapper_of(script).run)
    await trio.sleep(301)
    times = [at for at, what in script.asked if what.startswith("map")]
    assert times == pytest.approx([30.0 * number for number in range(11)])
    nursery.cancel_scope.cancel()


async def test_a_mapping_that_is_not_renewed_lasts_as_long_as_its_lease(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    script = Script(answers=[GRANTED, REFUSED])
    mapper = mapper_of(script)
    await nursery.start(mapper.run)
    await trio.sleep(3599)
    assert mapper.mapping == MAPPED
    assert await mapper.wait_changed(MAPPED) is None
    assert trio.current_time() == pytest.approx(3600, abs=1)
    assert mapper.why == (
        "the router 192.168.1.1 maps no port (PCP: the router says no); switch on UPnP or "
        "NAT-PMP in its settings, or forward TCP port 7337 to this machine there"
    )
    retries = [at for at, what in script.asked if what.startswith("new")]
    assert retries[1:4] == pytest.approx([1800, 1860, 1920])
    nursery.cancel_scope.cancel()


async def test_another_way_takes_over_where_renewing_fails(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    pcp = Script("PCP", [GRANTED, TransportError("gone")])
    upnp = Script("UPnP", [Granted(IPv4Address("11.11.11.101"), PORT, 3600)])
    mapper = mapper_of(pcp, upnp)
    await nursery.start(mapper.run)
    changed = await mapper.wait_changed(MAPPED)
    assert changed == Mapping("11.11.11.101", PORT, "tcp", "UPnP", 3600)
    assert trio.current_time() == pytest.approx(1800)
    nursery.cancel_scope.cancel()


async def test_asked_to_it_renews_at_once(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    script = Script(answers=[GRANTED, Granted(EXTERNAL, 40_000, 3600)])
    mapper = mapper_of(script)
    await nursery.start(mapper.run)
    await trio.sleep(100)
    mapper.refresh()
    changed = await mapper.wait_changed(MAPPED)
    assert changed is not None
    assert changed.port == 40_000
    assert trio.current_time() == 100
    nursery.cancel_scope.cancel()


async def test_another_network_is_noticed(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    where = Where(None)
    script = Script(answers=[GRANTED])
    mapper = mapper_of(script, find_place=where.find)
    await nursery.start(mapper.run)
    assert mapper.why == "there is no IPv4 default gateway"
    assert script.asked == []
    where.place = Place("192.168.1.1", "192.168.1.2")
    assert await mapper.wait_changed(None) == MAPPED
    assert trio.current_time() <= PORTMAP_LOOK_S
    where.place = Place("192.168.1.1", "192.168.1.3")
    await trio.sleep(PORTMAP_LOOK_S + 1)
    assert mapper.mapping == MAPPED
    where.place = None
    assert await mapper.wait_changed(MAPPED) is None
    assert mapper.why == "there is no IPv4 default gateway"
    assert [what for _, what in script.asked] == [
        "new for 192.168.1.2", "map 7337", "new for 192.168.1.3", "map 7337",
    ]  # fmt: skip
    nursery.cancel_scope.cancel()


async def test_a_router_that_maps_nothing_is_asked_again(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    script = Script(answers=[REFUSED, REFUSED, GRANTED])
    mapper = mapper_of(script)
    await nursery.start(mapper.run)
    assert "says no" in mapper.why
    assert await mapper.wait_changed(None) == MAPPED
    assert trio.current_time() == pytest.approx(2 * PORTMAP_RETRY_S)
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("external", ["100.64.1.2", "192.168.0.7", "0.0.0.0", "224.0.0.1"])
async def test_a_router_behind_another_nat_is_of_no_use(
    nursery: trio.Nursery, autojump_clock: MockClock, external: str
) -> None:
    script = Script("PCP", [Granted(IPv4Address(external), PORT, 3600)])
    other = Script("UPnP", [GRANTED])
    mapper = mapper_of(script, other)
    await nursery.start(mapper.run)
    assert mapper.mapping is None
    assert f"the router's own address {external} is not public" in mapper.why
    assert mapper.external == external
    assert [what for _, what in script.asked][1:] == ["map 7337", "release 7337"]
    assert other.asked == []
    nursery.cancel_scope.cancel()


async def test_a_machine_with_a_public_address_asks_no_router(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    script = Script(answers=[GRANTED])
    mapper = mapper_of(script, find_place=Where(Place("11.11.11.1", "11.11.11.10")).find)
    await nursery.start(mapper.run)
    assert mapper.why == "this machine's own address 11.11.11.10 is public: nothing to map"
    assert script.asked == []
    nursery.cancel_scope.cancel()


async def test_port_0_is_no_mapping(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    mapper = mapper_of(Script(answers=[Granted(EXTERNAL, 0, 3600)]))
    await nursery.start(mapper.run)
    assert mapper.mapping is None
    assert "port 0" in mapper.why
    nursery.cancel_scope.cancel()


def test_the_default_gateway_is_read_from_the_kernels_table() -> None:
    head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
    lan = "eth0\t000AA8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
    slow = "wlan0\t00000000\t0114A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n"
    fast = "eth0\t00000000\t010AA8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
    tunnel = "tun0\t00000000\t00000000\t0001\t0\t0\t0\t00000000\t0\t0\t0\n"
    half = "tun0\t00000000\t010AA8C0\t0003\t0\t0\t0\t00000080\t0\t0\t0\n"
    assert parse_gateway(head) is None
    assert parse_gateway(head + lan + tunnel + half) is None
    assert parse_gateway(head + lan + slow) == "192.168.20.1"
    assert parse_gateway(head + slow + fast + tunnel + half) == "192.168.10.1"
