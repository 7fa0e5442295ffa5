"""Where the swarm is, as each member works it out from what all say."""

import math

import pytest

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.swarm_progress import PACE_TIMES_MAX, Said, SwarmProgressCore

ANNA, BERT, CLEO = (PeerId(bytes([n]) * 32) for n in (1, 2, 3))


def said(tokens, *, training=True, ramp=(0.0, 0.0), heard_at=10.0, step_time_s=0.1, steps=None):
    steps = tokens // 100 if steps is None else steps
    return Said(tokens, steps, step_time_s, training, ramp, heard_at)


def test_between_two_reports_others_are_counted_on_at_their_pace():
    core = SwarmProgressCore(ANNA)
    core.note({ANNA: said(500), BERT: said(1000, heard_at=10.0)}, 1500, 10.0)
    state = core.state(12.0)
    assert (state.own_tokens, state.others_per_s) == (500, 1000)
    assert state.others_tokens == pytest.approx(1000 + 2 * 1000)
    assert state.members == 2
    core.note({ANNA: said(500), BERT: said(2600)}, 3100, 12.0)  # slower than it said
    assert 800 < core.state(12.0).others_per_s < 1000
    assert 2600 < core.state(12.0).others_tokens < 3000  # it may just be late


def test_reports_that_are_late_by_chance_move_progress_by_less_than_that():
    core, errors = SwarmProgressCore(ANNA), []
    for second in range(2, 80, 2):
        late_s = (second * 7 % 10) / 10  # of a heartbeat
        tokens = round(100 * (second - late_s))
        core.note({BERT: said(tokens, heard_at=second, steps=tokens // 10)}, tokens, float(second))
        errors.append(core.state(second + 1.0).others_tokens - 100 * (second + 1))
    assert max(errors[20:]) - min(errors[20:]) < 60  # of 80


def test_a_leap_is_believed_at_once_and_the_end_is_exact():
    core = SwarmProgressCore(ANNA)
    core.note({BERT: said(1000)}, 1000, 10.0)
    core.note({BERT: said(90_000)}, 90_000, 12.0)
    assert core.state(12.0).others_tokens == pytest.approx(90_000)
    core.note({BERT: said(90_500, training=False)}, 90_500, 14.0)
    assert core.state(19.0).others_tokens == 90_500


def test_who_is_not_heard_of_is_not_counted_on_for_ever():
    core = SwarmProgressCore(ANNA)
    core.note({ANNA: said(0), BERT: said(1000, heard_at=10.0)}, 1000, 10.0)
    late = core.state(10.0 + 100 * limits.SWARM_PROGRESS_AHEAD_S).others_tokens
    assert late == pytest.approx(1000 + 1000 * limits.SWARM_PROGRESS_AHEAD_S)


def test_tokens_of_members_that_have_gone_count():
    core = SwarmProgressCore(ANNA)
    core.note({ANNA: said(500)}, 9500, 10.0)
    assert core.state(10.0).others_tokens == 9000
    assert core.state(10.0).tokens == 9500


def test_a_newcomer_counts_slowly_and_by_progress_that_all_see_alike():
    anna, bert = SwarmProgressCore(ANNA), SwarmProgressCore(BERT)
    ramp = (10_000.0, 20_000.0)
    # One hears of it later than the other: what counts is where the swarm is.
    anna.note({ANNA: said(5_000), BERT: said(4_000), CLEO: said(0, ramp=ramp)}, 9_000, 10.0)
    bert.note({ANNA: said(5_000), BERT: said(4_000)}, 9_000, 10.0)
    assert anna.state(10.0).members == bert.state(10.0).members == 2
    for core in (anna, bert):
        core.note({ANNA: said(8_000), BERT: said(7_000), CLEO: said(0, ramp=ramp)}, 15_000, 20.0)
    assert anna.state(20.0).members == pytest.approx(2.5)
    assert bert.state(20.0).members == pytest.approx(2.5)


def test_members_grow_with_each_token_as_the_ramps_of_all_rise_this_node_s_too():
    core = SwarmProgressCore(ANNA)
    ramp = (10_000.0, 20_000.0)
    everyone = {ANNA: said(0, ramp=ramp), BERT: said(9_000), CLEO: said(0, ramp=ramp)}
    core.note(everyone, 9_000, 10.0)
    assert core.state(10.0).members_per_token == 0
    core.note(everyone, 10_000, 10.0)  # at the mark they begin to rise
    assert core.state(10.0).members_per_token == pytest.approx(2 / 10_000)
    core.note(everyone, 20_000, 10.0)
    assert core.state(10.0).members_per_token == 0


def test_a_report_that_says_the_same_again_changes_no_pace():
    core = SwarmProgressCore(ANNA)
    for now in (10.0, 12.0):
        core.note({BERT: said(1000, heard_at=10.0)}, 1000, now)
    assert core.state(12.0).others_per_s == 1000
    assert core.state(12.0).others_tokens == pytest.approx(1000 + 2 * 1000)


def test_a_member_that_leaves_counts_less_and_less_and_one_that_rests_does_not_move_on():
    core = SwarmProgressCore(ANNA)
    core.note({ANNA: said(0), BERT: said(1000), CLEO: said(1000)}, 2000, 10.0)
    assert core.state(10.0).members == 3
    core.note({ANNA: said(0), BERT: said(1000, training=False)}, 2000, 10.0)
    half = core.state(10.0 + limits.MEMBERS_RAMP_S / 2)
    assert half.members == pytest.approx(2)
    assert half.others_tokens == 2000
    after = 10.0 + 2 * limits.MEMBERS_RAMP_S
    core.note({ANNA: said(0), BERT: said(1000, training=False)}, 2000, after)
    assert core.state(after).members == 1


def test_a_member_that_begins_alone_counts_at_once_and_one_that_joins_gives_the_others_time():
    alone = SwarmProgressCore(ANNA)
    assert alone.ramp(0.0, 0.0) == (0.0, 0.0)
    late = SwarmProgressCore(CLEO)
    late.note({CLEO: said(0, steps=0), BERT: said(1000, heard_at=10.0)}, 1000, 10.0)
    assert late.ramp(0.0, 10.0) == pytest.approx((2000, 3000))  # no longer than they have trained
    late.note({CLEO: said(0, steps=0), BERT: said(90_000, heard_at=10.0)}, 90_000, 10.0)
    begin, end = late.ramp(0.0, 10.0)
    pace = late.state(10.0).others_per_s
    assert begin == pytest.approx(90_000 + pace * limits.MEMBERS_RAMP_DELAY_S)
    assert end - begin == pytest.approx(pace * limits.MEMBERS_RAMP_S)


def test_a_liars_pace_counts_as_that_of_a_hundred_members_at_most():
    core = SwarmProgressCore(ANNA)
    liar = said(10**18, step_time_s=1e-9, steps=1)
    everyone = {ANNA: said(1000), BERT: said(1000), CLEO: liar}  # honest: 1,000 tokens a second
    core.note(everyone, 3000, 10.0)
    honest_per_s = core.state(10.0).others_per_s - PACE_TIMES_MAX * 1000
    assert honest_per_s == pytest.approx(1000)
    core.note({**everyone, CLEO: said(2 * 10**18, step_time_s=1e-9, steps=1)}, 3000, 12.0)
    state = core.state(14.0)
    assert state.others_per_s <= (PACE_TIMES_MAX + 1) * 1000
    assert 0 <= state.others_tokens <= 3000 + 20 * (PACE_TIMES_MAX + 1) * 1000


# --- to the token --------------------------------------------------------------------------------


def follows(**report):
    """A core that has heard of a member with 1,000 tokens a second at 10 s."""
    core = SwarmProgressCore(ANNA)
    core.note({ANNA: said(500), BERT: said(1000, **report)}, 1500, 10.0)
    return core


def hear(core, tokens, now, **report):
    """Hear its counter again; return how far it is believed to be, and at which pace."""
    core.note({ANNA: said(500), BERT: said(tokens, **report)}, 500 + tokens, now)
    state = core.state(now)
    return state.others_tokens, state.others_per_s


@pytest.mark.parametrize(
    ("steps", "step_time_s", "per_s"), [(10, 0.1, 1000), (1, 0.1, 10_000), (0, 0.1, 0), (10, 0, 0)]
)
def test_the_first_pace_is_what_a_member_says_of_its_steps(steps, step_time_s, per_s):
    report = said(1000, steps=steps, step_time_s=step_time_s)
    assert report.claimed_per_s == pytest.approx(per_s)
    core = SwarmProgressCore(ANNA)
    core.note({BERT: report}, 1000, 10.0)
    assert core.state(10.0).others_per_s == pytest.approx(per_s)


def test_who_said_no_pace_at_first_has_the_one_that_it_says_later():
    core = follows(step_time_s=0.0)
    assert core.state(12.0).others_per_s == 0
    assert hear(core, 1000, 12.0)[1] == 1000


@pytest.mark.parametrize(("heard_at", "ahead_s"), [(8.0, 2.0), (10.0, 0.0), (12.0, 0.0)])
def test_a_counter_is_as_old_as_when_it_was_heard_and_never_of_the_future(heard_at, ahead_s):
    state = follows(heard_at=heard_at).state(10.0)
    assert state.others_tokens == pytest.approx(1000 + 1000 * ahead_s)
    assert (state.others_counted, state.own_tokens) == (1000, 500)


def test_a_clock_that_stands_still_takes_nothing_back():
    assert follows().state(9.0).others_tokens == 1000


def test_what_is_a_little_late_evens_out_and_pace_is_a_mean_of_the_measured_ones():
    tokens, per_s = hear(follows(), 2600, 12.0)  # 400 behind where it should be
    assert per_s == pytest.approx(0.7 * 1000 + 0.3 * 800)
    assert tokens == pytest.approx(2600 + 0.7 * 400)


@pytest.mark.parametrize(("now", "per_s"), [(11.0, 0.7 * 1000 + 0.3 * 600), (10.999, 1000)])
def test_reports_less_than_a_second_apart_measure_no_pace(now, per_s):
    assert hear(follows(), 1600, now)[1] == pytest.approx(per_s)


@pytest.mark.parametrize(
    ("beyond", "believed"), [(3000, 2400), (3001, 4501), (-500, 1500), (-400, 1100 + 0.7 * 400)]
)
def test_up_to_three_seconds_of_its_pace_are_lateness_and_more_is_a_leap(beyond, believed):
    assert hear(follows(), 1500 + beyond, 10.5)[0] == pytest.approx(believed)


def test_no_pace_is_measured_or_said_beyond_a_hundred_medians():
    core = SwarmProgressCore(ANNA)
    fast = {ANNA: said(1000), BERT: said(10**12, step_time_s=1e-9)}
    core.note(fast, 1000, 10.0)
    assert core.state(10.0).others_per_s == PACE_TIMES_MAX * 1000
    core.note({ANNA: said(1000), BERT: said(10**13, step_time_s=1e-9)}, 1000, 12.0)
    assert core.state(12.0).others_per_s == pytest.approx(PACE_TIMES_MAX * 1000)
    core.note({ANNA: said(1000, step_time_s=0.2), BERT: fast[BERT]}, 1000, 13.0)
    assert core.state(13.0).others_per_s == pytest.approx(PACE_TIMES_MAX * 500), "the lower one"


def test_members_that_say_no_pace_are_none_of_those_it_is_measured_by():
    core = SwarmProgressCore(ANNA)
    silent = {PeerId(bytes([n]) * 32): said(0, step_time_s=0.0) for n in range(10, 15)}
    core.note({ANNA: said(1000), BERT: said(1000), **silent}, 2000, 10.0)
    assert core.state(10.0).others_per_s == 1000


def test_what_was_measured_bounds_the_others_and_not_what_is_said_later():
    core = SwarmProgressCore(ANNA)
    liar = said(10**12, step_time_s=1e-9)
    core.note({BERT: said(1000), CLEO: liar}, 1000, 10.0)
    faster = said(10**13, step_time_s=1e-9)
    core.note({BERT: said(1000, step_time_s=1e-6), CLEO: faster}, 1000, 12.0)
    assert core.state(12.0).others_per_s == pytest.approx((1 + PACE_TIMES_MAX) * 1000)


def test_the_slowest_pace_bounds_others_too():
    core = SwarmProgressCore(ANNA)
    core.note({ANNA: said(1, steps=1, step_time_s=2.0), BERT: said(10**12)}, 0, 10.0)
    assert core.state(10.0).others_per_s == PACE_TIMES_MAX * 0.5


def test_no_member_is_before_the_beginning():
    core = SwarmProgressCore(ANNA)
    core.note({ANNA: said(500), BERT: said(0)}, 0, 10.0)
    state = core.state(10.0)
    assert (state.others_counted, state.others_tokens, state.tokens) == (0, 0.0, 500.0)


def test_a_node_is_a_member_before_it_has_said_so():
    core = SwarmProgressCore(ANNA)
    assert (core.state(10.0).members, core.state(10.0).members_per_token) == (1.0, 0.0)
    core.note({BERT: said(1000)}, 1000, 10.0)
    assert (core.state(10.0).members, core.state(10.0).members_per_token) == (2.0, 0.0)


def test_who_has_never_trained_is_no_member_and_one_that_goes_on_is_one_again():
    core = follows(training=False)
    assert core.state(10.0).members == 1.0
    hear(core, 1000, 11.0)
    assert core.state(11.0).members == 2.0
    hear(core, 1000, 12.0, training=False)
    hear(core, 1000, 13.0, training=False)
    assert core.state(12.0 + limits.MEMBERS_RAMP_S / 4).members == 1.75, "since it rests"
    hear(core, 1000, 14.0)
    assert core.state(14.0).members == 2.0


def test_a_member_that_counted_half_falls_from_a_half():
    core = follows(ramp=(1000.0, 2000.0))
    assert core.state(10.0).members == pytest.approx(1.5)
    core.note({ANNA: said(500)}, 1500, 10.0)
    assert core.state(10.0 + limits.MEMBERS_RAMP_S / 4).members == pytest.approx(1 + 0.5 * 0.75)
    assert core.state(10.0 + 9 * limits.MEMBERS_RAMP_S).members == 1.0


def test_what_was_measured_of_a_member_is_kept_while_it_still_counts():
    last = 12.0 + limits.MEMBERS_RAMP_S
    for now, per_s in ((last, 940), (math.nextafter(last, 99.0), 1000)):
        core = follows()
        assert hear(core, 2600, 12.0)[1] == pytest.approx(940)
        for gone_at in (12.0, now):
            core.note({ANNA: said(500)}, 3100, gone_at)
        assert hear(core, 2600, now)[1] == pytest.approx(per_s)


def test_the_ramp_of_a_newcomer_counts_its_own_pace_too():
    core = SwarmProgressCore(CLEO)
    core.note({CLEO: said(0, steps=0), BERT: said(90_000, heard_at=10.0)}, 90_000, 10.0)
    begin, end = core.ramp(500.0, 10.0)
    assert begin == pytest.approx(90_000 + 1500 * limits.MEMBERS_RAMP_DELAY_S)
    assert end == pytest.approx(begin + 1500 * limits.MEMBERS_RAMP_S)
