"""One exchange core, message by message."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from swarmnode import limits
from swarmnode.errors import LocalProtocolError, RemoteProtocolError
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.conduct import ConductTable
from swarmnode.protocol.gossip.events import (
    Abort,
    Available,
    Begin,
    Commit,
    Effect,
    Event,
    Finished,
    LocalDone,
    LocalFailed,
    MergeChunk,
    PairIntent,
    PeerLost,
    Received,
    Role,
    Send,
    StartTransfer,
    Terms,
    Unavailable,
    Untaken,
    ViewLent,
)
from swarmnode.protocol.gossip.exchange import TRANSITIONS, ExchangeCore
from swarmnode.protocol.gossip.flight import State
from swarmnode.protocol.gossip.outcomes import Outcome
from swarmnode.protocol.gossip.patience import Patience
from swarmnode.wire.exchange import gossip as wire

ME = PeerId(b"\x55" * 32)
SMALLER = PeerId(b"\x11" * 32)
LARGER = PeerId(b"\x99" * 32)
OTHER = PeerId(b"\xee" * 32)
XID = b"x" * 16
LIMIT_S = 30.0
KEY = hashlib.sha256(b"key").digest()
INTENT = PairIntent(
    number=3,
    tag="model",
    fragment=1,
    round=7,
    n_chunks=2,
    step=70,
    tokens=7000,
)
OFFER = wire.Offer(
    xid=XID,
    key=KEY,
    tag="model",
    fragment=1,
    round=9,
    n_chunks=2,
    step=90,
    tokens=9000,
    weight=2.0,
)
ANSWER = replace(INTENT, number=8, round=0, step=1, tokens=10, is_open=True)
NEXT = replace(INTENT, number=4, round=8, step=80, tokens=8000)


class Bench:
    """A core and a clock; every call returns the effects."""

    def __init__(self, *intents: PairIntent, conduct: ConductTable | None = None) -> None:
        conduct = ConductTable() if conduct is None else conduct
        self.core = ExchangeCore(ME, KEY, random.Random(1), Patience(conduct))
        self.now = 100.0
        for intent in intents or (INTENT,):
            self.feed(Available(intent, LIMIT_S))

    def feed(self, event: Event) -> list[Effect]:
        self.core.handle(event, self.now)
        return self.core.poll_effects()

    def hear(self, message: wire.Message, peer: PeerId = LARGER) -> list[Effect]:
        return self.feed(Received(peer, message))

    def begin(self, *candidates: PeerId) -> bytes:
        """Begin and return the id of the offer that went out."""
        (effect,) = self.feed(Begin("model", 1, candidates or (LARGER,), LIMIT_S))
        return offer_in(effect, (candidates or (LARGER,))[0])

    def wait(self, seconds: float) -> list[Effect]:
        """Let time pass, keeping every deadline on the way."""
        end = self.now + seconds
        effects: list[Effect] = []
        while (deadline := self.core.next_deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.core.handle_deadline(self.now)
            effects += self.core.poll_effects()
        self.now = end
        return effects

    def to_transfer(self, role: Role) -> bytes:
        if role is Role.INITIATOR:
            xid = self.begin()
            self.hear(wire.Accept(xid, round=7, step=1, tokens=2))
            return xid
        self.hear(OFFER)
        return XID

    def chunks(self, xid: bytes) -> None:
        for index in range(INTENT.n_chunks):
            assert self.hear(wire.Chunk(xid, index)) == [MergeChunk(xid, index)]

    def to_ready(self) -> bytes:
        xid = self.to_transfer(Role.RESPONDER)
        self.chunks(xid)
        assert self.feed(LocalDone(xid)) == [Send(LARGER, ready(xid))]
        return xid


def ready(xid: bytes) -> wire.Ready:
    """What a responder says that has not exchanged before."""
    return wire.Ready(xid, 2, limits.EXCHANGE_OFFER_S)


def offer_in(effect: Effect, peer: PeerId) -> bytes:
    assert isinstance(effect, Send)
    assert isinstance(effect.message, wire.Offer)
    assert effect.peer == peer
    return effect.message.xid


def finished_in(effects: list[Effect]) -> Finished:
    (finished,) = [effect for effect in effects if isinstance(effect, Finished)]
    return finished


# --- the clean run -----------------------------------------------------------------------


def test_initiator_commits_after_ready_and_local_done_in_either_order() -> None:
    for ready_first in (True, False):
        bench = Bench()
        xid = bench.begin()
        assert bench.hear(wire.Accept(xid, round=7, step=60, tokens=600)) == [
            StartTransfer(xid, LARGER, Role.INITIATOR, 3, Terms(7, 60, 600))
        ]
        bench.chunks(xid)
        steps: list[Event] = [Received(LARGER, wire.Ready(xid, 2)), LocalDone(xid)]
        first, second = steps if ready_first else reversed(steps)
        assert bench.feed(first) == []
        effects = bench.feed(second)
        assert effects[0] == Commit(xid)
        assert effects[-1] == Send(LARGER, wire.Commit(xid))
        assert finished_in(effects).outcome is Outcome.COMMITTED
        assert bench.core.is_idle


def test_responder_commits_on_commit_only() -> None:
    bench = Bench()
    accept, start = bench.hear(OFFER)
    assert accept == Send(LARGER, wire.Accept(XID, round=7, step=70, tokens=7000))
    assert start == StartTransfer(XID, LARGER, Role.RESPONDER, 3, Terms(9, 90, 9000, 2.0))
    bench.chunks(XID)
    assert bench.feed(LocalDone(XID)) == [Send(LARGER, ready(XID))]
    effects = bench.hear(wire.Commit(XID))
    assert effects[0] == Commit(XID)
    assert bench.hear(wire.Commit(XID)) == []
    assert bench.core.next_deadline() is None


# --- intents ------------------------------------------------------------------------------


def offer_like(**changes: object) -> wire.Offer:
    fields = {name: getattr(OFFER, name) for name in OFFER.__struct_fields__}
    return wire.Offer(**{**fields, **changes})  # type: ignore[arg-type]


def busy_in(effects: list[Effect]) -> str:
    (effect,) = effects
    assert isinstance(effect, Send)
    assert isinstance(effect.message, wire.Busy)
    return effect.message.reason


def test_each_intent_is_used_up_by_its_own_exchange_only() -> None:
    other = replace(INTENT, number=5, fragment=2)
    bench = Bench(INTENT, other)
    bench.to_ready()
    bench.hear(wire.Commit(XID))
    assert bench.core.statistics().intents == 1
    assert busy_in(bench.hear(offer_like(xid=b"y" * 16))) == "no-wish"
    _, start = bench.hear(offer_like(xid=b"z" * 16, fragment=2))
    assert isinstance(start, StartTransfer)
    assert start.number == 5
    assert bench.core.statistics().intents == 0


def test_an_intent_is_used_up_when_its_offer_is_accepted_though_it_comes_to_nothing() -> None:
    bench = Bench()
    xid = bench.to_transfer(Role.INITIATOR)
    bench.feed(LocalFailed(xid, "busy: the worker holds it back"))
    assert busy_in(bench.hear(OFFER)) == "no-wish"


def test_what_no_peer_took_may_be_had_by_the_next_that_offers() -> None:
    bench = Bench()
    assert bench.hear(wire.Busy(bench.begin(), "busy"))[-1] == Untaken(3, "busy")
    _, start = bench.hear(OFFER)
    assert isinstance(start, StartTransfer)
    assert start.number == 3


def test_the_next_intent_takes_the_place_of_one_that_waits() -> None:
    bench = Bench(INTENT, NEXT)
    _, start = bench.hear(OFFER)
    assert isinstance(start, StartTransfer)
    assert start.number == 4
    assert bench.core.statistics().intents == 0


def test_an_intent_that_was_offered_gives_way_to_the_next_where_the_partner_cannot_tell() -> None:
    for newer, expected in (
        (NEXT, 4),
        (replace(NEXT, weight=3.0), 3),
        (replace(NEXT, base_version=b"other"), 3),
    ):
        bench = Bench()
        xid = bench.begin()
        bench.feed(Available(newer, LIMIT_S))
        (start,) = bench.hear(wire.Accept(xid, round=7, step=1, tokens=2))
        assert isinstance(start, StartTransfer)
        assert start.number == expected
        assert bench.core.statistics().intents == (expected == 3)


def test_what_has_been_replaced_or_taken_back_is_offered_to_no_other() -> None:
    for event in (Available(replace(NEXT, weight=3.0), LIMIT_S), Unavailable(3), Unavailable()):
        bench = Bench()
        xid = bench.begin(LARGER, OTHER)
        bench.feed(event)
        finished, untaken = bench.hear(wire.Busy(xid, "busy"))
        assert isinstance(finished, Finished)
        assert untaken == Untaken(3, "busy")
    bench = Bench()
    xid = bench.begin(LARGER, OTHER)
    bench.feed(Available(NEXT, LIMIT_S))
    _, send = bench.hear(wire.Busy(xid, "busy"))
    assert isinstance(send, Send)
    assert isinstance(send.message, wire.Offer)
    assert send.message.round == NEXT.round


def test_an_answer_is_given_at_any_round_and_to_any_base_and_again() -> None:
    bench = Bench(ANSWER, replace(INTENT, round_skew_max=0))
    for number in range(3):
        xid = bytes([number]) * 16
        offer = offer_like(xid=xid, round=1000 + number, base_version=b"b")
        accept, start = bench.hear(offer)
        assert accept == Send(LARGER, wire.Accept(xid, round=1000 + number, step=1, tokens=10))
        assert isinstance(start, StartTransfer)
        assert (start.number, start.theirs.base_version) == (8, b"b")
        bench.hear(wire.Abort(xid, "other"))
    assert bench.core.statistics().intents == 1  # the intent beside it is still to be offered
    assert busy_in(bench.hear(offer_like(n_chunks=3))).startswith("incompatible")


# --- offers ------------------------------------------------------------------------------


def test_candidates_are_tried_in_order_and_the_intent_is_untaken_after_the_last() -> None:
    bench = Bench()
    first = bench.begin(LARGER, OTHER, SMALLER, PeerId(b"\xff" * 32))
    finished, send = bench.hear(wire.Busy(first, "busy"))
    assert isinstance(finished, Finished)
    assert (finished.outcome, finished.reason, finished.by_peer) == (
        Outcome.DECLINED,
        "busy",
        True,
    )
    second = offer_in(send, OTHER)
    abort, _, send = bench.wait(limits.EXCHANGE_ANSWER_S_MIN)
    assert abort == Send(OTHER, wire.Abort(second, "timeout"))
    third = offer_in(send, SMALLER)
    effects = bench.feed(PeerLost(SMALLER))
    assert finished_in(effects).reason == "unreachable"
    assert effects[-1] == Untaken(3, "unreachable")  # no fourth
    assert len({first, second, third}) == 3


def test_a_late_answer_to_a_withdrawn_offer_is_told_so() -> None:
    bench = Bench()
    xid = bench.begin()
    bench.wait(limits.EXCHANGE_ANSWER_S_FIRST)
    assert bench.hear(wire.Accept(xid, round=7, step=1, tokens=1)) == [
        Send(LARGER, wire.StatusReply(xid, "aborted"))
    ]


@pytest.mark.parametrize(
    ("offer", "code"),
    [
        (replace_struct, code)
        for replace_struct, code in [
            ({"key": b"k" * 32}, "incompatible"),
            ({"n_chunks": 3}, "incompatible"),
            ({"fragment": 2}, "no-wish"),
            ({"tag": "outer"}, "no-wish"),
            ({"base_version": b"other"}, "base"),
            ({"round": 10}, "round"),
        ]
    ],
)
def test_an_offer_that_does_not_fit_is_refused_with_its_reason(
    offer: dict[str, object], code: str
) -> None:
    bench = Bench(replace(INTENT, round_skew_max=2))
    assert wire.reason_code(busy_in(bench.hear(offer_like(**offer)))) == code
    assert bench.core.statistics().refused_total == {code: 1}
    assert bench.core.is_idle
    assert bench.core.statistics().intents == 1


def test_without_an_intent_an_offer_is_refused() -> None:
    bench = Bench()
    bench.feed(Unavailable())
    assert bench.hear(OFFER) == [Send(LARGER, wire.Busy(XID, "no-wish"))]
    # the same offer again, though by now there is an intent: it was refused
    bench.feed(Available(INTENT, LIMIT_S))
    assert bench.hear(OFFER) == []


def test_busy_in_every_state() -> None:
    for prepare in (Bench.begin, Bench.to_ready, lambda b: b.to_transfer(Role.INITIATOR)):
        bench = Bench()
        prepare(bench)
        assert bench.hear(wire.Offer(b"y" * 16, KEY, "model", 1, 7, 2, 0, 0), peer=OTHER) == [
            Send(OTHER, wire.Busy(b"y" * 16, "busy"))
        ]


# --- crossing offers ---------------------------------------------------------------------


def test_crossing_offer_of_a_larger_id_is_left_unanswered() -> None:
    bench = Bench()
    xid = bench.begin(LARGER)
    assert bench.hear(OFFER, peer=LARGER) == []
    (start,) = bench.hear(wire.Accept(xid, round=9, step=1, tokens=1))
    assert isinstance(start, StartTransfer)
    assert bench.core.statistics().crossed_offers_total == 1


def test_crossing_offer_of_a_smaller_id_is_accepted_with_the_same_intent() -> None:
    bench = Bench()
    mine = bench.begin(SMALLER, OTHER)
    finished, accept, start = bench.hear(OFFER, peer=SMALLER)
    assert isinstance(finished, Finished)
    assert (finished.xid, finished.reason) == (mine, "yielded")
    assert accept == Send(SMALLER, wire.Accept(XID, round=7, step=70, tokens=7000))
    assert isinstance(start, StartTransfer)
    assert (start.xid, start.number, start.role) == (XID, 3, Role.RESPONDER)
    assert bench.core.statistics().intents == 0
    # had it accepted ours meanwhile, it learns that it is off
    assert bench.hear(wire.Accept(mine, round=9, step=1, tokens=1), peer=SMALLER) == [
        Send(SMALLER, wire.StatusReply(mine, "aborted"))
    ]


def test_crossing_offers_that_do_not_fit_are_refused_at_once_whichever_is_smaller() -> None:
    for peer in (SMALLER, LARGER):
        bench = Bench()
        bench.begin(peer)
        (effect,) = bench.hear(wire.Offer(XID, b"k" * 32, "model", 1, 7, 2, 0, 0), peer=peer)
        assert isinstance(effect, Send)
        assert isinstance(effect.message, wire.Busy)
        assert bench.core.statistics().is_busy


def test_offers_of_other_fragments_do_not_cross() -> None:
    """Neither side could tell whether the other has an intent for it."""
    for peer in (SMALLER, LARGER):
        bench = Bench(INTENT, replace(INTENT, number=5, fragment=2))
        bench.begin(peer)
        assert busy_in(bench.hear(offer_like(fragment=2), peer=peer)) == "busy"
        assert not bench.core.is_idle


# --- several at once, and what gives way -----------------------------------------------------


ELSEWHERE = replace(INTENT, number=5, fragment=2)


def test_two_exchanges_at_once_each_with_another_peer_and_of_another_fragment() -> None:
    bench = Bench(INTENT, ELSEWHERE, replace(INTENT, number=6, fragment=3))
    xid = bench.to_transfer(Role.INITIATOR)
    assert busy_in(bench.hear(offer_like(fragment=2))) == "busy"  # the same peer
    second, third, fourth = (name * 16 for name in (b"2", b"3", b"4"))
    assert busy_in(bench.hear(offer_like(xid=second), peer=OTHER)) == "busy"  # the same fragment
    _, start = bench.hear(offer_like(xid=third, fragment=2), peer=OTHER)
    assert isinstance(start, StartTransfer)
    assert busy_in(bench.hear(offer_like(xid=fourth, fragment=3), peer=SMALLER)) == "busy"
    with pytest.raises(LocalProtocolError, match="a place"):
        bench.feed(Begin("model", 3, (SMALLER,), LIMIT_S))
    for done, peer in ((third, OTHER), (xid, LARGER)):
        for index in range(2):
            bench.hear(wire.Chunk(done, index), peer=peer)
        bench.feed(LocalDone(done))
    assert bench.hear(wire.Commit(third), peer=OTHER)[0] == Commit(third)
    assert bench.hear(wire.Ready(xid, 2))[0] == Commit(xid)
    assert bench.core.is_idle


def test_candidates_with_whom_there_is_an_exchange_are_left_out() -> None:
    bench = Bench(INTENT, ELSEWHERE)
    bench.to_transfer(Role.INITIATOR)
    (send,) = bench.feed(Begin("model", 2, (LARGER, OTHER), LIMIT_S))
    xid = offer_in(send, OTHER)
    assert bench.hear(wire.Busy(xid, "busy"), peer=OTHER)[-1] == Untaken(5, "busy")
    (untaken,) = bench.feed(Begin("model", 2, (LARGER,), LIMIT_S))
    assert untaken == Untaken(5, "busy: in an exchange with each")


def stalled(*intents: PairIntent) -> tuple[Bench, bytes]:
    """Return a node that knows what is usual, and that lent its view to a silent peer."""
    bench = Bench()
    xid = bench.to_transfer(Role.INITIATOR)
    bench.feed(ViewLent(xid))
    bench.chunks(xid)
    bench.now += 0.1
    bench.feed(LocalDone(xid))
    bench.hear(wire.Ready(xid, 2))
    for intent in intents or (INTENT,):
        bench.feed(Available(intent, LIMIT_S))
    bench.hear(offer_like(xid=b"s" * 16, n_chunks=(*intents, INTENT)[0].n_chunks))
    bench.feed(ViewLent(b"s" * 16))
    return bench, b"s" * 16


def test_a_transfer_that_is_overdue_gives_way_to_another_peer() -> None:
    bench, xid = stalled()
    bench.feed(Available(NEXT, LIMIT_S))
    assert busy_in(bench.hear(offer_like(xid=b"1" * 16), peer=OTHER)) == "busy"
    bench, xid = stalled()
    assert bench.wait(limits.EXCHANGE_PATIENCE_S_MIN) == [], "nothing waits for its place"
    bench.feed(Available(ANSWER, LIMIT_S))
    effects = bench.hear(offer_like(xid=b"2" * 16), peer=OTHER)
    assert effects[0] == Abort(xid, "timeout")
    assert isinstance(effects[-1], StartTransfer)


def test_a_transfer_that_is_overdue_gives_way_to_an_intent_of_ours() -> None:
    bench, xid = stalled()
    bench.feed(Available(NEXT, LIMIT_S))
    effects = bench.wait(limits.EXCHANGE_PATIENCE_S_MIN)
    assert effects[0] == Abort(xid, "timeout")
    bench, xid = stalled()
    assert bench.wait(limits.EXCHANGE_PATIENCE_S_MIN) == []
    assert bench.feed(Available(NEXT, LIMIT_S))[0] == Abort(xid, "timeout")


def test_when_all_places_are_taken_what_is_overdue_gives_way_to_any_intent() -> None:
    bench, xid = stalled(INTENT, ELSEWHERE)
    bench.hear(offer_like(xid=b"e" * 16, fragment=2), peer=OTHER)
    bench.feed(ViewLent(b"e" * 16))
    bench.wait(limits.EXCHANGE_PATIENCE_S_MIN)
    effects = bench.feed(Available(replace(INTENT, number=6, fragment=3), LIMIT_S))
    assert effects[0] == Abort(xid, "timeout")
    assert Abort(b"e" * 16, "timeout") not in effects, "one place is enough"


def test_while_our_own_worker_is_what_takes_long_nothing_gives_way() -> None:
    bench = Bench()
    bench.to_transfer(Role.RESPONDER)
    bench.feed(Available(NEXT, LIMIT_S))
    assert bench.wait(LIMIT_S - 0.1) == []


def test_each_stall_gives_a_peer_twice_the_time_until_its_budget_is_used_up() -> None:
    bench, xid = stalled()
    held_s = []
    for number in range(3):
        bench.feed(Available(replace(NEXT, number=10 + number), LIMIT_S))
        began = bench.now
        while not bench.core.is_idle:
            bench.wait(0.1)
        held_s.append(bench.now - began)
        xid = bytes([number]) * 16
        effects = bench.hear(offer_like(xid=xid))
        bench.feed(ViewLent(xid))
    assert held_s == pytest.approx([1.0, 2.0, 4.0], abs=0.11)
    # None else exchanges with us, so it is taken all the same.
    assert isinstance(effects[-1], StartTransfer)


def test_an_offer_of_a_peer_without_budget_is_refused_while_others_exchange_with_us() -> None:
    conduct = ConductTable()
    bench = Bench(conduct=conduct)
    conduct.note_held(LARGER, limits.EXCHANGE_BUDGET_S, bench.now, is_stall=True)
    conduct.note_commit(OTHER, bench.now, is_quick=True)
    assert busy_in(bench.hear(OFFER)).startswith("busy: too many")
    bench.now += limits.PARTNER_SLOW_S
    _, start = bench.hear(offer_like(xid=b"y" * 16))
    assert isinstance(start, StartTransfer)


# --- aborts ------------------------------------------------------------------------------


@pytest.mark.parametrize("role", list(Role))
def test_before_the_decision_either_side_aborts_freely(role: Role) -> None:
    causes: list[tuple[str, bool, Event | None]] = [
        ("local", False, LocalFailed(b"", "local: non-finite values")),
        ("unreachable", False, PeerLost(LARGER)),
        ("timeout", False, None),
    ]
    for code, by_peer, cause in causes:
        bench = Bench()
        xid = bench.to_transfer(role)
        if isinstance(cause, LocalFailed):
            cause = LocalFailed(xid, cause.reason)
        effects = bench.feed(cause) if cause else bench.wait(LIMIT_S)
        finished = finished_in(effects)
        assert wire.reason_code(finished.reason) == code
        assert (finished.outcome, finished.by_peer) == (Outcome.ABORTED, by_peer)
        assert effects[0] == Abort(xid, finished.reason)
        assert effects[-1] == Send(LARGER, wire.Abort(xid, finished.reason))
        # whatever comes for it later changes nothing
        assert bench.feed(LocalDone(xid)) == []
        assert bench.feed(LocalFailed(xid, "local: late")) == []
        assert bench.hear(wire.Chunk(xid, 0)) == []


@pytest.mark.parametrize("role", list(Role))
def test_the_peers_abort_is_not_answered(role: Role) -> None:
    bench = Bench()
    xid = bench.to_transfer(role)
    effects = bench.hear(wire.Abort(xid, "local: nan"))
    assert effects[0] == Abort(xid, "local: nan")
    assert finished_in(effects).by_peer
    assert not any(isinstance(effect, Send) for effect in effects)


def test_an_abort_that_overtakes_its_offer_kills_it() -> None:
    bench = Bench()
    assert bench.hear(wire.Abort(XID, "timeout")) == []
    assert bench.hear(OFFER) == []
    assert bench.core.is_idle


def test_an_open_offer_that_we_give_up_leaves_the_intent_untaken() -> None:
    bench = Bench()
    xid = bench.begin()
    effects = bench.feed(LocalFailed(xid, "local: leaving"))
    assert effects[0] == Untaken(3, "local: leaving")
    assert effects[-1] == Send(LARGER, wire.Abort(xid, "local: leaving"))


def test_transfer_limit_is_capped() -> None:
    bench = Bench()
    bench.feed(Available(INTENT, 1e9))
    bench.hear(OFFER)
    assert bench.core.next_deadline() == bench.now + limits.EXCHANGE_TRANSFER_S_MAX


# --- after READY -------------------------------------------------------------------------


def test_after_ready_nothing_of_our_own_aborts() -> None:
    bench = Bench()
    xid = bench.to_ready()
    assert bench.feed(LocalFailed(xid, "local: worker died")) == []
    assert bench.feed(PeerLost(LARGER)) == []
    assert bench.core.statistics().is_busy
    (effect,) = bench.wait(limits.EXCHANGE_STATUS_RETRY_S)[:1]  # a lost session: asked at once
    assert effect == Send(LARGER, question(xid, 1))


def test_status_is_asked_again_and_its_answer_obeyed() -> None:
    for outcome, expected in (("committed", Commit), ("aborted", Abort), ("unknown", Abort)):
        bench = Bench()
        xid = bench.to_ready()
        assert bench.wait(limits.EXCHANGE_STATUS_AFTER_S - 0.01) == []
        queries = bench.wait(5.0)
        numbers = range(1, len(queries) + 1)
        assert queries == [Send(LARGER, question(xid, number)) for number in numbers]
        assert len(queries) >= 4
        effects = bench.hear(wire.StatusReply(xid, outcome))  # type: ignore[arg-type]
        assert isinstance(effects[0], expected)
        assert finished_in(effects).in_doubt == (outcome == "unknown")
        assert bench.core.statistics().in_doubt_total == (outcome == "unknown")


def test_silence_beyond_the_bound_aborts_and_is_counted() -> None:
    bench = Bench()
    xid = bench.to_ready()
    effects = bench.wait(limits.EXCHANGE_IN_DOUBT_S)
    assert finished_in(effects).in_doubt
    assert effects[-1] == Send(LARGER, wire.Abort(xid, "in-doubt: no answer"))
    assert bench.core.statistics().in_doubt_total == 1
    # and if we learn that it went wrong, that is counted too, once
    for _ in range(2):
        assert bench.hear(wire.Commit(xid)) == []
    assert bench.core.statistics().half_applied_total == 1


def question(xid: bytes, number: int) -> wire.StatusQuery:
    return wire.StatusQuery(xid, number, limits.EXCHANGE_OFFER_S)


def pending_for(bench: Bench, xid: bytes, number_of: Callable[[int], int]) -> float:
    """Answer each question with "pending" after 10 ms; return for how long that held the node."""
    start, asked = bench.now, 0
    while bench.core.statistics().is_busy:
        assert bench.now - start < 2 * limits.EXCHANGE_TRANSFER_S_MAX
        for _ in bench.wait(0.01):
            asked += 1
        if asked:
            bench.hear(wire.StatusReply(xid, "pending", number_of(asked)))
    return bench.now - start


def test_pending_holds_the_responder_no_longer_than_the_initiator_may_need() -> None:
    bench = Bench()
    held_s = pending_for(bench, bench.to_ready(), lambda asked: asked)
    asked_s = limits.EXCHANGE_STATUS_AFTER_S + 2 * limits.EXCHANGE_STATUS_RETRY_S
    assert limits.EXCHANGE_OFFER_S < held_s < limits.EXCHANGE_OFFER_S + asked_s + 0.1
    assert bench.core.statistics().in_doubt_total == 1


@pytest.mark.parametrize("number", [0, 1, 10**6])
def test_pending_to_no_question_of_ours_is_silence(number: int) -> None:
    bench = Bench()
    held_s = pending_for(bench, bench.to_ready(), lambda _: number)
    assert held_s <= 2 * limits.EXCHANGE_IN_DOUBT_S
    assert bench.core.statistics().in_doubt_total == 1


def test_an_initiator_decides_within_the_time_that_a_ready_responder_gives_it() -> None:
    heard: list[Callable[[bytes], wire.Message]] = [
        lambda xid: wire.Ready(xid, 2, 3.0),
        lambda xid: wire.StatusQuery(xid, 1, 3.0),
    ]
    for message in heard:
        bench = Bench()
        xid = bench.to_transfer(Role.INITIATOR)
        bench.hear(message(xid))
        assert bench.wait(2.9) == []
        # Its process was stopped: what it says at once is no lie.
        bench.now += 1.0
        effects = bench.hear(wire.StatusQuery(xid, 9, 3.0))
        assert finished_in(effects).reason == "timeout"
        assert bench.hear(wire.StatusQuery(xid, 10, 3.0)) == [
            Send(LARGER, wire.StatusReply(xid, "aborted", 10))
        ]


def test_initiator_answers_status_pending_then_committed_for_ten_minutes() -> None:
    bench = Bench()
    xid = bench.to_transfer(Role.INITIATOR)
    bench.chunks(xid)
    query = wire.StatusQuery(xid, 4)
    assert bench.hear(query) == [Send(LARGER, wire.StatusReply(xid, "pending", 4))]
    effects = bench.feed(LocalDone(xid))  # the question stood in for READY
    assert effects[0] == Commit(xid)
    bench.wait(limits.EXCHANGE_OUTCOME_KEEP_S)
    assert bench.hear(query) == [Send(LARGER, wire.StatusReply(xid, "committed", 4))]
    assert bench.hear(wire.Ready(xid, 2)) == [Send(LARGER, wire.StatusReply(xid, "committed"))]
    assert bench.hear(query, peer=OTHER) == [Send(OTHER, wire.StatusReply(xid, "unknown", 4))]
    assert bench.hear(wire.Abort(xid, "in-doubt: no answer")) == []
    assert bench.core.statistics().half_applied_total == 1


# --- rules that a peer can break ---------------------------------------------------------


def test_chunks_are_merged_once_and_must_be_in_range() -> None:
    bench = Bench()
    xid = bench.to_transfer(Role.RESPONDER)
    assert bench.hear(wire.Chunk(xid, 1)) == [MergeChunk(xid, 1)]
    assert bench.hear(wire.Chunk(xid, 1)) == []
    with pytest.raises(RemoteProtocolError, match="expected a chunk below 2, got 2"):
        bench.hear(wire.Chunk(xid, 2))
    with pytest.raises(RemoteProtocolError, match="partner only"):
        bench.hear(wire.Chunk(xid, 0), peer=OTHER)
    assert bench.hear(wire.Chunk(b"?" * 16, 0), peer=OTHER) == []
    assert bench.hear(wire.Chunk(xid, 0)) == [MergeChunk(xid, 0)]
    statistics = bench.core.statistics()
    assert (statistics.chunks_merged_total, statistics.chunks_dropped_total) == (2, 2)


def test_ready_must_count_all_chunks() -> None:
    bench = Bench()
    xid = bench.to_transfer(Role.INITIATOR)
    with pytest.raises(RemoteProtocolError, match="READY for 2 chunks, got 1"):
        bench.hear(wire.Ready(xid, 1))


EXAMPLES: list[wire.Message] = [
    OFFER,
    wire.Accept(XID, 1, 1, 1),
    wire.Busy(XID, "busy"),
    wire.Chunk(XID, 0),
    wire.Ready(XID, 2),
    wire.Commit(XID),
    wire.Abort(XID, "timeout"),
    wire.StatusQuery(XID),
    wire.StatusReply(XID, "pending"),
]


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
@pytest.mark.parametrize(
    "state",
    [
        (Role.INITIATOR, State.OFFERED),
        *((role, State.TRANSFER) for role in Role),
        (Role.RESPONDER, State.READY),
    ],
    ids=str,
)
def test_every_message_in_every_state_is_in_the_table_or_refused(
    state: tuple[Role, State], message: wire.Message
) -> None:
    role, stage = state
    bench = Bench()
    if stage is State.OFFERED:
        xid = bench.begin()
    elif stage is State.READY:
        xid = bench.to_ready()
    else:
        xid = bench.to_transfer(role)
    fields = {name: getattr(message, name) for name in message.__struct_fields__}
    message = type(message)(**{**fields, "xid": xid})
    before = bench.core.statistics(), bench.core.next_deadline()
    if (role, stage, type(message)) in TRANSITIONS:
        bench.hear(message)
        return
    with pytest.raises(RemoteProtocolError, match=f"unexpected {type(message).__name__}"):
        bench.hear(message)
    assert (bench.core.statistics(), bench.core.next_deadline()) == before
    assert bench.core.poll_effects() == []


# --- rules that our own shell can break --------------------------------------------------


def test_misuse_by_the_shell_is_a_local_error() -> None:
    bench = Bench()
    for topic in (("model", 2), ("outer", 1)):
        with pytest.raises(LocalProtocolError, match="with this intent"):
            bench.feed(Begin(*topic, (LARGER,), LIMIT_S))
    with pytest.raises(LocalProtocolError, match="transfer limit"):
        bench.feed(Available(INTENT, 0.0))
    with pytest.raises(LocalProtocolError, match="chunk count"):
        bench.feed(Available(replace(INTENT, n_chunks=0), 1.0))
    for candidates in ((), (ME,)):
        with pytest.raises(LocalProtocolError, match="candidates"):
            bench.feed(Begin("model", 1, candidates, LIMIT_S))
    xid = bench.to_transfer(Role.INITIATOR)
    with pytest.raises(LocalProtocolError, match="after 0 of 2 chunks"):
        bench.feed(LocalDone(xid))
    with pytest.raises(LocalProtocolError, match="a place for it"):
        bench.feed(Begin("model", 1, (LARGER,), LIMIT_S))


def test_equal_seeds_on_two_nodes_give_different_exchange_ids() -> None:
    first, second = (
        ExchangeCore(node, KEY, random.Random(1), Patience(ConductTable())) for node in (ME, OTHER)
    )
    ids = []
    for core, peer in ((first, OTHER), (second, ME)):
        core.handle(Available(INTENT, LIMIT_S), 0.0)
        core.handle(Begin("model", 1, (peer,), LIMIT_S), 0.0)
        (effect,) = core.poll_effects()
        ids.append(offer_in(effect, peer))
    assert ids[0] != ids[1]


def test_counts_by_role_outcome_and_reason_code() -> None:
    bench = Bench()
    bench.hear(wire.Busy(bench.begin(), "a reason that nobody knows"))
    bench.to_ready()
    bench.hear(wire.Commit(XID))
    assert bench.core.statistics().finished_total == {
        ("initiator", "declined", "other"): 1,
        ("responder", "committed", ""): 1,
    }
