"""Sessions over real TCP sockets, and the benchmark of the link with its helper process."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from swarmnode import limits
from swarmnode.bench.link import format_link_bench, run_link_bench
from swarmnode.errors import (
    AuthenticationFailed,
    ChannelBroken,
    ChannelClosed,
    ConfigError,
    DialFailed,
)
from swarmnode.ids import PeerId
from swarmnode.net.channel import Channel, note_stall
from swarmnode.net.peering import run_session
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.net.stream import Stream
from swarmnode.net.tcp import TcpChannel, TcpTransport, format_address, parse_address
from swarmnode.protocol.session.records import Role
from tests.conftest import HANGS_S, open_files
from tests.kits.session_kit import ALICE, BOB, NETWORK_ID, start

MIB = limits.MIB


async def echo(_peer: PeerId, request: bytes) -> bytes:
    return request


@asynccontextmanager
async def bob_listening(services: Services | None = None) -> AsyncIterator[str]:
    """Give the address of a listening Bob."""
    offered = services or Services()
    if offered.request_handler("echo") is None:
        offered.add_request("echo", echo)

    async def accept(channel: Channel) -> None:
        await run_session(
            channel, identity=BOB, network_id=NETWORK_ID, services=offered, role=Role.SERVER
        )

    async with trio.open_nursery() as nursery:
        yield await nursery.start(TcpTransport().serve, "127.0.0.1:0", accept)
        nursery.cancel_scope.cancel()


async def dial(nursery: trio.Nursery, address: str) -> Session:
    channel = await TcpTransport().dial(address)
    return await start(nursery, channel, ALICE, Role.CLIENT, expected=BOB.peer_id)


async def test_a_session_over_tcp_carries_requests_and_bulk() -> None:
    services = Services()

    async def mirror(_session: Session, stream: Stream) -> None:
        header, payload = await stream.receive_message(64 * MIB)
        await stream.send_message(header, payload)

    services.add_stream("mirror", mirror)
    async with bob_listening(services) as address, trio.open_nursery() as nursery:
        session = await dial(nursery, address)
        assert session.channel_description == f"tcp {address}"
        assert await session.request("echo", b"x" * 100_000, deadline_s=HANGS_S) == b"x" * 100_000
        payload = os.urandom(20 * MIB)
        stream = await session.open_stream("mirror")
        async with stream, trio.open_nursery() as both:
            both.start_soon(stream.send_message, b"h", payload)
            header, received = await stream.receive_message(64 * MIB)
        assert (header, bytes(received)) == (b"h", payload)
        await session.aclose()


async def test_a_blocked_write_that_is_cancelled_hurts_nothing_else() -> None:
    services = Services()

    async def never_reads(_session: Session, _stream: Stream) -> None:
        await trio.sleep_forever()

    services.add_stream("stuck", never_reads)
    async with bob_listening(services) as address, trio.open_nursery() as nursery:
        session = await dial(nursery, address)
        for _ in range(20):
            stuck = await session.open_stream("stuck")
            with trio.move_on_after(0.005):
                await stuck.send(bytes(20 * MIB))
            await stuck.reset()
            assert await session.request("echo", b"alive", deadline_s=HANGS_S) == b"alive"
        await session.aclose()


async def test_strangers_with_garbage_are_gone_at_once_and_harm_nothing() -> None:
    async with bob_listening() as address, trio.open_nursery() as nursery:
        host, port = parse_address(address)
        for garbage in (b"GET / HTTP/1.0\r\n\r\n", os.urandom(5000), bytes(100), b""):
            stream = await trio.open_tcp_stream(host, port)
            # A reset is as good as an end, and may come before we are done.
            with trio.fail_after(HANGS_S), contextlib.suppress(trio.BrokenResourceError):
                async with stream:
                    await stream.send_all(garbage)
                    await stream.send_eof()
                    while await stream.receive_some():
                        pass
        session = await dial(nursery, address)
        assert await session.request("echo", b"fine", deadline_s=HANGS_S) == b"fine"
        await session.aclose()


@pytest.mark.parametrize("rounds", [200, pytest.param(1000, marks=pytest.mark.slow)])
async def test_many_connections_leave_no_file_and_no_task(rounds: int) -> None:
    async with bob_listening() as address:

        async def once() -> None:
            async with trio.open_nursery() as nursery:
                session = await dial(nursery, address)
                await session.request("echo", b"", deadline_s=HANGS_S)
                await session.aclose()

        async def settle() -> tuple[int, int]:
            await trio.testing.wait_all_tasks_blocked(0.05)
            return open_files(), trio.lowlevel.current_statistics().tasks_living

        await once()
        before = await settle()
        for _ in range(rounds):
            await once()
        assert await settle() == before


async def test_a_peer_that_dies_is_noticed_at_once() -> None:
    async with trio.open_nursery() as nursery:
        sessions: list[Session] = []

        async def accept(channel: Channel) -> None:
            sessions.append(await start(nursery, channel, BOB, Role.SERVER))
            await sessions[0].wait_closed()

        address = await nursery.start(TcpTransport().serve, "127.0.0.1:0", accept)
        channel = await TcpTransport().dial(address)
        alice = await start(nursery, channel, ALICE, Role.CLIENT, expected=BOB.peer_id)
        await trio.testing.wait_all_tasks_blocked()
        channel._socket.shutdown(socket.SHUT_RDWR)  # as the kernel does for a killed process
        with trio.fail_after(HANGS_S):
            await sessions[0].wait_closed()
            await alice.wait_closed()
        assert isinstance(sessions[0].close_cause, ChannelBroken)
        nursery.cancel_scope.cancel()


async def test_the_goodbye_of_a_refusal_arrives_over_tcp() -> None:
    """Closing a socket with unread bytes in it would destroy it on its way."""
    errors: list[str] = []

    async def accept(channel: Channel) -> None:
        try:
            await run_session(
                channel, identity=BOB, network_id=NETWORK_ID, services=Services(), role=Role.SERVER
            )
        except AuthenticationFailed as error:
            errors.append(str(error))

    async with trio.open_nursery() as nursery:
        address = await nursery.start(TcpTransport().serve, "127.0.0.1:0", accept)
        for _ in range(20):
            channel = await TcpTransport().dial(address)
            with pytest.raises(AuthenticationFailed):
                await run_session(
                    channel,
                    identity=ALICE,
                    network_id=NETWORK_ID,
                    services=Services(),
                    role=Role.CLIENT,
                    expected=PeerId(bytes(32)),
                )
        await trio.testing.wait_all_tasks_blocked(0.05)
        nursery.cancel_scope.cancel()
    assert len(errors) == 20
    assert all(str(PeerId(bytes(32))) in error for error in errors)


# --- the transport ------------------------------------------------------------------------------


async def test_where_nothing_came_the_next_connection_has_small_packets() -> None:
    """Both ways: what is accepted keeps to the less of both sides."""
    accepted: list[socket.socket] = []

    async def keep(channel: Channel) -> None:
        assert isinstance(channel, TcpChannel)
        accepted.append(channel.detach())

    transport = TcpTransport()
    async with trio.open_nursery() as nursery:
        address = await nursery.start(TcpTransport().serve, "127.0.0.1:0", keep)
        dialled = []
        for _ in range(2):
            channel = await transport.dial(address)
            note_stall(channel)
            dialled.append(channel.detach())
            while len(accepted) < len(dialled):  # noqa: ASYNC110
                await trio.sleep(0.01)
        for large, small in (dialled, accepted):
            assert segment_bytes(small) <= limits.TCP_SMALL_SEGMENT_BYTES < segment_bytes(large)
        for sock in dialled + accepted:
            sock.close()
        nursery.cancel_scope.cancel()


def segment_bytes(sock: socket.socket) -> int:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)


async def test_a_port_in_use_gives_one_clear_line() -> None:
    async with bob_listening() as address:
        with pytest.raises(ConfigError, match=f"cannot listen on {address}: the port is in use"):
            await TcpTransport().serve(address, trio.sleep_forever)  # type: ignore[arg-type]


async def test_no_listener_at_an_address_is_a_failed_dial() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but no node listens
        address = format_address(*taken.getsockname())
        with pytest.raises(DialFailed, match="refused") as caught:
            await TcpTransport().dial(address)
        assert caught.value.address == address


async def test_a_closed_channel_says_which_side_closed_it() -> None:
    async def hang_up(_channel: Channel) -> None:
        await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        address = await nursery.start(TcpTransport().serve, "127.0.0.1:0", hang_up)
        channel = await TcpTransport().dial(address)
        assert await channel.receive_into(memoryview(bytearray(1))) == 0
        with pytest.raises(ChannelBroken):
            await channel.send_all(memoryview(bytes(64 * MIB)))
        await channel.aclose()
        with pytest.raises(ChannelClosed):
            await channel.send_all(memoryview(b"x"))
        nursery.cancel_scope.cancel()


async def test_a_big_write_is_resumed_after_the_socket_is_full() -> None:
    data = os.urandom(8 * MIB)
    received = bytearray()
    is_complete = trio.Event()

    async def collect(channel: Channel) -> None:
        buffer = memoryview(bytearray(100_000))
        while n_bytes := await channel.receive_into(buffer):
            received.extend(buffer[:n_bytes])
        is_complete.set()

    async with trio.open_nursery() as nursery:
        address = await nursery.start(TcpTransport().serve, "127.0.0.1:0", collect)
        channel = await TcpTransport().dial(address)
        assert isinstance(channel, TcpChannel)
        await channel.send_all(memoryview(data))
        await channel.aclose()
        with trio.fail_after(HANGS_S):
            await is_complete.wait()
        nursery.cancel_scope.cancel()
    assert received == data


@pytest.mark.parametrize(
    ("text", "parsed"),
    [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:0", ("::1", 0)), ("a.b:65535", ("a.b", 65535))],
)
def test_addresses_read_back(text: str, parsed: tuple[str, int]) -> None:
    assert parse_address(text) == parsed
    assert format_address(*parsed) == text


@pytest.mark.parametrize(
    "text", ["", "host", ":80", "host:", "host:65536", "::1:80", "h:+1", "h:²"]
)
def test_what_is_no_address_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        parse_address(text)


# --- the benchmark --------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="figures are for Linux")
def test_the_link_benchmark_measures_everything_it_promises() -> None:
    result = run_link_bench(rounds=1, bytes_per_round=20_000_000, requests=20)
    assert set(result) == {
        "bulk_mbps",
        "plain_tcp_mbps",
        "ssl_stream_mbps",
        "request_p50_ms_idle",
        "request_p50_ms_loaded",
        "cpu_s_per_gb",
    }
    assert all(value > 0 for value in result.values())
    assert "trio.SSLStream" in format_link_bench(result)
