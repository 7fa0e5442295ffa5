"""One exchange in flight, and the tables of what waits and what is under way."""

from __future__ import annotations

import hashlib
import math
import random
from dataclasses import replace

import pytest

from swarmnode import limits
from swarmnode.errors import RemoteProtocolError
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.events import Available, PairIntent, Role, Terms
from swarmnode.protocol.gossip.flight import (
    Flight,
    FlightTable,
    IntentTable,
    State,
    acceptance_of,
    is_as_good,
    new_xid,
    offer_of,
    refusal,
    terms_of,
)
from swarmnode.wire.exchange.gossip import Accept, Offer, StatusQuery
from tests.unit.protocol.gossip.test_exchange import (
    ANSWER,
    ELSEWHERE,
    INTENT,
    KEY,
    LARGER,
    LIMIT_S,
    ME,
    NEXT,
    OFFER,
    OTHER,
    SMALLER,
    XID,
    offer_like,
)


def flight(
    state: State = State.TRANSFER,
    intent: PairIntent = INTENT,
    *,
    xid: bytes = XID,
    peer: PeerId = LARGER,
) -> Flight:
    return Flight(xid, peer, Role.RESPONDER, state, intent, LIMIT_S, 0.0, give_up_at=99.0)


def ready_flight(*, at: float = 10.0, ask_at: float = 12.0, decide_s: float = 2.0) -> Flight:
    found = flight()
    found.become_ready(at, ask_at, decide_s)
    return found


# --- one flight --------------------------------------------------------------------------------


def test_a_flight_begins_with_nothing_done() -> None:
    new = flight(State.OFFERED)
    assert not new.has_all_chunks
    assert (new.local_done, new.peer_ready, new.is_known_overdue) == (False, False, False)
    assert (new.further, new.n_sent, new.asked, new.waited_s) == ((), 0, 0, 0.0)
    assert new.deadline == 99.0
    assert not new.gives_way(1e9), "no view is lent"
    assert not new.stands_aside(1e9)
    new.start_transfer(5.0)
    assert (new.state, new.deadline) == (State.TRANSFER, 5.0 + LIMIT_S)


def test_all_chunks_are_here_when_each_has_come_once() -> None:
    taken = flight()
    assert taken.take_chunk(1)
    assert not taken.take_chunk(1)
    assert not taken.has_all_chunks
    assert taken.take_chunk(0)
    assert taken.has_all_chunks
    with pytest.raises(RemoteProtocolError, match="a chunk below 2, got 2"):
        taken.take_chunk(INTENT.n_chunks)


def test_a_transfer_gives_way_from_when_its_view_has_been_lent_so_long() -> None:
    lent = flight()
    lent.lend(3.0, 10.0)
    lent.lend(50.0, 11.0)  # a view is lent once
    assert (lent.lent_at, lent.overdue_at, lent.deadline) == (10.0, 13.0, 13.0)
    assert [lent.gives_way(now) for now in (12.9, 13.0, 13.1)] == [False, True, True]
    lent.is_known_overdue = True
    assert lent.deadline == 99.0
    lent.give_up_at = 12.0
    lent.is_known_overdue = False
    assert lent.deadline == 12.0, "its limit comes first"


def test_each_chunk_but_the_last_has_its_time() -> None:
    slow = flight(intent=replace(INTENT, n_chunks=3, chunk_s=17.0))
    slow.note_progress(1, 90.0)
    assert (slow.give_up_at, slow.overdue_at) == (107.0, math.inf), "no view is lent yet"
    slow.lend(1.0, 91.0)
    slow.is_known_overdue = True
    slow.note_progress(2, 95.0)
    assert (slow.give_up_at, slow.overdue_at, slow.is_known_overdue) == (112.0, 112.0, False)
    slow.is_known_overdue = True
    slow.note_progress(3, 99.0)
    assert (slow.give_up_at, slow.overdue_at, slow.is_known_overdue) == (112.0, 112.0, True)
    slow.become_ready(100.0, 102.0, 2.0)
    give_up_at = slow.give_up_at
    slow.note_progress(1, 1e6)
    assert slow.give_up_at == give_up_at, "it is no transfer any more"


def test_a_chunk_never_shortens_the_time_of_a_transfer() -> None:
    quick = flight(intent=replace(INTENT, n_chunks=3, chunk_s=1.0))
    quick.lend(10.0, 0.0)
    quick.note_progress(1, 2.0)
    assert (quick.give_up_at, quick.overdue_at) == (99.0, 10.0)
    quick.is_known_overdue = True
    quick.note_progress(2, 9.0)
    assert (quick.overdue_at, quick.is_known_overdue) == (10.0, True), "by no longer than it had"


