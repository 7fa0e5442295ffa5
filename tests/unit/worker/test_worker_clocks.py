"""The strategy's time: rings, rests and the pace."""

import random

import pytest

from swarmnode import limits
from swarmnode.worker.training.clocks import CLOCK_RINGS_MAX, Clocks


class Timed:
    """What clocks ask of a strategy."""

    def __init__(self, rate=0.0, pace=1.0):
        self.rate, self.speed = rate, pace

    def clock_rate(self):
        return self.rate

    def pace(self):
        return self.speed


class Rig:
    def __init__(self, **timed):
        self.now_s = 50.0
        self.strategy = Timed(**timed)
        self.clocks = Clocks(self.strategy, random.Random(3), lambda: self.now_s)
        self.rings = 0

    def step(self, seconds=0.1):
        self.clocks.begin_step()
        self.now_s += seconds
        self.clocks.end_step(seconds)
        self.serve()

    def serve(self):
        self.rings += self.clocks.rings
        self.clocks.rings = 0


def test_a_step_is_a_unit_of_time_and_the_clock_rings_at_its_rate():
    rig = Rig(rate=0.5)
    for _ in range(2000):
        rig.step()
        assert rig.clocks.rest_s() == rig.clocks.nap_s() == 0.0
    assert rig.clocks.t == 2000
    assert rig.rings == pytest.approx(1000, abs=100)  # three standard deviations


def test_a_clock_without_a_rate_never_rings():
    rig = Rig()
    for _ in range(100):
        rig.step()
    assert rig.rings == 0


def test_a_quarter_of_the_pace_rests_three_steps_for_each_and_rings_meanwhile():
    rig = Rig(rate=0.5, pace=0.25)
    for _ in range(500):
        rig.step(0.1)
        assert rig.clocks.rest_s() == pytest.approx(0.3)
        while (nap_s := rig.clocks.nap_s()) > 0:
            assert nap_s <= limits.WORKER_IDLE_POLL_S
            rig.now_s += nap_s + 1e-9
            rig.clocks.rest_s()
            assert rig.clocks.rings <= 1, "it wakes for each ring"
            rig.serve()
        assert rig.clocks.rest_s() == 0.0
    assert rig.clocks.t == 500, "time is counted in steps"
    assert rig.rings == pytest.approx(1000, abs=100), "the clock goes on at full speed"


def test_while_a_node_rests_time_goes_on_to_its_next_step():
    rig = Rig(rate=0.5, pace=0.25)
    assert rig.clocks.current() == 0.0
    rig.step(0.1)
    seen = [rig.clocks.current()]
    for _ in range(4):
        rig.now_s += 0.1
        seen.append(rig.clocks.current())
    assert seen == pytest.approx([1.0, 4 / 3, 5 / 3, 2.0, 2.0])
    assert rig.clocks.begin_step() == 2.0


def test_it_does_not_wake_for_rings_that_would_not_count():
    rig = Rig(rate=5.0, pace=0.01)
    rig.step(0.001)
    rig.now_s += 0.05
    assert rig.clocks.rest_s() == pytest.approx(0.049)
    assert rig.clocks.rings == CLOCK_RINGS_MAX
    assert rig.clocks.nap_s() == pytest.approx(min(0.049, limits.WORKER_IDLE_POLL_S))


def test_at_full_speed_time_stands_still_between_steps():
    rig = Rig(rate=0.5)
    rig.step(0.1)
    rig.now_s += 1.0
    assert rig.clocks.current() == 1.0


def test_a_rest_that_was_slept_through_counts_once():
    rig = Rig(rate=0.2, pace=0.5)
    for _ in range(2000):
        rig.step(0.1)
        rig.now_s += 100.0  # paused, for example
        assert rig.clocks.rest_s() == rig.clocks.rest_s() == 0.0
        rig.serve()
    assert rig.rings == pytest.approx(800, abs=90)


def test_rings_that_no_handler_serves_are_bounded():
    rig = Rig(rate=64.0)
    for _ in range(10):
        rig.clocks.begin_step()
        rig.clocks.end_step(0.1)
    assert rig.clocks.rings == CLOCK_RINGS_MAX
