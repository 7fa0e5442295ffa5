"""Peers and strangers that want memory, time or packets of a WebRTC engine.

The attacker is an engine of ours whose asyncio side is driven by hand.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from aioice import Candidate
from aioice.stun import Class, Message, Method, parse_message
from aiortc.rtcsctptransport import (
    WEBRTC_BINARY,
    WEBRTC_DCEP,
    WEBRTC_STRING,
    DataChunk,
    ForwardTsnChunk,
    SackChunk,
)

from swarmnode import limits
from swarmnode.errors import ChannelBroken
from swarmnode.net.channel import receive_exactly
from swarmnode.net.rtc.channel import RtcChannel
from swarmnode.net.rtc.engine import RtcEngine, open_rtc
from swarmnode.net.rtc.guards import RTC_DATAGRAMS_WAITING_MAX, GuardedConnection
from swarmnode.net.rtc.link import Link
from swarmnode.protocol.nat.rtc_flow import encode_credit
from swarmnode.wire.connect.nat import RtcOffer
from swarmnode.wire.packing import decode_record
from tests.conftest import HANGS_S
from tests.process.net.rtc_kit import connect, loopback

# Thousands of messages through an engine in Python, beside all the other tests.
DEADLINE_S = 90


class Attacker:
    """One end of a channel, without manners."""

    def __init__(self, engine: RtcEngine, channel: RtcChannel) -> None:
        server, loop = engine._thread._server, engine._thread._loop
        assert server is not None
        assert loop is not None
        self.link: Link = server._links[channel._link]  # type: ignore[attr-defined]
        self._loop = loop

    async def do(self, act: Callable[[Link], Coroutine[Any, Any, object]]) -> None:
        """Run ``act`` in the attacker's loop."""
        future = asyncio.run_coroutine_threadsafe(act(self.link), self._loop)
        with trio.fail_after(DEADLINE_S):
            while not future.done():
                await trio.testing.wait_all_tasks_blocked(0.005)
        future.result()


@asynccontextmanager
async def victim_and_attacker() -> AsyncIterator[tuple[RtcChannel, Attacker, RtcEngine]]:
    async with open_rtc(loopback) as good, open_rtc(loopback) as bad:
        near, far = await connect(good, bad)
        yield near, Attacker(bad, far), good
        await near.aclose()
        await far.aclose()


async def send_messages(link: Link, message: bytes | str, count: int) -> None:
    for _ in range(count):
        link._channel.send(message)


async def send_raw(
    link: Link, stream: int, kind: int, data: bytes, *, ordered: bool = True
) -> None:
    await link._sctp._send(stream, kind, data, ordered=ordered)


async def send_chunk(link: Link, chunk: Any) -> None:
    await link._sctp._send_chunk(chunk)


async def never_mind(chunk: SackChunk) -> None:
    """Do nothing about it."""


async def flood_unfinished(link: Link) -> None:
    """Send fragments of one byte that never make a message."""
    link._sctp._receive_sack_chunk = never_mind  # type: ignore[method-assign]
    chunk = DataChunk()
    chunk.flags = 2  # the first of a message; the last never comes
    for _ in range(20 * limits.RTC_CHUNKS_WAITING_MAX):  # some are lost
        chunk.tsn = link._sctp._local_tsn
        link._sctp._local_tsn = (link._sctp._local_tsn + 1) % 2**32
        chunk.stream_id, chunk.stream_seq, chunk.protocol = 0, 0, WEBRTC_BINARY
        chunk.user_data = b"x"
        try:
            await link._sctp._send_chunk(chunk)
        except ConnectionError:  # it worked: we are cut off
            return
        chunk.flags = 0
        await asyncio.sleep(0)


def forged_sack(link: Link) -> SackChunk:
    sack = SackChunk()
    sack.cumulative_tsn = link._sctp._last_received_tsn or 0
    sack.advertised_rwnd = limits.MIB
    sack.gaps = [(1, 65_535)] * 280
    return sack


