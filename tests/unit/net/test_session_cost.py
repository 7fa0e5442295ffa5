"""What a session costs beside the least that any would: in CPU time, both measured in turns.

The least is two tasks over the same memory channel: one encrypts each chunk into a buffer and sends
it, the other receives it and decrypts it into another. What else the machine does slows both alike.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import trio
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from swarmnode.net.channel import Channel, receive_exactly
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.net.stream import Stream
from swarmnode.protocol.session.records import Role
from swarmnode.testing.memory_network import MemoryNetwork
from tests.kits.session_kit import ALICE, BOB, start

CHUNK_BYTES = 523_776  # the payload of a chunk of an exchange in Q8B64
CHUNKS = 60
# The fastest of few turns says too much where another process takes caches: more of them, then.
TURNS_MIN, TURNS_MAX = 6, 100
_NONCE_BYTES = 12
_TAG_BYTES = 16
# Measured on two busy cores: 1.60 to 1.71, and 1.92 to 2.15 where each park had a cancel scope of
# its own and the payload of a message was copied once more.
COST_RATIO_MAX = 1.8


async def send_chunks(session: Session) -> None:
    payload = bytearray(CHUNK_BYTES)
    async with await session.open_stream("sink") as stream:
        for _ in range(CHUNKS):
            await stream.send_message(b"header", payload)
        await stream.send_end()
        await stream.receive()


async def sink(_session: Session, stream: Stream) -> None:
    try:
        while True:
            await stream.receive_message(CHUNK_BYTES)
    except trio.EndOfChannel:
        await stream.send(b"1")


async def seal_and_send(aead: AESGCM, channel: Channel) -> None:
    plaintext, sealed = bytearray(CHUNK_BYTES), memoryview(bytearray(CHUNK_BYTES + _TAG_BYTES))
    for number in range(CHUNKS):
        aead.encrypt_into(number.to_bytes(_NONCE_BYTES, "big"), plaintext, b"", sealed)
        await channel.send_all(sealed)


async def receive_and_open(aead: AESGCM, channel: Channel) -> None:
    opened, sealed = bytearray(CHUNK_BYTES), memoryview(bytearray(CHUNK_BYTES + _TAG_BYTES))
    for number in range(CHUNKS):
        await receive_exactly(channel, sealed)
        aead.decrypt_into(number.to_bytes(_NONCE_BYTES, "big"), sealed, b"", opened)


async def send_by_hand(near: Channel, far: Channel) -> None:
    aead = AESGCM(bytes(32))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive_and_open, aead, far)
        nursery.start_soon(seal_and_send, aead, near)


async def cpu_s(send: Callable[[], Awaitable[None]]) -> float:
    start_s = time.thread_time()
    await send()
    return time.thread_time() - start_s


async def test_a_chunk_costs_little_more_than_its_encryption_and_its_way() -> None:
    links = MemoryNetwork()
    near, far = links.link("alice", "bob")
    by_hand = links.link("carol", "dave")
    services = Services()
    services.add_stream("sink", sink)
    session_s, by_hand_s = [], []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(start, nursery, far, BOB, Role.SERVER, services)
        session = await start(nursery, near, ALICE, Role.CLIENT)
        for turn in range(TURNS_MAX):
            session_s.append(await cpu_s(lambda: send_chunks(session)))
            by_hand_s.append(await cpu_s(lambda: send_by_hand(*by_hand)))
            if turn >= TURNS_MIN and min(session_s) < COST_RATIO_MAX * min(by_hand_s):
                break
        nursery.cancel_scope.cancel()
    # The fastest of each: what another process took of the caches is in all the others.
    assert min(session_s) < COST_RATIO_MAX * min(by_hand_s)
