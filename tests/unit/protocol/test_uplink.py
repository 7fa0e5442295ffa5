"""What may pass a line: by purpose, and as fast as others on it do not notice."""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass, field

import pytest

from swarmnode import limits
from swarmnode.protocol.uplink import (
    Delays,
    Line,
    Purpose,
    Yielding,
    on_the_wire,
    purpose_of,
    receipts,
)

STEP_S = 0.001
MBIT = 125_000.0  # bytes/s


@dataclass
class Uplink:
    """A home's uplink: a queue of a router, and a node behind it that always wants to send.

    ``others_bytes_per_s`` pass first. What is told of round trips is smoothed as TCP does it.
    """

    rate_bytes_per_s: float
    rtt_s: float = 0.04
    others_bytes_per_s: float = 0.0
    queue_s_max: float = 0.1
    line: Line = field(default_factory=Line)
    now: float = 0.0
    sent_bytes: float = 0.0
    waits_s: list[float] = field(default_factory=list)  # of another's packet, each millisecond
    _queue_bytes: float = 0.0
    _smoothed_s: float = 0.0
    _told: deque[tuple[float, float, float]] = field(default_factory=deque)
    _arrived_bytes: float = 0.0

    def run(self, seconds: float, purpose: Purpose = Purpose.EXCHANGE) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += STEP_S
            self._send(purpose)
            self.waits_s.append(self._wait_s)
            served = (self.rate_bytes_per_s - self.others_bytes_per_s) * STEP_S
            self._queue_bytes = max(0.0, self._queue_bytes - served)
            self._hear()

    @property
    def _wait_s(self) -> float:
        return self._queue_bytes / (self.rate_bytes_per_s - self.others_bytes_per_s)

    def _send(self, purpose: Purpose) -> None:
        while self.line.free_at(self.now, purpose, is_far=True) <= self.now:
            n_bytes = self.line.turn_bytes_max(is_far=True)
            self.line.spend(n_bytes, self.now, purpose, is_far=True)
            room = self.queue_s_max * self.rate_bytes_per_s - self._queue_bytes
            passed = min(n_bytes, max(0.0, room))
            self._queue_bytes += passed
            self.sent_bytes += passed
            sample_s = self.rtt_s + self._wait_s  # of the last packet of the turn
            self._told.append((self.now + sample_s, sample_s, passed / on_the_wire(1400) * 1400))
            if passed < n_bytes:
                return

    def _hear(self) -> None:
        while self._told and self._told[0][0] <= self.now:
            _, sample_s, arrived_bytes = self._told.popleft()
            self._arrived_bytes += arrived_bytes
            self._smoothed_s += (sample_s - self._smoothed_s) / (8 if self._smoothed_s else 1)
        if self._smoothed_s and round(self.now / STEP_S) % 100 == 0:
            seen = Delays(self._smoothed_s, self.rtt_s, int(self._arrived_bytes))
            self.line.note(1, seen, self.now)
            self._arrived_bytes = 0.0

    def p95_s(self) -> float:
        return statistics.quantiles(self.waits_s, n=20)[-1]


def yielding(rate_bytes_per_s: float, **settings: float) -> Uplink:
    uplink = Uplink(rate_bytes_per_s, **settings)
    uplink.line.yielding = Yielding()
    uplink.line.note(1, Delays(uplink.rtt_s, uplink.rtt_s, 0), 0.0)  # as the handshake took
    return uplink


@pytest.mark.parametrize(("rtt_s", "wait_s", "share"), [(0.02, 0.045, 0.9), (0.3, 0.06, 0.75)])
def test_others_wait_a_moment_only_on_a_thin_line(
    rtt_s: float, wait_s: float, share: float
) -> None:
    uplink = yielding(MBIT, rtt_s=rtt_s)
    uplink.run(60)
    assert uplink.p95_s() < wait_s
    assert uplink.sent_bytes > share * MBIT * 60


def test_without_it_they_wait_for_the_whole_queue() -> None:
    uplink = Uplink(MBIT)
    uplink.line.limit(2 * MBIT)  # the owner thinks that the line is a better one
    uplink.run(20)
    assert uplink.p95_s() > 0.09


@pytest.mark.parametrize("mbit", [20, 500])
def test_a_fast_line_is_found_soon_and_used(mbit: int) -> None:
    uplink = yielding(mbit * MBIT)
    uplink.run(20)
    before = uplink.sent_bytes
    uplink.run(20)
    assert uplink.sent_bytes - before > 0.8 * mbit * MBIT * 20
    assert uplink.p95_s() < 0.06


