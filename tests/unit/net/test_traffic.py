"""Limits of the line: kept over time in both directions, and probes never wait for tensors."""

from __future__ import annotations

import functools

import pytest
import trio

from swarmnode import limits
from swarmnode.errors import Overloaded
from swarmnode.net.channel import Channel
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.net.stream import Stream
from swarmnode.net.tcp import TcpTransport
from swarmnode.net.traffic import Line
from swarmnode.wire.session import Priority
from tests.kits.session_kit import session_pair, start_both

KB, MB = 1000, 1_000_000
TOLERANCE = 0.1


class Sink:
    """Bob's side: takes all that comes, and counts it."""

    def __init__(self) -> None:
        self.services = Services()
        self.received_bytes = 0
        self.services.add_stream("sink", self._take)
        self.services.add_answer("echo", lambda _peer, payload: payload)

    async def _take(self, session: Session, stream: Stream) -> None:
        while piece := await stream.receive():
            self.received_bytes += len(piece)


async def pour(session: Session, chunk_bytes: int = limits.MIB) -> None:
    """Send for ever, as fast as the other side and the limits allow."""
    chunk = bytes(chunk_bytes)
    async with await session.open_stream("sink", priority=Priority.BULK) as stream:
        while True:
            await stream.send(chunk)


async def pour_little(session: Session, n_bytes: int) -> None:
    """Send in a new stream each time, like exchanges of a small model."""
    while True:
        async with await session.open_stream("sink", priority=Priority.BULK) as stream:
            await stream.send(bytes(n_bytes))
            await stream.send_end()
            await stream.receive_rest(1)


async def slowest_echo_s(session: Session, seconds: float) -> float:
    """Return the longest round trip of small requests within some seconds."""
    longest = 0.0
    until = trio.current_time() + seconds
    while trio.current_time() < until:
        begin = trio.current_time()
        await session.request("echo", b"?", deadline_s=5)
        longest = max(longest, trio.current_time() - begin)
        await trio.sleep(0.1)
    return longest


@pytest.mark.parametrize("rate", [100 * KB, 2 * MB])
@pytest.mark.parametrize("side", ["up", "down"])
@pytest.mark.parametrize("streams", [1, 3])
async def test_a_rate_is_kept_and_probes_pass(
    autojump_clock, rate: int, side: str, streams: int
) -> None:
    sink, own = Sink(), Services()
    line = getattr((own if side == "up" else sink.services).traffic, side)
    line.limit(rate)
    async with (
        session_pair(sink.services, own_services=own) as (alice, _),
        trio.open_nursery() as nursery,
    ):
        for _ in range(streams):
            nursery.start_soon(pour, alice)
        await trio.sleep(20)  # behind the windows that a peer begins with
        before, seconds = line.total_bytes, 30.0
        longest_s = await slowest_echo_s(alice, seconds)
        nursery.cancel_scope.cancel()
    assert line.total_bytes - before == pytest.approx(rate * seconds, rel=TOLERANCE)
    assert line.throttled_s > 0.5 * seconds
    assert longest_s < 0.5


@pytest.mark.parametrize("side", ["up", "down"])
async def test_a_rate_is_kept_with_small_streams(autojump_clock, side: str) -> None:
    """What fits into the first window of a stream is not free of charge: the next one waits."""
    sink, own = Sink(), Services()
    rate, seconds = 200 * KB, 60.0
    line = getattr(own.traffic, side)
    line.limit(rate)

    async def give(session: Session, stream: Stream) -> None:
        await stream.send(bytes(100 * KB))

    sink.services.add_stream("source", give)

    async def fetch(session: Session) -> None:
        while True:
            async with await session.open_stream("source", priority=Priority.BULK) as stream:
                await stream.receive_rest(limits.MIB)

    async with (
        session_pair(sink.services, own_services=own) as (alice, _),
        trio.open_nursery() as nursery,
    ):
        send = functools.partial(pour_little, alice, 100 * KB)
        nursery.start_soon(send if side == "up" else functools.partial(fetch, alice))
        await trio.sleep(seconds)
        nursery.cancel_scope.cancel()
    assert line.total_bytes == pytest.approx(rate * seconds, rel=TOLERANCE)


