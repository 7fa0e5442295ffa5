"""A transfer over a thin line: while it goes on it keeps its place, and no longer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmnode import limits
from swarmnode.errors import LocalProtocolError
from swarmnode.protocol.gossip.events import Abort, Available, ChunkSent, LocalDone, Role, Send
from swarmnode.protocol.gossip.flight import Flight, State
from swarmnode.wire.exchange import gossip as wire
from tests.unit.protocol.gossip.test_exchange import (
    INTENT,
    LARGER,
    LIMIT_S,
    NEXT,
    XID,
    Bench,
    stalled,
)

SLOW = replace(INTENT, n_chunks=8, chunk_s=17.0)
SLOW_NEXT = replace(SLOW, number=4, round=8, step=80, tokens=8000)


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_transfer_that_goes_on_slowly_does_not_give_way(is_ours: bool) -> None:
    """Four million parameters over 1 Mbit/s: other intents of ours wait until it is done."""
    bench, xid = stalled(SLOW)
    bench.feed(Available(SLOW_NEXT, LIMIT_S))
    for index in range(8):
        effects = bench.wait(0.9 if index == 0 else 16.0)
        assert not any(isinstance(each, Abort) for each in effects), f"after {index} chunks"
        if is_ours:
            bench.feed(ChunkSent(xid))
        else:
            bench.hear(wire.Chunk(xid, index))
    if is_ours:
        for index in range(8):
            bench.hear(wire.Chunk(xid, index))
    assert isinstance(bench.feed(LocalDone(xid))[0], Send), "it is ready"


def test_a_transfer_that_has_stopped_gives_way_a_chunk_s_time_later() -> None:
    bench, xid = stalled(SLOW)
    bench.feed(Available(SLOW_NEXT, LIMIT_S))
    bench.hear(wire.Chunk(xid, 0))
    assert bench.wait(16.9) == []
    assert bench.wait(0.2)[0] == Abort(xid, "timeout")


def test_where_no_line_is_known_to_be_slow_a_chunk_puts_nothing_off() -> None:
    bench, xid = stalled()
    bench.feed(Available(NEXT, LIMIT_S))
    assert bench.wait(limits.EXCHANGE_PATIENCE_S_MIN - 0.1) == []
    bench.hear(wire.Chunk(xid, 0))
    assert bench.wait(0.2)[0] == Abort(xid, "timeout")


def test_after_the_last_chunk_no_other_is_waited_for() -> None:
    bench, xid = stalled(replace(SLOW, n_chunks=1))
    bench.feed(Available(replace(SLOW_NEXT, n_chunks=1), LIMIT_S))
    bench.feed(ChunkSent(xid))
    assert bench.wait(limits.EXCHANGE_PATIENCE_S_MIN)[0] == Abort(xid, "timeout")


def test_one_in_doubt_stands_aside_once_its_initiator_should_have_decided() -> None:
    """Only where what comes of it is added to what is there then."""
    for adds_up, state, stands_aside in (
        (True, State.READY, [False, True, True]),
        (True, State.TRANSFER, [False, False, False]),
        (False, State.READY, [False, False, False]),
    ):
        flight = Flight(
            XID, LARGER, Role.RESPONDER, state, replace(INTENT, adds_up=adds_up), LIMIT_S, 0.0, 99.0
        )
        flight.ready_at, flight.decide_s = 10.0, 2.0
        assert [flight.stands_aside(now) for now in (11.9, 12.0, 12.1)] == stands_aside


@pytest.mark.parametrize(("asked_at", "may_be"), [(11.9, True), (12.0, False), (12.1, False)])
def test_an_initiator_is_undecided_no_more_for_what_is_asked_when_its_time_is_over(
    asked_at: float, may_be: bool
) -> None:
    flight = Flight(XID, LARGER, Role.RESPONDER, State.TRANSFER, INTENT, LIMIT_S, 0.0, 99.0)
    flight.become_ready(9.0, ask_at=9.5, decide_s=2.0)
    for now, told_at, is_as_it_may_be in ((9.5, 10.0, True), (asked_at, 12.5, may_be)):
        question = flight.next_question(now)
        assert flight.note_pending(question.number, told_at) is is_as_it_may_be


def test_a_line_that_carries_a_view_in_less_than_a_second_is_one() -> None:
    bench = Bench()
    bench.feed(Available(NEXT, 0.5))
    with pytest.raises(LocalProtocolError, match="transfer limit"):
        bench.feed(Available(NEXT, 0.0))
