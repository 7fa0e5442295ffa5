"""Where do I seem to come from? One line, asked of strangers, and nothing to be had by lying.

It is no amplifier, although an answer has a few bytes more than the question: it goes out over a
TCP connection, so whoever asks has shown that it hears what is sent to its address (the handshake),
and has sent three packets by then; the answer is one.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st
from OpenSSL import SSL
from trio.testing import MockClock

from swarmnode import limits
from swarmnode.errors import ChannelBroken, DeadlineExceeded, MalformedMessage
from swarmnode.net.channel import Channel, aclose_forcefully
from swarmnode.net.tcp import TcpTransport, parse_address
from swarmnode.net.tls import TLS_HEADER_BYTES
from swarmnode.net.where import answer_where, ask_where
from swarmnode.protocol.session.opening import MAGIC
from swarmnode.testing.memory_network import MemoryChannel, MemoryNetwork
from swarmnode.wire.connect.disguise import (
    PAYLOAD_BYTES_MAX,
    rest_bytes,
    unwrap,
    unwrap_answer,
    wrap,
    wrap_answer,
)
from swarmnode.wire.connect.reach import WHERE_ANSWER_BYTES_MAX, WHERE_MAGIC
from swarmnode.wire.connect.relay import LEG_AS_TLS, LEG_MAGIC
from tests.kits.party_kit import Party

FIRST = WHERE_MAGIC[:TLS_HEADER_BYTES]
LONGEST = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"


def link() -> tuple[MemoryChannel, MemoryChannel]:
    return MemoryNetwork(delay_s=0.01).link("asker", "answerer")


async def hear(channel: Channel, n_bytes: int) -> bytes:
    """Return what the listener has read before it knows what the channel is for."""
    buffer = bytearray(n_bytes)
    assert await channel.receive_into(memoryview(buffer)) == n_bytes
    return bytes(buffer)


# --- asking ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "remote", [("11.11.11.100", 40_000), ("2a00:f00d::100", 1), (LONGEST, 65_535)]
)
async def test_the_answer_is_what_the_other_end_sees(
    autojump_clock: MockClock, remote: tuple[str, int]
) -> None:
    near, far = link()
    async with trio.open_nursery() as nursery:

        async def answer() -> None:
            await answer_where(far, await hear(far, TLS_HEADER_BYTES), remote)

        nursery.start_soon(answer)
        assert await ask_where(near) == remote
        await aclose_forcefully(near)


@pytest.mark.parametrize(
    "line",
    [
        b"\n", b"nonsense\n", b"localhost:80\n", b"11.11.11.100\n", b"11.11.11.100:65536\n",
        b"11.11.11.256:80\n", b":80\n", b"[::1:80\n", b"\xff\xfe:80\n", b"11.11.11.100:-1\n",
        b"11.11.11.100:80 \n", b"GET / HTTP/1.1\r\n",
    ],
)  # fmt: skip
async def test_garbage_is_no_address(autojump_clock: MockClock, line: bytes) -> None:
    near, far = link()
    await far.send_all(memoryview(line))
    with pytest.raises(MalformedMessage, match="expected HOST:PORT"):
        await ask_where(near)


async def test_a_line_without_an_end_is_not_read_for_ever(autojump_clock: MockClock) -> None:
    near, far = link()
    await far.send_all(memoryview(b"1" * 10_000))
    with pytest.raises(MalformedMessage, match="a longer line"):
        await ask_where(near)


async def test_an_answer_may_come_in_pieces(autojump_clock: MockClock) -> None:
    near, far = link()
    async with trio.open_nursery() as nursery:

        async def drip() -> None:
            for byte in b"11.11.11.100:80\n":
                await trio.sleep(0.1)
                await far.send_all(memoryview(bytes([byte])))

        nursery.start_soon(drip)
        assert await ask_where(near) == ("11.11.11.100", 80)


async def test_who_closes_or_is_silent_is_not_waited_for(autojump_clock: MockClock) -> None:
    near, far = link()
    await far.send_all(memoryview(b"11.11.11"))
    await far.aclose()
    with pytest.raises(ChannelBroken):
        await ask_where(near)
    near, far = link()
    began = trio.current_time()
    with pytest.raises(DeadlineExceeded, match="where it sees us"):
        await ask_where(near)
    assert trio.current_time() - began == pytest.approx(limits.WHERE_S)


# --- answering ------------------------------------------------------------------------------------


async def test_a_connection_is_held_while_a_punch_takes_place_and_no_longer(
    autojump_clock: MockClock,
) -> None:
    near, far = link()
    await near.send_all(memoryview(WHERE_MAGIC[TLS_HEADER_BYTES:]))
    began = trio.current_time()
    await answer_where(far, FIRST, ("11.11.11.100", 80))
    assert trio.current_time() - began == pytest.approx(limits.WHERE_HOLD_S)
    assert limits.WHERE_HOLD_S > limits.PUNCH_OFFER_S + limits.PUNCH_S


async def test_what_only_begins_like_the_question_is_none(autojump_clock: MockClock) -> None:
    near, far = link()
    await near.send_all(memoryview(b"e/2"))
    with pytest.raises(MalformedMessage, match="expected"):
        await answer_where(far, FIRST, ("11.11.11.100", 80))
    near, far = link()
    await near.aclose()
    with pytest.raises(ChannelBroken):
        await answer_where(far, FIRST, ("11.11.11.100", 80))


def test_no_two_kinds_of_connections_begin_alike() -> None:
    beginnings = {magic[:TLS_HEADER_BYTES] for magic in (WHERE_MAGIC, LEG_MAGIC, MAGIC)}
    assert len(beginnings) == 3
    assert all(begin[0] != 0x16 for begin in beginnings), "the first byte of a TLS handshake"


# --- in the shape of TLS --------------------------------------------------------------------------


@pytest.mark.parametrize("n_bytes", [1, 24, PAYLOAD_BYTES_MAX])
def test_a_greeting_in_the_shape_of_tls_is_one_that_tls_takes(n_bytes: int) -> None:
    """OpenSSL finds nothing wrong with it, and says hello; what was wrapped comes out again."""
    payload = random.Random(n_bytes).randbytes(n_bytes)
    hello = wrap(payload)
    assert unwrap(hello) == payload
    assert rest_bytes(hello[:TLS_HEADER_BYTES]) == len(hello) - TLS_HEADER_BYTES
    server = SSL.Connection(server_context(), None)
    server.set_accept_state()
    server.bio_write(hello)
    with pytest.raises(SSL.WantReadError):
        server.do_handshake()
    answer = server.bio_read(1 << 16)
    assert (answer[0], answer[TLS_HEADER_BYTES]) == (0x16, 2), "a handshake record, a ServerHello"
    assert wrap_answer(3)[:3] == answer[:3]
    assert unwrap_answer(wrap_answer(3)) == 3


def test_a_session_does_not_begin_as_the_shape_does() -> None:
    client = SSL.Connection(SSL.Context(SSL.TLS_METHOD), None)
    client.set_connect_state()
    with pytest.raises(SSL.WantReadError):
        client.do_handshake()
    hello = client.bio_read(1 << 16)
    assert hello[0] == LEG_AS_TLS[0]
    assert not hello.startswith(LEG_AS_TLS)
    with pytest.raises(MalformedMessage):
        unwrap(LEG_AS_TLS + hello[len(LEG_AS_TLS) :])


@given(st.binary(max_size=400))
def test_hostile_what_is_in_no_shape_of_ours_is_refused(data: bytes) -> None:
    hello = wrap(b"token")
    for changed in (data, hello + data, hello[: len(data) % len(hello)] + data):
        if changed != hello:
            with pytest.raises(MalformedMessage):
                unwrap(changed)
    with pytest.raises(MalformedMessage):
        unwrap_answer(data or b"-")


def server_context() -> SSL.Context:
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "relay")])
    day = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, day, day)
    context = SSL.Context(SSL.TLS_METHOD)
    context.use_certificate(builder.sign(key, None))
    context.use_privatekey(key)
    return context


async def test_reflection_one_short_line_to_an_asker_that_has_shown_that_it_is_there(
    autojump_clock: MockClock,
) -> None:
    """Not a byte goes out before the whole question is in, and nothing more whatever follows."""
    near, far = link()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_where, far, FIRST, (LONGEST, 65_535))
        received = bytearray()

        async def read() -> None:
            buffer = bytearray(10_000)
            while n_bytes := await near.receive_into(memoryview(buffer)):
                received.extend(buffer[:n_bytes])

        nursery.start_soon(read)
        rest = WHERE_MAGIC[TLS_HEADER_BYTES:]
        await near.send_all(memoryview(rest[:-1]))
        await trio.sleep(1)
        assert received == b""
        await near.send_all(memoryview(rest[-1:] + 1000 * WHERE_MAGIC))
        await trio.sleep(1)
        assert received == f"[{LONGEST}]:65535\n".encode()
        assert len(received) <= WHERE_ANSWER_BYTES_MAX
        nursery.cancel_scope.cancel()


# --- at the listener ------------------------------------------------------------------------------


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[Party, str]]:
    """Give a node whose listener is a real one: only TCP connections have an address."""
    party = Party(MemoryNetwork(), "a")
    transport = TcpTransport()
    async with trio.open_nursery() as nursery:
        address = await nursery.start(transport.serve, "127.0.0.1:0", party.network.listener.accept)
        yield party, address
        nursery.cancel_scope.cancel()


async def test_so_many_ask_at_once_and_the_next_gets_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "WHERE_ASKERS_MAX", 2)
    async with listening() as (party, address):
        channels = [await TcpTransport().dial(address) for _ in range(3)]
        for channel in channels[:2]:
            assert await ask_where(channel) == channel.local
        with pytest.raises(ChannelBroken):
            await ask_where(channels[2])
        assert party.network.listener.refused["Overloaded"] == 1
        await channels[0].aclose()
        with trio.fail_after(5):
            while True:
                again = await TcpTransport().dial(address)
                try:
                    assert (await ask_where(again))[1] == again.local[1]
                    break
                except ChannelBroken:  # the listener has not read the end of the first yet
                    await trio.sleep(0.01)
                finally:
                    await again.aclose()
        for channel in channels:
            await channel.aclose()


async def test_askers_are_no_strangers_that_keep_sessions_out() -> None:
    async with listening() as (party, address):
        channel = await TcpTransport().dial(address)
        await ask_where(channel)
        assert party.network.listener.strangers == 0
        assert channel.remote == parse_address(address)
        await channel.aclose()


async def test_who_has_no_address_is_told_none(autojump_clock: MockClock) -> None:
    """Through a relay, for one: the carrier's address would be a lie."""
    party = Party(MemoryNetwork(), "a")
    near, far = link()
    await near.send_all(memoryview(WHERE_MAGIC))
    await party.network.listener.accept(far)
    await far.aclose()
    with pytest.raises(ChannelBroken):
        await ask_where(near)


async def test_random_beginnings_get_no_answer(autojump_clock: MockClock) -> None:
    rng = random.Random(7)
    party = Party(MemoryNetwork(), "a")
    for _ in range(50):
        near, far = link()
        begin = bytearray(WHERE_MAGIC)
        begin[rng.randrange(len(begin))] ^= 1 << rng.randrange(8)
        await near.send_all(memoryview(bytes(begin)))
        if begin.startswith(FIRST):
            with pytest.raises(MalformedMessage):
                await answer_where(far, await hear(far, TLS_HEADER_BYTES), ("11.11.11.1", 1))
        else:
            assert not WHERE_MAGIC.startswith(await hear(far, TLS_HEADER_BYTES))
    assert party.network.sessions == {}
