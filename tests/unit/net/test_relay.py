"""Sessions through a relay, end to end."""

from __future__ import annotations

import contextlib
import os
import random
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from swarmnode import limits
from swarmnode.daemon.driver import run_concurrently
from swarmnode.errors import (
    ChannelBroken,
    ConfigError,
    DialFailed,
    Overloaded,
    Refused,
    SwarmNodeError,
)
from swarmnode.ids import PeerId
from swarmnode.net.channel import Channel
from swarmnode.net.relays.address import INCOMING_SERVICE, RELAY_SERVICE, RelayAddress
from swarmnode.net.relays.relay import RelayHolder
from swarmnode.net.session import Session
from swarmnode.net.stream import Stream
from swarmnode.protocol.relay.accounts import RELAY_BURST_S, Quota
from swarmnode.protocol.uplink import Purpose
from swarmnode.testing.memory_network import MEMORY_LINK_BUFFER_BYTES, MemoryChannel
from swarmnode.wire.connect.relay import Incoming, LegAnswer, Reserve, encode_leg
from swarmnode.wire.packing import encode_record
from tests.kits.relay_kit import Node, nodes

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

    async def receive() -> None:
        header, received = await stream.receive_message(16 * MIB)
        assert (header, bytes(received)) == (b"h", payload)

    async with stream:
        await run_concurrently(partial(stream.send_message, b"h", payload), receive)


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


async def test_a_node_without_a_reservation_is_not_reached(autojump_clock: MockClock) -> None:
    async with nodes("a", "b", "r") as (a, b, r):
        await b.connect(r.peer, (r.address,))
        with pytest.raises(DialFailed, match="absent: the target has no reservation here"):
            await a.connect(b.peer, (b.through(r),))
        await b.keep(r)
        await a.connect(b.peer, (b.through(r),))


async def test_a_target_that_takes_nothing_declines(autojump_clock: MockClock) -> None:
    async with nodes("a", "b", "r") as (a, b, r):
        session = await b.connect(r.peer, (r.address,))
        # As if it had been started anew within the same session: the relay alone knows of it.
        await session.request(RELAY_SERVICE, encode_record(Reserve()), deadline_s=5)
        with pytest.raises(DialFailed, match=r"declined: .*no reservation with you"):
            await a.connect(b.peer, (b.through(r),))


async def test_a_relay_that_offers_what_was_not_asked_for_is_refused(
    autojump_clock: MockClock,
) -> None:
    async with nodes("a", "b", "r") as (_, b, r):
        session = await r.connect(b.peer, (b.address,))
        offer = encode_record(Incoming(bytes(16), r.peer))
        with pytest.raises(Refused, match="no reservation with you"):
            await session.request(INCOMING_SERVICE, offer, deadline_s=1)
        await b.keep(r)
        b.has_one_way_only = True  # so that each takes a while
        for _ in range(limits.RELAY_INCOMING_MAX):  # tokens that lead nowhere
            await session.request(INCOMING_SERVICE, offer, deadline_s=1)
        with pytest.raises(Overloaded, match="too many connections through relays at once"):
            await session.request(INCOMING_SERVICE, offer, deadline_s=1)
        await trio.sleep(30)
        assert b.accepted[1:] == []
        await session.request(INCOMING_SERVICE, offer, deadline_s=1)  # there is room again


async def test_when_a_relay_dies_the_peers_meet_again_through_another(
    autojump_clock: MockClock,
) -> None:
    async with nodes("a", "b", "r", "s") as (a, b, r, s):
        b.services.add_stream("mirror", mirror)
        await b.keep(r)
        await b.keep(s)
        ways = (b.through(r), b.through(s))
        session = await a.connect(b.peer, ways[:1])
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                while True:
                    await check_session(session)

            async def send_until_it_breaks() -> None:
                with pytest.raises(ChannelBroken):
                    await send()

            nursery.start_soon(send_until_it_breaks)
            await trio.sleep(1)
            r.scope.cancel()
        began_at = trio.current_time()
        with pytest.raises(SwarmNodeError):
            await a.connect(b.peer, ways[:1])
        await check_session(await a.connect(b.peer, ways[1:]))
        assert trio.current_time() - began_at < 2
        assert list(b.relays.held) == [s.peer]


