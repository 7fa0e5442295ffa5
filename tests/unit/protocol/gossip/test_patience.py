"""What is usual is measured, robustly, and patience is a few times that."""

from __future__ import annotations

import pytest

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.conduct import ConductTable
from swarmnode.protocol.gossip.events import Begin, Effect, Role, Send
from swarmnode.protocol.gossip.flight import Flight, State
from swarmnode.protocol.gossip.patience import Patience, Usual
from swarmnode.wire.exchange import gossip as wire
from tests.unit.protocol.gossip.test_exchange import ELSEWHERE, INTENT, LIMIT_S, Bench

PEER, OTHER = PeerId(b"\x11" * 32), PeerId(b"\x22" * 32)


def test_before_the_first_measurement_patience_is_what_it_was_given() -> None:
    assert Usual().limit_s(1.0, 7.0) == 7.0
    patience = Patience(ConductTable())
    assert patience.answer_s(PEER) == limits.EXCHANGE_ANSWER_S_FIRST
    limit_s = limits.EXCHANGE_VIEW_S + 12.0
    assert patience.transfer_s(PEER, limit_s) == 12.0
    assert patience.decision_s(PEER) == limits.EXCHANGE_OFFER_S


def test_where_members_tell_of_their_steps_the_first_wait_is_for_two_of_them_and_the_line() -> None:
    patience = Patience(ConductTable())
    patience.call_s = lambda: 0.5
    shortest_s = limits.EXCHANGE_VIEW_S + limits.EXCHANGE_TRANSFER_S_MIN
    assert patience.transfer_s(PEER, shortest_s) == 1.0 + limits.EXCHANGE_FIRST_S
    assert patience.transfer_s(PEER, shortest_s + 8.0) == 9.0 + limits.EXCHANGE_FIRST_S


def test_a_third_that_drag_do_not_move_the_median() -> None:
    usual = Usual()
    for number in range(3 * limits.EXCHANGE_USUAL_MAX):
        usual.note(100.0 if number % 3 == 0 else 1.0)
    assert usual.limit_s(0.5, 0.5) == limits.EXCHANGE_PATIENCE


def test_a_lower_bound_forgives_a_busy_machine() -> None:
    usual = Usual()
    usual.note(0.001)
    assert usual.limit_s(1.0, 7.0) == 1.0


def test_a_peer_that_missed_answers_or_stalled_gets_more_time_up_to_a_bound() -> None:
    conduct = ConductTable()
    patience = Patience(conduct)
    for _ in range(10):
        conduct.note_no_answer(PEER, 0.0)
        conduct.note_held(PEER, 0.0, 0.0, is_stall=True)
    assert patience.answer_s(PEER) == limits.EXCHANGE_OFFER_S
    assert patience.decision_s(PEER) == limits.EXCHANGE_DECISION_S_MAX
    assert patience.transfer_s(PEER, 61.0) == 64 * limits.EXCHANGE_PATIENCE_S_MIN


def test_the_peer_that_is_met_most_does_not_say_alone_what_is_usual() -> None:
    usual = Usual()
    for _ in range(2 * limits.EXCHANGE_USUAL_MAX):
        usual.note(8.0, PEER)
    usual.note(0.1, OTHER)
    assert usual.limit_s(1.0, 10.0) == 1.0


def test_an_offer_has_all_of_its_time_whatever_becomes_of_one_before_it() -> None:
    def given_up(effects: list[Effect]) -> list[PeerId]:
        sent = [each for each in effects if isinstance(each, Send)]
        return [each.peer for each in sent if isinstance(each.message, wire.Abort)]

    bench = Bench(INTENT, ELSEWHERE)
    bench.begin(PEER)
    bench.wait(limits.EXCHANGE_ANSWER_S_FIRST / 2)
    bench.feed(Begin(ELSEWHERE.tag, ELSEWHERE.fragment, (OTHER,), LIMIT_S))
    for peer in (PEER, OTHER):
        assert given_up(bench.wait(limits.EXCHANGE_ANSWER_S_FIRST / 2)) == [peer]


