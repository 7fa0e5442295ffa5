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
