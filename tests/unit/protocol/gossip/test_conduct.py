"""What a node keeps of how peers behaved: it is paid for, forgotten, and bounded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.conduct import ConductTable
from swarmnode.protocol.trust import Counts, Trust

PEER, OTHER = PeerId(b"\x11" * 32), PeerId(b"\x22" * 32)
BUDGET_S = limits.EXCHANGE_BUDGET_S


def test_a_peer_of_which_nothing_is_known_is_in_good_standing() -> None:
    table = ConductTable()
    assert not table.is_avoided(PEER, 0.0)
    assert table.may_hold(PEER, 0.0)
    assert (table.patience(PEER), table.answer_patience(PEER)) == (1.0, 1.0)
    assert len(table) == 0


def test_what_a_peer_held_comes_back_a_little_at_a_time() -> None:
    table = ConductTable()
    table.note_held(PEER, BUDGET_S + 1.0, 0.0, is_stall=False)
    back_s = (1.0 + limits.EXCHANGE_PATIENCE_S_MIN) / limits.EXCHANGE_BUDGET_REFILL
    assert table.is_avoided(PEER, back_s - 1.0)
    assert not table.is_avoided(PEER, back_s + 0.001)


def test_one_short_stall_changes_nothing_for_an_honest_peer() -> None:
    table = ConductTable()
    table.note_held(PEER, limits.EXCHANGE_PATIENCE_S_MIN, 0.0, is_stall=True)
    assert not table.is_avoided(PEER, 0.0)
    assert table.patience(PEER) == 2.0


def test_a_stall_is_remembered_for_longer_and_what_else_is_held_is_not() -> None:
    trust = Trust(b"")
    table = ConductTable(trust)
    table.note_held(PEER, BUDGET_S, 0.0, is_stall=False)
    assert trust.counts(PEER) == Counts()
    table.note_held(PEER, BUDGET_S, 0.0, is_stall=True)
    assert trust.counts(PEER) == Counts(slow=1)


def test_no_debt_lasts_longer_than_its_bound() -> None:
    table = ConductTable()
    for _ in range(10):
        table.note_held(PEER, 3600.0, 0.0, is_stall=True)
    owed_s = limits.EXCHANGE_DEBT_S_MAX + limits.EXCHANGE_PATIENCE_S_MIN
    assert not table.is_avoided(PEER, owed_s / limits.EXCHANGE_BUDGET_REFILL + 0.001)


def test_without_budget_a_peer_is_refused_only_while_there_are_others() -> None:
    table = ConductTable()
    table.note_held(PEER, BUDGET_S, 0.0, is_stall=False)
    assert table.may_hold(PEER, 0.0), "there is no other"
    table.note_there(PEER, 0.0)
    assert table.may_hold(PEER, 0.0), "itself is no other"
    table.note_there(OTHER, 0.0)
    assert not table.may_hold(PEER, 0.0)
    assert table.may_hold(OTHER, 0.0)
    assert table.may_hold(PEER, limits.PARTNER_SLOW_S), "the other may be gone by now"
    table.note_held(OTHER, BUDGET_S, 0.0, is_stall=False)
    assert table.may_hold(PEER, 0.0), "the other is no better"


def test_peers_without_budget_are_no_others_however_many_they_are() -> None:
    table = ConductTable()
    table.note_there(OTHER, 0.0)
    for n in range(3, 6):
        hostile = PeerId(bytes([n]) * 32)
        table.note_held(hostile, BUDGET_S, 0.0, is_stall=False)
        table.note_there(hostile, 0.0)
        assert not table.may_hold(hostile, 0.0)


def test_commits_pay_for_no_stall_but_take_one_back_when_they_are_quick() -> None:
    table = ConductTable()
    for _ in range(3):
        table.note_held(PEER, BUDGET_S / 3, 0.0, is_stall=True)
    table.note_commit(PEER, 0.0, is_quick=False)
    assert table.patience(PEER) == 8.0
    table.note_commit(PEER, 0.0, is_quick=True)
    assert table.patience(PEER) == 4.0
    assert table.is_avoided(PEER, 0.0), "or every other exchange might be a stall"


def test_a_commit_that_took_beyond_the_usual_is_paid_for() -> None:
    table = ConductTable()
    for excess_s in (-1.0, 0.0):
        table.note_commit(PEER, 0.0, is_quick=False, excess_s=excess_s)
        assert len(table) == 0, "of one that keeps to the usual there is nothing to keep"
    table.note_commit(PEER, 0.0, is_quick=False, excess_s=BUDGET_S)
    assert table.is_avoided(PEER, 0.0)
    assert table.patience(PEER) == 1.0


def test_silence_is_over_with_the_first_word_and_the_time_for_an_answer_with_an_answer() -> None:
    table = ConductTable()
    table.note_no_answer(PEER, 0.0)
    assert table.is_avoided(PEER, limits.PARTNER_SLOW_S - 1)
    assert table.may_hold(PEER, 0.0), "silence is no offence"
    table.note_heard(PEER)
    assert not table.is_avoided(PEER, 0.0)
    assert table.answer_patience(PEER) == 2.0
    table.note_answer(PEER)
    assert table.answer_patience(PEER) == 1.0


def test_a_payload_that_cannot_count_takes_all_of_the_budget() -> None:
    table = ConductTable()
    table.note_refused(PEER, 0.0)
    back_s = limits.EXCHANGE_PATIENCE_S_MIN / limits.EXCHANGE_BUDGET_REFILL
    assert table.is_avoided(PEER, back_s - 1.0)
    assert not table.is_avoided(PEER, back_s + 0.001)
    assert table.patience(PEER) == 1.0


def test_the_table_is_bounded_and_what_was_changed_longest_ago_makes_room() -> None:
    table = ConductTable(peers_max=3)
    peers = [PeerId(bytes([number]) * 32) for number in range(5)]
    for peer in (*peers[:3], peers[0], *peers[3:]):
        table.note_no_answer(peer, 0.0)
    assert len(table) == 3
    assert [table.is_avoided(peer, 0.0) for peer in peers] == [True, False, False, True, True]


def test_the_budget_is_full_until_something_is_held_and_comes_back_at_its_rate() -> None:
    table = ConductTable()
    assert table.budget_s(PEER, 5.0) == BUDGET_S
    table.note_held(PEER, 1.5, 10.0, is_stall=False)
    assert table.budget_s(PEER, 10.0) == BUDGET_S - 1.5
    assert table.budget_s(PEER, 20.0) == BUDGET_S - 1.5 + 10.0 * limits.EXCHANGE_BUDGET_REFILL
    table.note_held(PEER, 1.0, 20.0, is_stall=False)
    assert table.budget_s(PEER, 20.0) == BUDGET_S - 2.5 + 10.0 * limits.EXCHANGE_BUDGET_REFILL
    assert table.budget_s(PEER, 1000.0) == BUDGET_S, "never more than all of it"


def test_one_that_has_just_enough_budget_for_an_exchange_is_in_good_standing() -> None:
    table = ConductTable()
    table.note_there(OTHER, 0.0)
    table.note_held(PEER, BUDGET_S - limits.EXCHANGE_PATIENCE_S_MIN, 0.0, is_stall=False)
    assert not table.is_avoided(PEER, 0.0)
    assert table.may_hold(PEER, 0.0)
    table.note_held(PEER, 0.01, 0.0, is_stall=False)
    assert table.is_avoided(PEER, 0.0)
    assert not table.may_hold(PEER, 0.0)


def test_what_is_owed_has_the_bound_that_the_table_was_given() -> None:
    for table, most_s in (
        (ConductTable(), limits.EXCHANGE_DEBT_S_MAX),
        (ConductTable(debt_s_max=3.0), 3.0),
    ):
        table.note_held(PEER, 3600.0, 7.0, is_stall=False)
        assert table.budget_s(PEER, 7.0) == -most_s


def test_a_silent_peer_is_so_for_a_while_and_no_longer() -> None:
    table = ConductTable()
    table.note_held(OTHER, 0.1, 0.0, is_stall=False)
    assert not table.is_silent(PEER, 0.0), "of it nothing is known"
    assert not table.is_silent(OTHER, 0.0), "it has left nothing unanswered"
    assert not table.is_avoided(OTHER, 0.0)
    table.note_no_answer(PEER, 10.0)
    assert table.is_silent(PEER, 10.0 + limits.PARTNER_SLOW_S - 0.01)
    assert table.is_avoided(PEER, 10.0 + limits.PARTNER_SLOW_S - 0.01)
    assert not table.is_silent(PEER, 10.0 + limits.PARTNER_SLOW_S)
    assert not table.is_avoided(PEER, 10.0 + limits.PARTNER_SLOW_S)
    assert table.budget_s(PEER, 10.0) == BUDGET_S, "silence takes none of it"


@pytest.mark.parametrize("says", [ConductTable.note_heard, ConductTable.note_answer])
def test_a_word_or_an_answer_ends_silence_and_of_one_not_known_nothing_is_kept(
    says: Callable[[ConductTable, PeerId], None],
) -> None:
    table = ConductTable()
    says(table, OTHER)
    assert len(table) == 0
    table.note_no_answer(PEER, 10.0)
    says(table, PEER)
    assert not table.is_silent(PEER, 0.0)
    assert not table.is_avoided(PEER, 0.0)


def test_each_missed_answer_and_each_stall_doubles_a_patience_up_to_a_bound() -> None:
    table = ConductTable()
    answers, transfers = [], []
    for _ in range(8):
        table.note_no_answer(PEER, 0.0)
        answers.append(table.answer_patience(PEER))
        table.note_held(PEER, 0.0, 0.0, is_stall=True)
        transfers.append(table.patience(PEER))
    assert answers == [2.0, 4.0, 8.0, 16.0, 16.0, 16.0, 16.0, 16.0]
    assert transfers == [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 64.0, 64.0]
    table.note_held(OTHER, 0.1, 0.0, is_stall=False)
    assert (table.patience(OTHER), table.answer_patience(OTHER)) == (1.0, 1.0)


def test_a_commit_is_quick_unless_said_otherwise_and_takes_back_no_more_than_there_was() -> None:
    table = ConductTable()
    table.note_held(PEER, 0.0, 0.0, is_stall=True)
    for _ in range(3):
        table.note_commit(PEER, 0.0)
        assert table.patience(PEER) == 1.0
    assert table.budget_s(PEER, 0.0) == BUDGET_S, "what is in time costs nothing"
    table.note_held(PEER, 0.0, 0.0, is_stall=True)
    assert table.patience(PEER) == 2.0


def test_a_peer_with_which_an_exchange_counts_is_another_one_to_the_others() -> None:
    table = ConductTable()
    table.note_held(PEER, BUDGET_S, 0.0, is_stall=False)
    table.note_commit(OTHER, 0.0, is_quick=False, excess_s=0.5)
    assert table.budget_s(OTHER, 0.0) == BUDGET_S - 0.5
    assert not table.may_hold(PEER, 0.0)


def test_the_last_two_in_good_standing_are_remembered_and_until_when() -> None:
    table = ConductTable()
    first, second, third = (PeerId(bytes([n]) * 32) for n in (3, 4, 5))
    table.note_there(first, 0.0)
    table.note_there(second, 10.0)
    table.note_held(PEER, BUDGET_S + limits.EXCHANGE_DEBT_S_MAX, 0.0, is_stall=False)
    # Of two there is always one that is another to each of them.
    assert not table.may_hold(PEER, 10.0 + limits.PARTNER_SLOW_S - 0.01)
    assert table.may_hold(PEER, 10.0 + limits.PARTNER_SLOW_S)
    table.note_there(first, 20.0)
    table.note_there(third, 21.0)  # in the place of the second, which was there before the first
    table.note_no_answer(third, 22.0)
    assert not table.may_hold(PEER, 22.0), "the first is still there"
    table.note_no_answer(first, 22.0)
    assert table.may_hold(PEER, 22.0), "the second is not, though it is in good standing"
    assert not table.is_avoided(second, 22.0)


def test_one_trusted_less_is_met_in_some_rounds_and_in_all_where_it_is_alone() -> None:
    trust = Trust(b"salt")
    table = ConductTable(trust)
    for _ in range(20):
        table.note_held(PEER, 0.0, 0.0, is_stall=True)
    met = [table.is_admitted(PEER, number, 0.0) for number in range(200)]
    assert met == [trust.admits(PEER, number, 0.0) for number in range(200)]
    assert 0 < sum(met) < 200
    assert all(table.is_admitted(OTHER, number, 0.0) for number in range(20))
    assert all(table.may_meet(PEER, number, 0.0) for number in range(200)), "there is no other"
    table.note_there(OTHER, 0.0)
    assert [table.may_meet(PEER, number, 0.0) for number in range(200)] == met


def test_a_round_that_stays_the_same_is_another_one_after_a_while() -> None:
    trust = Trust(b"salt")
    table = ConductTable(trust)
    for _ in range(20):
        table.note_held(PEER, 0.0, 0.0, is_stall=True)
    for part in range(50):
        began = part * limits.PARTNER_SLOW_S
        for now in (began, began + limits.PARTNER_SLOW_S - 1.0):
            assert table.is_admitted(PEER, 3, now) == trust.admits(PEER, 3 + part, now)
