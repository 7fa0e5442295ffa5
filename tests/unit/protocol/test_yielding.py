"""The rate that others on a line do not notice: what each look at the line makes of it."""

from __future__ import annotations

import math

import pytest

from swarmnode.protocol.uplink import (
    YIELD_BYTES_PER_S_MIN,
    YIELD_TARGET_S,
    Delays,
    Line,
    Yielding,
    on_the_wire,
)

LOOK_S = 0.2
EVERY_S = 30.0
BEGIN_BYTES_PER_S = 64_000.0
USED_BYTES = 6_400  # half of what that lets pass between two looks
BEFORE = math.nextafter


def begun(rtt_s: float = 0.0) -> Yielding:
    held = Yielding()
    held.note(1, Delays(rtt_s, rtt_s, 0), 0.0)
    return held


def look(
    held: Yielding,
    now: float = LOOK_S,
    *,
    queue_s: float = 0.0,
    used: int = 10**6,
    arrived: int = 0,
) -> float:
    """Tell of the only way; return by how much its rate is another."""
    before = held.rate_bytes_per_s
    held.spend(used, now)
    held.note(1, Delays(queue_s, 0.0, arrived), now)
    return held.rate_bytes_per_s / before


def target_s(held: Yielding) -> float:
    return YIELD_TARGET_S + held.turn_bytes_max / held.rate_bytes_per_s


def with_a_queue_seen() -> Yielding:
    """One that is no longer at its beginning, at another rate."""
    held = begun()
    look(held, queue_s=target_s(held) / 2, arrived=14_000)
    return held


def test_nothing_is_held_before_a_way_was_measured() -> None:
    held = Yielding()
    assert (held.rate_bytes_per_s, held.turn_bytes_max) == (0.0, 2_800)
    held.spend(10**9, 1.0)
    assert held.free_at(1.0) == 1.0
    held.note(1, Delays(0.1, 0.1, 0), 1.0)
    assert held.rate_bytes_per_s == BEGIN_BYTES_PER_S


def test_two_turns_may_pass_at_once_after_a_rest_and_one_at_the_beginning() -> None:
    held = begun()
    held.spend(held.turn_bytes_max, 0.0)
    assert held.free_at(0.0) == 0.0
    held.spend(640, 0.0)
    assert held.free_at(0.0) == pytest.approx(0.01, abs=1e-5)
    held.spend(2 * held.turn_bytes_max, 9.0)
    assert held.free_at(9.0) == 9.0
    held.spend(640, 9.0)
    assert held.free_at(9.0) == pytest.approx(9.01, abs=1e-5)
    assert held.free_at(9.5) == 9.5


def test_while_no_queue_is_seen_it_grows_by_half_where_it_is_used() -> None:
    assert look(begun(), used=USED_BYTES) == 1.5
    assert look(begun(), used=USED_BYTES - 1) == 1.0
    held = begun()
    look(held, used=0)
    assert look(held, 2 * LOOK_S) == 1.5
    assert look(held, 3 * LOOK_S, used=0) == 1.0, "what was used before was seen before"
    assert look(begun(), queue_s=0.49 * target_s(begun())) == 1.5, "a short one is none"
    assert held.turn_bytes_max == 2_800
    look(held, 4 * LOOK_S)
    assert held.turn_bytes_max == 0.02 * held.rate_bytes_per_s == 2_880


def test_a_look_is_taken_when_the_round_trips_of_the_one_before_are_over() -> None:
    held = begun(rtt_s=0.5)
    assert look(held, BEFORE(LOOK_S, 0.0)) == 1.0
    held.note(1, Delays(0.5, 0.5, 0), LOOK_S)
    assert held.rate_bytes_per_s == 1.5 * BEGIN_BYTES_PER_S
    assert look(held, BEFORE(LOOK_S + 2 * 0.5, 0.0)) == 1.0
    assert look(held, LOOK_S + 2 * 0.5) == 1.5
    assert look(held, LOOK_S + 2 * 0.5 + LOOK_S) == 1.5


def test_after_the_first_queue_it_grows_by_a_tenth() -> None:
    held = with_a_queue_seen()
    assert look(held, 2 * LOOK_S) == pytest.approx(1.1)
    held = with_a_queue_seen()
    assert look(held, 2 * LOOK_S, used=0) == 1.0
    held = with_a_queue_seen()
    assert look(held, 2 * LOOK_S, queue_s=0.49 * target_s(held)) == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("targets", "used", "share"),
    [
        (0.5, 10**6, 1.075),  # of what arrived: more while the queue is short
        (0.5, 0, None),  # what is hardly used stays as it is up to the target
        (0.75, 10**6, 1.0375),
        (0.99, 0, None),
        (1.0, 10**6, 1.0),
        (1.0, 0, 1.0),
        (2.0, 10**6, 0.85),
        (3.0, 0, 0.7),
        (5.0, 10**6, 0.5),  # never less than half
    ],
)
def test_while_a_queue_stands_the_rate_is_what_arrives_more_or_less_by_the_length_of_it(
    targets: float, used: int, share: float | None
) -> None:
    held = begun()
    arrived_per_s = on_the_wire(7_000) / LOOK_S
    look(held, queue_s=targets * target_s(held), used=used, arrived=7_000)
    expected = BEGIN_BYTES_PER_S if share is None else share * arrived_per_s
    assert held.rate_bytes_per_s == pytest.approx(expected)