def acknowledgement_of_the_future(link: Link) -> SackChunk:
    sack = SackChunk()
    sack.cumulative_tsn = ((link._sctp._last_received_tsn or 0) + 2**30) % 2**32
    sack.advertised_rwnd = limits.MIB
    return sack


def open_message(label: bytes) -> bytes:
    return struct.pack("!BBHLHH", 3, 0, 0, 0, len(label), 0) + label


ATTACKS: dict[str, tuple[Callable[[Link], Coroutine[Any, Any, object]], str]] = {
    "more than the window": (
        lambda link: send_messages(link, bytes(32_768), 64),
        "more was sent than credit was given for",
    ),
    "tiny messages": (
        lambda link: send_messages(link, b"x", 4200),
        "more was sent than credit was given for",
    ),
    "a message of 60 KiB": (
        lambda link: send_raw(link, 0, WEBRTC_BINARY, bytes(60_000)),
        "message of 60000 bytes, at most 32768",
    ),
    "credit for nothing": (
        lambda link: send_messages(link, encode_credit(10**9), 1),
        "credit 1000000000 after 0, with",
    ),
    "crumbs of credit": (
        lambda link: send_messages(link, encode_credit(1), 1),
        "credit 1 after 0",
    ),
    "strange text": (
        lambda link: send_messages(link, "credit -1", 1),
        "expected 'credit TOTAL' or 'end', got 'credit -1'",
    ),
    "data after the end": (
        lambda link: send_messages(link, "end", 2),
        "",
    ),
    "another stream": (
        lambda link: send_raw(link, 2, WEBRTC_BINARY, b"x"),
        "outside of the one ordered stream",
    ),
    "another channel": (
        lambda link: send_raw(link, 4, WEBRTC_DCEP, open_message(b"more")),
        "outside of the one ordered stream",
    ),
    "unordered data": (
        lambda link: send_raw(link, 0, WEBRTC_BINARY, b"x", ordered=False),
        "outside of the one ordered stream",
    ),
    "the same channel again": (
        lambda link: send_raw(link, 0, WEBRTC_DCEP, open_message(b"again")),
        "gone without a goodbye",
    ),
    "text that is none": (
        lambda link: send_raw(link, 0, WEBRTC_STRING, b"\xff\xfe"),
        "gone without a goodbye",
    ),
    "fragments without an end": (flood_unfinished, "more unfinished messages than"),
    "giving up on data": (
        lambda link: send_chunk(link, ForwardTsnChunk()),
        "gave up on data of a reliable channel",
    ),
    "forged gaps": (lambda link: send_chunk(link, forged_sack(link)), "what was never sent"),
    "acknowledging the future": (
        lambda link: send_chunk(link, acknowledgement_of_the_future(link)),
        "what was never sent",
    ),
}


async def send_nothing_for_ever(channel: RtcChannel) -> None:
    while True:
        await trio.testing.wait_all_tasks_blocked(0.01)
        channel.send_nowait(memoryview(b""))


@pytest.mark.parametrize("name", ATTACKS)
async def test_an_offence_ends_the_channel_and_nothing_else(name: str) -> None:
    act, expected = ATTACKS[name]
    async with victim_and_attacker() as (victim, attacker, engine):
        await attacker.do(act)
        buffer = memoryview(bytearray(65_536))
        with trio.fail_after(DEADLINE_S):
            if expected:
                with pytest.raises(ChannelBroken, match=expected):
                    await send_nothing_for_ever(victim)
                # What is not read has not piled up.
                assert sum(map(len, victim._inbox)) <= limits.RTC_WINDOW_BYTES
            else:
                assert await victim.receive_into(buffer) == 0
        # The engine goes on.
        async with open_rtc(loopback) as other:
            near, far = await connect(engine, other)
            await near.send_all(memoryview(b"fine"))
            await receive_exactly(far, memoryview(bytearray(4)))
            await near.aclose()
            await far.aclose()


# --- strangers ------------------------------------------------------------------------------------


def udp_port(description: bytes) -> int:
    return decode_record(description, RtcOffer).candidates[0].port


