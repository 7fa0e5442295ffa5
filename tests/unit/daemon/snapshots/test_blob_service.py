"""The blob service over sessions on virtual time: faults, lies, limits and turns.

Disk and hashes run in the loop here, as the clock runs on while a thread works; the same over
TCP with threads is in ``tests/process/net/test_blob_transfer.py``.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from swarmnode import limits
from swarmnode.daemon.snapshots.chunks import BLOB_SERVICE, Turns
from swarmnode.errors import DeadlineExceeded, Overloaded, Refused, StorageError, StorageFull
from swarmnode.ids import PeerId
from swarmnode.net.stream import Stream
from swarmnode.store.blobs import Blob
from swarmnode.wire import blobs as wire
from swarmnode.wire.packing import decode_record, encode_record
from tests.kits.blob_kit import (
    CHUNK,
    DATA,
    N_CHUNKS,
    NAME,
    BlobNode,
    content,
    flip_bit,
    log_lines,
    mem_world,
)


async def read_to_the_end(stream: Stream) -> None:
    while True:
        await stream.receive_message(limits.BLOB_CHUNK_BYTES_MAX)


# --- what goes wrong at a holder -----------------------------------------------------------


async def test_a_rotten_chunk_is_named_and_comes_from_another_holder(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with mem_world(tmp_path) as world:
        anna = await world.node("anna")
        bert = await world.node("bert", upload_bytes_per_s=CHUNK / 5)  # anna is asked for most
        assert await anna.give(DATA) == await bert.give(DATA) == NAME
        flip_bit(anna.data_file(NAME), 3 * CHUNK + 77)
        joiner = await world.node("joiner")
        path = await joiner.fetch(NAME, anna, bert)
        assert path.read_bytes() == DATA
        [rotten] = log_lines(caplog, "chunk has rotted")
        assert (rotten["blob"], rotten["index"]) == (NAME.hex()[:16], 3)


async def test_a_holder_stops_offering_what_has_rotted_and_heals_it_from_others(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with mem_world(tmp_path) as world:
        anna, bert, carl = [await world.node(name) for name in ("anna", "bert", "carl")]
        await anna.give(DATA)
        await bert.give(DATA)
        flip_bit(anna.data_file(NAME), 2 * CHUNK)
        with pytest.raises(DeadlineExceeded, match="1 of 5 chunks missing"):
            await carl.fetch(NAME, anna)
        assert anna.blobs.held() == {}
        assert anna.blobs.statistics().chunks_rotten_total == 1
        assert carl.blobs.statistics().holders_dropped_total == 0, "it was honest"
        healed = await anna.fetch(NAME, bert)
        assert healed.read_bytes() == DATA
        assert bert.sent == 1
        assert anna.blobs.held() == {NAME: len(DATA)}
        assert (await carl.fetch(NAME, anna)).read_bytes() == DATA


async def test_a_blob_that_was_complete_is_checked_before_it_counts(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with mem_world(tmp_path) as world:
        anna, bert = await world.node("anna"), await world.node("bert")
        await anna.give(DATA)
        await bert.give(DATA)
        assert (await anna.fetch(NAME)).read_bytes() == DATA, "it needs no holder"
        assert anna.progress == [(len(DATA), len(DATA))]
        flip_bit(anna.data_file(NAME), 0)
        assert (await anna.fetch(NAME, bert)).read_bytes() == DATA
        assert bert.sent == 1


async def test_a_fetcher_that_breaks_a_rule_is_cut_off(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with mem_world(tmp_path) as world:
        holder, rude = await world.node("holder"), await world.node("rude")
        await holder.give(DATA)
        session = await rude.open_session(holder.peer)
        for messages in (
            [wire.ChunkRequest(NAME, 0)],  # before the query
            [wire.HoldingQuery(NAME), wire.ChunkRequest(bytes(32), 0)],
        ):
            stream = await session.open_stream(BLOB_SERVICE)
            for message in messages:
                await stream.send_message(encode_record(message))
            with pytest.raises(Refused, match="expected"):
                await read_to_the_end(stream)
        async with await session.open_stream(BLOB_SERVICE) as stream:
            await stream.send_message(encode_record(wire.HoldingQuery(NAME)))
            await stream.send_message(encode_record(wire.ChunkRequest(NAME, 60_000)))
            await stream.receive_message(0)
            header, _ = await stream.receive_message(0)
            assert decode_record(header, wire.ChunkRefusal).reason == "absent"


# --- what a fetch refuses, or gives up ---------------------------------------------------------


async def test_a_blob_larger_than_allowed_is_not_begun(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with mem_world(tmp_path) as world:
        holder, joiner = await world.node("holder"), await world.node("joiner")
        await holder.give(DATA)
        with pytest.raises(Refused, match=f"has {len(DATA)} bytes, at most {len(DATA) - 1} are"):
            await joiner.fetch(NAME, holder, size_bytes_max=len(DATA) - 1)
        assert joiner.store.names() == []
        assert (await joiner.fetch(NAME, holder, size_bytes_max=len(DATA))).exists()
        with pytest.raises(Refused, match="at most 1 are allowed"):
            await joiner.fetch(NAME, holder, size_bytes_max=1)


async def test_what_no_member_has_ends_with_a_line_that_says_so(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with mem_world(tmp_path) as world:
        poor, joiner = await world.node("poor"), await world.node("joiner")
        began = trio.current_time()
        with pytest.raises(DeadlineExceeded) as caught:
            await joiner.fetch(NAME, poor)
        waited_s = trio.current_time() - began
        assert limits.BLOB_NO_PROGRESS_S <= waited_s <= limits.BLOB_NO_PROGRESS_S + 2
        assert "its manifest missing and nothing came from 1 holders" in str(caught.value)
        assert f"{poor.peer.short} serves this blob no more" in str(caught.value)
        with pytest.raises(DeadlineExceeded, match=r"from 0 holders.*none was reached"):
            await joiner.fetch(NAME)


async def test_holders_that_cannot_be_reached_or_refuse_are_named(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with mem_world(tmp_path) as world:
        closed = await world.node("closed", may_serve=lambda peer: False)
        await closed.give(DATA)
        gone, joiner = await world.node("gone"), await world.node("joiner")
        gone.die()
        with pytest.raises(DeadlineExceeded, match="members of its swarms only"):
            await joiner.fetch(NAME, closed)
        with pytest.raises(DeadlineExceeded, match="nobody knows where"):
            await joiner.fetch(NAME, gone)


async def test_a_full_store_ends_the_fetch_and_says_what_to_do(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with mem_world(tmp_path) as world:
        holder, joiner = await world.node("holder"), await world.node("joiner")
        await holder.give(DATA)
        joiner.store._bytes_max = CHUNK
        with pytest.raises(StorageFull, match="remove one, or allow more"):
            await joiner.fetch(NAME, holder)
        assert joiner.blobs.statistics().fetches_running == 0


@pytest.mark.parametrize("what", ["write", "flush", "complete"])
async def test_a_disk_that_fails_midway_ends_the_fetch_and_what_was_written_stays(
    what: str, tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BLOB_FLUSH_BYTES", CHUNK)
    async with mem_world(tmp_path) as world:
        holder, joiner = await world.node("holder"), await world.node("joiner")
        await holder.give(DATA)
        n_calls = 0

        def fail(self: Blob, *rest: object) -> None:
            nonlocal n_calls
            n_calls += 1
            if what != "write" or n_calls > 2:
                raise StorageError("cannot write: Input/output error")
            works(self, *rest)

        works = getattr(Blob, what)
        with monkeypatch.context() as patch:
            patch.setattr(Blob, what, fail)
            with pytest.raises(StorageError, match="Input/output error"):
                await joiner.fetch(NAME, holder)
        n_reports, written_bytes = len(joiner.progress), joiner.progress[-1][0]
        assert (await joiner.fetch(NAME, holder)).read_bytes() == DATA
        assert joiner.progress[n_reports][0] >= written_bytes > 0


# --- holders that come, go, and have only a part --------------------------------------------


async def test_a_holder_that_appears_later_and_one_that_comes_back_are_used(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with mem_world(tmp_path) as world:
        late, joiner = await world.node("late"), await world.node("joiner")
        await late.give(DATA)
        named: list[PeerId] = []

        def watch(done_bytes: int) -> None:
            if 0 < done_bytes < 2 * CHUNK:
                assert world.network is not None
                world.network.cut("joiner", "late")

        async with trio.open_nursery() as nursery:

            async def appear() -> None:
                await trio.sleep(30)
                named.append(late.peer)

            nursery.start_soon(appear)
            path = await joiner.blobs.fetch(
                NAME, lambda: named, on_progress=lambda d, _: watch(d), size_bytes_max=2**30
            )
        assert path.read_bytes() == DATA
        assert joiner.blobs.statistics().chunks_received_total == N_CHUNKS


async def test_chunks_are_served_while_the_rest_is_being_fetched(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The second joiner knows the first only, which itself gets a chunk every four seconds."""
    async with mem_world(tmp_path) as world:
        slow = await world.node("slow", upload_bytes_per_s=CHUNK / 4)
        await slow.give(DATA)
        first, second = await world.node("first"), await world.node("second")
        finished: dict[str, float] = {}

        async def fetch(node: BlobNode, holder: BlobNode) -> None:
            path = await node.fetch(NAME, holder)
            assert path.read_bytes() == DATA
            finished[node.name] = trio.current_time()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetch, first, slow)
            await trio.sleep(1)
            nursery.start_soon(fetch, second, first)
        assert slow.sent == first.sent == N_CHUNKS
        assert finished["second"] - finished["first"] <= limits.BLOB_REFRESH_S + 1


