"""Sessions that outlive their channel."""

from __future__ import annotations

import random
from collections import deque

import pytest
import trio
from trio.testing import MockClock

from swarmnode import limits
from swarmnode.errors import (
    AuthenticationFailed,
    ChannelBroken,
    Refused,
    RemoteProtocolError,
    SwarmNodeError,
)
from swarmnode.net.peering import resume_over, serve_resume
from swarmnode.net.records import RecordWriter
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.protocol.session.core import SessionCore
from swarmnode.protocol.session.opening import ResumeKeys, Unacknowledged
from swarmnode.protocol.session.records import CipherName, Role, Sealer
from swarmnode.testing.memory_network import MemoryChannel, MemoryNetwork
from tests.kits.session_kit import echo_messages, session_pair

_NONCE = bytes(16)
_TURN = 200_000


# --- what is kept ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_what_was_not_acknowledged_can_be_sent_again_and_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    kept = Unacknowledged(memoryview(bytearray(1_000_000)), _TURN)
    sent = bytearray()
    acknowledged = 0
    for _ in range(400):
        if rng.random() < 0.6:
            room = kept.room()
            if room is not None:
                data = rng.randbytes(rng.randint(1, _TURN))
                room[: len(data)] = data
                assert kept.keep(len(data)) == data
                sent += data
        else:
            acknowledged = rng.randint(acknowledged, len(sent))
            kept.acknowledge(acknowledged)
        since = rng.randint(acknowledged, len(sent))
        assert b"".join(kept.since(since)) == sent[since:]
        acknowledged = since  # what the peer has once said that it has


def test_a_ring_that_is_full_takes_acknowledgements_and_nothing_else() -> None:
    kept = Unacknowledged(memoryview(bytearray(1_000_000)), _TURN)
    while kept.room() is not None:
        kept.keep(_TURN)
    for _ in range(16):
        assert kept.urgent_room() is not None
        kept.keep(41)
    assert kept.room() is None
    kept.acknowledge(2 * _TURN)
    assert kept.room() is not None


@pytest.mark.parametrize("seed", range(20))
def test_a_peer_that_acknowledges_now_and_then_never_stops_the_sender(seed: int) -> None:
    """A ring that had started over too early waited for an ACK that was not due yet."""
    rng = random.Random(seed)
    turn = limits.FRAME_DATA_BYTES_MAX + limits.RECORD_HEAD_BYTES_MAX + 40
    kept = Unacknowledged(memoryview(bytearray(limits.UNACKNOWLEDGED_BYTES_MAX)), turn)
    under_way: deque[int] = deque()  # turns, then acknowledgements
    coming: deque[int] = deque()
    received = said = 0
    for _ in range(20_000):
        if rng.random() < 0.4 and kept.room() is not None:
            under_way.append(rng.choice([37, 3209, 40_000, 131_170, 262_300, turn]))
            kept.keep(under_way[-1])
        elif rng.random() < 0.6 and under_way:
            received += under_way.popleft()
            if received >= said + limits.ACK_EVERY_BYTES:
                said = received
                coming.append(said)
        elif coming:
            kept.acknowledge(coming.popleft())
        assert kept.room() is not None or under_way or coming


def test_no_side_can_have_what_was_not_sent_or_lose_what_it_had() -> None:
    kept = Unacknowledged(memoryview(bytearray(1_000_000)), _TURN)
    for _ in range(2):
        assert kept.room() is not None
        kept.keep(100)
    with pytest.raises(RemoteProtocolError, match="up to 200 bytes, got 201"):
        kept.acknowledge(201)
    kept.acknowledge(100)
    with pytest.raises(RemoteProtocolError, match="had 100 bytes, now it says 99"):
        kept.since(99)


def test_a_claim_is_of_one_side_one_offset_and_two_nonces() -> None:
    keys = ResumeKeys.of(bytes(32))
    nonces = bytes(range(32))
    claim = keys.claim(Role.CLIENT, nonces, 77)
    assert keys.check_claim(Role.CLIENT, nonces, claim) == 77
    for role, others, said in (
        (Role.SERVER, nonces, claim),
        (Role.CLIENT, bytes(32), claim),
        (Role.CLIENT, nonces, bytes(7) + b"\x4e" + claim[8:]),
    ):
        with pytest.raises(AuthenticationFailed, match="proof is wrong"):
            keys.check_claim(role, others, said)


