"""WebRTC channels: what goes wrong on the way to one, and what may not be left behind."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Callable
from ipaddress import IPv4Address

import msgspec
import pytest
import trio

from swarmnode import limits
from swarmnode.errors import (
    ChannelBroken,
    ChannelClosed,
    ConfigError,
    DialFailed,
    LimitExceeded,
    MalformedMessage,
    Overloaded,
)
from swarmnode.net.channel import receive_exactly
from swarmnode.net.rtc.channel import RtcChannel
from swarmnode.net.rtc.engine import (
    RTC_HOSTS_MAX,
    RTC_PENDING_MAX,
    RtcEngine,
    local_hosts,
    open_rtc,
)
from swarmnode.net.rtc.guards import RTC_GATHER_S
from swarmnode.protocol.nat.stun import Answer, Endpoint, Question, decode_stun, encode_answer
from swarmnode.protocol.uplink import on_the_wire
from swarmnode.wire.connect.nat import RtcAnswer, RtcCandidate, RtcOffer
from swarmnode.wire.packing import decode_record, encode_record
from tests.conftest import HANGS_S, ROOT, open_files
from tests.process.net.rtc_kit import connect, loopback, rtc_pair

THREAD = "swarmnode-rtc"


async def until(condition: Callable[[], object], limit_s: float = HANGS_S) -> None:
    """Wait for what the other thread does."""
    with trio.fail_after(limit_s):
        while not condition():
            await trio.testing.wait_all_tasks_blocked(0.01)


def rtc_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD]


# --- before it is open --------------------------------------------------------------------------


async def test_an_offer_is_small_and_has_only_our_addresses() -> None:
    async with open_rtc(loopback) as engine, await engine.offer() as offer:
        record = decode_record(offer.description, RtcOffer)
        assert [(each.kind, each.address) for each in record.candidates] == [
            ("host", bytes([127, 0, 0, 1]))
        ]
        assert len(offer.description) < 200 <= limits.RTC_DESCRIPTION_BYTES_MAX


def test_hosts_to_offer_can_be_reached_from_elsewhere() -> None:
    hosts = local_hosts()
    assert len(hosts) <= RTC_HOSTS_MAX
    assert not any(host.startswith(("127.", "fe80", "169.254.")) or host == "::1" for host in hosts)


@pytest.mark.parametrize("garbage", [b"", b"\x80", b"v=0\r\no=- 1 1 IN IP4 0.0.0.0", bytes(900)])
async def test_what_is_no_offer_is_refused(garbage: bytes) -> None:
    async with open_rtc(loopback) as engine:
        with pytest.raises(MalformedMessage):
            await engine.answer(garbage)
        with pytest.raises(LimitExceeded, match="at most 1024 are allowed"):
            await engine.answer(bytes(limits.RTC_DESCRIPTION_BYTES_MAX + 1))
        async with await engine.offer() as offer:
            with pytest.raises(MalformedMessage):
                await offer.connect(garbage)
            with pytest.raises(MalformedMessage):  # ours is an offer, no answer
                await offer.connect(offer.description)


async def test_what_datagrams_take_of_the_line_is_counted() -> None:
    told = {"one": [0, 0], "other": [0, 0]}

    def count(name: str) -> Callable[[int, int], None]:
        def add(sent_bytes: int, received_bytes: int) -> None:
            told[name][0] += sent_bytes
            told[name][1] += received_bytes

        return add

    n_bytes = 1_000_000
    async with open_rtc(loopback, count("one")) as one, open_rtc(loopback, count("other")) as other:
        near, far = await connect(one, other)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(near.send_all, memoryview(bytes(n_bytes)))
            await receive_exactly(far, memoryview(bytearray(n_bytes)))
        await near.aclose()
        await far.aclose()
    # Of 1,253 bytes of a datagram 1,160 are the session's, and those are counted as TCP has them.
    over = on_the_wire(n_bytes) * 0.03
    assert told["one"][0] > over, "headers of DTLS and SCTP"
    assert told["other"][0] > over, "what acknowledges them"
    # The last bytes of a message that is not here whole yet may count twice.
    message_bytes = limits.RTC_MESSAGE_BYTES_MAX
    assert told["one"][0] == pytest.approx(told["other"][1], rel=0.1, abs=2 * message_bytes)
    assert told["other"][0] == pytest.approx(told["one"][1], rel=0.1, abs=2 * message_bytes)


async def test_an_answer_belongs_to_one_offer() -> None:
    async with open_rtc(loopback) as one, open_rtc(loopback) as other:
        first, second = await one.offer(), await one.offer()
        async with await other.answer(first.description) as answer:
            with pytest.raises(MalformedMessage, match="expected one to our offer"):
                await second.connect(answer.description)
        first.close_nowait()
        second.close_nowait()


async def test_an_offer_of_foreign_private_addresses_is_not_tried() -> None:
    async with open_rtc(loopback) as one, open_rtc(loopback) as other:
        async with await one.offer() as offer:
            record = decode_record(offer.description, RtcOffer)
            router = RtcCandidate("host", IPv4Address("192.168.1.1").packed, 5000)
            forged = encode_record(msgspec.structs.replace(record, candidates=(router,)))
            with pytest.raises(DialFailed, match="private, and not of our network"):
                await other.answer(forged)
        await until(lambda: other.statistics().connections == 0)


async def test_another_certificate_than_described_opens_nothing() -> None:
    async with open_rtc(loopback) as one, open_rtc(loopback) as other:
        async with await one.offer() as offer, await other.answer(offer.description) as answer:
            record = decode_record(answer.description, RtcAnswer)
            forged = encode_record(msgspec.structs.replace(record, fingerprint=bytes(32)))
            with trio.fail_after(HANGS_S), pytest.raises(DialFailed, match="certificate"):
                await offer.connect(forged)
        await until(lambda: one.statistics().connections == other.statistics().connections == 0)


async def test_an_offer_without_an_answer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RTC_ANSWER_S", 0.2)
    async with open_rtc(loopback) as engine, await engine.offer() as offer:
        await until(lambda: engine.statistics().connections == 0)
        assert engine.statistics().failed_total == 1
        async with open_rtc(loopback) as other, await other.answer(offer.description) as answer:
            with pytest.raises(DialFailed, match=r"no answer to the offer within 0\.2 s"):
                await offer.connect(answer.description)


async def test_no_peer_at_the_addresses_is_a_failed_dial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RTC_CONNECT_S", 0.5)
    async with open_rtc(loopback) as one, open_rtc(loopback) as other, await one.offer() as offer:
        answer = await other.answer(offer.description)
        answer.close_nowait()
        await until(lambda: other.statistics().connections == 0)
        with pytest.raises(DialFailed, match=r"not open within 0\.5 s \(ICE checking"):
            await offer.connect(answer.description)


async def test_so_many_offers_and_no_more() -> None:
    async with open_rtc(loopback) as engine:
        offers = [await engine.offer() for _ in range(RTC_PENDING_MAX)]
        with pytest.raises(Overloaded, match="16 connections are being opened"):
            await engine.offer()
        offers.pop().close_nowait()
        offers.append(await engine.offer())
        for offer in offers:
            offer.close_nowait()
        await until(lambda: engine.statistics().connections == 0)


# --- reflexive addresses --------------------------------------------------------------------------


async def answer_stun(sock: trio.socket.SocketType, mapped: Endpoint) -> None:
    """Tell everybody that they come from ``mapped``."""
    while True:
        data, source = await sock.recvfrom(600)
        question = decode_stun(data)
        assert isinstance(question, Question)
        answer = encode_answer(Answer(question.transaction, mapped))
        assert len(answer) <= len(data)
        await sock.sendto(answer, source)


async def test_what_a_peer_saw_is_offered_even_if_another_peer_is_silent() -> None:
    with (
        trio.socket.socket(type=trio.socket.SOCK_DGRAM) as sock,
        trio.socket.socket(type=trio.socket.SOCK_DGRAM) as silent,
    ):
        servers = []
        for each in (silent, sock):
            await each.bind(("127.0.0.1", 0))
            servers.append("{}:{}".format(*each.getsockname()))
        async with open_rtc(loopback) as engine, trio.open_nursery() as nursery:
            nursery.start_soon(answer_stun, sock, Endpoint("11.22.33.44", 5555))
            with trio.fail_after(HANGS_S):
                offer = await engine.offer(servers)
            record = decode_record(offer.description, RtcOffer)
            assert record.candidates[1:] == (RtcCandidate("srflx", bytes([11, 22, 33, 44]), 5555),)
            offer.close_nowait()
            nursery.cancel_scope.cancel()


async def test_a_server_that_is_none_leaves_nothing_behind() -> None:
    async with open_rtc(loopback) as engine:
        with pytest.raises(ConfigError, match="expected HOST:PORT"):
            await engine.offer(["nowhere"])
        assert engine.statistics().connections == 0


async def test_no_address_at_all_is_a_failed_dial() -> None:
    async with open_rtc(tuple) as engine:
        with pytest.raises(DialFailed, match="this machine has no address to offer"):
            await engine.offer()
        await until(lambda: engine.statistics().connections == 0)


async def test_servers_that_are_silent_cost_a_moment() -> None:
    with trio.socket.socket(type=trio.socket.SOCK_DGRAM) as silent:
        await silent.bind(("127.0.0.1", 0))
        server = "{}:{}".format(*silent.getsockname())
        async with open_rtc(loopback) as engine:
            with trio.fail_after(RTC_GATHER_S + HANGS_S):
                offer = await engine.offer([server, "[::1]:9", "a-name.example:9"])
            assert len(decode_record(offer.description, RtcOffer).candidates) == 1
            offer.close_nowait()


# --- ends ---------------------------------------------------------------------------------------


async def test_a_killed_peer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RTC_STALLED_S", 1.0)
    command = [sys.executable, "-m", "tests.process.net.rtc_peer"]
    with subprocess.Popen(  # noqa: ASYNC220 -- it starts in a moment
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as peer:
        assert peer.stdin is not None
        assert peer.stdout is not None
        async with open_rtc(loopback) as engine, await engine.offer() as offer:
            peer.stdin.write(offer.description.hex() + "\n")
            peer.stdin.flush()
            answer = await trio.to_thread.run_sync(peer.stdout.readline)
            channel = await offer.connect(bytes.fromhex(answer))
            await channel.send_all(memoryview(bytes(1000)))
            peer.kill()
            peer.wait()
            await channel.send_all(memoryview(bytes(1000)))
            with trio.fail_after(HANGS_S), pytest.raises(ChannelBroken) as caught:
                await channel.receive_into(memoryview(bytearray(1)))
            assert "no byte acknowledged for 1 s with data queued" in str(caught.value)
            with pytest.raises(ChannelBroken, match="no byte acknowledged"):
                await channel.send_all(memoryview(b"x"))
            await channel.aclose()


async def test_a_reader_that_takes_its_time_is_not_taken_for_a_dead_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "RTC_STALLED_S", 1.5)  # a lost packet is sent again after 1 s
    n_bytes = 2 * limits.RTC_WINDOW_BYTES
    async with rtc_pair() as (one, other), trio.open_nursery() as nursery:
        nursery.start_soon(one.send_all, memoryview(bytes(n_bytes)))
        await trio.testing.wait_all_tasks_blocked(3.5)
        with trio.fail_after(HANGS_S):
            await receive_exactly(other, memoryview(bytearray(n_bytes)))
        await one.aclose()
        await other.aclose()


async def test_leaving_the_engine_breaks_its_channels_and_tells_the_other_side() -> None:
    async with open_rtc(loopback) as other:
        async with open_rtc(loopback) as one:
            near, far = await connect(one, other)
            await near.send_all(memoryview(b"last words"))
        with pytest.raises(ChannelBroken, match="this node stops"):
            await near.send_all(memoryview(b"x"))
        buffer = memoryview(bytearray(100))
        with trio.fail_after(HANGS_S):
            assert await far.receive_into(buffer) == len(b"last words")
            assert await far.receive_into(buffer) == 0
        await near.aclose()
        await far.aclose()
        with pytest.raises(DialFailed, match="this node stops"):
            await one.offer()


async def test_leaving_with_everything_under_way_is_quick_and_leaves_nothing() -> None:
    async with rtc_pair():
        pass
    before = open_files()
    with trio.fail_after(limits.RTC_LINGER_S + HANGS_S):
        async with open_rtc(loopback) as one, open_rtc(loopback) as other:
            near, far = await connect(one, other)
            near.send_nowait(memoryview(bytes(limits.MIB)))
            far.send_nowait(memoryview(bytes(limits.MIB)))
            offer = await one.offer()
            await other.answer(offer.description)
    assert rtc_threads() == []
    assert open_files() == before


@pytest.mark.parametrize("rounds", [20, pytest.param(100, marks=pytest.mark.slow)])
async def test_many_channels_leave_no_file_thread_or_task(rounds: int) -> None:
    async with open_rtc(loopback) as one, open_rtc(loopback) as other:

        async def once() -> None:
            near, far = await connect(one, other)
            await near.send_all(memoryview(b"hello"))
            await receive_exactly(far, memoryview(bytearray(5)))
            await near.aclose()
            await far.aclose()
            await until(lambda: not one.statistics().connections + other.statistics().connections)

        async def settle() -> tuple[int, int, int]:
            await trio.testing.wait_all_tasks_blocked(0.05)
            tasks = trio.lowlevel.current_statistics().tasks_living
            return open_files(), threading.active_count(), tasks

        await once()
        before = await settle()
        for _ in range(rounds):
            await once()
        # Fewer is fine: a thread of Trio's pool ends when it has been idle.
        assert all(now <= then for now, then in zip(await settle(), before, strict=True))
        assert one.statistics().opened_total == rounds + 1
        assert one.statistics().failed_total == other.statistics().failed_total == 0


@pytest.mark.parametrize("seed", range(4))
async def test_cancelled_anywhere_it_leaves_nothing(seed: int) -> None:
    rng = random.Random(seed)
    n_finished = 0

    async def life(one: RtcEngine, other: RtcEngine) -> None:
        near: RtcChannel | None = None
        far: RtcChannel | None = None
        try:
            near, far = await connect(one, other)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(near.send_all, memoryview(bytes(300_000)))
                await receive_exactly(far, memoryview(bytearray(300_000)))
        finally:
            for channel in (near, far):
                if channel is not None:
                    with trio.CancelScope(shield=True):
                        await channel.aclose()

    async with rtc_pair():
        pass
    before = open_files()
    async with open_rtc(loopback) as one, open_rtc(loopback) as other:
        for _ in range(12):
            with trio.move_on_after(rng.uniform(0, 0.25)) as scope:
                await life(one, other)
            n_finished += not scope.cancelled_caught
        await until(lambda: not one.statistics().connections + other.statistics().connections)
        # Both still work.
        with trio.fail_after(HANGS_S):
            await life(one, other)
    assert rtc_threads() == []
    assert open_files() == before


async def test_cancelled_offers_take_no_places() -> None:
    async with open_rtc(loopback) as one:
        for _ in range(RTC_PENDING_MAX):
            with trio.CancelScope() as scope:
                scope.cancel()
                await one.offer()
            assert scope.cancelled_caught
        async with await one.offer():
            assert one.statistics().failed_total == 0


async def test_a_cancelled_connect_does_not_keep_the_channel() -> None:
    async with open_rtc(loopback) as one, open_rtc(loopback) as other:
        async with await one.offer() as offer, await other.answer(offer.description) as answer:
            with trio.CancelScope() as scope:
                scope.cancel()
                await offer.connect(answer.description)
            assert scope.cancelled_caught
            far = await answer.connect()  # it opened all the same
            await until(lambda: one.statistics().opened_total == 1)
        with trio.fail_after(HANGS_S):
            assert await far.receive_into(memoryview(bytearray(1))) == 0
        await far.aclose()
        with pytest.raises(ChannelClosed):
            await offer.connect(answer.description)


# --- imports --------------------------------------------------------------------------------------


def test_aiortc_is_imported_with_the_first_offer_only() -> None:
    program = """
import sys, trio
from swarmnode.net.rtc.engine import open_rtc
async def main():
    async with open_rtc(lambda: ("127.0.0.1",)) as engine:
        assert "aiortc" not in sys.modules and "asyncio" in sys.modules
        (await engine.offer()).close_nowait()
        assert "aiortc" in sys.modules
trio.run(main)
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)


async def test_without_aiortc_there_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "swarmnode.net.rtc.link", raising=False)
    monkeypatch.delitem(sys.modules, "swarmnode.net.rtc.guards", raising=False)
    monkeypatch.setitem(sys.modules, "aiortc", None)
    async with open_rtc(loopback) as engine:
        for _ in range(2):
            with trio.fail_after(HANGS_S), pytest.raises(DialFailed, match="install aiortc"):
                await engine.offer()