async def test_two_fetches_of_one_blob_are_one_transfer(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with mem_world(tmp_path) as world:
        holder, joiner = await world.node("holder"), await world.node("joiner")
        await holder.give(DATA)
        paths: list[Path] = []

        async def fetch() -> None:
            paths.append(await joiner.fetch(NAME, holder))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetch)
            nursery.start_soon(fetch)
        assert paths == [joiner.data_file(NAME)] * 2
        assert holder.sent == N_CHUNKS


async def test_what_is_held_is_known_after_a_restart_and_can_be_removed(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with mem_world(tmp_path) as world:
        anna = await world.node("anna")
        await anna.give(DATA)
        anna.die()
        await trio.sleep(1)
        again, joiner = await world.node("anna"), await world.node("joiner")
        assert again.blobs.held() == {NAME: len(DATA)}
        assert again.blobs.statistics().held_bytes == len(DATA)

        def remove_too_early(_done_bytes: int) -> None:
            world.nursery.start_soon(refused)

        async def refused() -> None:
            if joiner.blobs.statistics().fetches_running:
                with pytest.raises(Refused, match="is being fetched"):
                    await joiner.blobs.remove(NAME)

        joiner.watcher = remove_too_early
        await joiner.fetch(NAME, again)
        await again.blobs.remove(NAME)
        assert again.blobs.held() == {}
        assert again.store.names() == []


# --- limits -------------------------------------------------------------------------------------


def check_rate(rate_bytes_per_s: float, n_bytes: int, took_s: float) -> None:
    """The burst at the start is free; the last chunk may be sent before it is paid for."""
    paid_bytes = n_bytes - rate_bytes_per_s * limits.BLOB_BURST_S
    assert paid_bytes / rate_bytes_per_s == pytest.approx(took_s, rel=0.1)


async def test_the_upload_limit_holds_over_all_peers(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with mem_world(tmp_path) as world:
        holder = await world.node("holder", upload_bytes_per_s=CHUNK)
        await holder.give(DATA)
        joiners = [await world.node(f"joiner-{n}") for n in range(4)]
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for joiner in joiners:
                nursery.start_soon(joiner.fetch, NAME, holder)
        check_rate(CHUNK, 4 * len(DATA), trio.current_time() - began)
        assert holder.sent == 4 * N_CHUNKS


async def test_the_download_limit_holds_over_all_fetches(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with mem_world(tmp_path) as world:
        anna, bert = await world.node("anna"), await world.node("bert")
        joiner = await world.node("joiner", download_bytes_per_s=CHUNK)
        names = [await anna.give(content(9, seed=2)), await bert.give(content(9, seed=3))]
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(joiner.fetch, names[0], anna)
            nursery.start_soon(joiner.fetch, names[1], bert)
        check_rate(CHUNK, 2 * len(content(9)), trio.current_time() - began)


async def test_a_very_slow_limit_of_our_own_is_no_fault_of_the_holders(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with mem_world(tmp_path) as world:
        holder = await world.node("holder")
        await holder.give(DATA)
        chunk_s = 1.5 * limits.BLOB_NO_PROGRESS_S
        joiner = await world.node("joiner", download_bytes_per_s=CHUNK / chunk_s)
        began = trio.current_time()
        assert (await joiner.fetch(NAME, holder)).read_bytes() == DATA
        assert trio.current_time() - began > 3 * chunk_s


async def test_more_joiners_than_turns_all_get_the_blob(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with mem_world(tmp_path) as world:
        holder = await world.node("holder", upload_bytes_per_s=CHUNK / 2.0)
        await holder.give(DATA)
        joiners = [await world.node(f"joiner-{n}") for n in range(limits.BLOB_UPLOADS_MAX + 3)]
        async with trio.open_nursery() as nursery:
            for joiner in joiners:
                nursery.start_soon(joiner.fetch, NAME, holder)
            await trio.sleep(3)
            assert holder.blobs.statistics().uploads_running == limits.BLOB_UPLOADS_MAX
        assert holder.blobs.statistics().busy_refusals_total > 0
        assert holder.blobs.statistics().uploads_running == 0
        assert holder.sent == len(joiners) * N_CHUNKS


async def test_the_streams_of_one_peer_are_bounded(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with mem_world(tmp_path) as world:
        holder, greedy = await world.node("holder"), await world.node("greedy")
        await holder.give(DATA)
        session = await greedy.open_session(holder.peer)
        query = encode_record(wire.HoldingQuery(NAME))
        streams = []
        for _ in range(limits.BLOB_STREAMS_PER_PEER_MAX):
            streams.append(await session.open_stream(BLOB_SERVICE))
            await streams[-1].send_message(query)
            await streams[-1].receive_message(0)
        one_more = await session.open_stream(BLOB_SERVICE)
        await one_more.send_message(query)
        with pytest.raises(Overloaded, match="streams of blobs at once"):
            await one_more.receive_message(0)
        for stream in streams:
            await stream.send_end()
        await trio.sleep(1)
        assert (await greedy.fetch(NAME, holder)).read_bytes() == DATA


async def test_a_peer_that_stops_reading_does_not_keep_its_turn(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with mem_world(tmp_path) as world:
        holder, stuck = await world.node("holder"), await world.node("stuck")
        await holder.give(DATA)
        session = await stuck.open_session(holder.peer)
        stream = await session.open_stream(BLOB_SERVICE)
        await stream.send_message(encode_record(wire.HoldingQuery(NAME)))
        await stream.receive_message(0)
        for _ in range(4):
            for index in range(N_CHUNKS):  # more than its window
                await stream.send_message(encode_record(wire.ChunkRequest(NAME, index)))
        await trio.sleep(limits.BLOB_SEND_S / 2)
        assert holder.blobs.statistics().uploads_running == 1
        await trio.sleep(limits.BLOB_SEND_S)
        assert holder.blobs.statistics().uploads_running == 0
        with pytest.raises(Refused, match="no result within 180 s"):
            await read_to_the_end(stream)


# --- turns --------------------------------------------------------------------------------------

PEERS = [PeerId(bytes([n]) * 32) for n in range(10)]


def test_a_turn_lasts_while_no_other_wants_it_and_ends_for_those_that_were_refused() -> None:
    turns = Turns(None)
    for peer in PEERS[: limits.BLOB_UPLOADS_MAX]:
        assert turns.admit(peer, 0.0)
    later = 10 * limits.BLOB_TURN_S
    assert turns.admit(PEERS[0], later), "no peer has been refused"
    assert not turns.admit(PEERS[9], later)
    assert not turns.admit(PEERS[0], later + 1), "its time is over"
    turns.done(PEERS[0])
    assert not turns.admit(PEERS[9], later + 1), "it is still owed a chunk"
    turns.done(PEERS[0])
    assert turns.admit(PEERS[9], later + 2)
    assert not turns.admit(PEERS[0], later + 2)
    assert turns.n_peers == limits.BLOB_UPLOADS_MAX


def test_who_wants_nothing_gives_way_at_once() -> None:
    turns = Turns(None)
    for peer in PEERS[: limits.BLOB_UPLOADS_MAX]:
        assert turns.admit(peer, 0.0)
    turns.done(PEERS[2])
    assert turns.n_peers == limits.BLOB_UPLOADS_MAX - 1
    assert turns.admit(PEERS[9], 0.0)


@pytest.mark.parametrize(
    ("rate_bytes_per_s", "peers"),
    [(None, 4), (125_000, 1), (2 * CHUNK * 2 / limits.BLOB_IDLE_S, 2), (1e9, 4)],
)
def test_a_slow_uplink_is_shared_by_few(rate_bytes_per_s: float | None, peers: int) -> None:
    turns = Turns(rate_bytes_per_s)
    assert [turns.admit(peer, 0.0) for peer in PEERS].count(True) == peers
