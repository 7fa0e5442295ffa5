"""What members say of themselves: honest words count as they are, lies within bounds."""

from __future__ import annotations

import math

import pytest

from swarmnode.protocol.plausible import (
    COUNT_TIMES_MAX,
    LOSS_SPREADS_MAX,
    START_JUDGED_S,
    STEP_TIMES_MAX,
    TOKENS_TIMES_MAX,
    FirstMinute,
    bounded_losses,
    bounded_mark,
    bounded_steps,
    bounded_times,
    claimed_step,
    mark,
    middle_of,
    total_steps,
    total_tokens,
)

HUGE = 2**63 - 1


# --- marks ----------------------------------------------------------------------------------------


def test_a_claim_above_twice_the_median_is_no_better_than_the_median() -> None:
    assert mark([90, 100, 110, HUGE]) == 110
    assert mark([100, HUGE]) == 100
    assert bounded_mark(HUGE, 100) == 100
    assert bounded_mark(200, 100) == 200
    assert claimed_step(201, 100) == 0, "a snapshot is older than what members say now"
    assert claimed_step(200, 100) == 200


def test_honest_members_differ_and_the_furthest_counts() -> None:
    assert mark([0, 700, 1000, 1300]) == 1300, "a member that has not begun says nothing"
    assert mark([5]) == 5
    assert mark([]) == 0
    assert middle_of([0, 0]) == 0


def test_the_middle_is_the_lower_one_of_those_that_have_begun() -> None:
    assert middle_of([0, 0, 0, 4, 6]) == 4
    assert middle_of([0, 0, 0, 1, 1, 5]) == 1, "one step is a beginning"


# --- sums -----------------------------------------------------------------------------------------


def test_the_sum_of_honest_members_is_their_sum() -> None:
    steps = {"laptop": 20_000, "gpu": 1_900_000, "veteran": 900_000}
    assert total_steps(steps, 20_000) == sum(steps.values())
    tokens = {name: 512 * n for name, n in steps.items()}
    assert total_tokens(tokens, steps, 20_000) == sum(tokens.values())
    assert total_tokens({}, {}, 0) == 0


def test_a_liar_counts_as_a_hundred_at_most() -> None:
    steps = {"a": 20_000, "b": 21_000, "c": 19_000, "liar": HUGE}
    assert total_steps(steps, 21_000) <= 60_000 + COUNT_TIMES_MAX * 21_000
    tokens = {name: 100 * steps[name] for name in "abc"} | {"liar": HUGE}
    assert total_tokens(tokens, steps, 21_000) < 1e10
    assert total_tokens({"a": 100, "liar": HUGE}, {"a": 1}, 1) == 100, "tokens without steps"


def test_steps_of_one_author_count_up_to_a_hundred_marks_and_ten_thousand_in_any_case() -> None:
    steps = {"a": 0, "b": 10_000, "c": 20_000, "liar": HUGE}
    for swarm_step, most in ((0, 10_000), (100, 10_000), (150, 15_000), (1_000, 100_000)):
        expected = {author: min(each, most) for author, each in steps.items()}
        assert most in (10_000, COUNT_TIMES_MAX * swarm_step)
        assert bounded_steps(steps, swarm_step) == expected
        assert total_steps(steps, swarm_step) == sum(expected.values())


def test_tokens_of_one_author_count_up_to_sixteen_medians_a_step() -> None:
    steps = {"a": 10, "b": 10, "liar": 10}
    most = 10 * TOKENS_TIMES_MAX * 5
    for said, counted in ((most, most), (most + 1, most), (HUGE, most)):
        assert total_tokens({"a": 50, "b": 50, "liar": said}, steps, 10) == 100 + counted
    assert total_tokens({"liar": 7}, steps, 10) == 0, "most say that they have none"
    assert total_tokens({"a": 50, "liar": 99}, {"a": 10, "liar": 0}, 10) == 50


# --- pacing, tables -------------------------------------------------------------------------------


def test_times_of_a_step_are_bounded_by_the_median() -> None:
    said = {"a": 0.1, "b": 0.12, "c": 0.09, "liar": 1e-9}
    assert bounded_times(said)["liar"] == pytest.approx(0.09 / STEP_TIMES_MAX)
    assert bounded_times({"a": 0.1, "b": 0.7})["b"] == 0.7
    assert bounded_times({}) == {}
    said = {"a": 1.0, "b": 2.0, "c": 3.0, "slow": 99.0}
    assert bounded_times(said) == {**said, "slow": 2.0 * STEP_TIMES_MAX}, "the lower median"
    assert bounded_times({"a": 1.0, "b": 1.0, "c": 0.01})["c"] == 1 / STEP_TIMES_MAX


