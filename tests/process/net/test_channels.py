"""What every channel promises, whatever carries its bytes."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import trio

from swarmnode import limits
from swarmnode.errors import ChannelBroken, ChannelClosed, TransportError
from swarmnode.net.channel import Channel, aclose_forcefully, receive_exactly
from swarmnode.net.services import Services
from swarmnode.net.stream import Stream
from swarmnode.net.tcp import TcpTransport
from swarmnode.testing.memory_network import MemoryNetwork
from tests.conftest import HANGS_S
from tests.kits.session_kit import start_both
from tests.process.net.rtc_kit import rtc_pair

MIB = limits.MIB
Pair = tuple[Channel, Channel]
MakePair = Callable[[], AbstractAsyncContextManager[Pair]]


@asynccontextmanager
async def memory_pair() -> AsyncIterator[Pair]:
    yield MemoryNetwork().link("one", "other")


@asynccontextmanager
async def tcp_pair() -> AsyncIterator[Pair]:
    send, receive = trio.open_memory_channel[Channel](1)

    async def accept(channel: Channel) -> None:
        await send.send(channel)
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        address = await nursery.start(TcpTransport().serve, "127.0.0.1:0", accept)
        channel = await TcpTransport().dial(address)
        yield channel, await receive.receive()
        await aclose_forcefully(channel)
        nursery.cancel_scope.cancel()


@pytest.fixture(params=[memory_pair, tcp_pair, rtc_pair], ids=["memory", "tcp", "rtc"])
def make_pair(request: pytest.FixtureRequest) -> MakePair:
    make: MakePair = request.param
    return make


async def receive_some(channel: Channel, max_bytes: int) -> bytes:
    buffer = bytearray(max_bytes)
    n_bytes = await channel.receive_into(memoryview(buffer))
    return bytes(buffer[:n_bytes])


async def receive_all(channel: Channel) -> bytes:
    received = bytearray()
    while piece := await receive_some(channel, 65_536):
        received += piece
    return bytes(received)


@pytest.mark.parametrize("seed", range(3))
async def test_bytes_arrive_in_order_both_ways_at_once(make_pair: MakePair, seed: int) -> None:
    async def send(channel: Channel, data: bytes, rng: random.Random) -> None:
        position = 0
        while position < len(data):
            n_bytes = rng.choice([1, 100, 3000, 40_000, 300_000])
            await channel.send_all(memoryview(data)[position : position + n_bytes])
            position += n_bytes

    async def receive(channel: Channel, expected: bytes, rng: random.Random) -> None:
        received = bytearray()
        while len(received) < len(expected):
            received += await receive_some(channel, rng.choice([1, 500, 65_536, 400_000]))
        assert received == expected

    async with make_pair() as (one, other):
        data = random.Random(seed).randbytes(2 * MIB)
        back = random.Random(seed + 1000).randbytes(MIB)
        with trio.fail_after(HANGS_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send, one, data, random.Random(seed))
                nursery.start_soon(receive, other, data, random.Random(seed + 1))
                nursery.start_soon(send, other, back, random.Random(seed + 2))
                nursery.start_soon(receive, one, back, random.Random(seed + 3))
        await one.aclose()
        await other.aclose()


async def test_backpressure_without_a_reader_the_sender_waits(make_pair: MakePair) -> None:
    async with make_pair() as (one, other):
        piece = memoryview(bytes(64 * 1024))
        sent = quiet_rounds = 0
        while quiet_rounds < 10:  # what was taken may go on to buffers further away
            n_bytes = one.send_nowait(piece)
            sent += n_bytes
            quiet_rounds = 0 if n_bytes else quiet_rounds + 1
            await trio.testing.wait_all_tasks_blocked(0 if n_bytes else 0.02)
        assert 0 < sent < 16 * MIB
        with trio.fail_after(HANGS_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one.send_all, memoryview(bytes(4 * MIB)))
                await trio.testing.wait_all_tasks_blocked()
                await receive_exactly(other, memoryview(bytearray(sent + 4 * MIB)))
        await one.aclose()
        await other.aclose()


async def test_the_end_comes_after_the_last_byte(make_pair: MakePair) -> None:
    async with make_pair() as (one, other):
        data = random.Random(7).randbytes(200_000)
        await one.send_all(memoryview(data))
        await one.aclose()
        with trio.fail_after(HANGS_S):
            assert await receive_all(other) == data
            assert await receive_some(other, 10) == b""
            with pytest.raises(ChannelBroken):  # TCP takes some before it knows
                await other.send_all(memoryview(bytes(64 * MIB)))
        await other.aclose()


async def test_who_closed_it_gets_told_so(make_pair: MakePair) -> None:
    async with make_pair() as (one, other):
        await one.aclose()
        await one.aclose()
        with pytest.raises(ChannelClosed, match="this side closed it"):
            await one.send_all(memoryview(b"x"))
        with pytest.raises(ChannelClosed, match="this side closed it"):
            one.send_nowait(memoryview(b"x"))
        with pytest.raises(ChannelClosed, match="this side closed it"):
            await receive_some(one, 1)
        await other.aclose()


async def test_closing_wakes_waiting_callers(make_pair: MakePair) -> None:
    errors: list[TransportError] = []

    async def receive(channel: Channel) -> None:
        with pytest.raises(ChannelClosed) as caught:
            await receive_some(channel, 1)
        errors.append(caught.value)

    async def send(channel: Channel) -> None:
        with pytest.raises((ChannelClosed, ChannelBroken)) as caught:
            await channel.send_all(memoryview(bytes(64 * MIB)))
        errors.append(caught.value)

    async with make_pair() as (one, other):
        with trio.fail_after(HANGS_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive, one)
                nursery.start_soon(send, one)
                await trio.testing.wait_all_tasks_blocked(0.2)
                await one.aclose()
        await other.aclose()
    assert len(errors) == 2


@pytest.mark.parametrize("seed", range(3))
async def test_a_cancelled_read_loses_nothing(make_pair: MakePair, seed: int) -> None:
    rng = random.Random(seed)
    data = rng.randbytes(MIB)
    received = bytearray()
    n_cancelled = 0

    async def send(channel: Channel) -> None:
        await channel.send_all(memoryview(data))
        await channel.aclose()

    async with make_pair() as (one, other), trio.open_nursery() as nursery:
        nursery.start_soon(send, one)
        buffer = bytearray(20_000)
        with trio.fail_after(HANGS_S):
            while len(received) < len(data):
                n_bytes = 0
                with trio.move_on_after(rng.choice([0, 0.0001, 0.001])) as scope:
                    n_bytes = await other.receive_into(memoryview(buffer))
                n_cancelled += scope.cancelled_caught
                received += buffer[:n_bytes]
        assert received == data
        assert n_cancelled > 0
        await other.aclose()


async def test_closing_when_cancelled_closes(make_pair: MakePair) -> None:
    async with make_pair() as (one, other):
        await aclose_forcefully(one)
        with trio.fail_after(HANGS_S):
            assert await receive_all(other) == b""
        await aclose_forcefully(other)


async def test_a_session_runs_on_it(make_pair: MakePair) -> None:
    services = Services()

    async def mirror(_session: object, stream: Stream) -> None:
        header, payload = await stream.receive_message(8 * MIB)
        await stream.send_message(header, payload)

    services.add_stream("mirror", mirror)
    payload = random.Random(3).randbytes(3 * MIB)
    async with make_pair() as ends, trio.open_nursery() as nursery:
        with trio.fail_after(HANGS_S):
            session, _ = await start_both(nursery, ends, services)
            stream = await session.open_stream("mirror")
            async with stream, trio.open_nursery() as both:
                both.start_soon(stream.send_message, b"h", payload)
                header, received = await stream.receive_message(8 * MIB)
            assert (header, bytes(received)) == (b"h", payload)
            await session.aclose("done")
            nursery.cancel_scope.cancel()
