"""Whole sessions over memory links, with the faults that break other stacks.

Where time matters the clock is Trio's autojump clock; nothing here uses a thread.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from swarmnode import limits
from swarmnode.errors import (
    ChannelBroken,
    ChannelClosed,
    DeadlineExceeded,
    LimitExceeded,
    Overloaded,
    Refused,
    RemoteProtocolError,
)
from swarmnode.ids import PeerId
from swarmnode.net.channel import Channel
from swarmnode.net.handshake import Link, establish
from swarmnode.net.peering import HANDLERS_PER_SESSION_MAX, run_session
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.net.stream import Stream
from swarmnode.protocol.session.keepalive import PONG_WAIT_S
from swarmnode.protocol.session.records import Role
from swarmnode.testing.memory_network import MemoryNetwork
from swarmnode.wire.frames import FrameKind, FrameParser, encode_credit, encode_frame
from swarmnode.wire.session import GoodbyeCode, Priority, ResetCode, decode_reason
from tests.kits.session_kit import (
    ALICE,
    BOB,
    NETWORK_ID,
    echo_messages,
    session_pair,
    start,
    start_both,
)

MIB = limits.MIB


async def echo(_peer: PeerId, request: bytes) -> bytes:
    return request


def echo_services() -> Services:
    services = Services()
    services.add_request("echo", echo)
    services.add_stream("messages", echo_messages)
    return services


async def test_requests_go_both_ways_at_once() -> None:
    services = echo_services()
    async with session_pair(services, own_services=services) as (alice, bob):
        assert await alice.request("echo", b"to bob", deadline_s=1) == b"to bob"
        assert await bob.request("echo", b"to alice", deadline_s=1) == b"to alice"
        assert await alice.request("echo", b"", deadline_s=1) == b""


async def test_a_handler_knows_its_peer() -> None:
    services = Services()
    peers = []

    async def note(peer: PeerId, _request: bytes) -> bytes:
        peers.append(peer)
        return b""

    services.add_request("note", note)
    async with session_pair(services) as (alice, _):
        await alice.request("note", b"", deadline_s=1)
    assert peers == [ALICE.peer_id]


@pytest.mark.parametrize("size", [0, 1, 270_000, 5 * MIB + 1])
async def test_messages_come_back_whole(size: int) -> None:
    payload = bytes(i % 253 for i in range(4096)) * (size // 4096 + 1)
    payload = payload[:size]
    async with session_pair(echo_services()) as (alice, _):
        stream = await alice.open_stream("messages")
        async with stream:
            for number in range(3):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(stream.send_message, b"header %d" % number, payload)
                    header, received = await stream.receive_message(16 * MIB)
                assert header == b"header %d" % number
                assert received == payload
            await stream.send_end()
            with pytest.raises(trio.EndOfChannel):
                await stream.receive_message(1)


class Counted:
    """A channel that counts what is written to it."""

    def __init__(self, channel: Channel) -> None:
        self._channel, self.writes = channel, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    async def send_all(self, data: memoryview) -> None:
        self.writes += 1
        await self._channel.send_all(data)

    def send_nowait(self, data: memoryview) -> int:
        self.writes += 1
        return self._channel.send_nowait(data)


@pytest.mark.parametrize(("size", "writes"), [(10_000, 1), (100_000, 3)])
async def test_a_small_payload_with_its_header_and_its_end_wakes_the_peer_once(
    size: int, writes: int
) -> None:
    services, received = Services(), []

    async def take(_session: Session, stream: Stream) -> None:
        header, _ = await stream.receive_message(0)
        received.append((header, await stream.receive_rest(MIB)))

    services.add_stream("payload", take)
    ends = MemoryNetwork().link("alice", "bob")
    counted = Counted(ends[0])
    async with trio.open_nursery() as nursery:
        alice, _ = await start_both(nursery, (counted, ends[1]), services)
        await trio.testing.wait_all_tasks_blocked()
        before = counted.writes
        async with await alice.open_stream("payload", priority=Priority.BULK) as stream:
            stream.queue_message(b"header")
            await stream.send_last(bytes(size))
            await stream.receive_end()
        assert received == [(b"header", bytes(size))]
        assert counted.writes - before <= writes
        nursery.cancel_scope.cancel()


async def test_bytes_in_place_of_an_end_reset_the_stream() -> None:
    async with session_pair(echo_services()) as (alice, _):
        stream = await alice.open_stream("messages")
        await stream.send_message(b"header")
        await stream.send_end()
        with pytest.raises(LimitExceeded, match="in place of the end"):
            await stream.receive_end()


async def test_received_payloads_stay_as_they_are_while_more_comes() -> None:
    async with session_pair(echo_services()) as (alice, _):
        stream = await alice.open_stream("messages")
        async with stream:
            kept = []
            for number in range(12):
                payload = bytes([number]) * 270_000
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(stream.send_message, b"", payload)
                    kept.append((await stream.receive_message(MIB))[1])
            assert [(view[0], view[-1]) for view in kept] == [(i, i) for i in range(12)]


async def test_four_calls_of_a_mebibyte_in_flight() -> None:
    async def call_often(stream: Stream, fill: int) -> None:
        payload = bytes([fill]) * MIB
        for _ in range(25):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.send_message, bytes([fill]), payload)
                header, received = await stream.receive_message(MIB)
            assert header == bytes([fill])
            assert received == payload

    async with session_pair(echo_services()) as (alice, _), trio.open_nursery() as nursery:
        for fill in range(4):
            nursery.start_soon(call_often, await alice.open_stream("messages"), fill)


# --- faults that must stay where they are -----------------------------------------------------


async def test_a_deadline_that_cancels_a_blocked_write_hurts_no_other_stream(
    autojump_clock: MockClock,
) -> None:
    services = echo_services()

    async def never_reads(_session: Session, _stream: Stream) -> None:
        await trio.sleep_forever()

    services.add_stream("stuck", never_reads)
    async with session_pair(services) as (alice, bob):
        for _ in range(10):
            stuck = await alice.open_stream("stuck")
            with trio.move_on_after(0.5) as scope:
                await stuck.send(bytes(20 * MIB))
            assert scope.cancelled_caught
            await stuck.reset()
            assert await alice.request("echo", b"alive", deadline_s=1) == b"alive"
        assert bob.close_cause is None


async def test_a_cancelled_send_can_be_followed_by_another_on_the_same_stream(
    autojump_clock: MockClock,
) -> None:
    """The peer sees some of the first send, then the second: frames stay whole."""
    services = Services()
    received = bytearray()
    may_read = trio.Event()

    async def read_late(_session: Session, stream: Stream) -> None:
        await may_read.wait()
        received.extend(await stream.receive_rest(64 * MIB))
        await stream.send(b"done")

    services.add_stream("late", read_late)
    async with session_pair(services) as (alice, _):
        stream = await alice.open_stream("late")
        async with stream:
            with trio.move_on_after(1):
                await stream.send(b"a" * (20 * MIB))
            may_read.set()
            await stream.send(b"b" * MIB)
            await stream.send_end()
            assert bytes(await stream.receive()) == b"done"
    assert received == b"a" * limits.STREAM_WINDOW_BYTES + b"b" * MIB


async def test_a_handler_that_raises_ends_its_own_stream_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    services = echo_services()

    async def broken(_peer: PeerId, _request: bytes) -> bytes:
        raise ValueError("a secret detail")

    async def broken_stream(_session: Session, _stream: Stream) -> None:
        raise ZeroDivisionError

    services.add_request("broken", broken)
    services.add_stream("broken-stream", broken_stream)
    async with session_pair(services) as (alice, bob):
        with caplog.at_level(logging.INFO), pytest.raises(ChannelBroken) as caught:
            await alice.request("broken", b"", deadline_s=1)
        assert "failed at the peer: ValueError" in str(caught.value)
        assert "secret" not in str(caught.value)
        stream = await alice.open_stream("broken-stream")
        with pytest.raises(ChannelBroken, match="ZeroDivisionError"):
            await stream.receive()
        with pytest.raises(ChannelBroken, match="ZeroDivisionError"):
            await stream.send(b"x")
        assert await alice.request("echo", b"alive", deadline_s=1) == b"alive"
        assert bob.statistics().handlers_failed == 2
    assert len([r for r in caplog.records if "a secret detail" in r.getMessage()]) == 1


async def test_the_words_of_a_handler_reach_the_caller() -> None:
    services = Services()

    async def refuse(_peer: PeerId, _request: bytes) -> bytes:
        raise Refused("this swarm is\nfull")

    async def shed(_peer: PeerId, _request: bytes) -> bytes:
        raise Overloaded("come back in a minute")

    services.add_request("refuse", refuse)
    services.add_request("shed", shed)
    async with session_pair(services) as (alice, _):
        with pytest.raises(Refused, match=r"this swarm is\?full"):
            await alice.request("refuse", b"", deadline_s=1)
        with pytest.raises(Overloaded, match="come back in a minute"):
            await alice.request("shed", b"", deadline_s=1)
        with pytest.raises(Refused, match="no service 'unknown' here"):
            await alice.request("unknown", b"", deadline_s=1)


async def test_a_handler_that_sleeps_delays_no_other(autojump_clock: MockClock) -> None:
    services = echo_services()

    async def sleepy(_peer: PeerId, _request: bytes) -> bytes:
        await trio.sleep(3)
        return b"awake"

    services.add_request("sleepy", sleepy)
    async with session_pair(services) as (alice, _):
        answers = []

        async def call_sleepy() -> None:
            answers.append(await alice.request("sleepy", b"", deadline_s=5))

        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call_sleepy)
            for _ in range(50):
                await alice.request("echo", b"", deadline_s=1)
            assert trio.current_time() == start
        assert answers == [b"awake"]
        assert trio.current_time() == start + 3


async def test_a_deadline_reaches_the_handler_and_stops_it(autojump_clock: MockClock) -> None:
    services = echo_services()
    ended_at = []

    async def slow(_peer: PeerId, _request: bytes) -> bytes:
        try:
            await trio.sleep(60)
        finally:
            ended_at.append(trio.current_time())
        return b""

    services.add_request("slow", slow)
    async with session_pair(services) as (alice, bob):
        start = trio.current_time()
        with pytest.raises(DeadlineExceeded, match=r"request 'slow' to sn1.*within 2 s"):
            await alice.request("slow", b"", deadline_s=2)
        await alice.request("echo", b"", deadline_s=1)
        assert ended_at == [start + 2]
        assert bob.statistics().handlers_running == 0
        assert alice.statistics().core.streams_open == 0


async def test_a_caller_that_goes_away_stops_the_handler(autojump_clock: MockClock) -> None:
    services = echo_services()
    ended_at = []

    async def slow(_peer: PeerId, _request: bytes) -> bytes:
        try:
            await trio.sleep(60)
        finally:
            ended_at.append(trio.current_time())
        return b""

    services.add_request("slow", slow)
    async with session_pair(services) as (alice, bob):
        start = trio.current_time()
        with trio.move_on_after(1):
            await alice.request("slow", b"", deadline_s=30)
        await alice.request("echo", b"", deadline_s=1)
        assert ended_at == [start + 1]
        assert bob.statistics().handlers_failed == 0


async def test_a_reader_that_pauses_bounds_the_senders_memory(autojump_clock: MockClock) -> None:
    services = Services()
    total_bytes = 24 * MIB
    received_bytes = []

    async def pause(_session: Session, stream: Stream) -> None:
        await stream.receive_into(memoryview(bytearray(1)))
        await trio.sleep(10)
        received_bytes.append(1 + len(await stream.receive_rest(total_bytes)))
        await stream.send(b"done")

    services.add_stream("pause", pause)
    async with session_pair(services) as (alice, bob):
        stream = await alice.open_stream("pause")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send, bytes(total_bytes))
            await trio.sleep(9)
            assert bob.statistics().core.unread_bytes <= limits.BULK_WINDOW_BYTES
            sent_bytes = alice.statistics().core.sent_bytes[Priority.BULK]
            assert sent_bytes <= limits.BULK_WINDOW_BYTES + 1
        await stream.send_end()
        assert bytes(await stream.receive()) == b"done"
    assert received_bytes == [total_bytes]


async def test_handlers_at_once_are_bounded_and_the_rest_waits(autojump_clock: MockClock) -> None:
    services = Services()
    running = [0]
    running_max = [0]

    async def count(_peer: PeerId, _request: bytes) -> bytes:
        running[0] += 1
        running_max[0] = max(running_max[0], running[0])
        await trio.sleep(1)
        running[0] -= 1
        return b""

    services.add_request("count", count)
    async with session_pair(services) as (alice, _):
        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(functools.partial(alice.request, "count", b"", deadline_s=60))
        # 64 streams, 32 handlers: 100 calls of a second take four turns.
        assert trio.current_time() == start + 4
    assert running_max == [HANDLERS_PER_SESSION_MAX]


async def test_opening_waits_for_a_free_stream(autojump_clock: MockClock) -> None:
    async with session_pair(echo_services()) as (alice, _):
        streams = [
            await alice.open_stream("messages") for _ in range(limits.BULK_STREAMS_PER_SIDE_MAX)
        ]
        with trio.move_on_after(1) as scope:
            await alice.open_stream("messages")
        assert scope.cancelled_caught
        assert await alice.request("echo", b"control has room", deadline_s=1)
        await streams[0].send_end()
        await streams[0].receive()
        with trio.fail_after(1):
            await alice.open_stream("messages")


async def test_two_senders_on_one_stream_are_a_bug() -> None:
    services = Services()

    async def never_reads(_session: Session, _stream: Stream) -> None:
        await trio.sleep_forever()

    services.add_stream("stuck", never_reads)
    async with session_pair(services) as (alice, _):
        stream = await alice.open_stream("stuck")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send, bytes(MIB))
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(trio.BusyResourceError, match="sending to stuck"):
                await stream.send(b"x")
            nursery.cancel_scope.cancel()


async def test_a_message_that_is_too_long_is_refused_before_its_memory_is_taken() -> None:
    services = Services()
    errors: list[LimitExceeded] = []

    async def small_only(_session: Session, stream: Stream) -> None:
        try:
            await stream.receive_message(1000)
        except LimitExceeded as error:
            errors.append(error)

    services.add_stream("small", small_only)
    async with session_pair(services) as (alice, _):
        stream = await alice.open_stream("small")
        with pytest.raises(Refused, match=r"0 \+ 2097152 bytes, at most 262144 \+ 1000"):
            await stream.send_message(b"", bytes(2 * MIB))
    assert len(errors) == 1


async def test_a_stream_that_ends_inside_a_message_is_broken() -> None:
    services = Services()

    async def half(_session: Session, stream: Stream) -> None:
        await stream.send(b"\0\0\0\2\0\0\0\7he" + b"pay")

    services.add_stream("half", half)
    async with session_pair(services) as (alice, _):
        stream = await alice.open_stream("half")
        with pytest.raises(ChannelBroken, match="ended it after 3 of 7 expected bytes"):
            await stream.receive_message(100)


# --- the end of a session -----------------------------------------------------------------------


async def test_both_sides_see_an_orderly_close() -> None:
    async with session_pair(echo_services()) as (alice, bob):
        stream = await alice.open_stream("messages")
        waiting = await bob.open_stream("anything")
        await alice.aclose("maintenance")
        await bob.wait_closed()
        assert isinstance(alice.close_cause, ChannelClosed)
        assert isinstance(bob.close_cause, ChannelBroken)
        assert "maintenance" in str(bob.close_cause)
        with pytest.raises(ChannelClosed, match="maintenance"):
            await stream.send(b"x")
        with pytest.raises(ChannelBroken, match="maintenance"):
            await waiting.receive()
        with pytest.raises(ChannelBroken):
            await bob.open_stream("anything")
        with pytest.raises(ChannelClosed):
            await alice.request("echo", b"", deadline_s=1)


async def test_a_cut_link_wakes_all_waiting_callers(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    services = Services()

    async def silent(_session: Session, _stream: Stream) -> None:
        await trio.sleep_forever()

    services.add_stream("silent", silent)
    services.add_request("quiet", echo)
    async with session_pair(services, network=network) as (alice, bob):
        outcomes: list[str] = []

        async def expect_broken(name: str, stream: Stream) -> None:
            doing = stream.receive() if name == "receive" else stream.send(bytes(20 * MIB))
            with pytest.raises(ChannelBroken, match="the link was cut"):
                await doing
            outcomes.append(name)

        async with trio.open_nursery() as nursery:
            for name in ("send", "receive"):
                nursery.start_soon(expect_broken, name, await alice.open_stream("silent"))
            await trio.testing.wait_all_tasks_blocked()
            assert network.cut("alice", "bob") == 1
        assert sorted(outcomes) == ["receive", "send"]
        await bob.wait_closed()
        assert isinstance(bob.close_cause, ChannelBroken)


async def test_a_partition_kills_the_session_after_its_silence(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    async with session_pair(echo_services(), network=network) as (alice, bob):
        await trio.sleep(60)
        assert not alice.is_closed  # idle, but pings are answered
        start = trio.current_time()
        network.partition({"alice"}, {"bob"})
        await alice.wait_closed()
        await bob.wait_closed()
        assert start + 10 <= trio.current_time() <= start + limits.SILENCE_S + 1
        assert isinstance(alice.close_cause, DeadlineExceeded)
        assert isinstance(bob.close_cause, DeadlineExceeded)


async def test_a_short_partition_is_survived(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(delay_s=0.05)
    async with session_pair(echo_services(), network=network) as (alice, _):
        network.partition({"alice"}, {"bob"})

        async def heal_later() -> None:
            await trio.sleep(8)
            network.heal()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(heal_later)
            assert await alice.request("echo", b"patient", deadline_s=20) == b"patient"


async def test_round_trips_are_measured(autojump_clock: MockClock) -> None:
    async with session_pair(network=MemoryNetwork(delay_s=0.1)) as (alice, _):
        await trio.sleep(1)
        assert alice.statistics().rtt_s == pytest.approx(0.2)
        assert alice.statistics().age_s == pytest.approx(1, abs=0.3)


@asynccontextmanager
async def alice_and_bare_bob() -> AsyncIterator[tuple[Session, Link]]:
    """Give Alice's session and, as Bob's side, only the authenticated records."""
    alice_end, bob_end = MemoryNetwork().link("alice", "bob")
    links: list[Link] = []

    async def start_bob() -> None:
        links.append(
            await establish(
                bob_end, identity=BOB, network_id=NETWORK_ID, role=Role.SERVER, expected=None
            )
        )

    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as starting:
            starting.start_soon(start_bob)
            alice = await start(nursery, alice_end, ALICE, Role.CLIENT)
        yield alice, links[0]
        nursery.cancel_scope.cancel()


async def test_a_peer_that_stops_reading_is_given_up(autojump_clock: MockClock) -> None:
    """It still talks, so it is not silent, but nothing of ours is read any more."""
    async with alice_and_bare_bob() as (alice, bob):
        start_s = trio.current_time()
        stream = await alice.open_stream("anything")
        async with trio.open_nursery() as nursery:

            async def keep_talking() -> None:
                while True:
                    await bob.writer.send_frame(encode_frame(FrameKind.PING, 0, bytes(8)))
                    await trio.sleep(1)

            nursery.start_soon(keep_talking)
            with pytest.raises(ChannelBroken, match="answer to a ping"):
                await stream.send(bytes(20 * MIB))
            nursery.cancel_scope.cancel()
        assert trio.current_time() - start_s == PONG_WAIT_S


async def test_cancelling_a_node_says_goodbye_and_is_quick(autojump_clock: MockClock) -> None:
    ends = MemoryNetwork().link("alice", "bob")
    async with trio.open_nursery() as bobs, trio.open_nursery() as alices:
        sessions = []

        async def start_alice() -> None:
            sessions.append(
                await alices.start(
                    functools.partial(
                        run_session,
                        ends[0],
                        identity=ALICE,
                        network_id=NETWORK_ID,
                        services=Services(),
                        role=Role.CLIENT,
                    )
                )
            )

        alices.start_soon(start_alice)
        bob = await bobs.start(
            functools.partial(
                run_session,
                ends[1],
                identity=BOB,
                network_id=NETWORK_ID,
                services=Services(),
                role=Role.SERVER,
            )
        )
        await trio.testing.wait_all_tasks_blocked()
        start = trio.current_time()
        alices.cancel_scope.cancel()
        await bob.wait_closed()
        assert trio.current_time() - start < 1
        assert "this node stops the session" in str(bob.close_cause)


async def test_cancelling_with_a_full_link_is_quick_too(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    async with session_pair(network=network) as (alice, _):
        network.partition({"alice"}, {"bob"})
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                stream = await alice.open_stream("anything")
                nursery.start_soon(_expect_closed, stream)
            await trio.testing.wait_all_tasks_blocked()
            start = trio.current_time()
            await alice.aclose()
            assert trio.current_time() - start <= 2 * limits.GOODBYE_LINGER_S


async def _expect_closed(stream: Stream) -> None:
    with pytest.raises(ChannelClosed):
        await stream.send(bytes(MIB))


async def test_a_peer_that_breaks_a_rule_is_told_which(caplog: pytest.LogCaptureFixture) -> None:
    async with alice_and_bare_bob() as (alice, bob):
        await bob.writer.send_frame(encode_credit(2, 1))
        frames = [await bob.reader.receive_frame() for _ in range(2)]
        await alice.wait_closed()
    assert isinstance(alice.close_cause, RemoteProtocolError)
    assert alice.close_cause.peer == str(BOB.peer_id)
    kind, _, payload = next(FrameParser().feed(memoryview(frames[-1])))
    assert kind == FrameKind.GOODBYE
    assert decode_reason(bytes(payload)) == (
        GoodbyeCode.PROTOCOL_ERROR,
        "CREDIT for stream 2, never opened",
    )
    assert len([r for r in caplog.records if "never opened" in r.getMessage()]) == 1


async def test_a_forged_record_ends_the_session() -> None:
    ends = MemoryNetwork().link("alice", "bob")
    async with trio.open_nursery() as nursery:
        alice, _ = await start_both(nursery, ends)
        frame = encode_frame(FrameKind.END, 1)
        forged = (len(frame) + 16).to_bytes(4, "big") + frame + bytes(16)
        await ends[1].send_all(memoryview(forged))
        await alice.wait_closed()
        assert "was changed on its way" in str(alice.close_cause)
        nursery.cancel_scope.cancel()


async def test_leaving_in_a_block_resets_when_it_raises() -> None:
    services = Services()
    seen: list[str] = []

    async def note(_session: Session, stream: Stream) -> None:
        try:
            await stream.receive_rest(MIB)
        except ChannelBroken as error:
            seen.append(str(error))
            raise

    services.add_stream("note", note)
    services.add_request("echo", echo)
    async with session_pair(services) as (alice, bob):

        async def leave_with_an_error() -> None:
            async with await alice.open_stream("note") as stream:
                await stream.send(b"x")
                raise KeyError

        with pytest.raises(KeyError):
            await leave_with_an_error()
        await alice.request("echo", b"", deadline_s=1)
        assert len(seen) == 1
        assert bob.statistics().handlers_failed == 0  # leaving is no fault of the handler


async def test_a_reset_with_a_reason_is_seen_by_both_directions() -> None:
    services = Services()

    async def refuse(_session: Session, stream: Stream) -> None:
        await stream.receive_into(memoryview(bytearray(1)))
        await stream.reset(ResetCode.REFUSED, "wrong round")

    services.add_stream("refuse", refuse)
    async with session_pair(services) as (alice, _):
        stream = await alice.open_stream("refuse")
        with pytest.raises(Refused, match="wrong round"):
            await stream.send(bytes(20 * MIB))
        with pytest.raises(Refused, match="wrong round"):
            await stream.receive()
