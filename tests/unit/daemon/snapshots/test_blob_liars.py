"""Holders that break a rule or say nothing: each is dropped and named, and costs no blob."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from swarmnode import limits
from swarmnode.daemon.snapshots.chunks import BLOB_SERVICE
from swarmnode.errors import DeadlineExceeded
from swarmnode.net.session import Session
from swarmnode.net.stream import Stream
from swarmnode.wire import blobs as wire
from swarmnode.wire.packing import decode_record, encode_record
from tests.kits.blob_kit import (
    ALL,
    CHUNK,
    CHUNKS,
    DATA,
    MANIFEST,
    N_CHUNKS,
    NAME,
    TREE,
    BlobNode,
    BlobWorld,
    log_lines,
    mem_world,
)

Rule = Callable[[Stream], Awaitable[None]]


async def answer(stream: Stream, record: wire.Answer, payload: bytes = b"") -> None:
    await stream.send_message(encode_record(record), payload)


async def next_request(stream: Stream) -> wire.Request:
    header, _ = await stream.receive_message(0)
    request: wire.Request = decode_record(header, wire.Request)  # type: ignore[arg-type]
    return request


async def offer_all(stream: Stream) -> int:
    """Say that we have everything; return the first chunk that is asked for."""
    await next_request(stream)
    await answer(stream, wire.Holding(NAME, MANIFEST, ALL))
    request = await next_request(stream)
    assert isinstance(request, wire.ChunkRequest)
    return request.index


async def send_wrong_bytes(stream: Stream) -> None:
    index = await offer_all(stream)
    wrong = bytes(len(CHUNKS[index]))
    await answer(stream, wire.ChunkHeader(NAME, index, TREE.proof(index)), wrong)


async def send_wrong_proof(stream: Stream) -> None:
    index = await offer_all(stream)
    proof = TREE.proof((index + 1) % N_CHUNKS)
    await answer(stream, wire.ChunkHeader(NAME, index, proof), CHUNKS[index])


async def send_too_little(stream: Stream) -> None:
    index = await offer_all(stream)
    await answer(stream, wire.ChunkHeader(NAME, index, TREE.proof(index)), CHUNKS[index][:-1])


async def send_another_chunk(stream: Stream) -> None:
    other = (await offer_all(stream) + 1) % N_CHUNKS
    await answer(stream, wire.ChunkHeader(NAME, other, TREE.proof(other)), CHUNKS[other])


async def send_what_nobody_asked_for(stream: Stream) -> None:
    await next_request(stream)
    for _ in range(2):
        await answer(stream, wire.Holding(NAME, MANIFEST, b""))


async def send_another_manifest(stream: Stream) -> None:
    await next_request(stream)
    longer = wire.BlobManifest(len(DATA) + 1, CHUNK, TREE.root)
    await answer(stream, wire.Holding(NAME, longer, ALL))


async def send_another_blob(stream: Stream) -> None:
    await next_request(stream)
    await answer(stream, wire.Holding(bytes(32), None))


async def send_garbage(stream: Stream) -> None:
    await stream.send_message(b"\xc1 no msgpack")


async def send_an_endless_chunk(stream: Stream) -> None:
    await offer_all(stream)
    too_long = bytes(limits.BLOB_CHUNK_BYTES_MAX + 1)
    await stream.send_message(b"x", too_long)


async def liar(world: BlobWorld, name: str, rule: Rule) -> BlobNode:
    """Return a node whose blob service does as the rule says, then stays silent."""
    node = BlobNode(world, name)

    async def handle(_session: Session, stream: Stream) -> None:
        await rule(stream)
        await trio.sleep_forever()

    node.services._streams[BLOB_SERVICE] = handle
    await world.nursery.start(node.live)
    return node


@pytest.mark.parametrize(
    "rule",
    [
        send_wrong_bytes,
        send_wrong_proof,
        send_too_little,
        send_another_chunk,
        send_what_nobody_asked_for,
        send_another_manifest,
        send_another_blob,
        send_garbage,
        send_an_endless_chunk,
    ],
)
async def test_a_liar_is_dropped_and_named_and_the_blob_comes_from_another(
    rule: Rule,
    tmp_path: Path,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with mem_world(tmp_path) as world:
        lying = await liar(world, "liar", rule)
        honest = await world.node("honest", upload_bytes_per_s=CHUNK / 5)  # the liar comes first
        await honest.give(DATA)
        joiner = await world.node("joiner")
        path = await joiner.fetch(NAME, lying, honest)
        assert path.read_bytes() == DATA
        [dropped] = log_lines(caplog, "holder dropped")
        assert dropped["peer"] == str(lying.peer)
        assert joiner.blobs.statistics().holders_dropped_total == 1


async def say_nothing(stream: Stream) -> None:
    await next_request(stream)


async def offer_and_say_nothing(stream: Stream) -> None:
    await offer_all(stream)


@pytest.mark.parametrize("rule", [say_nothing, offer_and_say_nothing])
async def test_a_mute_holder_delays_but_does_not_prevent(
    rule: Rule, tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with mem_world(tmp_path) as world:
        mute = await liar(world, "mute", rule)
        honest = await world.node("honest")
        await honest.give(DATA)
        joiner = await world.node("joiner")
        with trio.fail_after(limits.BLOB_IDLE_S + 1):
            path = await joiner.fetch(NAME, mute, honest)
        assert path.read_bytes() == DATA


async def always_busy(stream: Stream) -> None:
    index = await offer_all(stream)
    while True:
        await answer(stream, wire.ChunkRefusal(NAME, index, "busy"))
        request = await next_request(stream)
        assert isinstance(request, wire.ChunkRequest)
        index = request.index


async def test_who_only_says_busy_is_believed_for_ten_minutes(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with mem_world(tmp_path) as world:
        busy = await liar(world, "busy", always_busy)
        joiner = await world.node("joiner")
        began = trio.current_time()
        with pytest.raises(DeadlineExceeded, match=f"5 of 5 chunks.*{busy.peer.short} is busy"):
            await joiner.fetch(NAME, busy)
        waited_s = trio.current_time() - began
        assert limits.BLOB_BUSY_PATIENCE_S <= waited_s <= limits.BLOB_BUSY_PATIENCE_S + 5