# --- whole sessions ------------------------------------------------------------------------------


def echo() -> Services:
    services = Services()
    services.add_stream("messages", echo_messages)
    return services


async def _ask(channel: MemoryChannel, session: Session, failures: list[SwarmNodeError]) -> None:
    try:
        await resume_over(channel, session, _NONCE)
    except SwarmNodeError as error:
        failures.append(error)
        await channel.aclose()


async def _answer(channel: MemoryChannel, session: Session | None) -> None:
    first = bytearray(5)
    try:
        await channel.receive_into(memoryview(first))
        served = await serve_resume(channel, bytes(first), lambda *_: session, b"s" * 16)
        if served is None:
            await channel.aclose()
    except SwarmNodeError:
        await channel.aclose()


@pytest.mark.parametrize("seed", range(12))
async def test_messages_arrive_once_and_in_order_over_channels_that_break(
    autojump_clock: MockClock, seed: int
) -> None:
    """Channels are cut at random moments, in the middle of records and of resuming too."""
    rng = random.Random(seed)
    network = MemoryNetwork(delay_s=0.01)
    async with session_pair(echo(), network=network) as (alice, bob), trio.open_nursery() as tasks:
        lost: list[Session] = []
        for session in (alice, bob):
            session.on_lost = lambda each, _error: lost.append(each)

        async def cut_and_mend() -> None:
            while True:
                await trio.sleep(rng.uniform(0.0, 0.08))
                network.cut("alice", "bob")
                failures: list[SwarmNodeError] = []
                near, far = network.link("alice", "bob")
                asker, partner = (alice, bob) if rng.random() < 0.7 else (bob, alice)
                async with trio.open_nursery() as both:
                    both.start_soon(_ask, near, asker, failures)
                    both.start_soon(_answer, far, partner)
                    if rng.random() < 0.3:
                        await trio.sleep(rng.uniform(0.0, 0.06))
                        near.cut()

        tasks.start_soon(cut_and_mend)
        async with await alice.open_stream("messages") as stream:
            for number in range(40):
                payload = rng.randbytes(rng.choice([10, 5_000, 300_000]))
                await stream.send_message(bytes([number]), payload)
                header, received = await stream.receive_message(limits.MIB)
                assert header == bytes([number])
                assert bytes(received) == payload
        tasks.cancel_scope.cancel()
        assert alice.statistics().resumed >= 3
        assert not alice.is_closed
        assert not bob.is_closed


async def test_a_better_channel_takes_over_while_the_old_one_still_works(
    autojump_clock: MockClock,
) -> None:
    network = MemoryNetwork(delay_s=0.01)
    async with session_pair(echo(), network=network) as (alice, bob), trio.open_nursery() as tasks:
        for session in (alice, bob):
            session.on_lost = lambda _session, _error: None
        tasks.start_soon(_pump, alice)
        for _ in range(5):
            await trio.sleep(0.5)
            assert sum(not end.is_over for _, _, end in network._links) == 1
            near, far = network.link("alice", "bob")
            async with trio.open_nursery() as both:
                both.start_soon(_answer, far, bob)
                await resume_over(near, alice, _NONCE)
        tasks.cancel_scope.cancel()
        assert alice.statistics().resumed == bob.statistics().resumed == 5


async def _pump(session: Session) -> None:
    async with await session.open_stream("messages") as stream:
        while True:
            await stream.send_message(b"x", bytes(100_000))
            await stream.receive_message(limits.MIB)


async def test_a_peer_that_does_not_know_the_session_says_so_and_it_keeps_its_channel(
    autojump_clock: MockClock,
) -> None:
    async with session_pair(echo()) as (alice, _), trio.open_nursery() as tasks:
        near, far = MemoryNetwork().link("alice", "bob")
        tasks.start_soon(_answer, far, None)
        with pytest.raises(Refused, match="does not know the session"):
            await resume_over(near, alice, _NONCE)
        assert not alice.is_suspended


