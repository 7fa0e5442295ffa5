"""Sessions and legs of relays through a real HTTP proxy, and the race with the direct way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from swarmnode import limits
from swarmnode.errors import DialFailed
from swarmnode.net.channel import Channel, receive_exactly
from swarmnode.net.paths import path_of
from swarmnode.net.proxy import Proxy, Server
from swarmnode.net.tcp import TcpChannel, TcpTransport
from tests.conftest import HANGS_S
from tests.kits.connect_proxy import ConnectProxy, serve
from tests.kits.relay_kit import Node

# Documentation addresses: the proxy knows a listener on this machine for the first.
FAR, FAR_CLOSED = "192.0.2.7:443", "192.0.2.7:7337"
Dial = Callable[[str], Awaitable[TcpChannel]]


async def cut(address: str) -> TcpChannel:
    """Dial directly where a firewall rejects all."""
    raise DialFailed(f"tcp {address}: no route", address=address, cause="no-route")


async def unheard(_address: str) -> TcpChannel:
    """Dial directly where a firewall drops all."""
    await trio.sleep_forever()
    raise AssertionError


class OnlyOut:
    """A way out that is the only one, whatever the network of this machine is like."""

    def __init__(self, proxy: Proxy, directly: Dial = cut) -> None:
        self.proxy = proxy
        self._directly = directly

    async def dial(self, address: str, directly: Dial) -> TcpChannel:
        return await self.proxy.dial(address, self._directly)


async def greet(channel: Channel) -> None:
    """Say three bytes, and wait for the end."""
    await channel.send_all(memoryview(b"hey"))
    await channel.receive_into(memoryview(bytearray(1)))


@asynccontextmanager
async def office(
    password: str = "", early: bytes = b"", user: str = ""
) -> AsyncIterator[tuple[Proxy, ConnectProxy, str]]:
    """Give a way through a proxy, the proxy, and where its one target really listens."""
    async with trio.open_nursery() as nursery:
        listener = await nursery.start(TcpTransport().serve, "127.0.0.1:0", greet)
        program = ConnectProxy(password, {FAR: listener}, early)
        port = await nursery.start(serve, program, "127.0.0.1")
        server = Server.parse(f"http://{user}127.0.0.1:{port}")
        yield Proxy(server), program, listener
        nursery.cancel_scope.cancel()


async def read(channel: TcpChannel, n_bytes: int) -> bytes:
    buffer = bytearray(n_bytes)
    with trio.fail_after(HANGS_S):
        await receive_exactly(channel, memoryview(buffer))
    return bytes(buffer)


async def test_a_channel_through_a_proxy_is_a_direct_one_of_no_host() -> None:
    async with office() as (way, _, _):
        channel = await way.dial(FAR, cut)
        assert channel.description == f"proxied-tcp:{way.server} {FAR}"
        assert path_of(channel.description) == "direct"
        assert channel.remote is None
        channel.stalled()  # of no host that could be marked
        assert await read(channel, 3) == b"hey"
        await channel.aclose()


async def test_what_came_behind_the_answer_is_read_first() -> None:
    async with office(early=b"early ") as (way, _, _):
        channel = await way.dial(FAR, cut)
        assert await read(channel, 2) == b"ea"
        assert await read(channel, 7) == b"rly hey"
        await channel.aclose()


@pytest.mark.parametrize("user", ["", "ann:wrong@"])
async def test_a_proxy_that_wants_a_password_is_named_and_the_password_is_not(user: str) -> None:
    async with office(password="ann:right", user=user) as (way, _, _):
        with pytest.raises(DialFailed) as caught:
            await way.dial(FAR, cut)
    said = str(caught.value)
    assert f"tcp {FAR}: no route; through the proxy {way.server}: it answers 407" in said
    assert "password" in said
    assert "wrong" not in said
    assert caught.value.cause == "proxy"


async def test_the_right_password_opens_it() -> None:
    async with office(password="ann:right", user="ann:right@") as (way, _, _):
        channel = await way.dial(FAR, cut)
        assert await read(channel, 3) == b"hey"
        await channel.aclose()


async def test_what_a_proxy_refuses_and_one_that_is_not_there() -> None:
    async with office() as (way, program, _):
        with pytest.raises(DialFailed, match="it answers 403 Forbidden") as caught:
            await way.dial(FAR_CLOSED, cut)
        assert caught.value.cause == "proxy"
        with pytest.raises(DialFailed, match="it answers 502") as caught:
            await way.dial("192.0.2.9:443", cut)
        assert caught.value.cause == "no-route"  # of the direct way: the proxy did its best
        assert program.asked == [FAR_CLOSED, "192.0.2.9:443"]
    with pytest.raises(DialFailed, match=f"through the proxy {way.server}: it cannot be reached"):
        await way.dial(FAR, cut)


async def test_a_direct_way_that_works_is_neither_delayed_nor_replaced() -> None:
    async with office() as (way, program, listener):
        opened: list[TcpChannel] = []

        async def slowly(_address: str) -> TcpChannel:
            await trio.sleep(limits.PROXY_HEAD_START_S / 2)
            opened.append(await TcpTransport().dial(listener))
            return opened[0]

        channel = await way.dial(FAR, slowly)
        assert channel is opened[0]
        assert channel.description == f"tcp {listener}"
        assert program.asked == []
        await channel.aclose()


async def test_hosts_that_were_silent_before_get_the_proxy_sooner_until_they_answer() -> None:
    async with office() as (way, program, listener):
        took = []
        for _ in range(2):
            began = trio.current_time()
            channel = await way.dial(FAR, unheard)
            took.append(trio.current_time() - began)
            await channel.aclose()
        assert took[0] >= limits.PROXY_HEAD_START_S
        assert limits.PROXY_AGAIN_S <= took[1] < limits.PROXY_HEAD_START_S

        async def directly(_address: str) -> TcpChannel:
            return await TcpTransport().dial(listener)

        channel = await way.dial(FAR, directly)
        assert channel.remote is not None
        assert program.asked == [FAR, FAR]
        await channel.aclose()


@pytest.mark.parametrize("address", ["127.0.0.1:443", "10.9.9.9:443", "intranet:443"])
async def test_our_own_network_is_never_asked_of_the_proxy(address: str) -> None:
    async with office() as (way, program, _):
        with pytest.raises(DialFailed) as caught:
            await way.dial(address, cut)
        assert str(caught.value) == f"tcp {address}: no route"
        assert program.asked == []


async def test_a_session_and_a_relayed_one_go_through_it() -> None:
    async with trio.open_nursery() as nursery:
        program = ConnectProxy(leads={})
        port = await nursery.start(serve, program, "127.0.0.1")
        outside = OnlyOut(Proxy(Server("127.0.0.1", port)))
        a, b = (Node(TcpTransport(outside), name) for name in "ab")
        r = Node(TcpTransport(), "r")
        for node in (a, b, r):
            await nursery.start(node.run, "127.0.0.1:0")
        program.leads = {FAR: r.address}
        r.address = FAR
        with trio.fail_after(HANGS_S):
            await b.keep(r)
            session = await a.connect(b.peer, (b.through(r),))
            assert path_of(session.channel_description) == "relay"
            assert await session.request("echo", b"x" * 100_000, deadline_s=HANGS_S)
        # Each of the two has a session with the relay and a leg, and nothing else.
        assert program.asked == [FAR] * 4
        assert all(isinstance(leg, TcpChannel) for leg in a.legs + b.legs)
        assert all(leg.description.startswith("proxied-tcp:") for leg in a.legs + b.legs)
        nursery.cancel_scope.cancel()