@pytest.mark.parametrize(
    ("reason", "by_peer", "times"),
    [
        ("timeout", False, 2.0),
        ("in-doubt: no answer", False, 2.0),
        ("timeout", True, 1.0),
        ("unreachable", False, 1.0),
    ],
)
def test_only_who_was_waited_for_in_vain_gets_more_time_and_all_pay_for_theirs(
    reason: str, by_peer: bool, times: float
) -> None:
    conduct = ConductTable()
    flight = Flight(
        bytes(16), PEER, Role.INITIATOR, State.TRANSFER, INTENT, LIMIT_S, 0.0, give_up_at=LIMIT_S
    )
    flight.lend(1.0, 2.0)
    Patience(conduct).note_failure(flight, reason, 5.0, by_peer=by_peer)
    assert conduct.patience(PEER) == times
    assert conduct.budget_s(PEER, 5.0) == limits.EXCHANGE_BUDGET_S - 3.0


# --- what is measured, to the second -------------------------------------------------------------


def flight_of(role: Role = Role.INITIATOR, *, lent_at: float | None = None) -> Flight:
    """Return one with 12 s for its transfer, of which nothing was measured yet."""
    limit_s = limits.EXCHANGE_VIEW_S + 12.0
    found = Flight(bytes(16), PEER, role, State.TRANSFER, INTENT, limit_s, 0.0, give_up_at=limit_s)
    if lent_at is not None:
        found.lend(1.0, lent_at)
    return found


def peers(first: int, n: int) -> list[PeerId]:
    return [PeerId(bytes([number]) * 32) for number in range(first, first + n)]


def test_the_peers_that_were_met_last_say_what_is_usual() -> None:
    n_half = limits.EXCHANGE_USUAL_MAX // 2
    usual = Usual()
    for peer in peers(0, limits.EXCHANGE_USUAL_MAX):
        usual.note(1.0, peer)
    slow = peers(100, n_half + 1)
    for peer in slow[:-1]:
        usual.note(10.0, peer)
        usual.note(10.0, peer)  # which makes room for itself only
    assert usual.limit_s(0.5, 0.5) == limits.EXCHANGE_PATIENCE
    usual.note(10.0, slow[-1])
    assert usual.limit_s(0.5, 0.5) == 10.0 * limits.EXCHANGE_PATIENCE
    # Of an even number of peers the quicker one in the middle counts.
    usual = Usual()
    for number, peer in enumerate(peers(0, 4)):
        usual.note(float(1 + number), peer)
    assert usual.limit_s(0.5, 0.5) == 2.0 * limits.EXCHANGE_PATIENCE


def test_all_that_a_node_remembers_of_so_many_peers_counts() -> None:
    n_slow = limits.EXCHANGE_USUAL_MAX // 2 + 1
    usual = Usual()
    for peer in peers(0, n_slow):
        usual.note(10.0, peer)
    for peer in peers(100, limits.EXCHANGE_USUAL_MAX - n_slow):
        usual.note(1.0, peer)
    assert usual.limit_s(0.5, 0.5) == 10.0 * limits.EXCHANGE_PATIENCE


