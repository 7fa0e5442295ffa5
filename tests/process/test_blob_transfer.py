"""Blobs over real TCP sessions, with hashing and the disk in threads."""

from __future__ import annotations

from pathlib import Path

from tests.unit.blob_kit import blob_world, content


async def test_three_holders_give_each_chunk_once(tmp_path: Path) -> None:
    data = content(24)
    async with blob_world(tmp_path, runner=None) as world:
        holders = [await world.node(name) for name in ("anna", "bert", "carl")]
        for holder in holders:
            name = await holder.give(data)
        joiner = await world.node("joiner")
        path = await joiner.fetch(name, *holders)
        assert path.read_bytes() == data
        assert joiner.blobs.held() == {name: len(data)}
        assert sum(holder.sent for holder in holders) == 24
        assert all(holder.sent > 2 for holder in holders)
        assert joiner.progress[-1] == (len(data), len(data))
        assert [done for done, _ in joiner.progress] == sorted(done for done, _ in joiner.progress)
