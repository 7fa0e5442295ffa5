"""The benchmark of pairs, small: two daemons exchange, and gloo between the same processes."""

from __future__ import annotations

from swarmnode.bench.exchange import format_exchange_bench, run_exchange_bench


def test_two_exchange_and_then_all_reduce() -> None:
    result = run_exchange_bench(n_params=40_000, codec="Q8B64", repeats=2)
    assert (result["params"], result["codec"], result["exchanges"]) == (40_000, "Q8B64", 2)
    for name in ("wall_s_p50", "gloo_s_p50", "cpu_s", "gloo_cpu_s"):
        assert 0 < result[name] < 60
    assert result["bytes_sent"] == 40_000 * 8.25 / 8
    assert result["rel_error"] < 0.01  # as Q8B64 rounds it once
    assert set(result["phases"]) == {"encode_s", "requantize_s", "decode_s", "rest_s"}
    assert "gloo, float32" in format_exchange_bench(result)
