"""The benchmark of whole swarms, small: it starts real daemons and leaves none behind."""

from __future__ import annotations

import pytest

from swarmnode.bench.swarm import format_swarm_bench, run_swarm_bench


@pytest.mark.slow
def test_four_daemons_meet_and_their_dht_is_measured() -> None:
    result = run_swarm_bench(n_nodes=4, fresh_nodes=1, operations=8, idle_s=1.0)
    assert result["nodes"] == 4
    assert result["state_equal"]
    assert 0 < result["fresh_from_listening_s"] <= result["fresh_from_start_s"]
    for name in ("put", "get", "get_all"):
        assert 0 < result[f"{name}_p50_ms"] <= result[f"{name}_p99_ms"]
    assert 20 < result["rss_mb_p50"] <= result["rss_mb_max"] < 150
    assert "shared state is the same" in format_swarm_bench(result)