def test_a_ready_responder_waits_for_word_so_long_since_it_was_last_heard() -> None:
    ready = ready_flight()
    in_doubt_at = 10.0 + limits.EXCHANGE_IN_DOUBT_S
    assert (ready.state, ready.doubt_at, ready.deadline) == (State.READY, in_doubt_at, 12.0)
    ready.ask_at = 1e9
    assert ready.deadline == in_doubt_at
    first = ready.next_question(12.0)
    assert first == StatusQuery(XID, number=1, decide_s=2.0)
    assert ready.note_pending(first.number, 13.0) is True
    # By 15.0 an honest initiator has decided; what it says later puts off nothing.
    assert ready.doubt_at == 13.0 + limits.EXCHANGE_IN_DOUBT_S
    assert ready.note_pending(ready.next_question(14.0).number, 20.0) is True
    assert ready.doubt_at == 15.0 + limits.EXCHANGE_IN_DOUBT_S


def test_whatever_an_initiator_says_a_ready_responder_gives_up_in_the_end() -> None:
    ready = ready_flight(decide_s=1e9)
    end = 10.0 + limits.EXCHANGE_TRANSFER_S_MAX + limits.EXCHANGE_IN_DOUBT_S
    ready.ask_at = 1e9
    for now in range(10, 1000, 10):
        ready.note_pending(ready.next_question(float(now)).number, float(now))
        assert ready.doubt_at == min(now + limits.EXCHANGE_IN_DOUBT_S, end)


@pytest.mark.parametrize(("number", "counts"), [(0, False), (1, True), (2, True), (3, False)])
def test_pending_counts_only_as_the_answer_to_a_question(number: int, counts: bool) -> None:
    ready = ready_flight()
    for _ in range(2):
        ready.next_question(12.0)
    assert ready.note_pending(number, 13.0) is True
    assert ready.heard_at == (13.0 if counts else 10.0)
    assert ready.decided_at == (15.0 if counts else math.inf)


def test_undecided_is_no_answer_to_the_first_question_that_was_late_nor_to_any_after() -> None:
    ready = ready_flight()
    assert ready.next_question(11.0).number == 1
    ready.note_pending(1, 12.0)
    for number, now in ((2, 13.9), (3, 14.0), (4, 15.0)):
        assert ready.next_question(now).number == number
    assert [ready.note_pending(number, 16.0) for number in (1, 2, 3, 4)] == [
        True,
        True,
        False,
        False,
    ]


# --- the table of flights ----------------------------------------------------------------------


def overdue_flight(intent: PairIntent, peer: PeerId) -> Flight:
    found = flight(intent=intent, xid=bytes(peer[:16]), peer=peer)
    found.lend(1.0, 0.0)
    return found


def test_what_is_in_flight_is_found_by_its_number_and_by_its_peer() -> None:
    table = FlightTable()
    one = overdue_flight(INTENT, LARGER)
    assert (table.get(one.xid), table.with_peer(LARGER), len(table)) == (None, None, 0)
    table.add(one)
    assert table.get(one.xid) is table.with_peer(LARGER) is one
    assert table.with_peer(OTHER) is None
    assert (list(table), len(table)) == ([one], 1)
    table.remove(one)
    assert (table.get(one.xid), len(table)) == (None, 0)


def test_for_one_more_the_same_topic_and_else_one_of_the_others_gives_way() -> None:
    one, two = overdue_flight(INTENT, LARGER), overdue_flight(ELSEWHERE, OTHER)
    third = ("model", 3)
    table = FlightTable()
    table.add(one)
    assert table.to_give_way(INTENT.topic, 0.9) is None
    assert table.to_give_way(INTENT.topic, 1.0) == [one]
    assert table.to_give_way(third, 0.9) == []
    table.add(two)
    assert table.to_give_way(third, 0.9) is None
    assert table.to_give_way(third, 1.0) == [one], "one is enough"
    assert table.to_give_way(ELSEWHERE.topic, 1.0) == [two]
    two.state = State.OFFERED
    assert table.to_give_way(ELSEWHERE.topic, 1.0) is None


def test_beside_one_that_stands_aside_another_of_its_topic_may_begin_but_it_keeps_its_place() -> (
    None
):
    aside = flight(intent=replace(INTENT, adds_up=True))
    aside.become_ready(0.0, 2.0, 1.0)
    table = FlightTable()
    table.add(aside)
    assert table.to_give_way(INTENT.topic, 0.9) is None
    assert table.to_give_way(INTENT.topic, 1.0) == []
    other = overdue_flight(ELSEWHERE, OTHER)
    table.add(other)
    assert table.to_give_way(INTENT.topic, 1.0) == [other]
    other.state = State.READY
    assert table.to_give_way(INTENT.topic, 1.0) is None


