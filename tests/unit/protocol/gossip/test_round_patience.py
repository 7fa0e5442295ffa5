"""What rounds wait for: what is usual without the slowest, and no member that has held too many."""

from __future__ import annotations

import math

import pytest

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.group_events import Begin
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
        patience.note_answer(peer, 0.2)
    assert patience.answer_s(LATE) == limits.EXCHANGE_PATIENCE * 0.2
    patience.note_silent(LATE, patience.answer_s(LATE), 0.0)
    assert patience.answer_s(LATE) == 2 * limits.EXCHANGE_PATIENCE * 0.2
    patience.note_answer(LATE, 0.2)
    assert patience.answer_s(LATE) == limits.EXCHANGE_PATIENCE * 0.2


def test_what_was_not_heard_while_this_node_stood_still_is_no_silence_of_others() -> None:
    patience = RoundPatience()
    assert not patience.note_silent(LATE, 2 * patience.answer_s(LATE), 1.0)
    assert LATE in patience.waited_for(PEERS, SELF, 1.0)


# --- members that lack means --------------------------------------------------------------------

ALL = Waits(PEERS[:4], 2.0)  # but LATE, which has held too many
BEHIND_S, GRACE_S = 40.0, 3.0


def held(patience: RoundPatience, now: float) -> Waits:
    return patience.holding(ALL, PEERS, now, BEHIND_S)


def test_a_roll_is_held_for_one_that_is_behind_whatever_it_has_held() -> None:
    patience = RoundPatience()
    assert held(patience, 0.0) == ALL
    patience.note_behind(LATE, 0.0)
    assert held(patience, 1.0) == Waits(PEERS, 2.0, behind=frozenset({LATE}), behind_s=BEHIND_S)
    patience.note_roll(held(patience, 1.0), PEERS[:4], 2.0, GRACE_S, 3.0)  # another closed it
    assert held(patience, 4.0).behind == {LATE}


def test_one_that_has_come_is_behind_no_more_and_rolls_are_held_an_eighth_of_the_time() -> None:
    patience = RoundPatience()
    patience.note_behind(LATE, 0.0)
    patience.note_roll(held(patience, 0.0), PEERS, 10.0, GRACE_S, 10.0)
    assert held(patience, 11.0) == ALL
    patience.note_behind(LATE, 11.0)
    assert held(patience, 79.0) == ALL
    assert held(patience, 81.0).behind == {LATE}


def test_one_for_which_a_roll_was_held_in_vain_holds_no_other_for_a_while() -> None:
    patience = RoundPatience()
    for now in range(0, int(limits.ROUND_THIN_AGAIN_S) + 50, 10):
        patience.note_behind(LATE, float(now))
        found = held(patience, float(now))
        assert bool(found.behind) == (now in (0, 640)), now
        if found.behind:
            patience.note_roll(found, PEERS[:4], BEHIND_S, GRACE_S, now + BEHIND_S)


@pytest.mark.parametrize(("waited_s", "rolls"), [(2.0, 20), (25.0, 2), (0.0, 80)])
def test_one_that_never_comes_holds_rolls_for_as_long_as_it_takes_to_come(
    waited_s: float, rolls: int
) -> None:
    """As it comes and sends nothing, or leaves in time; one that costs nothing has an end too."""
    patience, now, n_held, held_s = RoundPatience(), 0.0, 0, 0.0
    while now < limits.ROUND_THIN_AGAIN_S:
        patience.note_behind(LATE, now)
        found = held(patience, now)
        now += 3.0
        if found.behind:
            now += waited_s
            n_held, held_s = n_held + 1, held_s + waited_s
            patience.note_roll(found, PEERS[:4], waited_s, GRACE_S, now)
    assert n_held == rolls
    assert held_s < 2 * BEHIND_S


def test_many_that_never_come_hold_rolls_an_eighth_of_the_time() -> None:
    patience, now, held_s, turn = RoundPatience(), 0.0, 0.0, 0
    while now < 10_000:
        liar = PeerId(bytes([100 + turn % 50]) * 32)
        turn += 1
        patience.note_behind(liar, now)
        found = patience.holding(ALL, (*PEERS, liar), now, BEHIND_S)
        waited_s = 2.5 * len(found.behind)
        now += 0.5 + waited_s
        held_s += waited_s
        patience.note_roll(found, PEERS[:4], waited_s, GRACE_S, now)
    assert held_s <= now * limits.ROUND_THIN_SHARE + 2 * BEHIND_S


def test_what_rolls_wait_that_are_held_for_none_does_not_count() -> None:
    """Else members differ in whether they hold the next, and those that do not close it."""
    patience = RoundPatience()
    patience.note_roll(held(patience, 0.0), PEERS[:4], 2 * GRACE_S, GRACE_S, 10.0)
    patience.note_behind(LATE, 10.0)
    assert held(patience, 11.0).behind == {LATE}


def test_a_roll_is_held_on_after_others_have_closed_some_of_them() -> None:
    """What it fetches takes a while, and those that did not hold theirs come to it."""
    patience = RoundPatience()
    for now in range(0, 48, 4):
        patience.note_behind(LATE, float(now))
        found = held(patience, float(now))
        assert found.behind == {LATE}, now
        patience.note_roll(found, PEERS[:4], 1.0, GRACE_S, now + 3.0)
    assert held(patience, 49.0).behind_s == BEHIND_S


def test_a_roll_that_is_held_closes_as_any_once_that_one_has_come_or_is_gone() -> None:
    begin = Begin(GID, PEERS, 4, 1.0, 3.0, TRANSFER_S, behind=frozenset({LATE}), behind_s=BEHIND_S)
    come, gone = Roll(begin, SELF, 0.0), Roll(begin, SELF, 0.0)
    assert come.closes_at == gone.closes_at == BEHIND_S
    come.add(LATE, 5.0)
    gone.remove(LATE)
    assert come.closes_at == gone.closes_at == 3.0
