"""Relaying over real TCP sockets, and the benchmark with its two helper processes."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from swarmnode import limits
from swarmnode.bench.relay import format_relay_bench, run_relay_bench
from swarmnode.errors import ChannelBroken, DialFailed
from swarmnode.net.channel import Channel
from swarmnode.net.session import Session
from swarmnode.net.stream import Stream
from swarmnode.net.tcp import TcpTransport
from tests.conftest import HANGS_S, open_files
from tests.kits.relay_kit import Node

MIB = limits.MIB


async def mirror(_session: Session, stream: Stream) -> None:
    header, payload = await stream.receive_message(64 * MIB)
    await stream.send_message(header, payload)


@asynccontextmanager
async def nodes(*names: str) -> AsyncIterator[list[Node]]:
    async with trio.open_nursery() as nursery:
        made = [Node(TcpTransport(), name) for name in names]
        for node in made:
            node.services.add_stream("mirror", mirror)
            await nursery.start(node.run, "127.0.0.1:0")
        yield made
        nursery.cancel_scope.cancel()


async def check_bulk(session: Session) -> None:
    payload = os.urandom(20 * MIB)
    stream = await session.open_stream("mirror")
    async with stream, trio.open_nursery() as both:
        both.start_soon(stream.send_message, b"h", payload)
        header, received = await stream.receive_message(64 * MIB)
    assert (header, bytes(received)) == (b"h", payload)


@pytest.mark.parametrize("has_streams_only", [False, True])
async def test_bulk_goes_through_a_relay_and_comes_back(has_streams_only: bool) -> None:
    async with nodes("a", "b", "r") as (a, b, r):
        if has_streams_only:
            for node in (a, b):
                node.relays._dial = refuse_to_dial
        await b.keep(r)
        session = await a.connect(b.peer, (b.through(r),))
        with trio.fail_after(HANGS_S):
            await check_bulk(session)
        assert r.relay.statistics().relayed_bytes > 40 * MIB


async def refuse_to_dial(address: str) -> Channel:
    """Allow one connection to each relay only; at once, as a firewall that rejects."""
    raise DialFailed(f"{address}: one is enough", address=address)


async def test_circuits_leave_no_file_and_no_task() -> None:
    async with nodes("a", "b", "r") as (a, b, r):
        await b.keep(r)

        async def once() -> None:
            session = await a.connect(b.peer, (b.through(r),))
            await session.request("echo", b"x", deadline_s=HANGS_S)
            await session.aclose("enough")

        async def settle() -> tuple[int, int]:
            with trio.fail_after(HANGS_S):
                while r.relay._core._circuits:  # noqa: ASYNC110 -- as the sockets are closed
                    await trio.sleep(0.01)
            await trio.testing.wait_all_tasks_blocked(0.05)
            return open_files(), trio.lowlevel.current_statistics().tasks_living

        await once()
        before = await settle()
        for _ in range(20):
            await once()
        assert await settle() == before


async def test_a_relay_that_dies_is_noticed_at_once_by_both_sides() -> None:
    async with nodes("a", "b", "r") as (a, b, r):
        await b.keep(r)
        session = await a.connect(b.peer, (b.through(r),))
        r.scope.cancel()
        with trio.fail_after(HANGS_S):
            await session.wait_closed()
            await b.accepted[-1].wait_closed()
        assert isinstance(session.close_cause, ChannelBroken)


@pytest.mark.skipif(sys.platform != "linux", reason="figures are for Linux")
def test_the_relay_benchmark_measures_everything_it_promises() -> None:
    result = run_relay_bench(rounds=1, bytes_per_round=20_000_000, requests=20)
    assert set(result) == {
        "direct_mbps",
        "relay_mbps",
        "relay_share",
        "request_p50_ms_direct",
        "request_p50_ms_relay",
        "relay_cpu_s_per_gb",
    }
    assert all(value > 0 for value in result.values())
    assert "through a relay" in format_relay_bench(result)
