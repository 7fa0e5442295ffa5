"""Rounds end together whatever the speeds, and slow nodes count as much as their data."""

import random

import pytest

from swarmnode import limits
from swarmnode.errors import ConfigError
from swarmnode.protocol.pacing import Pacer, pacer_of


def paced(speeds, most, fewest):
    """Return the steps of each node in a round, from what all have measured and said."""
    pacers = [Pacer(most, fewest) for _ in speeds]
    for pacer, step_s in zip(pacers, speeds, strict=True):
        pacer.note_step(step_s)
    return [
        pacer.steps([other.step_s for other in pacers if other is not pacer]) for pacer in pacers
    ]


def idle_share(speeds, steps):
    """Return the share of all time that is spent waiting for the last member of a round."""
    times = [step_s * n for step_s, n in zip(speeds, steps, strict=True)]
    return 1 - sum(times) / (max(times) * len(times))


def test_speeds_of_one_to_eight_end_together():
    speeds = (1, 2, 4, 8)
    steps = paced(speeds, 80, 10)
    assert steps == [80, 40, 20, 10]
    assert idle_share(speeds, steps) <= 0.01
    assert idle_share(speeds, [80] * 4) == pytest.approx(0.53, abs=0.005)  # equal steps


def test_speeds_that_do_not_divide_waste_little():
    speeds = (1, 1.3, 2.1, 2.9, 4.4, 7.9)
    assert idle_share(speeds, paced(speeds, 80, 8)) < 0.05


def test_the_canary_that_paces_by_the_slowest_waits_for_half_of_the_time():
    """Equal steps for all, as many as the slowest takes: the others wait for it."""
    speeds = (1, 2, 4, 8)
    assert idle_share(speeds, [10] * 4) > 0.5


def test_bounds_hold_against_a_peer_that_lies_about_its_speed():
    pacer = Pacer(most=80, fewest=10)
    assert pacer.steps([1.0]) == 80  # nothing is measured yet
    pacer.note_step(1.0)
    assert pacer.steps([1e-9]) == 10
    assert pacer.steps([1e9]) == 80
    assert pacer.steps([0.0]) == 80  # unknown
    with pytest.raises(ConfigError, match="expected 1 <= fewest <= most steps, got 9 and 8"):
        Pacer(8, 9)


def test_a_change_of_speed_is_followed_within_a_few_rounds():
    pacer = Pacer(80, 10)
    for _ in range(100):
        pacer.note_step(1.0)
    for _ in range(160):
        pacer.note_step(2.0)
    assert pacer.steps([1.0]) == pytest.approx(40, abs=4)


def test_of_equal_machines_whose_steps_vary_none_shortens_the_rounds_of_the_others():
    """Workers that share cores: one step in four waits, and what the others said is of any time."""
    pacers, told = [Pacer(13, 1) for _ in range(4)], [0.0] * 4
    rng = random.Random(1)
    shortened = 0
    for _ in range(400):
        for number, pacer in enumerate(pacers):
            pacer.note_step(0.01 if rng.random() < 0.75 else 0.1)
            if rng.random() < 0.01:
                told[number] = pacer.step_s
            others = [step_s for other, step_s in enumerate(told) if other != number]
            shortened += pacer.told_steps(others) < 13
    assert shortened < 0.05 * 1600


def test_a_call_is_heard_at_the_end_of_a_step_of_the_slowest():
    pacer = Pacer(80, 10)
    assert pacer.call_s([]) == 0.0
    pacer.note_step(1.0)
    assert pacer.call_s([]) == 1.25
    assert pacer.call_s([4.0, 0.5, 0.0]) == 5.0
    assert pacer.call_s([1e9]) == 10.0, "up to an eighth of the fastest one's speed"
    assert pacer.call_s([1e9, 0.5]) == 5.0


def measured(most, fewest, step_s=1.0):
    pacer = Pacer(most, fewest)
    pacer.note_step(step_s)
    return pacer


def test_the_first_steps_count_alike_and_later_ones_a_sixty_fourth():
    pacer = Pacer(80, 10)
    assert pacer.step_s == 0.0
    for seconds, mean in ((1.0, 1.0), (3.0, 2.0), (5.0, 3.0)):
        pacer.note_step(seconds)
        assert pacer.step_s == pytest.approx(mean)
    for _ in range(61):
        pacer.note_step(3.0)
    pacer.note_step(3.0 + 64)
    assert pacer.step_s == pytest.approx(4.0)
    pacer.note_step(4.0 + 64)
    assert pacer.step_s == pytest.approx(5.0)


def test_a_round_lasts_as_long_as_the_fastest_needs_for_the_most_steps():
    assert Pacer(80, 10).round_s([]) == 0.0
    assert Pacer(80, 10).round_s([0.0, 2.0, 3.0]) == 160.0
    assert measured(80, 10).round_s([0.0, 2.0]) == 80.0
    assert measured(80, 10).round_s([0.5]) == 40.0


def test_a_step_that_just_fits_is_taken():
    third = 0.1 + 0.2  # a hair more than it should be
    assert 9 * 0.1 / third < 3
    assert measured(9, 1, third).steps([0.1]) == 3
    assert measured(9, 1, 0.300001).steps([0.1]) == 2


def test_a_worker_that_can_take_most_of_the_steps_is_told_all():
    most = 10
    enough = round(limits.PACING_EQUAL_SHARE * most)
    told = [measured(most, 1).told_steps([n / most]) for n in (1, enough - 1, enough, most)]
    assert told == [1, enough - 1, most, most]


@pytest.mark.parametrize(("round_steps", "fewest"), [(80, 10), (16, 2), (15, 1), (1, 1)])
def test_the_fewest_steps_are_a_share_of_the_settings_and_at_least_one(round_steps, fewest):
    pacer = pacer_of(round_steps)
    assert pacer.most == round_steps
    assert fewest == max(1, int(limits.PACING_FEWEST_SHARE * round_steps))
    pacer.note_step(1.0)
    assert pacer.steps([1e-9]) == fewest


@pytest.mark.parametrize(("most", "fewest"), [(8, 0), (8, 9), (0, 0)])
def test_a_round_has_at_least_one_step(most, fewest):
    with pytest.raises(ConfigError, match="expected 1 <= fewest <= most steps"):
        Pacer(most, fewest)
    assert Pacer(8, 8).steps([]) == 8
    assert Pacer(1, 1).most == 1