def test_it_makes_room_for_others_and_takes_the_line_back() -> None:
    uplink = yielding(10 * MBIT)
    uplink.run(20)
    uplink.others_bytes_per_s = 9 * MBIT
    uplink.run(10)
    before, uplink.waits_s = uplink.sent_bytes, []
    uplink.run(20)
    assert uplink.sent_bytes - before < 1.05 * MBIT * 20
    assert uplink.p95_s() < 0.08
    uplink.others_bytes_per_s = 0.0
    uplink.run(15)
    before = uplink.sent_bytes
    uplink.run(10)
    assert uplink.sent_bytes - before > 0.8 * 10 * MBIT * 10


def test_a_fast_line_is_found_within_seconds() -> None:
    uplink = yielding(500 * MBIT)
    uplink.run(6)
    assert uplink.line.yielding is not None
    assert uplink.line.yielding.rate_bytes_per_s > 0.5 * 500 * MBIT


def test_after_a_moment_of_room_for_others_the_rate_is_what_it_was() -> None:
    uplink = yielding(10 * MBIT)
    held = uplink.line.yielding
    assert held is not None
    uplink.run(29)
    before = held.rate_bytes_per_s
    while held.rate_bytes_per_s > before / 2:
        uplink.run(STEP_S)
    assert uplink.now < 32
    while held.rate_bytes_per_s < before / 2:
        uplink.run(STEP_S)
    assert uplink.now < 33
    assert held.rate_bytes_per_s > 0.8 * before


def test_a_line_that_others_keep_full_is_left_to_them() -> None:
    """A queue that is there whatever we do: the least is sent, so that we notice its end."""
    line = Line()
    line.yielding = Yielding()
    for tenth in range(600):
        rate = line.yielding.rate_bytes_per_s
        line.note(1, Delays(0.3, 0.04, int(rate / 10)), tenth / 10)
        line.spend(int(rate / 10), tenth / 10, is_far=True)
    assert line.yielding.rate_bytes_per_s < 0.15 * MBIT


def test_a_queue_further_on_is_no_queue_of_this_line() -> None:
    line = Line()
    line.yielding = Yielding()
    now = 0.0
    for _ in range(300):
        now += 0.1
        for way, rtt_s in ((1, 0.3), (2, 0.041)):
            line.note(way, Delays(rtt_s, 0.04, 0), now)
        line.spend(int(line.yielding.rate_bytes_per_s / 10), now, is_far=True)
    assert line.yielding.rate_bytes_per_s > 10 * MBIT


def test_a_short_queue_changes_no_rate_that_is_hardly_used() -> None:
    line = Line()
    line.yielding = Yielding()
    rates = set()
    for tenth in range(200):
        line.note(1, Delays(0.08, 0.04, 0), tenth / 10)
        line.spend(500, tenth / 10, is_far=True)
        rates.add(line.yielding.rate_bytes_per_s)
    assert len(rates) == 1


def test_ways_within_the_house_are_not_held() -> None:
    line = Line()
    line.yielding = Yielding()
    assert not line.note(1, Delays(0.5, 0.0005, 0), 0.0)
    assert line.free_at(0.0, Purpose.EXCHANGE, is_far=True) == 0.0


@pytest.mark.parametrize("is_owner_s_limit", [True, False])
def test_exchanges_pass_before_relaying_before_snapshots(is_owner_s_limit: bool) -> None:
    line = Line()
    if is_owner_s_limit:
        line.limit(MBIT)
    else:
        line.yielding = Yielding()
        line.note(1, Delays(0.04, 0.04, 0), 0.0)
    waiting = (Purpose.SNAPSHOTS, Purpose.RELAYING, Purpose.EXCHANGE)
    for millisecond in range(60_000):
        now = millisecond / 1000
        for purpose in waiting:
            if line.free_at(now, purpose, is_far=True) <= now:
                line.spend(line.turn_bytes_max(is_far=True), now, purpose, is_far=True)
    total = sum(line.for_purpose)
    shares = [line.for_purpose[purpose] / total for purpose in reversed(waiting)]
    assert shares == pytest.approx([8 / 11, 2 / 11, 1 / 11], abs=0.03)
    before = line.for_purpose[Purpose.SNAPSHOTS]
    for millisecond in range(60_000, 90_000):  # alone it has all of it, without delay
        now = millisecond / 1000
        if line.free_at(now, Purpose.SNAPSHOTS, is_far=True) <= now:
            line.spend(line.turn_bytes_max(is_far=True), now, Purpose.SNAPSHOTS, is_far=True)
    assert line.for_purpose[Purpose.SNAPSHOTS] - before > 0.45 * total


