"""The benchmark of group means, small: daemons average, and gloo between the same processes."""

from __future__ import annotations

import pytest

from swarmnode.bench.group import format_group_bench, run_group_bench


@pytest.mark.parametrize("merge", ["mean", "sybil-mean"])
def test_members_average_and_all_reduce_in_turns(merge: str) -> None:
    result = run_group_bench(members=4, params=40_000, codec="Q8B64", merge=merge, repeats=2)
    assert (result["members"], result["params"], result["rounds"]) == (4, 40_000, 2)
    for name in ("wall_s_p50", "gloo_s_p50", "cpu_s", "gloo_cpu_s"):
        assert 0 < result[name] < 60
    # Three shares of a quarter, and one sum to three members: one and a half vectors of 8.25 bits;
    # more where a witness makes a piece again.
    least = 1.5 * 40_000 * 8.25 / 8
    assert 0.99 * least < result["bytes_sent"] < 1.8 * least
    # As Q8B64 rounds it twice. The rule leaves vectors at right angles as they are, or nearly.
    assert result["rel_error"] < (0.01 if merge == "mean" else 0.05)
    assert "gloo, float32" in format_group_bench(result)
