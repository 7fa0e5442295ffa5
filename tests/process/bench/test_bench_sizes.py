"""Exchanges of vectors that are one tile over and over, and the pauses that they bring."""

from __future__ import annotations

import sys

import pytest

from swarmnode.bench.exchange import run_exchange_bench
from swarmnode.bench.sizes import format_sizes_bench, run_sizes_bench

MORE_THAN_A_TILE = 20_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="a tile is mapped often on Linux")
def test_a_vector_of_tiles_arrives_as_it_is() -> None:
    result = run_exchange_bench(MORE_THAN_A_TILE, "RAW32", 1)
    assert result["rel_error"] < 1e-6
    assert result["bytes_sent"] == 4 * MORE_THAN_A_TILE
    room_bytes = 2 * 4 * MORE_THAN_A_TILE
    assert room_bytes < result["memory_bytes"] < room_bytes + 800_000_000


def test_each_size_has_its_row() -> None:
    result = run_sizes_bench((50_000, 100_000), "Q8B64", 1)
    assert [row["params"] for row in result["sizes"]] == [50_000, 100_000]
    for row in result["sizes"]:
        assert all(value > 0 for value in row.values())
        assert row["pause_ms_p50"] <= row["pause_ms_max"]
        assert row["steps_held_up"] >= 2, "a view and a merge wait for no step in common"
    lines = format_sizes_bench(result).splitlines()
    assert [line.count("|") for line in lines] == [9] * 4
    assert lines[2].startswith("| 50,000 |")