async def test_strangers_get_no_answer_and_fill_no_memory() -> None:
    async with open_rtc(loopback) as engine, await engine.offer() as offer:
        server = engine._thread._server
        assert server is not None
        link: Link = server._links[0]  # type: ignore[attr-defined]
        target = ("127.0.0.1", udp_port(offer.description))
        bare = Message(Method.BINDING, Class.REQUEST)
        wrong = Message(
            Method.BINDING, Class.REQUEST, attributes={"USERNAME": "a:b", "PRIORITY": 1}
        )
        wrong.add_message_integrity(b"guessed")
        rng = random.Random(1)
        with trio.socket.socket(type=trio.socket.SOCK_DGRAM) as sock:
            for question in (bare, wrong):
                await sock.sendto(bytes(question), target)
            for _ in range(500):
                await sock.sendto(bytes([200]) + rng.randbytes(1000), target)
                await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked(0.2)
            with pytest.raises(BlockingIOError):
                sock._sock.recv(2000)  # type: ignore[attr-defined]
        assert link._connection._queue.qsize() <= RTC_DATAGRAMS_WAITING_MAX


async def test_garbage_from_strangers_does_not_stop_a_channel_from_opening() -> None:
    rng = random.Random(2)
    async with open_rtc(loopback) as one, open_rtc(loopback) as other, trio.open_nursery() as flood:

        async def send_garbage(port: int) -> None:
            with trio.socket.socket(type=trio.socket.SOCK_DGRAM) as sock:
                while True:
                    kind = rng.choice([b"\x00\x01", b"\x01\x01", b"\x16\xfe", b"\x80\xc8", b""])
                    await sock.sendto(
                        kind + rng.randbytes(rng.randrange(1, 100)), ("127.0.0.1", port)
                    )
                    await trio.sleep(0.001)

        async with await one.offer() as offer, await other.answer(offer.description) as answer:
            flood.start_soon(send_garbage, udp_port(offer.description))
            opened = await offer.connect(answer.description)
            far = await answer.connect()
        await opened.send_all(memoryview(b"hello"))
        with trio.fail_after(HANGS_S):
            await receive_exactly(far, memoryview(bytearray(5)))
        flood.cancel_scope.cancel()
        await opened.aclose()
        await far.aclose()


def test_checks_from_many_sources_are_checked_back_to_a_few() -> None:
    """A peer that knows the password can forge sources; each would get seven packets of us."""

    async def run() -> int:
        connection = GuardedConnection(
            hosts=("127.0.0.1",), servers=(), is_offerer=False, on_datagram=lambda *_: None
        )
        await connection.gather_candidates()
        connection.remote_username, connection.remote_password = "user", "p" * 22
        await connection.add_remote_candidate(
            Candidate("1", 1, "udp", 1, "127.0.0.1", 40_000, "host")
        )
        request = Message(Method.BINDING, Class.REQUEST, attributes={"PRIORITY": 1})
        for port in range(50_000, 51_000):
            connection.check_incoming(request, ("127.0.0.1", port), connection._protocols[0])
        checked = len(connection._check_list)
        await connection.close()
        return checked

    assert asyncio.run(run()) <= limits.RTC_REMOTE_ADDRESSES_MAX


def test_a_peer_hears_of_a_role_conflict() -> None:
    """What is authenticated is answered: the guard silences answers to strangers only."""

    class Recorder:
        def __init__(self) -> None:
            self.sent: list[bytes] = []

        def send_stun(self, message: Message, _addr: tuple[str, int]) -> None:
            self.sent.append(bytes(message))

    async def run() -> list[bytes]:
        connection = GuardedConnection(
            hosts=("127.0.0.1",), servers=(), is_offerer=True, on_datagram=lambda *_: None
        )
        recorder = Recorder()
        request = Message(Method.BINDING, Class.REQUEST)
        for code in (400, 401, 487):
            connection.respond_error(request, ("127.0.0.1", 9), recorder, (code, ""))  # type: ignore[arg-type]
        return recorder.sent

    (sent,) = asyncio.run(run())
    assert parse_message(sent).error_code == 487
