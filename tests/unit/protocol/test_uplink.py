"""What may pass a line: by purpose, and as fast as others on it do not notice."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

import pytest

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