async def test_a_stranger_that_saw_the_name_gets_nothing(autojump_clock: MockClock) -> None:
    async with session_pair(echo()) as (alice, bob):
        near, far = MemoryNetwork().link("mallory", "bob")
        name = alice.resume_keys.name

        async def mallory() -> None:
            forged = ResumeKeys(name, bytes(32))
            await near.send_all(memoryview(forged.ask(_NONCE)))
            nonce = bytearray(16)
            await near.receive_into(memoryview(nonce))
            claim = forged.claim(Role.CLIENT, _NONCE + bytes(nonce), 0)
            await near.send_all(memoryview(claim))

        first = bytearray(5)
        async with trio.open_nursery() as tasks:
            tasks.start_soon(mallory)
            await far.receive_into(memoryview(first))
            with pytest.raises(AuthenticationFailed):
                await serve_resume(far, bytes(first), lambda *_: bob, b"s" * 16)
        assert not bob.is_suspended


async def test_the_memory_of_bulk_is_given_back_when_the_session_is_idle(
    autojump_clock: MockClock,
) -> None:
    network = MemoryNetwork()
    async with session_pair(echo(), network=network) as (alice, bob), trio.open_nursery() as tasks:
        for session in (alice, bob):
            session.on_lost = lambda _session, _error: None
        for _ in range(3):
            async with await alice.open_stream("messages") as stream:
                for _ in range(20):
                    payload = random.randbytes(500_000)
                    await stream.send_message(b"x", payload)
                    assert bytes((await stream.receive_message(limits.MIB))[1]) == payload
            in_use = [_used_bytes(session) for session in (alice, bob)]
            assert min(in_use) > 500_000
            await trio.sleep(2 * limits.PING_INTERVAL_S)
            assert max(_used_bytes(session) for session in (alice, bob)) < 50_000
            # What was kept is still there: the session goes on over another channel.
            network.cut("alice", "bob")
            near, far = network.link("alice", "bob")
            tasks.start_soon(_answer, far, bob)
            await resume_over(near, alice, _NONCE)


def _used_bytes(session: Session) -> int:
    memory = session.pump._writer._memory[:]
    return len(memory) - memory.count(0)


async def test_quiet_sessions_are_acknowledged_with_their_pings(autojump_clock: MockClock) -> None:
    async with session_pair(echo()) as (alice, bob):
        await trio.sleep(3 * limits.PING_INTERVAL_S)
        for session in (alice, bob):
            kept = session.pump._writer._kept
            assert kept.sent_bytes - kept.acknowledged_bytes < 500


async def test_a_session_that_is_not_resumed_ends(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    async with session_pair(echo(), network=network) as (alice, bob):
        for session in (alice, bob):
            session.on_lost = lambda _session, _error: None
        network.cut("alice", "bob")
        started = trio.current_time()
        await alice.wait_closed()
        assert trio.current_time() - started == pytest.approx(limits.RESUME_S, abs=6)
        assert "another channel" in str(alice.close_cause)


async def test_what_the_next_channel_has_to_send_is_not_taken_for_sent_on_the_last_one() -> None:
    """The old channel took the last byte in the moment in which the session left it."""
    near, _ = MemoryNetwork().link("alice", "bob")
    sealer = Sealer(bytes(32), CipherName.AES_256_GCM, Role.CLIENT)

    class Leaving(MemoryChannel):
        def __init__(self) -> None:
            pass

        def send_nowait(self, data: memoryview) -> int:
            return 0

        async def send_all(self, data: memoryview) -> None:
            writer.detach()
            writer.attach(near, 0)

    writer = RecordWriter(Leaving(), sealer)
    sealed = writer.seal_next(SessionCore(Role.CLIENT, 0.0), 0.0)
    assert sealed is not None
    writer.send_nowait(sealed)
    with pytest.raises(ChannelBroken, match="left this channel"):
        await writer.send_rest()
    assert sum(map(len, writer._rest)) == len(sealed)