async def test_a_rate_is_kept_on_real_sockets() -> None:
    sink, own = Sink(), Services()
    rate, seconds = 4 * MB, 2.0
    own.traffic.up.limit(rate)
    transport = TcpTransport()
    sessions: list[Session] = []
    accepted: list[Channel] = []
    is_there, is_over = trio.Event(), trio.Event()

    async def accept(channel: Channel) -> None:
        accepted.append(channel)
        is_there.set()
        await is_over.wait()

    async with trio.open_nursery() as nursery:
        address = await nursery.start(transport.serve, "127.0.0.1:0", accept)
        ours = await transport.dial(address)
        await is_there.wait()
        sessions += await start_both(nursery, (ours, accepted[0]), sink.services, own)
        nursery.start_soon(pour, sessions[0])
        await trio.sleep(0.5)
        before, begin = sink.received_bytes, trio.current_time()
        await trio.sleep(seconds)
        got = (sink.received_bytes - before) / (trio.current_time() - begin)
        is_over.set()
        nursery.cancel_scope.cancel()
    assert got == pytest.approx(rate, rel=TOLERANCE)


async def test_two_sessions_share_one_limit(autojump_clock) -> None:
    sinks, own = [Sink(), Sink()], Services()
    rate, seconds = MB, 40.0
    own.traffic.up.limit(rate)
    async with (
        session_pair(sinks[0].services, own_services=own) as (one, _),
        session_pair(sinks[1].services, own_services=own) as (two, _),
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(pour, one)
        nursery.start_soon(pour, two)
        await trio.sleep(seconds)
        nursery.cancel_scope.cancel()
    shares = [sink.received_bytes for sink in sinks]
    assert sum(shares) == pytest.approx(rate * seconds, rel=TOLERANCE)
    assert min(shares) > 0.3 * sum(shares)


async def test_on_a_thin_line_all_have_their_part_of_each_second(autojump_clock) -> None:
    """What is sent to one peer is not held until another one has all of its own."""
    sinks, own = [Sink(), Sink(), Sink()], Services()
    rate = 25 * KB
    own.traffic.up.limit(rate)
    async with (
        session_pair(sinks[0].services, own_services=own) as (one, _),
        session_pair(sinks[1].services, own_services=own) as (two, _),
        session_pair(sinks[2].services, own_services=own) as (three, _),
        trio.open_nursery() as nursery,
    ):
        for session in (one, two, three):
            nursery.start_soon(pour, session, 16 * limits.KIB)
        for _ in range(8):
            before = [sink.received_bytes for sink in sinks]
            await trio.sleep(6)
            passed = zip(sinks, before, strict=True)
            assert min(sink.received_bytes - n_bytes for sink, n_bytes in passed) > 1.7 * rate
        nursery.cancel_scope.cancel()


async def test_no_tensors_may_pass_and_the_rest_does(autojump_clock) -> None:
    sink, own = Sink(), Services()
    async with session_pair(sink.services, own_services=own) as (alice, bob):
        sink.services.traffic.why_no_tensors = "the month is used up"
        with pytest.raises(Overloaded, match="the month is used up"):
            await bob.open_stream("sink", priority=Priority.BULK)
        stream = await alice.open_stream("sink", priority=Priority.BULK)
        with pytest.raises(Overloaded, match="the month is used up"):
            await stream.receive()
        assert await alice.request("echo", b"!", deadline_s=1) == b"!"
        sink.services.traffic.why_no_tensors = ""
        async with await alice.open_stream("sink", priority=Priority.BULK) as stream:
            await stream.send(b"tensor")
        await trio.sleep(1)
        assert sink.received_bytes == 6


async def test_a_line_without_a_limit_only_counts() -> None:
    line = Line()
    line.spend(10 * MB, 0.0)
    assert line.free_at(0.0) == 0.0
    assert (line.total_bytes, line.throttled_s) == (10 * MB, 0.0)
    assert line.turn_bytes_max() == limits.FRAME_DATA_BYTES_MAX
    assert line.window_bytes == limits.BULK_WINDOW_BYTES