@pytest.mark.parametrize("one_way", [False, True])
async def test_a_reader_that_is_slow_costs_the_relay_a_bounded_amount(
    autojump_clock: MockClock, one_way: bool
) -> None:
    async with nodes("a", "b", "c", "r") as (a, b, c, r):
        b.services.add_stream("mirror", mirror)
        a.has_one_way_only = b.has_one_way_only = one_way
        stuck: list[Channel] = []

        async def never_read(channel: Channel) -> None:
            stuck.append(channel)
            await trio.sleep_forever()

        await b.keep(r)
        b.take_relayed = never_read
        channel = await a.relays.dial(b.through(r))
        with trio.move_on_after(60) as patience:
            await channel.send_all(memoryview(bytes(64 * MIB)))
        assert patience.cancelled_caught
        assert len(stuck) == 1
        bound = limits.STREAM_WINDOW_BYTES if one_way else MEMORY_LINK_BUFFER_BYTES
        assert r.relay.statistics().relayed_bytes <= bound + limits.RELAY_PIECE_BYTES
        b.take_relayed = b.accept
        with trio.fail_after(10):  # and it holds up no other session
            await check_session(await c.connect(b.peer, (b.through(r),)))


async def test_sessions_inside_of_sessions_never_wait_for_each_other(
    autojump_clock: MockClock,
) -> None:
    """All three pairs move bulk both ways at once, where the relayed pair has streams only."""
    async with nodes("a", "b", "r") as everyone:
        a, b, r = everyone
        for node in everyone:
            node.services.add_stream("mirror", mirror)
        a.has_one_way_only = b.has_one_way_only = True
        await b.keep(r)
        inner = await a.connect(b.peer, (b.through(r),))
        sessions = [inner, b.sessions[a.peer], a.sessions[r.peer], r.sessions[a.peer]]
        sessions += [b.sessions[r.peer], r.sessions[b.peer]]
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                for session in sessions * 3:
                    nursery.start_soon(check_session, session, 9 * MIB)
        assert inner.statistics().core.rtt_s is not None


async def test_a_session_may_run_inside_a_session_inside_a_session(
    autojump_clock: MockClock,
) -> None:
    """A relay that is itself reached through a relay, by streams all the way down."""
    async with nodes("a", "b", "r", "s") as (a, b, r, s):
        b.services.add_stream("mirror", mirror)
        a.has_one_way_only = b.has_one_way_only = s.has_one_way_only = True
        await s.keep(r)
        for node in (a, b):
            await node.connect(s.peer, (s.through(r),))
        await b.keep(s)
        await check_session(await a.connect(b.peer, (b.through(s),)))


async def test_dials_that_are_cancelled_anywhere_leave_nothing_behind(
    autojump_clock: MockClock,
) -> None:
    async with nodes("a", "b", "r") as (a, b, r):
        await b.keep(r)
        await a.connect(r.peer, (r.address,))
        rng = random.Random(5)
        for number in range(60):
            a.has_one_way_only = number % 2 == 0
            with trio.move_on_after(rng.uniform(0.0, 0.3)):
                await (await a.relays.dial(b.through(r))).aclose()
            await trio.sleep(rng.uniform(0.0, 1.5))
        await trio.sleep(2 * limits.RELAY_SETUP_S)
        assert r.relay.statistics().circuits_open == 0
        left = [r.relay._legs, r.relay._scopes, r.relay._passed, r.relay._commands]
        assert not any(left), left
        legs = [leg for leg in (*a.legs, *b.legs) if isinstance(leg, MemoryChannel)]
        assert legs
        assert all(leg.is_over for leg in legs)
        assert not r.relay._core._circuits
        assert b.relays._n_incoming == 0
        await check_echo(await a.connect(b.peer, (b.through(r),)))


