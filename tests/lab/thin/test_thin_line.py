"""What others on a thin uplink notice of a node that sends tensors over it."""

from __future__ import annotations

import pytest

from tests.lab.thin.thin_line import measure

# Of the laboratory's own: packets are carried by a process, which waits for the processor.
LAB_MS = 15


def test_others_wait_a_moment_longer_at_1_mbit_per_s(able: None) -> None:
    found = measure(rate_mbit=1, seconds=20)
    assert found["busy_p95_ms"] <= found["quiet_p95_ms"] + 50 + LAB_MS, found
    assert found["line_kbit_per_s"] > 600, found
    counted = found["counted"]
    assert counted["exchange"] > 6 * counted["snapshots"] > 0, found


def test_without_yielding_they_wait_for_the_router_s_queue(able: None) -> None:
    found = measure(rate_mbit=1, seconds=25, yields=False)
    assert found["busy_p95_ms"] > found["quiet_p95_ms"] + 50 + LAB_MS, found


def test_what_leaves_keeps_to_the_owner_s_limit_with_all_headers(able: None) -> None:
    found = measure(rate_mbit=10, seconds=20, upload_kbit=250)
    assert found["line_kbit_per_s"] == pytest.approx(250, rel=0.1), found
