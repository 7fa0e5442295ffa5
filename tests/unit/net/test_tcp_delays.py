"""The shortest round trip of a punched connection, which the kernel has wrong."""

from __future__ import annotations

from swarmnode.net.tcp import RoundTrips

ENOUGH_BYTES = 1_000_000


def test_a_first_sample_that_is_wrong_is_forgotten() -> None:
    """Before, a way of 161 ms looked like one of 23 with a queue, and fell to the least rate."""
    seen = RoundTrips()
    assert [seen.least_us(rtt, 10_000) for rtt in (23_000, 90_000, 150_000)] == [
        23_000,
        90_000,
        150_000,
    ]  # no queue: what is smoothed is still on its way to what is true
    assert seen.least_us(161_000, ENOUGH_BYTES) == 150_000


def test_a_queue_is_seen_and_a_longer_route_is_learnt_in_minutes() -> None:
    seen = RoundTrips()
    assert seen.least_us(161_000, ENOUGH_BYTES) == 161_000
    assert seen.least_us(200_000, ENOUGH_BYTES) == 161_000
    later = [seen.least_us(200_000, ENOUGH_BYTES) for _ in range(3000)]
    assert (later[0], later[-1]) == (161_000, 200_000)