async def test_a_flood_of_connections_without_a_token_keeps_no_peer_out(
    autojump_clock: MockClock,
) -> None:
    async with nodes("a", "b", "r", "x") as (a, b, r, x):
        await b.keep(r)
        async with trio.open_nursery() as nursery:

            async def knock(first: bytes) -> None:
                channel = await x.transport.dial(r.address)
                await channel.send_all(memoryview(first))
                byte = memoryview(bytearray(1))
                with contextlib.suppress(ChannelBroken):
                    assert await channel.receive_into(byte) in (0, 1)
                assert byte[0] in (0, LegAnswer.UNKNOWN)
                await channel.aclose()

            for number in range(300):
                whole = encode_leg(random.Random(number).randbytes(16))
                nursery.start_soon(knock, whole if number % 2 else whole[: 5 + number % 19])
            await trio.sleep(1)
            assert r.relay._n_unsorted <= limits.RELAY_UNSORTED_MAX
            with trio.fail_after(2):
                await check_echo(await a.connect(b.peer, (b.through(r),)))
        assert r.relay._n_unsorted == 0
        assert not r.relay._core._circuits.keys() - {1}


async def test_bandwidth_is_shared_by_circuits_and_kept_in_all(autojump_clock: MockClock) -> None:
    rate = 1_000_000
    quota = Quota(bytes_per_s=rate, peer_bytes_per_s=None)
    async with nodes("a", "b", "c", "d", "r", quota=quota) as (a, b, c, d, r):
        received: dict[str, int] = {}

        async def count(session: Session, stream: Stream) -> None:
            name = next(node.name for node in (a, c) if node.peer == session.peer)
            while piece := await stream.receive():
                received[name] = received.get(name, 0) + len(piece)

        for node in (b, d):
            node.services.add_stream("count", count)
            await node.keep(r)

        async def send(source: Node, target: Node, n_streams: int) -> None:
            session = await source.connect(target.peer, (target.through(r),))
            async with trio.open_nursery() as nursery:
                for _ in range(n_streams):
                    stream = await session.open_stream("count")
                    nursery.start_soon(send_for_ever, stream)

        async def send_for_ever(stream: Stream) -> None:
            while True:
                await stream.send(bytes(MIB))

        with trio.move_on_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send, a, b, 1)
                nursery.start_soon(send, c, d, 8)
        assert sum(received.values()) == pytest.approx((20 + RELAY_BURST_S) * rate, rel=0.1)
        assert received["a"] == pytest.approx(received["c"], rel=0.15)


async def take_all(_session: Session, stream: Stream) -> None:
    while await stream.receive():
        pass


async def pour(session: Session) -> None:
    stream = await session.open_stream("sink")
    while True:
        await stream.send(bytes(MIB))


@pytest.mark.parametrize("one_way", [False, True])
async def test_what_is_relayed_keeps_to_the_owner_s_limit(
    autojump_clock: MockClock, one_way: bool
) -> None:
    rate, seconds = 100_000, 60.0
    async with nodes("a", "b", "r") as (a, b, r):
        a.has_one_way_only = b.has_one_way_only = one_way
        b.services.add_stream("sink", take_all)
        await b.keep(r)
        session = await a.connect(b.peer, (b.through(r),))
        line = r.services.traffic.up
        line.limit(rate)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pour, session)
            await trio.sleep(30)
            before = line.total_bytes, r.relay.statistics().relayed_bytes
            await trio.sleep(seconds)
            sent, relayed = line.total_bytes, r.relay.statistics().relayed_bytes
            nursery.cancel_scope.cancel()
        assert sent - before[0] == pytest.approx(rate * seconds, rel=0.1)
        assert relayed - before[1] == pytest.approx(rate * seconds, rel=0.15)
        assert line.for_purpose[Purpose.RELAYING] > 0.9 * line.total_bytes
        assert not session.is_closed