def test_what_is_usual_with_a_peer_follows_its_last_waits() -> None:
    usual = Usual()
    for _ in range(limits.EXCHANGE_USUAL_MAX):
        usual.note(1.0, PEER)
    for _ in range(limits.EXCHANGE_USUAL_MAX // 2):
        usual.note(10.0, PEER)
    assert usual.limit_s(0.5, 0.5) == limits.EXCHANGE_PATIENCE
    usual.note(10.0, PEER)
    assert usual.limit_s(0.5, 0.5) == 10.0 * limits.EXCHANGE_PATIENCE


def test_an_answer_counts_from_the_offer_on() -> None:
    conduct = ConductTable()
    patience = Patience(conduct)
    conduct.note_no_answer(PEER, 0.0)
    offered = flight_of()
    offered.started = 3.0
    patience.note_answer(offered, 3.5)
    assert not conduct.is_silent(PEER, 3.5)
    assert patience.answer_s(PEER) == 0.5 * limits.EXCHANGE_PATIENCE


def test_a_transfer_counts_from_when_our_view_was_lent_and_a_decision_from_ready_on() -> None:
    for role in Role:
        patience = Patience(ConductTable())
        flight = flight_of(role, lent_at=1.0)
        flight.waited_s, flight.ready_at = 4.0, 6.0
        patience.note_commit(flight, 8.0)
        assert patience.transfer_s(PEER, 1e9) == 4.0 * limits.EXCHANGE_PATIENCE
        decided_s = 2.0 if role is Role.RESPONDER else 4.0
        assert patience.decision_s(PEER) == decided_s * limits.EXCHANGE_PATIENCE


def test_what_was_never_lent_says_nothing_of_how_long_transfers_take() -> None:
    conduct = ConductTable()
    patience = Patience(conduct)
    patience.note_commit(flight_of(), 1e3)
    assert patience.transfer_s(PEER, limits.EXCHANGE_VIEW_S + 12.0) == 12.0
    assert conduct.budget_s(PEER, 1e3) == limits.EXCHANGE_BUDGET_S
    patience.note_failure(flight_of(), "timeout", 1e3, by_peer=False)
    assert conduct.budget_s(PEER, 1e3) == limits.EXCHANGE_BUDGET_S
    assert conduct.patience(PEER) == 1.0


@pytest.mark.parametrize(("held_s", "paid_s"), [(11.0, 0.0), (12.0, 0.0), (14.5, 2.5)])
def test_one_that_commits_pays_for_what_it_took_beyond_the_usual_patience(
    held_s: float, paid_s: float
) -> None:
    conduct = ConductTable()
    Patience(conduct).note_commit(flight_of(lent_at=2.0), 2.0 + held_s)
    assert conduct.budget_s(PEER, 2.0 + held_s) == limits.EXCHANGE_BUDGET_S - paid_s


@pytest.mark.parametrize(("waited_s", "times"), [(2.9, 1.0), (3.0, 2.0), (3.1, 2.0)])
def test_a_transfer_in_an_eighth_of_its_time_takes_a_stall_back(
    waited_s: float, times: float
) -> None:
    """Of 24 s: twice the usual patience, for its stall."""
    conduct = ConductTable()
    conduct.note_held(PEER, 0.0, 0.0, is_stall=True)
    flight = flight_of(lent_at=0.0)
    flight.waited_s = waited_s
    Patience(conduct).note_commit(flight, 4.0)
    assert conduct.patience(PEER) == times


@pytest.mark.parametrize(
    ("reason", "by_peer", "pays"),
    [
        ("local: non-finite values", True, True),
        ("local: non-finite values", False, False),
        ("unreachable", False, True),
        ("in-doubt: no answer", False, True),
        ("other", False, False),
    ],
)
def test_a_peer_pays_for_what_it_or_the_way_to_it_has_caused(
    reason: str, by_peer: bool, pays: bool
) -> None:
    conduct = ConductTable()
    Patience(conduct).note_failure(flight_of(lent_at=2.0), reason, 5.0, by_peer=by_peer)
    assert conduct.budget_s(PEER, 5.0) == limits.EXCHANGE_BUDGET_S - 3.0 * pays


def test_patience_with_one_peer_is_so_many_times_the_usual() -> None:
    conduct = ConductTable()
    patience = Patience(conduct)
    conduct.note_held(PEER, 0.0, 0.0, is_stall=True)
    conduct.note_no_answer(PEER, 0.0)
    assert patience.transfer_s(PEER, limits.EXCHANGE_VIEW_S + 12.0) == 24.0
    assert patience.transfer_s(OTHER, limits.EXCHANGE_VIEW_S + 12.0) == 12.0
    assert patience.transfer_s(OTHER, limits.EXCHANGE_VIEW_S) == limits.EXCHANGE_PATIENCE_S_MIN
    assert patience.decision_s(PEER) == 2.0 * limits.EXCHANGE_OFFER_S
    assert patience.answer_s(PEER) == 2.0 * limits.EXCHANGE_ANSWER_S_FIRST