def test_those_that_wait_have_their_turns_in_order_of_asking() -> None:
    line = Line()
    line.limit(MBIT)
    sent = dict.fromkeys(("first", "second", "third"), 0)

    def run(begin_ms: int, end_ms: int, *waiters: str) -> None:
        for now in (millisecond / 1000 for millisecond in range(begin_ms, end_ms)):
            for waiter in waiters:
                while line.free_at(now, waiter=waiter) <= now:
                    line.spend(line.turn_bytes_max(), now, Purpose.EXCHANGE)
                    sent[waiter] += line.turn_bytes_max()

    run(0, 30_000, *sent)
    assert list(sent.values()) == pytest.approx([MBIT * 10] * 3, rel=0.05)
    run(30_000, 60_000, "first", "third")  # the second is gone, and takes no turn of the others
    assert list(sent.values()) == pytest.approx([MBIT * 25, MBIT * 10, MBIT * 25], rel=0.05)


def test_who_asks_later_has_its_turn_after_who_waits() -> None:
    line = Line()
    line.limit(MBIT)
    line.spend(10 * line.turn_bytes_max(), 0.0, Purpose.EXCHANGE)
    free_at = line.free_at(0.0, waiter="first")
    assert free_at > 0.0
    assert line.free_at(free_at, waiter="second") > free_at
    assert line.free_at(free_at, waiter="first") <= free_at


def test_what_was_used_long_ago_is_no_debt() -> None:
    line = Line()
    line.limit(MBIT)
    now = 0.0
    for purpose in (Purpose.EXCHANGE, Purpose.SNAPSHOTS):
        for _ in range(30_000):
            now += 0.001
            for each in {purpose, Purpose.SNAPSHOTS}:
                if line.free_at(now, each) <= now:
                    line.spend(line.turn_bytes_max(), now, each)
    before = line.for_purpose[Purpose.EXCHANGE]
    for _ in range(10_000):
        now += 0.001
        for each in (Purpose.SNAPSHOTS, Purpose.EXCHANGE):
            if line.free_at(now, each) <= now:
                line.spend(line.turn_bytes_max(), now, each)
    assert line.for_purpose[Purpose.EXCHANGE] - before > 0.8 * MBIT * 10


def test_a_stream_is_for_what_its_service_says() -> None:
    assert purpose_of("blob/1@0123", is_bulk=False) is Purpose.SNAPSHOTS
    assert purpose_of("relay-leg/1", is_bulk=False) is Purpose.RELAYING
    assert purpose_of("exchange/1@0123", is_bulk=True) is Purpose.EXCHANGE
    assert purpose_of("state/1@0123", is_bulk=False) is Purpose.STATE


def test_headers_count() -> None:
    assert on_the_wire(0) == 0
    assert on_the_wire(100) == 152
    assert on_the_wire(1_400_000) == 1_452_000
    assert receipts(100) == 0
    assert receipts(1_400_000) == 26_000


# --- one line, to the byte -----------------------------------------------------------------------

THIN = 8_192.0  # bytes/s: a turn of 4 KiB takes half a second, and 16 KiB may pass at once
TURN_BYTES, TURN_S = 4 * limits.KIB, 0.5
WAITS_S = 4 * TURN_S
BURST_BYTES = 16 * limits.KIB


def thin() -> Line:
    line = Line()
    line.limit(THIN)
    return line


def test_a_line_without_a_rate_only_counts() -> None:
    line = Line()
    line.spend(10**9, 0.0, Purpose.RELAYING)
    line.spend(7, 0.0)
    line.count(5, Purpose.SNAPSHOTS)
    assert line.total_bytes == 10**9 + 12
    assert line.by_purpose() == {"exchange": 0, "relaying": 10**9, "snapshots": 5, "state": 7}
    assert not line.is_limited
    assert line.debt_s(0.0) == 0.0
    assert [line.free_at(0.0, each, waiter=each) for each in Purpose] == [0.0] * 4
    assert line.window_bytes == limits.BULK_WINDOW_BYTES
    assert line.turn_bytes_max() == limits.FRAME_DATA_BYTES_MAX


def test_a_limit_is_there_until_it_is_taken_away() -> None:
    line = thin()
    assert (line.is_limited, line.rate_bytes_per_s) == (True, THIN)
    line.limit(0.0)
    assert (line.is_limited, line.rate_bytes_per_s) == (False, 0.0)
    line.yielding = Yielding()
    assert line.is_limited


