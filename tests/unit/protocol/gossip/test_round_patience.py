"""What rounds wait for: what is usual without the slowest, and no member that has held too many."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.group_events import Begin, CutApart
from swarmnode.protocol.gossip.round_patience import Roll, RoundPatience, StageTimes, Waits

PEERS = tuple(PeerId(bytes([n]) * 32) for n in range(1, 6))
SELF, LATE = PEERS[0], PEERS[4]
GID = bytes(16)
TRANSFER_S = limits.EXCHANGE_VIEW_S + limits.EXCHANGE_TRANSFER_S_MIN


def times(*, shares_s: float, sums_s: float = 0.1) -> StageTimes:
    """Return a run that began at 10, in which one member was so late with its shares and sums."""
    found = StageTimes(since=10.0)
    for peer in PEERS[1:4]:
        found.note(1, peer, 10.1)
    found.note(1, LATE, 10.0 + shares_s)
    for peer in PEERS[1:4]:
        found.note(2, peer, 10.1 + shares_s)
    found.note(2, LATE, 10.0 + shares_s + sums_s)
    return found


def test_what_is_usual_does_not_follow_the_slowest_member() -> None:
    assert abs(times(shares_s=0.1).usual_s - 0.2) < 1e-9
    assert abs(times(shares_s=60.0).usual_s - 0.2) < 1e-9
    assert abs(times(shares_s=60.0, sums_s=60.0).usual_s - 0.2) < 1e-9


def test_who_is_the_last_by_far_is_told_with_what_it_alone_has_taken() -> None:
    assert list(times(shares_s=0.4).held(GID, 1.0)) == []
    (held,) = times(shares_s=0.9).held(GID, 1.0)
    assert held.peer == LATE
    assert abs(held.held_s - 0.8) < 1e-9
    assert list(times(shares_s=0.9).held(GID, 4.0)) == [], "where all take long it is usual"


def test_a_sum_may_wait_for_a_share_elsewhere_before_its_maker_pays() -> None:
    assert list(times(shares_s=0.1, sums_s=1.0).held(GID, 1.0)) == []
    (held,) = times(shares_s=0.1, sums_s=1.5).held(GID, 1.0)
    assert held.peer == LATE


def test_most_are_prepared_when_more_than_half_of_all_are_this_one_among_them() -> None:
    found = StageTimes(since=10.0)
    assert found.prepared_at(5) == math.inf
    found.note(3, PEERS[1], 10.3)
    assert found.prepared_at(5) == math.inf
    found.note(3, PEERS[2], 10.4)
    assert found.prepared_at(5) == 10.4
    found.note(3, PEERS[3], 10.9)
    assert found.prepared_at(5) == 10.9


def test_a_stage_lasts_a_few_times_what_is_usual_between_two_bounds() -> None:
    patience = RoundPatience()
    assert patience.limit_s(TRANSFER_S) == TRANSFER_S
    assert patience.limit_s(TRANSFER_S + 7.0, least_s=0.5) == 7.5 + limits.ROUND_FIRST_S
    assert patience.limit_s(TRANSFER_S, least_s=2 * TRANSFER_S) == TRANSFER_S
    patience.note_commit(0.01)
    assert patience.limit_s(TRANSFER_S) == limits.EXCHANGE_PATIENCE_S_MIN
    assert patience.limit_s(TRANSFER_S, least_s=7.0) == 7.0
    for _ in range(limits.EXCHANGE_USUAL_MAX):
        patience.note_commit(3.0)
    assert patience.limit_s(TRANSFER_S) == 3.0 * limits.EXCHANGE_PATIENCE
    for _ in range(limits.EXCHANGE_USUAL_MAX):
        patience.note_commit(300.0)
    assert patience.limit_s(TRANSFER_S) == TRANSFER_S


def test_members_that_have_held_rounds_are_left_out_until_it_is_paid_back() -> None:
    patience = RoundPatience()
    patience.note_held(LATE, limits.EXCHANGE_BUDGET_S, 0.0)
    assert patience.waited_for(PEERS, SELF, 0.0) == PEERS[:4]
    back_s = limits.EXCHANGE_PATIENCE_S_MIN / limits.EXCHANGE_BUDGET_REFILL
    assert patience.waited_for(PEERS, SELF, back_s + 0.001) == PEERS


def test_one_that_held_rounds_for_hours_is_back_within_a_minute() -> None:
    patience = RoundPatience()
    for second in range(3600):
        patience.note_held(LATE, 60.0, float(second))
    assert patience.waited_for(PEERS, SELF, 3600.0) == PEERS[:4]
    assert patience.waited_for(PEERS, SELF, 3640.0) == PEERS


def test_a_quarter_is_left_out_at_the_most_and_it_is_the_worst() -> None:
    nine = tuple(PeerId(bytes([n]) * 32) for n in range(1, 10))
    patience = RoundPatience()
    for number, peer in enumerate(nine[1:]):
        patience.note_held(peer, limits.EXCHANGE_BUDGET_S - 0.9 + number / 10, 0.0)
    assert patience.waited_for(nine, SELF, 0.0) == nine[:7]
    assert patience.waited_for(nine[:4], SELF, 0.0) == nine[:3], "one of four"


def test_none_is_left_out_where_the_others_are_no_majority_and_never_oneself() -> None:
    patience = RoundPatience()
    for peer in PEERS[:2]:
        patience.note_held(peer, limits.EXCHANGE_BUDGET_S, 0.0)
    for self_id in PEERS[:2]:
        assert patience.waited_for(PEERS[:2], self_id, 0.0) == PEERS[:2], "alone it has no mean"
    assert patience.waited_for(PEERS, SELF, 0.0) == (SELF, *PEERS[2:])


def test_a_roll_tells_for_how_long_it_waited_for_none_but_the_missing() -> None:
    begin = Begin(GID, PEERS, 5, 1.0, 5.0, 70.0)
    roll = Roll(begin, SELF, 0.0)
    for peer in PEERS[1:4]:
        roll.add(peer, 2.0)
    assert not roll.is_complete(PEERS)
    assert roll.closes_at == 5.0
    assert roll.waited_s(roll.closes_at) == 3.0
    roll.add(LATE, 3.0)
    assert roll.is_complete(PEERS)


def test_a_silent_member_is_left_out_before_one_that_owes_and_until_it_is_heard() -> None:
    patience = RoundPatience()
    owing = PEERS[2]
    patience.note_held(owing, limits.EXCHANGE_BUDGET_S, 0.0)
    assert owing not in patience.waited_for(PEERS, SELF, 1.0)
    assert patience.note_silent(LATE, patience.answer_s(LATE), 1.0)
    assert set(PEERS) - set(patience.waited_for(PEERS, SELF, 1.0)) == {LATE}
    patience.note_heard(LATE)
    assert set(PEERS) - set(patience.waited_for(PEERS, SELF, 1.0)) == {owing}


def test_the_time_to_say_that_one_is_there_follows_what_is_usual_and_doubles() -> None:
    patience = RoundPatience()
    assert patience.answer_s(LATE) == limits.EXCHANGE_ANSWER_S_FIRST
    for peer in PEERS[1:4]:
        patience.note_answer(peer, 0.3)
    assert patience.answer_s(LATE) == limits.EXCHANGE_PATIENCE * 0.3
    patience.note_silent(LATE, patience.answer_s(LATE), 0.0)
    assert patience.answer_s(LATE) == 2 * limits.EXCHANGE_PATIENCE * 0.3
    patience.note_answer(LATE, 0.3)
    assert patience.answer_s(LATE) == limits.EXCHANGE_PATIENCE * 0.3


def test_what_was_not_heard_while_this_node_stood_still_is_no_silence_of_others() -> None:
    patience = RoundPatience()
    assert not patience.note_silent(LATE, 2 * patience.answer_s(LATE), 1.0)
    assert LATE in patience.waited_for(PEERS, SELF, 1.0)


# --- members that lack means ---------------------------------------------------------------------

ALL = Waits(PEERS[:4], 2.0)  # but LATE, which has held too many
BEHIND_S, GRACE_S = 40.0, 3.0


def held(patience: RoundPatience, now: float) -> Waits:
    return patience.holding(ALL, PEERS, now, BEHIND_S, GRACE_S)


def test_a_roll_is_held_for_one_that_is_behind_whatever_it_has_held() -> None:
    patience = RoundPatience()
    assert held(patience, 0.0) == ALL
    patience.note_behind(LATE, 0.0)
    assert held(patience, 1.0) == Waits(
        PEERS, 2.0, behind=frozenset({LATE}), behind_s=BEHIND_S, behind_most_s=BEHIND_S
    )
    patience.note_roll(held(patience, 1.0), PEERS[:4], 2.0, 3.0)  # another closed it
    assert held(patience, 4.0).behind == {LATE}


def test_one_that_has_come_is_behind_no_more_and_rolls_are_held_an_eighth_of_the_time() -> None:
    patience = RoundPatience()
    patience.note_behind(LATE, 0.0)
    patience.note_roll(held(patience, 0.0), PEERS, 10.0, 10.0)
    assert held(patience, 11.0) == ALL
    patience.note_behind(LATE, 11.0)
    assert held(patience, 79.0) == ALL
    assert held(patience, 81.0).behind == {LATE}


def test_one_for_which_a_roll_was_held_in_vain_holds_no_other_for_a_while() -> None:
    patience = RoundPatience()
    for now in range(0, int(limits.ROUND_THIN_AGAIN_S) + 50, 10):
        patience.note_behind(LATE, float(now))
        found = held(patience, float(now))
        assert bool(found.behind) == (now in (0, 320, 640)), now
        if found.behind:
            patience.note_roll(found, PEERS[:4], BEHIND_S, now + BEHIND_S)


def test_no_roll_is_held_for_one_that_has_set_the_others_apart_of_late() -> None:
    """It is behind as none went on with it."""
    patience = RoundPatience()
    patience.note_said(CutApart(GID, LATE), 0.0)
    for now, behind in ((1.0, set()), (limits.PARTNER_SLOW_S + 1.0, {LATE})):
        patience.note_behind(LATE, now)
        assert held(patience, now).behind == behind


@pytest.mark.parametrize(("waited_s", "rolls"), [(2.0, 20), (25.0, 2), (0.0, 80)])
def test_one_that_never_comes_holds_rolls_for_as_long_as_it_takes_to_come(
    waited_s: float, rolls: int
) -> None:
    """As it comes and sends nothing, or leaves in time; one that costs nothing has an end too."""
    patience, now, n_held, held_s = RoundPatience(), 0.0, 0, 0.0
    while now < 300.0:
        patience.note_behind(LATE, now)
        found = held(patience, now)
        now += 3.0
        if found.behind:
            now += waited_s
            n_held, held_s = n_held + 1, held_s + waited_s
            patience.note_roll(found, PEERS[:4], waited_s, now)
    assert n_held == rolls
    assert held_s < 2 * BEHIND_S


def test_many_that_never_come_hold_rolls_an_eighth_of_the_time() -> None:
    patience, now, held_s, turn = RoundPatience(), 0.0, 0.0, 0
    while now < 10_000:
        liar = PeerId(bytes([100 + turn % 50]) * 32)
        turn += 1
        patience.note_behind(liar, now)
        found = patience.holding(ALL, (*PEERS, liar), now, BEHIND_S, GRACE_S)
        waited_s = 2.5 * len(found.behind)
        now += 0.5 + waited_s
        held_s += waited_s
        patience.note_roll(found, PEERS[:4], waited_s, now)
    assert held_s <= now * limits.ROUND_THIN_SHARE + 2 * BEHIND_S


def test_what_rolls_wait_that_are_held_for_none_does_not_count() -> None:
    """Else members differ in whether they hold the next, and those that do not close it."""
    patience = RoundPatience()
    patience.note_roll(held(patience, 0.0), PEERS[:4], 2 * GRACE_S, 10.0)
    patience.note_behind(LATE, 10.0)
    assert held(patience, 11.0).behind == {LATE}


def test_a_roll_is_held_on_after_others_have_closed_some_of_them() -> None:
    """What it fetches takes a while, and those that did not hold theirs come to it."""
    patience = RoundPatience()
    for now in range(0, 48, 4):
        patience.note_behind(LATE, float(now))
        found = held(patience, float(now))
        assert found.behind == {LATE}, now
        patience.note_roll(found, PEERS[:4], 1.0, now + 3.0)
    assert held(patience, 49.0).behind_s == BEHIND_S


def test_a_roll_that_is_held_closes_as_any_once_that_one_has_come_or_is_gone() -> None:
    begin = Begin(GID, PEERS, 4, 1.0, 3.0, TRANSFER_S, behind=frozenset({LATE}), behind_s=BEHIND_S)
    come, gone = Roll(begin, SELF, 0.0), Roll(begin, SELF, 0.0)
    assert come.closes_at == gone.closes_at == BEHIND_S
    come.add(LATE, 5.0)
    gone.remove(LATE)
    assert come.closes_at == gone.closes_at == 3.0
    gone.hold(LATE, 10.0)
    come.hold(LATE, BEHIND_S)
    assert (gone.closes_at, come.closes_at) == (BEHIND_S, 3.0)
    gone.hold(LATE, BEHIND_S + 1.0)
    assert gone.closes_at == BEHIND_S + 1.0


def test_a_roll_lacks_a_quorum_until_most_of_its_electorate_have_come() -> None:
    any_may = Begin(GID, PEERS, 4, 1.0, 3.0, TRANSFER_S)
    assert not Roll(any_may, SELF, 0.0).lacks_quorum
    roll = Roll(replace(any_may, electorate=PEERS), SELF, 0.0)
    roll.add(PEERS[1], 1.0)
    assert roll.lacks_quorum
    roll.add(PEERS[2], 1.0)
    assert not roll.lacks_quorum


# --- when members delivered ----------------------------------------------------------------------


def test_most_of_four_are_three_this_one_among_them_and_where_none_is_asked_for_none_are() -> None:
    found = StageTimes(since=10.0)
    found.note(3, PEERS[1], 10.25)
    assert found.prepared_at(4) == math.inf
    assert found.prepared_at(3) == 10.25
    found.note(3, PEERS[2], 10.5)
    assert found.prepared_at(4) == 10.5
    assert found.prepared_at(None) == math.inf


def test_a_stage_that_had_nothing_to_wait_for_takes_no_time_and_one_alone_is_no_last() -> None:
    assert StageTimes(since=10.0).usual_s == 0.0
    found = StageTimes(since=10.0)
    found.note(2, LATE, 15.0)
    assert found.usual_s == 5.0, "of one member there is none before it"
    assert list(found.held(GID, 1.0)) == []


def test_a_stage_begins_with_the_last_of_the_one_before_it() -> None:
    found = StageTimes(since=10.0)
    for stage, at in ((1, 11.0), (2, 13.0), (3, 17.0)):
        for peer in PEERS[1:3]:
            found.note(stage, peer, at)
    found.note(1, LATE, 11.5)
    found.note(2, LATE, 11.25)  # which waited for a share of this node
    assert found.usual_s == 1.0 + 1.5 + 4.0
    found.note(3, LATE, 20.0)
    (held,) = found.held(GID, 1.25)
    assert (held.gid, held.peer, held.held_s) == (GID, LATE, 3.0)


@pytest.mark.parametrize(("stage", "stages"), [(1, 0.5), (2, 1.0), (3, 2.0)])
def test_up_to_a_part_of_the_patience_the_last_of_a_stage_pays_nothing(
    stage: int, stages: float
) -> None:
    stage_s = 4.0
    free_s = stages * stage_s
    for longer_s, is_held in ((free_s, False), (free_s + 0.25, True)):
        found = StageTimes(since=8.0)
        for each in range(1, stage + 1):
            for peer in PEERS[1:3]:
                found.note(each, peer, 8.0)
        found.note(stage, LATE, 8.0 + longer_s)
        assert [each.held_s for each in found.held(GID, stage_s)] == [longer_s] * is_held


def test_what_is_no_longer_than_an_answer_takes_is_never_held() -> None:
    for longer_s, is_held in (
        (limits.EXCHANGE_ANSWER_S_MIN, False),
        (limits.EXCHANGE_ANSWER_S_MIN + 0.125, True),
    ):
        found = StageTimes(since=8.0)
        found.note(1, PEERS[1], 8.0)
        found.note(1, LATE, 8.0 + longer_s)
        assert bool(list(found.held(GID, 0.1))) is is_held


def test_bytes_say_since_when_a_member_is_quiet() -> None:
    found = StageTimes(since=10.0)
    assert found.quiet_since(PEERS) == found.quiet_since(()) == 10.0
    found.note_bytes(PEERS[1], 9.0)  # of the plan before
    assert found.quiet_since(PEERS[1:2]) == 10.0
    found.note_bytes(PEERS[1], 12.0)
    found.note_bytes(PEERS[2], 11.0)
    assert found.quiet_since(PEERS[1:3]) == 11.0
    assert found.quiet_since(PEERS[1:4]) == 10.0
    assert found.quiet(PEERS[1:4], 2.0, 12.5) == {PEERS[3]}
    assert found.quiet(PEERS[1:4], 2.0, 13.0) == {PEERS[2], PEERS[3]}


# --- the roll ------------------------------------------------------------------------------------


def test_a_roll_that_wants_a_majority_waits_for_it_and_then_half_the_time_for_the_rest() -> None:
    begin = Begin(GID, PEERS, 5, 1.0, 4.0, 70.0, electorate=PEERS, quorum_s=20.0)
    roll = Roll(begin, SELF, 100.0)
    assert roll.closes_at == 120.0
    roll.add(PEERS[1], 103.0)
    assert roll.closes_at == 120.0, "two of five"
    roll.add(PEERS[2], 109.0)
    assert roll.closes_at == 111.0
    roll.add(PEERS[3], 110.0)
    assert roll.closes_at == 111.0, "since the first time that it was one"
    assert roll.came == {*PEERS[:4]}


def test_a_roll_is_open_as_long_as_any_be_the_majority_there_at_once() -> None:
    begin = Begin(GID, PEERS, 5, 1.0, 4.0, 70.0, electorate=PEERS, quorum_s=20.0)
    roll = Roll(begin, SELF, 100.0)
    for peer in PEERS[1:3]:
        roll.add(peer, 100.5)
    assert roll.closes_at == 104.0
    short = Begin(GID, PEERS, 5, 1.0, 4.0, 70.0, electorate=PEERS, quorum_s=2.0)
    assert Roll(short, SELF, 100.0).closes_at == 104.0


def test_those_that_are_missing_were_called_where_half_of_a_lineage_came() -> None:
    four = PEERS[:4]
    begin = Begin(GID, four, 5, 1.0, 5.0, 70.0, electorate=four, lineage=0)
    roll = Roll(begin, SELF, 0.0)
    found = [roll.has_called]
    roll.add(PEERS[1], 1.0)
    found.append(roll.has_called)
    roll.remove(PEERS[1])
    assert [*found, roll.has_called] == [False, True, False]
    none = Roll(Begin(GID, four, 5, 1.0, 5.0, 70.0, electorate=four), SELF, 0.0)
    none.add(PEERS[1], 1.0)
    assert not none.has_called, "of no lineage it says nothing"


# --- whom a round waits for ----------------------------------------------------------------------


def test_of_those_that_are_left_out_the_silent_are_first_then_who_owes_most_then_by_id() -> None:
    eight = tuple(PeerId(bytes([n]) * 32) for n in range(1, 9))
    patience = RoundPatience()
    for peer, held_s in ((eight[2], 3.5), (eight[4], 4.5), (eight[5], 3.5)):
        patience.note_held(peer, held_s, 0.0)
    assert set(eight) - set(patience.waited_for(eight, SELF, 0.0)) == {eight[4], eight[2]}
    patience.note_silent(eight[7], patience.answer_s(eight[7]), 0.0)
    assert set(eight) - set(patience.waited_for(eight, SELF, 0.0)) == {eight[7], eight[4]}
    assert set(eight[1:]) - set(patience.waited_for(eight[1:], SELF, 0.0)) == {eight[7]}


def test_two_of_three_go_on_without_the_third_and_one_of_two_does_not() -> None:
    patience = RoundPatience()
    patience.note_held(LATE, limits.EXCHANGE_BUDGET_S, 0.0)
    assert patience.waited_for((SELF, PEERS[1], LATE), SELF, 0.0) == PEERS[:2]
    assert patience.waited_for((SELF, LATE), SELF, 0.0) == (SELF, LATE)


def test_one_that_owes_as_much_as_it_may_is_back_after_forty_seconds() -> None:
    patience = RoundPatience()
    patience.note_held(LATE, 3600.0, 0.0)
    assert patience.conduct.budget_s(LATE, 0.0) == -1.0
    assert patience.conduct.patience(LATE) == 1.0, "who holds a round stalls no pair"
    assert LATE not in patience.waited_for(PEERS, SELF, 39.9)
    assert LATE in patience.waited_for(PEERS, SELF, 40.0)


def test_one_that_held_a_round_for_half_of_the_least_patience_is_not_doubted() -> None:
    patience = RoundPatience()
    free_s = limits.EXCHANGE_PATIENCE_S_MIN / 2
    patience.note_held(PEERS[1], free_s, 0.0)
    patience.note_held(LATE, free_s + 0.01, 0.0)
    assert patience.doubted(PEERS, 0.0) == {LATE}
    assert patience.doubted(PEERS[:4], 0.0) == frozenset()
    assert patience.doubted(PEERS, 1.0) == frozenset(), "it has paid"


def test_no_answer_is_waited_for_longer_than_a_view() -> None:
    patience = RoundPatience()
    for _ in range(4):
        patience.note_silent(LATE, patience.answer_s(LATE), 0.0)
    assert patience.answer_s(LATE) == limits.GROUP_FLUSH_S
    assert patience.answer_s(PEERS[1]) == limits.EXCHANGE_ANSWER_S_FIRST


def test_a_timer_that_is_a_little_late_still_says_that_a_member_is_silent() -> None:
    patience = RoundPatience()
    assert patience.note_silent(LATE, 1.25 * limits.EXCHANGE_ANSWER_S_FIRST, 5.0)
    assert not patience.note_silent(PEERS[3], 1.26 * limits.EXCHANGE_ANSWER_S_FIRST, 5.0)
    assert patience.waited_for(PEERS, SELF, 5.0 + limits.PARTNER_SLOW_S - 0.1) == PEERS[:4]
    assert patience.waited_for(PEERS, SELF, 5.0 + limits.PARTNER_SLOW_S) == PEERS


# --- members that lack means, to the limit -------------------------------------------------------


def test_one_is_behind_for_as_long_as_it_may_take_to_say_so_again() -> None:
    patience = RoundPatience()
    patience.note_behind(LATE, 10.0)
    assert held(patience, 10.0 + limits.ROUND_BEHIND_S_MAX).behind == {LATE}
    assert held(patience, 10.1 + limits.ROUND_BEHIND_S_MAX) == ALL
    patience.note_behind(PEERS[3], 10.0 + limits.ROUND_BEHIND_S_MAX)
    assert held(patience, 10.0 + limits.ROUND_BEHIND_S_MAX).behind == {*PEERS[3:]}


def test_a_roll_is_held_for_members_that_answer_and_no_longer_than_one_may_be_behind() -> None:
    patience = RoundPatience()
    stranger = PeerId(b"x" * 32)
    for peer in (*PEERS[3:], stranger):
        patience.note_behind(peer, 0.0)
    found = patience.holding(ALL, PEERS, 1.0, 2 * limits.ROUND_BEHIND_S_MAX, GRACE_S)
    assert found.behind_s == limits.ROUND_BEHIND_S_MAX
    most_s, behind = found.behind_s, frozenset(PEERS[3:])
    assert found == replace(
        ALL, members=PEERS, behind=behind, behind_s=most_s, behind_most_s=most_s
    )
    patience.note_silent(LATE, patience.answer_s(LATE), 1.0)
    found = held(patience, 1.0)
    assert found.members == PEERS[:4]
    assert found.behind == {PEERS[3]}
    two = Waits((SELF, PEERS[1]), 2.0)
    found = patience.holding(two, PEERS, 1.0, BEHIND_S, GRACE_S)
    assert found.members == (SELF, PEERS[1], PEERS[3]), "who else is left out stays so"


def test_a_roll_that_was_held_is_followed_by_seven_times_as_long_without_to_the_second() -> None:
    patience = RoundPatience()
    patience.note_behind(LATE, 0.0)
    patience.note_roll(held(patience, 0.0), PEERS, 8.0, 8.0)
    patience.note_behind(LATE, 10.0)
    again_at = 8.0 + 8.0 * (1 / limits.ROUND_THIN_SHARE - 1)
    assert held(patience, again_at - 0.1) == ALL
    assert held(patience, again_at).behind == {LATE}
    # What was waited before counts no more.
    patience.note_roll(held(patience, again_at), PEERS, 1.0, again_at + 1.0)
    patience.note_behind(LATE, again_at + 2.0)
    assert held(patience, again_at + 7.9) == ALL
    assert held(patience, again_at + 8.0).behind == {LATE}


@pytest.mark.parametrize(("behind_s", "most_s"), [(40.0, 40.0), (1.0, 4 * GRACE_S)])
def test_rolls_are_held_in_vain_up_to_what_it_takes_to_come_or_that_of_a_few_usual_ones(
    behind_s: float, most_s: float
) -> None:
    for last_s, is_over in ((0.5, False), (1.0, True)):
        patience = RoundPatience()
        patience.note_behind(LATE, 0.0)
        for waited_s in (most_s - 1.0, last_s):
            found = patience.holding(ALL, PEERS, 1.0, behind_s, GRACE_S)
            patience.note_roll(found, PEERS[:4], waited_s, 1.0)
        # None is waited for before its turn.
        patience.note_behind(PEERS[3], 2.0)
        assert (held(patience, 2.0) == ALL) is is_over
        in_turn = 1.0 + (most_s - 1.0 + last_s) * (1 / limits.ROUND_THIN_SHARE - 1)
        assert held(patience, in_turn).behind == {*PEERS[3:]}


def test_one_that_came_in_vain_is_waited_for_again_after_its_time_to_the_second() -> None:
    """A member that has just begun is slow once; one that never comes waits longer each time."""
    patience, now = RoundPatience(), 0.0
    for vain_s in (75.0, 150.0, 300.0, 600.0, 600.0):
        patience.note_behind(LATE, now)
        patience.note_roll(patience.holding(ALL, PEERS, now, 2.0, 0.5), PEERS[:4], 2.0, now)
        patience.note_behind(LATE, now + vain_s - 1.0)
        assert held(patience, now + vain_s - 0.1) == ALL
        now += vain_s
        patience.note_behind(LATE, now)
        assert held(patience, now).behind == {LATE}
    assert vain_s == limits.ROUND_THIN_AGAIN_S
    # One that was well for as long begins anew.
    now += limits.ROUND_THIN_AGAIN_S
    patience.note_behind(LATE, now)
    patience.note_roll(patience.holding(ALL, PEERS, now, 2.0, 0.5), PEERS[:4], 2.0, now)
    patience.note_behind(LATE, now + 75.0)
    assert held(patience, now + 74.9) == ALL
    assert held(patience, now + 75.0).behind == {LATE}


def test_the_second_roll_is_held_for_all_that_is_left_where_one_needs_longer_than_thought() -> None:
    patience, holds_s = RoundPatience(), []
    for now in (0.0, 2.0, 6.0):
        patience.note_behind(LATE, now)
        found = patience.holding(ALL, PEERS, now, 2.0, GRACE_S)
        holds_s.append(found.behind_s)
        patience.note_roll(found, PEERS[:4], min(4.0, found.behind_s), now)
    assert holds_s == [2.0, 4 * GRACE_S - 2.0, 4 * GRACE_S - 6.0]


def test_of_two_that_are_behind_one_that_comes_ends_its_own_wait_and_the_turn_of_both() -> None:
    patience = RoundPatience()
    for peer in PEERS[3:]:
        patience.note_behind(peer, 0.0)
    patience.note_roll(held(patience, 0.0), PEERS[:4], 2.0, 2.0)
    assert held(patience, 15.9) == ALL
    assert held(patience, 16.0).behind == {LATE}


def test_what_one_lacked_is_forgotten_when_it_comes_or_says_nothing_for_long() -> None:
    for comes in (True, False):
        patience, now = RoundPatience(), 0.0
        patience.note_behind(LATE, now)
        patience.note_roll(held(patience, now), PEERS[:4], BEHIND_S - 1.0, now)
        if comes:
            patience.note_roll(ALL, PEERS, 0.0, now)
        else:
            now += limits.ROUND_BEHIND_S_MAX + 1.0
            patience.note_behind(PEERS[3], now)
            patience.note_roll(ALL, PEERS[:4], 0.0, now)
        patience.note_behind(LATE, now)
        found = held(patience, now)
        patience.note_roll(found, PEERS[:4], 1.0, now)
        # Rolls of both together were held for long enough, and it has its turn again.
        again_at = now + BEHIND_S * (1 / limits.ROUND_THIN_SHARE - 1)
        assert held(patience, again_at - 0.1) == ALL
        assert held(patience, again_at).behind == {LATE}, comes
