"""Blobs over real TCP sessions, with hashing and the disk in threads."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import trio

from swarmnode import limits
from swarmnode.bench.blob import format_blob_bench, run_blob_bench
from swarmnode.store.blobs import Blob
from tests.kits.blob_kit import BlobNode, blob_world, content

N_CHUNKS = 12


async def test_three_holders_give_each_chunk_once(tmp_path: Path) -> None:
    data = content(N_CHUNKS)
    async with blob_world(tmp_path, runner=None) as world:
        holders = [await world.node(name) for name in ("anna", "bert", "carl")]
        for holder in holders:
            name = await holder.give(data)
        joiner = await world.node("joiner")
        path = await joiner.fetch(name, *holders)
        assert path.read_bytes() == data
        assert joiner.blobs.held() == {name: len(data)}
        assert sum(holder.sent for holder in holders) == N_CHUNKS
        assert all(holder.sent > 1 for holder in holders)
        assert joiner.progress[0] == (0, len(data))
        assert joiner.progress[-1] == (len(data), len(data))
        assert joiner.progress == sorted(joiner.progress)


async def test_a_holder_killed_midway_costs_no_chunk_twice(tmp_path: Path) -> None:
    data = content(N_CHUNKS)
    async with blob_world(tmp_path, runner=None) as world:
        holders = [await world.node(name) for name in ("anna", "bert", "carl")]
        for holder in holders:
            name = await holder.give(data)
        joiner = await world.node("joiner")

        def kill_one(done_bytes: int) -> None:
            if done_bytes > len(data) // 3 and not holders[0].scope.cancel_called:
                holders[0].die()

        joiner.watcher = kill_one
        path = await joiner.fetch(name, *holders)
        assert path.read_bytes() == data
        assert holders[0].scope.cancel_called
        statistics = joiner.blobs.statistics()
        assert statistics.chunks_received_total == N_CHUNKS
        assert statistics.bytes_wasted_total == 0


async def test_a_joiner_killed_midway_resumes_with_what_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = content(N_CHUNKS)
    written: list[int] = []
    write = Blob.write

    def noted_write(self: Blob, index: int, *rest: object) -> None:
        write(self, index, *rest)  # type: ignore[arg-type]
        written.append(index)

    monkeypatch.setattr(Blob, "write", noted_write)
    async with blob_world(tmp_path, runner=None) as world:
        holder = await world.node("anna")
        name = await holder.give(data)
        joiner = await world.node("joiner")
        with trio.CancelScope() as scope:
            joiner.watcher = lambda done_bytes: (
                scope.cancel() if done_bytes > len(data) // 2 else None
            )
            await joiner.fetch(name, holder)
        joiner.die()
        assert N_CHUNKS // 2 <= len(written) < N_CHUNKS
        again = await world.node("joiner")
        path = await again.fetch(name, holder)
        assert path.read_bytes() == data
        assert again.progress[0][0] >= len(data) // 2
        assert sorted(written) == list(range(N_CHUNKS)), "each was written once"


async def test_bulk_in_both_directions_leaves_room_for_requests(tmp_path: Path) -> None:
    """Two nodes fetch from each other at once, and the loop is never held up for long."""
    async with blob_world(tmp_path, runner=None) as world:
        anna, bert = await world.node("anna"), await world.node("bert")
        names = [await anna.give(content(12, seed=2)), await bert.give(content(12, seed=3))]
        await anna.open_session(bert.peer)
        late_s: list[float] = []

        async def watch() -> None:
            while True:
                due = trio.current_time() + 0.005
                await trio.sleep_until(due)
                late_s.append(trio.current_time() - due)

        async def fetch(node: BlobNode, name: bytes, holder: BlobNode) -> None:
            await node.fetch(name, holder)

        async with trio.open_nursery() as watching:
            watching.start_soon(watch)
            async with trio.open_nursery() as both:
                both.start_soon(fetch, anna, names[1], bert)
                both.start_soon(fetch, bert, names[0], anna)
            watching.cancel_scope.cancel()
        assert set(names) == set(anna.blobs.held()) == set(bert.blobs.held())
        late_s.sort()
        assert late_s[len(late_s) // 2] < 0.05, "hashes or the disk ran in the loop"


@pytest.mark.skipif(sys.platform != "linux", reason="figures are for Linux")
def test_the_blob_benchmark_measures_everything_it_promises() -> None:
    result = run_blob_bench(size_bytes=3 * limits.BLOB_CHUNK_BYTES + 1, rounds=2)
    assert result.pop("chunks_sent") == result["chunks_wanted"] == 8
    assert all(value > 0 for value in result.values())
    assert "of the plain copy" in format_blob_bench(result | {"chunks_sent": 8})