async def test_two_circuits_share_a_thin_line_in_small_turns(autojump_clock: MockClock) -> None:
    async with nodes("a", "b", "c", "r") as (a, b, c, r):
        b.services.add_stream("sink", take_all)
        await b.keep(r)
        r.services.traffic.up.limit(100_000)
        busy = await a.connect(b.peer, (b.through(r),))
        idle = await c.connect(b.peer, (b.through(r),))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pour, busy)
            await trio.sleep(30)
            for _ in range(10):
                asked_at = trio.current_time()
                await check_echo(idle)
                assert trio.current_time() - asked_at < 1.5
                await trio.sleep(0.3)
            nursery.cancel_scope.cancel()


async def test_a_relay_that_its_owner_stops_tells_its_peers_why(autojump_clock: MockClock) -> None:
    async with nodes("a", "b", "r") as (a, b, r):
        b.services.add_stream("mirror", mirror)
        await b.keep(r)
        session = await a.connect(b.peer, (b.through(r),))
        r.services.traffic.on_relaying("outside of this node's schedule")
        await session.wait_closed()
        with pytest.raises(DialFailed, match="the target has no reservation here"):
            await a.connect(b.peer, (b.through(r),))
        with pytest.raises(Refused, match=r"quota: outside of this node's schedule"):
            await b.relays.keep(r.peer, r.address)
        r.services.traffic.on_relaying("")
        await b.keep(r)
        await check_session(await a.connect(b.peer, (b.through(r),)))


async def test_requests_stay_quick_on_a_relay_that_is_busy(autojump_clock: MockClock) -> None:
    quota = Quota(bytes_per_s=2_000_000, peer_bytes_per_s=None)
    async with nodes("a", "b", "c", "r", quota=quota) as (a, b, c, r):
        b.services.add_stream("mirror", mirror)
        await b.keep(r)
        busy = await a.connect(b.peer, (b.through(r),))
        idle = await c.connect(b.peer, (b.through(r),))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(check_session, busy, 16 * MIB)
            await trio.sleep(5)
            for _ in range(10):
                asked_at = trio.current_time()
                await check_echo(idle)
                assert trio.current_time() - asked_at < 1.5
                await trio.sleep(0.3)


async def test_a_share_that_is_used_up_ends_the_session_and_the_next_dial_says_why(
    autojump_clock: MockClock,
) -> None:
    quota = Quota(bytes_per_s=None, peer_bytes_per_s=None, peer_bytes_per_day=20 * MIB)
    async with nodes("a", "b", "c", "r", quota=quota) as (a, b, c, r):
        b.services.add_stream("mirror", mirror)
        await b.keep(r)
        session = await a.connect(b.peer, (b.through(r),))
        with pytest.raises(ChannelBroken):
            await check_session(session, 16 * MIB)
        await session.wait_closed()
        with pytest.raises(DialFailed, match=r"quota: your share of bytes is used up; again in \d"):
            await a.connect(b.peer, (b.through(r),))
        await check_session(await c.connect(b.peer, (b.through(r),)))