def test_losses_are_bounded_by_what_is_usual() -> None:
    honest = [0.31, 0.32, 0.35, 0.4]
    assert bounded_losses(honest) == honest
    lied = bounded_losses([*honest, -1e300])
    assert lied[:4] == honest
    assert lied[4] > -1.0
    assert bounded_losses([0.1, 5.0]) == [0.1, 5.0]


def test_of_three_losses_the_middle_says_what_is_usual() -> None:
    least = LOSS_SPREADS_MAX * 0.05  # of losses that are all alike
    assert bounded_losses([1.0, 1.0, 50.0]) == [1.0, 1.0, 1.0 + least]
    assert bounded_losses([-50.0, 1.0, 1.0]) == [1.0 - least, 1.0, 1.0]
    assert bounded_losses([1.0, 2.0, 50.0]) == [1.0, 2.0, 2.0 + LOSS_SPREADS_MAX]


# --- newcomers ------------------------------------------------------------------------------------

OTHERS = [0.5, 0.55, 0.6, 0.45]


def test_two_neighbours_are_enough_to_judge_by() -> None:
    start = FirstMinute()
    start.begin()
    assert start.complaint(2.3, OTHERS[:2], 0.0) == ""
    assert "got 2.3" in start.complaint(2.3, OTHERS[:2], START_JUDGED_S)


def test_of_a_model_that_is_as_good_as_the_others_nothing_is_said() -> None:
    start = FirstMinute()
    start.begin()
    assert [start.complaint(0.5, OTHERS, now) for now in (0.0, START_JUDGED_S)] == ["", ""]


def complaints(own: float, others: list[float], until_s: float = 60.0) -> list[str]:
    start = FirstMinute()
    start.begin()
    every = (start.complaint(own, others, now / 2) for now in range(int(2 * until_s)))
    return [why for why in every if why]


def test_a_newcomer_that_does_much_worse_than_its_neighbours_is_told_so_within_a_minute() -> None:
    assert len(complaints(2.3, OTHERS)) == 1, "once, for one model"
    assert complaints(2.3, OTHERS, until_s=START_JUDGED_S) == []


def test_who_lags_a_little_or_has_fewer_than_two_neighbours_goes_on() -> None:
    assert complaints(0.9, OTHERS) == []
    assert complaints(2.3, [0.5]) == []
    assert complaints(math.nan, OTHERS) == []
    assert complaints(0.08, [0.001, 0.002]) == []


def test_one_neighbour_that_lies_about_its_loss_sends_no_newcomer_away() -> None:
    assert complaints(0.6, [*OTHERS, -1e6]) == []


def test_who_began_with_its_own_model_is_not_judged() -> None:
    start = FirstMinute()
    assert [start.complaint(9.0, OTHERS, now) for now in (0.0, 100.0)] == ["", ""]


@pytest.mark.parametrize(
    ("others", "most"),
    [
        ([1.0, 1.0], 2.0),  # twice as much
        ([-1.0, -1.0], 0.0),
        ([0.0, 0.0], 0.1),
        ([1.0, 2.0, 3.0], 12.0),  # in ten spreads of the others
    ],
)
def test_a_newcomer_may_be_as_much_worse_as_the_others_allow(
    others: list[float], most: float
) -> None:
    assert complaints(most, others) == []
    assert len(complaints(math.nextafter(most, 99.0), others)) == 1


def test_a_newcomer_is_judged_so_long_after_its_first_probe_and_anew_after_each_beginning() -> None:
    start = FirstMinute()
    for began_at in (5.0, 500.0):
        start.begin()
        assert start.complaint(math.nan, OTHERS, began_at - 4.0) == ""
        assert start.complaint(9.0, OTHERS, began_at) == ""
        assert start.complaint(9.0, OTHERS, began_at + START_JUDGED_S - 0.1) == ""
        assert start.complaint(9.0, OTHERS[:1], began_at + START_JUDGED_S) == ""
        assert "got 9" in start.complaint(9.0, OTHERS, began_at + START_JUDGED_S)
        assert start.complaint(9.0, OTHERS, began_at + START_JUDGED_S + 1) == ""


def test_a_start_that_was_good_is_not_judged_again() -> None:
    start = FirstMinute()
    start.begin()
    start.complaint(0.5, OTHERS, 0.0)
    assert start.complaint(0.5, OTHERS, START_JUDGED_S) == ""
    assert start.complaint(9.0, OTHERS, 2 * START_JUDGED_S) == ""
