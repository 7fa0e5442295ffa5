"""The benchmark of WebRTC runs, with its four processes, and measures both sides."""

from __future__ import annotations

from swarmnode.bench.rtc import format_rtc_bench, run_rtc_bench


def test_a_session_and_bare_aiortc_are_measured_in_one_run() -> None:
    result = run_rtc_bench(rounds=1, bytes_per_round=2_000_000, requests=5)
    assert result.keys() == {
        "rtc_mbps",
        "bare_mbps",
        "share",
        "request_p50_ms",
        "cpu_s_per_gb",
        "bare_cpu_s_per_gb",
    }
    assert all(value > 0 for value in result.values())
    lines = format_rtc_bench(result).splitlines()
    assert len(lines) == 3
    assert lines[0].endswith("of bare aiortc)")