@pytest.mark.parametrize(
    ("rate", "at_once"), [(1_000.0, BURST_BYTES), (THIN, BURST_BYTES), (400_000.0, 100_000)]
)
def test_a_quarter_of_a_second_passes_at_once_and_then_what_is_owed_is_paid(
    rate: float, at_once: int
) -> None:
    line = Line()
    line.limit(rate)
    line.spend(at_once, 1.0)
    assert (line.free_at(1.0), line.debt_s(1.0)) == (1.0, 0.0)
    line.pay(1_000, 1.0)
    assert line.total_bytes == at_once
    assert line.debt_s(1.0) == pytest.approx(1_000 / rate, abs=1e-5)
    assert line.free_at(1.0) == pytest.approx(1.0 + 1_000 / rate, abs=1e-5)


@pytest.mark.parametrize(
    ("rate", "turn_bytes", "window_bytes"),
    [
        (THIN, TURN_BYTES, limits.STREAM_WINDOW_BYTES),
        (50_000.0, 5_000, limits.STREAM_WINDOW_BYTES),
        (500_000.0, 50_000, 500_000),
        (1e9, limits.FRAME_DATA_BYTES_MAX, limits.BULK_WINDOW_BYTES),
    ],
)
def test_turns_and_windows_are_as_large_as_the_rate_allows(
    rate: float, turn_bytes: int, window_bytes: int
) -> None:
    line = Line()
    line.limit(rate)
    assert (line.turn_bytes_max(), line.window_bytes) == (turn_bytes, window_bytes)


def test_what_leads_over_the_uplink_is_held_by_the_lower_of_both_rates() -> None:
    line = thin()
    line.yielding = Yielding()
    assert line.turn_bytes_max(is_far=True) == TURN_BYTES, "no way was measured"
    line.note(1, Delays(0.04, 0.04, 0), 0.0)
    assert line.turn_bytes_max() == TURN_BYTES
    assert line.turn_bytes_max(is_far=True) == line.yielding.turn_bytes_max < TURN_BYTES
    line.spend(line.yielding.turn_bytes_max, 0.0)
    line.spend(line.yielding.turn_bytes_max + 640, 0.0, is_far=True)
    assert line.free_at(0.0) == 0.0
    assert line.free_at(0.0, is_far=True) == pytest.approx(0.01, abs=1e-5)
    line.spend(BURST_BYTES, 0.0)
    assert line.free_at(0.0, is_far=True) == line.free_at(0.0) > 0.6


def test_waits_of_several_sessions_count_once() -> None:
    line = Line()
    for now, until, total_s in (
        (0.0, 2.0, 2.0),
        (1.0, 3.0, 3.0),
        (0.0, 1.0, 3.0),
        (10.0, 12.0, 5.0),
        (20.0, 19.0, 5.0),
        (19.5, 21.0, 6.0),
    ):
        line.note_wait(now, until)
        assert line.throttled_s == total_s


# --- who is next ---------------------------------------------------------------------------------


def two_that_wait() -> Line:
    """Snapshots have had their share, and exchanges have just begun, where they are."""
    line = thin()
    assert line.free_at(0.0, Purpose.SNAPSHOTS) == 0.0
    line.spend(1_000, 0.0, Purpose.SNAPSHOTS)
    assert line.free_at(0.0, Purpose.EXCHANGE) == 0.0
    return line


def test_who_has_had_less_of_its_share_goes_first_and_the_other_asks_again_in_half_a_turn() -> None:
    line = two_that_wait()
    assert line.free_at(0.0, Purpose.SNAPSHOTS) == 0.0, "both have had as much"
    line.spend(7_992, 0.0, Purpose.EXCHANGE)  # an eighth of it counts
    assert line.free_at(0.0, Purpose.SNAPSHOTS) == 0.0
    line.spend(1_000, 0.0, Purpose.SNAPSHOTS)
    assert line.free_at(0.0, Purpose.SNAPSHOTS) == TURN_S / 2
    assert line.free_at(0.0, Purpose.EXCHANGE) == 0.0


def test_a_purpose_waits_for_four_turns_after_it_asked() -> None:
    line = two_that_wait()
    line.spend(1_000, 0.0, Purpose.SNAPSHOTS)
    assert line.free_at(WAITS_S, Purpose.SNAPSHOTS) == WAITS_S + TURN_S / 2
    assert line.free_at(math.nextafter(WAITS_S, 9.0), Purpose.SNAPSHOTS) < WAITS_S + TURN_S / 2
    line = two_that_wait()
    line.spend(BURST_BYTES + TURN_BYTES - 1_000, 0.0, Purpose.STATE)
    paid_at = line.free_at(0.0, Purpose.EXCHANGE)
    assert paid_at == pytest.approx(TURN_S, abs=1e-5)
    line.spend(1_000, 0.0, Purpose.SNAPSHOTS)
    last = paid_at + WAITS_S
    assert line.free_at(last, Purpose.SNAPSHOTS) > last, "from when it could have passed"


