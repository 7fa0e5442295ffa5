"""Sessions through a relay, end to end."""

from __future__ import annotations

import os

import pytest
import trio
from trio.testing import MockClock

from swarmnode import limits
from swarmnode.errors import DialFailed
from swarmnode.net.session import Session
from swarmnode.net.stream import Stream
from tests.unit.relay_kit import nodes

MIB = limits.MIB


async def mirror(_session: Session, stream: Stream) -> None:
    try:
        while True:
            header, payload = await stream.receive_message(16 * MIB)
            await stream.send_message(header, payload)
    except trio.EndOfChannel:
        return


async def check_session(session: Session, n_bytes: int = 3 * MIB) -> None:
    assert await session.request("echo", b"hello", deadline_s=5) == b"hello"
    payload = os.urandom(n_bytes)
    stream = await session.open_stream("mirror")
    async with stream, trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_message, b"h", payload)
        header, received = await stream.receive_message(16 * MIB)
    assert (header, bytes(received)) == (b"h", payload)


@pytest.mark.parametrize("one_way", ["neither", "a", "b", "both"])
async def test_a_session_through_a_relay_carries_requests_and_bulk(
    autojump_clock: MockClock, one_way: str
) -> None:
    async with nodes("a", "b", "r") as (a, b, r):
        b.services.add_stream("mirror", mirror)
        a.has_one_way_only = one_way in ("a", "both")
        b.has_one_way_only = one_way in ("b", "both")
        await b.keep(r)
        assert b.relays.held == {r.peer: "mem:r"}
        session = await a.connect(b.peer, (b.through(r),))
        assert session.peer == b.peer
        assert session.channel_description == f"relay:{r.peer.short}@mem:r"
        assert b.accepted[-1].peer == a.peer
        await check_session(session)
        n_legs = (not a.has_one_way_only) + (not b.has_one_way_only)
        assert (a.dialled + b.dialled).count("mem:r") == 2 + n_legs
        assert r.relay.statistics().relayed_bytes > 6 * MIB
        await session.aclose("enough")
        await trio.sleep(1)
        assert r.relay.statistics().circuits_open == 0
        assert b.accepted[-1].close_cause is not None
        assert "enough" in str(b.accepted[-1].close_cause), "the goodbye comes through"


async def test_who_has_no_reservation_is_not_reached(autojump_clock: MockClock) -> None:
    async with nodes("a", "b", "r") as (a, b, r):
        await b.connect(r.peer, (r.address,))
        with pytest.raises(DialFailed, match="absent: the target has no reservation here"):
            await a.connect(b.peer, (b.through(r),))
        await b.keep(r)
        await a.connect(b.peer, (b.through(r),))