def test_however_much_arrives_it_grows_by_no_more_than_a_tenth() -> None:
    held = begun()
    assert look(held, queue_s=9.0, arrived=10**9) == pytest.approx(1.1)


def test_all_that_arrived_since_the_last_look_counts_and_nothing_from_before() -> None:
    held = begun()
    for _ in range(2):
        held.note(1, Delays(9.0, 0.0, 2_800), LOOK_S / 2)
    look(held, queue_s=target_s(held), arrived=1_400)
    assert held.rate_bytes_per_s == pytest.approx(on_the_wire(7_000) / LOOK_S)
    look(held, 2 * LOOK_S, queue_s=target_s(held), arrived=5_600)
    assert held.rate_bytes_per_s == pytest.approx(on_the_wire(5_600) / LOOK_S)


def test_where_nothing_arrives_the_least_is_sent() -> None:
    held = begun()
    look(held, queue_s=9.0)
    assert held.rate_bytes_per_s == YIELD_BYTES_PER_S_MIN


def test_what_is_owed_is_owed_at_the_new_rate() -> None:
    held = begun()
    look(held, queue_s=9.0, used=0)
    held.spend(held.turn_bytes_max * 2 + 800, 9.0)
    assert held.free_at(9.0) == pytest.approx(9.1, abs=1e-5)


@pytest.mark.parametrize(("later_s", "counts"), [(1.0, True), (BEFORE(1.0, 2.0), False)])
def test_the_way_with_the_shortest_queue_counts_while_it_was_seen_in_the_last_second(
    later_s: float, counts: bool
) -> None:
    held = begun()
    held.note(2, Delays(0.3, 0.3, 0), 0.0)
    look(held, later_s, queue_s=9.0)
    expected = 1.5 * BEGIN_BYTES_PER_S if counts else YIELD_BYTES_PER_S_MIN
    assert held.rate_bytes_per_s == expected


def test_of_very_many_ways_the_one_that_still_lives_counts() -> None:
    held = begun()
    for way in range(1_000):
        held.note(way, Delays(0.0, 0.0, 0), 0.0)
    held.spend(10**6, 5.0)
    held.note(1_000, Delays(9.0, 0.0, 0), 5.0)
    assert held.rate_bytes_per_s == YIELD_BYTES_PER_S_MIN


def test_of_very_many_ways_each_counts_when_it_was_seen_last() -> None:
    held = begun()
    for way in range(1_000):
        held.note(way, Delays(9.0, 0.0, 0), 0.0)
    held.note(0, Delays(0.0, 0.0, 0), 0.1)
    look(held, queue_s=9.0)
    assert held.rate_bytes_per_s == 1.5 * BEGIN_BYTES_PER_S


def test_now_and_then_a_quarter_is_sent_for_two_looks() -> None:
    held = begun()
    assert look(held, BEFORE(EVERY_S, 0.0)) == 1.5, "not yet"
    held = begun()
    assert look(held, EVERY_S) == 0.25
    over = EVERY_S + 2 * LOOK_S
    assert look(held, BEFORE(over, 0.0), queue_s=9.0) == 1.0, "no queue is judged meanwhile"
    held = begun()
    look(held, EVERY_S)
    assert look(held, over) == 4.0
    assert held.rate_bytes_per_s == BEGIN_BYTES_PER_S
    assert look(held, over + 0.5 * EVERY_S) == 1.5
    assert look(held, BEFORE(over + EVERY_S, 0.0)) == 1.5
    assert look(held, over + EVERY_S + LOOK_S) == 0.25


def test_who_sends_next_to_nothing_makes_no_room() -> None:
    held = begun()
    assert look(held, EVERY_S, used=0) == 1.0
    assert look(held, EVERY_S + LOOK_S) == 0.25


def test_a_way_of_two_milliseconds_leads_over_the_uplink_and_a_shorter_one_does_not() -> None:
    line = Line()
    assert not line.note(1, Delays(0.04, 0.04, 0), 0.0), "it has no rate of its own"
    line.yielding = Yielding()
    assert not line.note(1, Delays(0.04, BEFORE(0.002, 0.0), 0), 0.0)
    assert line.yielding.rate_bytes_per_s == 0.0
    assert line.note(1, Delays(0.04, 0.002, 0), 0.0)
    assert line.yielding.rate_bytes_per_s == BEGIN_BYTES_PER_S