# --- the table of intents ----------------------------------------------------------------------


def waiting(*intents: PairIntent) -> IntentTable:
    table = IntentTable()
    for intent in intents:
        table.put(Available(intent, LIMIT_S))
    return table


def test_an_answer_is_given_before_an_intent_and_neither_takes_the_others_place() -> None:
    table = waiting(INTENT, ANSWER, ELSEWHERE)
    assert (len(table), table.topics()) == (2, [INTENT.topic, ELSEWHERE.topic])
    assert table.intent(INTENT.topic) == INTENT
    assert table.for_offer(INTENT.topic) == Available(ANSWER, LIMIT_S)
    assert table.use_up(ANSWER) is ANSWER
    assert table.for_offer(INTENT.topic) == Available(ANSWER, LIMIT_S), "answers are not used up"
    table.remove(ANSWER.number)
    assert table.for_offer(INTENT.topic) == Available(INTENT, LIMIT_S)
    table.remove(77)
    assert len(table) == 2
    table.put(Available(ANSWER, LIMIT_S))
    table.remove(None)
    assert (len(table), table.for_offer(INTENT.topic)) == (0, None)


def test_an_intent_is_used_up_as_what_it_is_by_now_and_as_it_was_once_it_is_gone() -> None:
    table = waiting(INTENT)
    table.put(Available(NEXT, LIMIT_S))
    assert table.current(INTENT) == NEXT
    assert table.use_up(INTENT) == NEXT
    assert (len(table), table.current(INTENT)) == (0, None)
    assert table.use_up(INTENT) == INTENT
    table = waiting(replace(NEXT, weight=3.0))
    assert table.current(INTENT) is None
    assert table.use_up(INTENT) == INTENT
    assert len(table) == 1, "the other one waits on"


def test_a_newer_intent_is_as_good_where_rounds_do_not_matter_and_the_rest_is_the_same() -> None:
    assert is_as_good(NEXT, INTENT)
    assert not is_as_good(NEXT, replace(INTENT, round_skew_max=3))
    for change in ({"weight": 2.0}, {"n_chunks": 3}, {"base_version": b"b"}, {"adds_up": True}):
        assert not is_as_good(replace(NEXT, **change), INTENT)  # type: ignore[arg-type]


# --- messages ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("skew", "offered", "is_fit"),
    [(None, 99, True), (0, 7, True), (0, 8, False), (2, 5, True), (2, 9, True), (2, 4, False),
     (2, 10, False)],
)  # fmt: skip
def test_rounds_may_be_so_far_apart_either_way(
    skew: int | None, offered: int, is_fit: bool
) -> None:
    said = refusal(replace(INTENT, round_skew_max=skew), offer_like(round=offered))
    assert said == (None if is_fit else "round: here it is 7")


def test_a_refusal_says_what_is_here() -> None:
    assert refusal(INTENT, OFFER) is None
    assert refusal(INTENT, offer_like(n_chunks=3)) == "incompatible: here it is 2 chunks"
    assert refusal(INTENT, offer_like(base_version=b"b")) == "base: here it is none"
    based = replace(INTENT, base_version=bytes(range(32)))
    assert refusal(based, OFFER) == "base: here it is 0001020304050607"
    assert refusal(based, offer_like(base_version=bytes(range(32)))) is None
    open_intent = replace(ANSWER, round_skew_max=0)
    assert refusal(open_intent, offer_like(round=99, base_version=b"b")) is None
    assert refusal(ANSWER, offer_like(n_chunks=3)) == "incompatible: here it is 2 chunks"


def test_an_offer_and_its_acceptance_say_what_each_side_gives() -> None:
    intent = replace(INTENT, weight=3.0, base_version=b"base")
    offer = offer_of(intent, XID, KEY)
    assert offer == Offer(XID, KEY, "model", 1, 7, 2, 70, 7000, 3.0, b"base")
    assert acceptance_of(NEXT, offer) == Accept(XID, 8, 80, 8000, 1.0)
    assert acceptance_of(ANSWER, offer) == Accept(XID, 7, 1, 10, 1.0), "in the round of the offer"
    assert terms_of(offer, NEXT) == Terms(7, 70, 7000, 3.0, b"base")
    assert terms_of(Accept(XID, 8, 80, 8000, 2.0), intent) == Terms(8, 80, 8000, 2.0, b"base")


def test_an_exchange_is_named_by_both_peers_and_a_draw() -> None:
    drawn = random.Random(4).randbytes(16)
    expected = hashlib.sha256(b"swarmnode/xid\0" + ME + SMALLER + drawn).digest()[:16]
    assert new_xid(ME, SMALLER, random.Random(4)) == expected
