"""What two nodes hold is measured while they exchange, by whichever strategy."""

from __future__ import annotations

import sys

import pytest

from swarmnode.bench.memory import run_memory_bench

PARAMS = 100_000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc"),
]


# Groups, pairs that weigh what comes, a clock, and a log alone.
@pytest.mark.parametrize("strategy", ["streaming", "pair-average", "a2cid2", "one-byte"])
def test_what_they_hold_is_measured_once_they_have_exchanged(strategy: str) -> None:
    result = run_memory_bench(PARAMS, strategy)
    assert (result["params"], result["strategy"]) == (PARAMS, strategy)
    assert result["exchanges_applied"] >= 2
    model_mb = 4e-6 * PARAMS
    assert 20 < result["daemon_rss_mb"] < 300
    assert 100 < result["worker_rss_over_model"] * model_mb < 2000, "mostly torch's"
    assert result["snapshot_extra_over_model"] >= 0