def test_who_comes_back_begins_where_the_others_are() -> None:
    line = thin()
    line.free_at(0.0, Purpose.SNAPSHOTS)
    line.free_at(0.0, Purpose.EXCHANGE)
    line.spend(8 * 500, 0.0, Purpose.EXCHANGE)
    line.spend(400, 0.0, Purpose.SNAPSHOTS)
    for _ in range(2):  # it is still there, and is not taken for one that comes
        assert line.free_at(WAITS_S, Purpose.EXCHANGE) > WAITS_S
    later = 3 * WAITS_S
    assert line.free_at(later, Purpose.SNAPSHOTS) == later
    line.spend(9_000, later, Purpose.SNAPSHOTS)
    line.free_at(later, Purpose.EXCHANGE)
    line.spend(8, later, Purpose.EXCHANGE)  # now a byte ahead, with no credit for its rest
    assert line.free_at(later, Purpose.EXCHANGE) > later
    assert line.free_at(later, Purpose.SNAPSHOTS) == later


def test_who_comes_when_the_last_turn_of_another_ends_begins_where_that_one_is() -> None:
    line = thin()
    line.free_at(0.0, Purpose.SNAPSHOTS)
    line.spend(1_000, 0.0, Purpose.SNAPSHOTS)
    line.free_at(WAITS_S, Purpose.EXCHANGE)
    line.spend(8, WAITS_S, Purpose.EXCHANGE)
    assert line.free_at(WAITS_S, Purpose.EXCHANGE) > WAITS_S


def owing(*waiters: str) -> tuple[Line, float]:
    """A line in debt, and when it is free again for those that wait, in this order."""
    line = thin()
    line.spend(BURST_BYTES + TURN_BYTES, 0.0, Purpose.EXCHANGE)
    free_at = 0.0
    for waiter in waiters:
        free_at = line.free_at(0.0, waiter=waiter)
    return line, free_at


def test_each_has_one_turn_and_then_it_is_the_next_ones() -> None:
    line, free_at = owing("first", "second")
    assert line.free_at(free_at, waiter="second") == free_at + TURN_S / 2
    assert line.free_at(free_at, waiter="first") == free_at
    line.spend(TURN_BYTES, free_at, Purpose.EXCHANGE)
    next_at = line.free_at(free_at, waiter="first")
    assert line.free_at(next_at, waiter="first") == next_at + TURN_S / 2
    assert line.free_at(next_at, waiter="second") == next_at


def test_who_waits_no_more_is_in_no_ones_way() -> None:
    line, free_at = owing("first")
    line.wait_no_more("stranger", Purpose.EXCHANGE)
    line.wait_no_more("first", Purpose.SNAPSHOTS)
    assert line.free_at(free_at, waiter="second") > free_at
    line.wait_no_more("first", Purpose.EXCHANGE)
    assert line.free_at(free_at, waiter="second") == free_at


def test_who_does_not_come_for_four_turns_is_gone() -> None:
    line, free_at = owing("first")
    last = free_at + WAITS_S
    assert line.free_at(last, waiter="second") > last
    after = math.nextafter(last, 9.0)
    assert line.free_at(after, waiter="second") == after
    line, free_at = owing("first")
    assert line.free_at(last + 1, waiter="second") == last + 1
    assert line.free_at(last + 1, waiter="first") == last + 1


def test_who_has_no_name_holds_no_other_up_and_waits_for_none() -> None:
    line, free_at = owing("first")
    assert line.free_at(free_at) == free_at
    line = thin()
    line.spend(BURST_BYTES + TURN_BYTES, 0.0, Purpose.EXCHANGE)
    free_at = line.free_at(0.0)
    assert line.free_at(free_at, waiter="second") == free_at


def test_who_still_waits_for_a_former_rate_holds_no_other_up_until_then() -> None:
    line, free_at = owing("first")
    line.limit(100 * THIN)
    assert line.free_at(free_at - 0.1, waiter="second") == free_at - 0.1
    line, free_at = owing("first")
    line.limit(100 * THIN)
    now = free_at - 0.0005  # timers are no more exact than that
    assert line.free_at(now, waiter="second") > now
