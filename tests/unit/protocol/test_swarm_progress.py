"""Where the swarm is, as each member works it out from what all say."""

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