async def test_a_node_holds_two_relays_and_finds_another_when_one_dies(
    autojump_clock: MockClock,
) -> None:
    no_room = {"r": Quota(reservations_max=0)}
    async with nodes("b", "r", "s", "t", "u", quotas=no_room) as (b, r, s, t, u):
        known = [(node.peer, node.address) for node in (r, s, t, u)]
        changes: list[tuple[str, ...]] = []
        holder = RelayHolder(
            b.relays,
            lambda: known,
            b.env,
            own_id=b.peer,
            on_change=lambda: changes.append(holder.addresses()),
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(holder.run)
            await trio.sleep(10)
            assert set(holder.addresses()) == {b.through(s), b.through(t)}
            assert "full" in holder.refusals()[r.peer]
            s.scope.cancel()
            await trio.sleep(10)
            assert set(holder.addresses()) == {b.through(t), b.through(u)}
            assert changes[-1] == holder.addresses()
            known.clear()  # no relay is needed any more: those that there are stay until they end
            await trio.sleep(2 * limits.RELAY_RESERVATION_S)
            assert len(holder.addresses()) == 2
            nursery.cancel_scope.cancel()
        await trio.sleep(1)
        assert t.relay.statistics().reservations == 0, "it has said that it needs none any more"


async def test_a_node_whose_place_another_gets_is_told_and_finds_another_relay(
    autojump_clock: MockClock,
) -> None:
    one_place = {"r": Quota(reservations_max=2)}
    async with nodes("a", "b", "c", "r", "s", quotas=one_place) as (a, b, c, r, s):
        r.hosts = {a.peer: "192.0.2.1", b.peer: "192.0.2.1", c.peer: "192.0.2.2"}
        holder = RelayHolder(
            b.relays,
            lambda: (
                [(s.peer, s.address), (r.peer, r.address)] if s.hosts else [(r.peer, r.address)]
            ),
            b.env,
            own_id=b.peer,
            on_change=lambda: None,
        )
        async with trio.open_nursery() as nursery:
            await a.keep(r)
            nursery.start_soon(holder.run)
            await trio.sleep(1)
            assert holder.addresses() == (b.through(r),)
            s.hosts = {b.peer: "192.0.2.1"}  # it is there from now on
            await c.keep(r)
            await trio.sleep(5)
            assert r.peer in c.relays.held, "an address that has none, and this one had two"
            assert holder.addresses() == (b.through(s),)
            assert "says full" in holder.refusals()[r.peer]
            assert r.peer in a.relays.held, "the older of the two"
            nursery.cancel_scope.cancel()


async def test_nodes_go_from_busy_relays_to_those_that_have_room(autojump_clock: MockClock) -> None:
    names = [f"n{number}" for number in range(12)]
    quotas = {name: Quota(reservations_max=16) for name in "rst"}
    async with nodes(*"rst", *names, quotas=quotas) as (r, s, t, *crowd):
        known = [(node.peer, node.address) for node in (r, s)]

        async def hold(node: Node) -> None:
            holder = RelayHolder(
                node.relays,
                lambda: sorted(known, key=lambda each: node.relays.loads.get(each[0], 0) // 25),
                node.env,
                own_id=node.peer,
                on_change=lambda: None,
            )
            await holder.run()

        async with trio.open_nursery() as nursery:
            for node in crowd:
                nursery.start_soon(hold, node)
            await trio.sleep(120)
            relays = [each.relay.statistics for each in (r, s, t)]
            assert [each().reservations for each in relays] == [12, 12, 0]
            known.append((t.peer, t.address))
            await trio.sleep(1800)
            places = [each().reservations for each in relays]
            assert sum(places) == 24, "two each"
            assert min(places) >= 6
            assert all(len(node.relays.held) == limits.RELAYS_HELD for node in crowd)
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "text",
    [
        "192.0.2.1:1",
        "relay:",
        f"relay:{PeerId(bytes(32))}@/{PeerId(bytes(32))}",
        f"relay:{PeerId(bytes(32))}@h:1",
        f"relay:{PeerId(bytes(32))}@h:1/sn1",
        f"relay:sn1@h:1/{PeerId(bytes(32))}",
        f"relay:{PeerId(bytes(32))}@relay:{PeerId(bytes(32))}@h:1/{PeerId(bytes(32))}",
    ],
)
def test_what_is_no_address_of_a_relayed_peer_is_named(text: str) -> None:
    with pytest.raises(ConfigError):
        RelayAddress.parse(text)


def test_addresses_read_back() -> None:
    for at in ("192.0.2.1:4001", "[2001:db8::1]:443", "a.example:1"):
        way = RelayAddress(PeerId(bytes(32)), at, PeerId(b"t" * 32))
        assert RelayAddress.parse(str(way)) == way
        assert len(str(way)) <= 260
        assert " " not in way.way


async def check_echo(session: Session) -> None:
    assert await session.request("echo", b"hello", deadline_s=5) == b"hello"
