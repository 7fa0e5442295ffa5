"""An exchange core at its limits: to the second, to the message, and what it remembers of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from swarmnode import limits
from swarmnode.errors import LocalProtocolError
from swarmnode.protocol.gossip.conduct import ConductTable
from swarmnode.protocol.gossip.events import (
    Abort,
    Available,
    Begin,
    Commit,
    Effect,
    ExchangeStatistics,
    Finished,
    LocalDone,
    LocalFailed,
    PeerLost,
    Role,
    Send,
    StartTransfer,
    Unavailable,
    Untaken,
    ViewLent,
)
from swarmnode.protocol.gossip.outcomes import Outcome
from swarmnode.wire.exchange import gossip as wire
from tests.unit.protocol.gossip.test_exchange import (
    ANSWER,
    ELSEWHERE,
    INTENT,
    LARGER,
    LIMIT_S,
    NEXT,
    OFFER,
    OTHER,
    SMALLER,
    XID,
    Bench,
    busy_in,
    finished_in,
    offer_in,
    offer_like,
    stalled,
)

QUICK_S = limits.EXCHANGE_ANSWER_S_MIN


def sent_in(effects: list[Effect]) -> list[Send]:
    return [effect for effect in effects if isinstance(effect, Send)]


# --- what is heard of an exchange that is over, or was never begun here ---------------------------

STALE: list[tuple[wire.Message, list[wire.Message]]] = [
    (wire.Accept(XID, 1, 1, 1), [wire.StatusReply(XID, "unknown")]),
    (wire.Ready(XID, 2), [wire.StatusReply(XID, "unknown")]),
    (wire.StatusQuery(XID, 7), [wire.StatusReply(XID, "unknown", 7)]),
    (wire.Busy(XID, "busy"), []),
    (wire.Chunk(XID, 0), []),
    (wire.Commit(XID), []),
    (wire.Abort(XID, "timeout"), []),
    (wire.StatusReply(XID, "committed"), []),
]


@pytest.mark.parametrize(("message", "answers"), STALE, ids=lambda each: type(each).__name__)
def test_a_message_of_no_exchange_is_counted_and_only_who_waits_is_answered(
    message: wire.Message, answers: list[wire.Message]
) -> None:
    bench = Bench()
    for number in (1, 2):
        assert bench.hear(message) == [Send(LARGER, answer) for answer in answers]
        counted = bench.core.statistics()
        assert counted.stale_messages_total == number
        is_chunk = isinstance(message, wire.Chunk)
        assert counted.chunks_dropped_total == number * is_chunk
        assert counted.half_applied_total == 0
    assert counted.outcomes_kept == isinstance(message, wire.Abort)
    assert bench.core.is_idle


@pytest.mark.parametrize(
    "message",
    [
        OFFER,
        offer_like(fragment=9),
        wire.Accept(XID, 1, 1, 1),
        wire.Ready(XID, 2),
        wire.StatusQuery(XID),
        wire.Busy(XID, "busy"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_peer_that_left_an_offer_unanswered_is_silent_no_more_once_it_is_heard(
    message: wire.Message,
) -> None:
    conduct = ConductTable()
    bench = Bench(conduct=conduct)
    bench.begin(LARGER)
    bench.wait(limits.EXCHANGE_ANSWER_S_FIRST)
    assert conduct.is_silent(LARGER, bench.now)
    bench.hear(message)
    assert not conduct.is_silent(LARGER, bench.now)


def test_what_was_refused_or_aborted_before_it_came_is_over_for_any_peer_that_asks() -> None:
    bench = Bench()
    bench.hear(offer_like(fragment=9))
    other = b"o" * 16
    bench.hear(wire.Abort(other, "timeout"))
    for xid in (XID, other):
        assert bench.hear(wire.StatusQuery(xid, 1)) == [
            Send(LARGER, wire.StatusReply(xid, "aborted", 1))
        ]
        assert bench.hear(wire.Abort(xid, "timeout")) == []
    counted = bench.core.statistics()
    assert (counted.half_applied_total, counted.outcomes_kept) == (0, 2)


def test_what_has_already_been_answered_is_ignored_and_counted() -> None:
    bench = Bench()
    xid = bench.begin()
    assert bench.hear(wire.Chunk(xid, 0)) == [], "it came before the acceptance"
    accept = wire.Accept(xid, 7, 1, 2)
    assert len(bench.hear(accept)) == 1
    assert bench.hear(accept) == []
    assert bench.core.statistics().stale_messages_total == 2
    bench = Bench()
    bench.to_ready()
    assert bench.hear(OFFER) == []
    assert bench.core.statistics().stale_messages_total == 1


# --- a decision before this node was ready ----------------------------------------------------


@pytest.mark.parametrize(
    ("message", "half_applied"),
    [
        (wire.Commit(XID), 1),
        (wire.StatusReply(XID, "committed"), 1),
        (wire.StatusReply(XID, "aborted"), 0),
        (wire.StatusReply(XID, "unknown"), 0),
    ],
    ids=str,
)
def test_what_is_over_for_the_initiator_though_we_were_never_ready_is_dropped(
    message: wire.Message, half_applied: int
) -> None:
    bench = Bench()
    bench.to_transfer(Role.RESPONDER)
    effects = bench.hear(message)
    assert effects[0] == Abort(XID, "other: over for the initiator")
    finished = finished_in(effects)
    assert (finished.outcome, finished.by_peer, finished.in_doubt) == (Outcome.ABORTED, True, False)
    assert sent_in(effects) == [], "the initiator knows"
    assert bench.core.is_idle
    assert bench.core.statistics().half_applied_total == half_applied


# --- offers of ours ----------------------------------------------------------------------------


def test_an_offer_needs_some_time_and_another_than_ourselves() -> None:
    bench = Bench()
    with pytest.raises(LocalProtocolError, match="transfer limit"):
        bench.feed(Begin("model", 1, (LARGER,), 0.0))
    assert bench.core.is_idle
    (effect,) = bench.feed(Begin("model", 1, (LARGER,), 0.5))
    assert isinstance(effect, Send)


def test_who_is_named_twice_is_offered_to_once_and_no_more_than_so_many_are() -> None:
    bench = Bench()
    (effect,) = bench.feed(Begin("model", 1, (LARGER, LARGER, OTHER), LIMIT_S))
    _, effect = bench.hear(wire.Busy(offer_in(effect, LARGER), "busy"))
    effects = bench.hear(wire.Busy(offer_in(effect, OTHER), "busy"), peer=OTHER)
    assert effects[-1] == Untaken(3, "busy")


def test_an_offer_of_ours_takes_the_place_of_a_transfer_that_is_overdue() -> None:
    bench, xid = stalled(INTENT, ELSEWHERE)
    bench.hear(offer_like(xid=b"e" * 16, fragment=2), peer=OTHER)
    third = replace(INTENT, number=6, fragment=3)
    bench.feed(Available(third, LIMIT_S))
    assert not bench.core.may_begin(third.topic, bench.now)
    bench.now += limits.EXCHANGE_PATIENCE_S_MIN
    assert bench.core.may_begin(third.topic, bench.now), "though it has not been ended yet"
    effects = bench.feed(Begin("model", 3, (SMALLER,), LIMIT_S))
    assert effects[0] == Abort(xid, "timeout")
    offer_in(effects[-1], SMALLER)
    assert not bench.core.is_exchanging_with(LARGER)
    assert bench.core.is_exchanging_with(OTHER)
    assert bench.core.is_exchanging_with(SMALLER)


def test_how_long_offers_wait_is_measured_by_those_that_were_answered() -> None:
    answers: list[Callable[[bytes], wire.Message]] = [
        lambda xid: wire.Accept(xid, 7, 1, 2),
        lambda xid: wire.Busy(xid, "busy"),
    ]
    for answer in answers:
        bench = Bench()
        assert bench.core.patience.answer_s(OTHER) == limits.EXCHANGE_ANSWER_S_FIRST
        xid = bench.begin()
        assert bench.core.next_deadline() == bench.now + limits.EXCHANGE_ANSWER_S_FIRST
        bench.now += 0.15
        bench.hear(answer(xid))
        assert bench.core.patience.answer_s(OTHER) == pytest.approx(0.15 * limits.EXCHANGE_PATIENCE)


def test_an_offer_that_is_not_answered_in_time_is_taken_back_and_remembered() -> None:
    conduct = ConductTable()
    bench = Bench(conduct=conduct)
    xid = bench.begin()
    assert bench.wait(limits.EXCHANGE_ANSWER_S_FIRST - 0.01) == []
    abort, finished, untaken = bench.wait(0.02)
    assert abort == Send(LARGER, wire.Abort(xid, "timeout"))
    assert isinstance(finished, Finished)
    assert (finished.reason, finished.by_peer) == ("timeout", False)
    assert (finished.started, finished.ended) == (100.0, 100.0 + limits.EXCHANGE_ANSWER_S_FIRST)
    assert untaken == Untaken(3, "timeout")
    assert conduct.is_silent(LARGER, bench.now)
    assert bench.core.patience.answer_s(LARGER) == 2 * limits.EXCHANGE_ANSWER_S_FIRST


# --- how long a transfer has -------------------------------------------------------------------


@pytest.mark.parametrize("role", list(Role))
def test_a_transfer_ends_at_its_limit_and_not_before(role: Role) -> None:
    bench = Bench()
    xid = bench.to_transfer(role)
    assert bench.core.next_deadline() == bench.now + LIMIT_S
    assert bench.wait(LIMIT_S - 0.01) == []
    assert bench.wait(0.02)[0] == Abort(xid, "timeout")


def test_a_transfer_that_is_overdue_and_in_no_ones_way_has_all_of_its_time() -> None:
    bench, xid = stalled()
    began = bench.now
    assert bench.core.next_deadline() == began + limits.EXCHANGE_PATIENCE_S_MIN
    assert bench.wait(limits.EXCHANGE_PATIENCE_S_MIN) == []
    assert bench.core.next_deadline() == began + LIMIT_S
    assert bench.wait(LIMIT_S)[0] == Abort(xid, "timeout")


def test_of_two_in_flight_only_the_one_that_is_due_is_given_up() -> None:
    """The intent that is offered has a place of its own: an overdue transfer is not in its way."""
    bench = Bench(INTENT, ELSEWHERE)
    bench.hear(OFFER)
    bench.feed(ViewLent(XID))
    (effect,) = bench.feed(Begin("model", 2, (OTHER,), LIMIT_S))
    xid = offer_in(effect, OTHER)
    effects = bench.wait(limits.EXCHANGE_ANSWER_S_FIRST)
    assert effects[0] == Send(OTHER, wire.Abort(xid, "timeout"))
    assert finished_in(effects).xid == xid
    assert bench.core.is_exchanging_with(LARGER)
    assert not bench.core.is_exchanging_with(OTHER)


def test_an_intent_whose_own_topic_is_taken_ends_no_transfer_of_another() -> None:
    bench, _ = stalled(INTENT, ELSEWHERE)
    bench.hear(offer_like(xid=b"e" * 16, fragment=2), peer=OTHER)
    bench.feed(Available(replace(ELSEWHERE, number=9, round=8), LIMIT_S))
    assert bench.wait(limits.EXCHANGE_PATIENCE_S_MIN) == [], "the other one is not overdue"
    assert bench.core.is_exchanging_with(LARGER)
    bench.feed(ViewLent(b"e" * 16))
    effects = bench.wait(limits.EXCHANGE_PATIENCE_S_MIN)
    assert effects[0] == Abort(b"e" * 16, "timeout")
    assert bench.core.is_exchanging_with(LARGER)


@pytest.mark.parametrize(
    ("decide_s", "left_s"), [(0.0, LIMIT_S), (0.5, 0.5), (3.0, 3.0), (LIMIT_S + 1.0, LIMIT_S)]
)
def test_a_ready_partner_shortens_the_time_to_decide_and_never_lengthens_it(
    decide_s: float, left_s: float
) -> None:
    for is_question in (False, True):
        bench = Bench()
        xid = bench.to_transfer(Role.INITIATOR)
        ready = wire.Ready(xid, 2, decide_s)
        bench.hear(wire.StatusQuery(xid, 1, decide_s) if is_question else ready)
        assert bench.core.next_deadline() == bench.now + left_s


def test_questions_in_time_are_all_answered_that_it_is_undecided() -> None:
    bench = Bench()
    xid = bench.to_transfer(Role.INITIATOR)
    bench.hear(wire.Ready(xid, 2, 3.0))
    for number in (1, 2):
        bench.now += 1.0
        assert bench.hear(wire.StatusQuery(xid, number, 3.0)) == [
            Send(LARGER, wire.StatusReply(xid, "pending", number))
        ]
    bench.now += 1.0
    effects = bench.hear(wire.StatusQuery(xid, 3, 3.0))
    assert effects[0] == Abort(xid, "timeout"), "at that very moment its time is over"
    assert sent_in(effects) == [Send(LARGER, wire.Abort(xid, "timeout"))]


def test_the_first_question_is_answered_though_this_node_has_slept_over_its_own_limit() -> None:
    bench = Bench()
    xid = bench.to_transfer(Role.INITIATOR)
    bench.now += LIMIT_S
    assert bench.hear(wire.StatusQuery(xid, 1, 3.0)) == [
        Send(LARGER, wire.StatusReply(xid, "pending", 1))
    ]


def test_what_took_no_view_of_ours_took_no_time() -> None:
    for is_lent, times in ((False, 1.0), (True, 2.0)):
        conduct = ConductTable()
        conduct.note_held(LARGER, 0.0, 100.0, is_stall=True)
        bench = Bench(conduct=conduct)
        xid = bench.to_transfer(Role.INITIATOR)
        if is_lent:
            bench.feed(ViewLent(xid))
        bench.now += 0.9
        bench.chunks(xid)
        bench.feed(LocalDone(xid))
        assert bench.hear(wire.Ready(xid, 2))[0] == Commit(xid)
        assert conduct.patience(LARGER) == times, "only what is quick takes a stall back"


# --- after READY -------------------------------------------------------------------------------


def test_the_first_question_comes_a_while_after_ready_and_each_next_one_soon() -> None:
    bench = Bench()
    bench.to_ready()
    first = bench.core.next_deadline()
    assert first is not None
    after_s = first - bench.now - limits.EXCHANGE_STATUS_AFTER_S
    assert 0.0 < after_s <= limits.EXCHANGE_STATUS_RETRY_S
    bench.wait(first - bench.now)
    for is_lost in (False, True):
        if is_lost:
            assert bench.feed(PeerLost(LARGER)) == []
        again = bench.core.next_deadline()
        assert again is not None
        assert 0.0 < again - bench.now <= limits.EXCHANGE_STATUS_RETRY_S


@pytest.mark.parametrize(
    ("outcome", "why", "by_peer"),
    [("aborted", "other", True), ("unknown", "in-doubt", False)],
)
def test_who_is_told_that_it_is_off_says_so_only_to_one_that_does_not_know(
    outcome: wire.StatusOutcome, why: str, by_peer: bool
) -> None:
    bench = Bench()
    xid = bench.to_ready()
    effects = bench.hear(wire.StatusReply(xid, outcome))
    finished = finished_in(effects)
    assert (wire.reason_code(finished.reason), finished.by_peer) == (why, by_peer)
    assert finished.in_doubt is not by_peer
    assert len(sent_in(effects)) == (not by_peer)


def test_an_initiator_that_is_still_undecided_after_its_time_is_given_up_in_doubt() -> None:
    bench = Bench()
    xid = bench.to_ready()
    number = len(sent_in(bench.wait(limits.EXCHANGE_STATUS_AFTER_S + 1.0)))
    assert bench.hear(wire.StatusReply(xid, "pending", number)) == []
    late = sent_in(bench.wait(limits.EXCHANGE_OFFER_S + 1.0))[-1].message
    assert isinstance(late, wire.StatusQuery)
    effects = bench.hear(wire.StatusReply(xid, "pending", late.number))
    assert effects[0] == Abort(xid, "in-doubt: it did not decide in time")
    assert finished_in(effects).in_doubt
    assert sent_in(effects) == [
        Send(LARGER, wire.Abort(xid, "in-doubt: it did not decide in time"))
    ]


@pytest.mark.parametrize("is_ready", [True, False])
def test_a_node_that_ends_leaves_what_is_ready_in_doubt_and_aborts_the_rest(is_ready: bool) -> None:
    bench = Bench()
    xid = bench.to_ready() if is_ready else bench.to_transfer(Role.RESPONDER)
    effects = bench.feed(LocalFailed(xid, "local: leaving", is_last=True))
    assert effects[0] == Abort(xid, "local: leaving")
    assert finished_in(effects).in_doubt is is_ready
    assert bench.core.statistics().in_doubt_total == is_ready
    assert sent_in(effects) == [Send(LARGER, wire.Abort(xid, "local: leaving"))]


def test_a_ready_node_that_hears_abort_drops_it_without_doubt() -> None:
    bench = Bench()
    xid = bench.to_ready()
    effects = bench.hear(wire.Abort(xid, "timeout"))
    finished = finished_in(effects)
    assert (finished.by_peer, finished.in_doubt) == (True, False)
    assert sent_in(effects) == []


# --- what a node tells of itself ---------------------------------------------------------------


def test_a_core_that_has_done_nothing_has_counted_nothing() -> None:
    bench = Bench()
    bench.feed(Unavailable())
    assert bench.core.statistics() == ExchangeStatistics(
        is_busy=False,
        intents=0,
        finished_total={},
        refused_total={},
        in_doubt_total=0,
        half_applied_total=0,
        crossed_offers_total=0,
        chunks_merged_total=0,
        chunks_dropped_total=0,
        stale_messages_total=0,
        outcomes_kept=0,
    )
    assert bench.core.poll_effects() == []


def test_counters_say_what_waits_and_what_is_remembered() -> None:
    bench = Bench(INTENT, ELSEWHERE, ANSWER)
    counted = bench.core.statistics()
    assert (counted.is_busy, counted.intents, counted.outcomes_kept) == (False, 2, 0)
    assert bench.core.may_begin(INTENT.topic, bench.now)
    assert not bench.core.is_exchanging_with(LARGER)
    bench.begin()
    counted = bench.core.statistics()
    assert (counted.is_busy, counted.intents, counted.outcomes_kept) == (True, 2, 0)
    assert not bench.core.may_begin(INTENT.topic, bench.now)
    assert bench.core.may_begin(ELSEWHERE.topic, bench.now)
    assert bench.core.is_exchanging_with(LARGER)
    bench.feed(PeerLost(OTHER))
    assert not bench.core.is_idle
    bench.feed(PeerLost(LARGER))
    counted = bench.core.statistics()
    assert (counted.is_busy, counted.intents, counted.outcomes_kept) == (False, 2, 1)
    assert bench.core.is_idle
    assert bench.core.next_deadline() is None


def test_a_smaller_peer_whose_offer_crosses_ours_wins_and_has_no_second_exchange() -> None:
    bench = Bench(INTENT, ELSEWHERE)
    mine = bench.begin(SMALLER)
    finished, *_, start = bench.hear(OFFER, peer=SMALLER)
    assert isinstance(finished, Finished)
    assert (finished.xid, finished.outcome, finished.by_peer) == (mine, Outcome.DECLINED, False)
    assert isinstance(start, StartTransfer)
    counted = bench.core.statistics()
    assert (counted.crossed_offers_total, counted.stale_messages_total) == (1, 0)
    assert busy_in(bench.hear(offer_like(xid=b"y" * 16, fragment=2), peer=SMALLER)) == "busy"
    assert bench.core.statistics().crossed_offers_total == 1


def test_the_answer_to_a_crossed_offer_says_what_our_intent_now_is() -> None:
    bench = Bench()
    bench.begin(SMALLER)
    bench.feed(Available(NEXT, LIMIT_S))
    _, accept, start = bench.hear(OFFER, peer=SMALLER)
    assert accept == Send(SMALLER, wire.Accept(XID, round=8, step=80, tokens=8000))
    assert isinstance(start, StartTransfer)
    assert start.number == NEXT.number
