"""The memory of how exchanges ended."""

from __future__ import annotations

import pytest

from swarmnode import limits
from swarmnode.errors import InvariantViolation
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.outcomes import (
    EXCHANGE_OUTCOMES_MAX,
    Outcome,
    OutcomeTable,
    status_of,
)

PEER = PeerId(b"p" * 32)


def xid_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_the_first_outcome_stands() -> None:
    table = OutcomeTable()
    table.record(PEER, xid_of(1), committed=True, now=0.0)
    table.record(PEER, xid_of(1), committed=True, now=1.0)
    with pytest.raises(InvariantViolation, match="ended twice"):
        table.record(PEER, xid_of(1), committed=False, now=1.0)
    assert table.lookup(PEER, xid_of(1)) is Outcome.COMMITTED
    assert table.lookup(PeerId(b"q" * 32), xid_of(1)) is None


def test_outcomes_are_kept_their_time_and_no_longer() -> None:
    table = OutcomeTable()
    table.record(PEER, xid_of(1), committed=False, now=0.0)
    table.record(PEER, xid_of(2), committed=True, now=limits.EXCHANGE_OUTCOME_KEEP_S)
    assert table.lookup(PEER, xid_of(1)) is Outcome.ABORTED
    table.record(PEER, xid_of(3), committed=True, now=limits.EXCHANGE_OUTCOME_KEEP_S + 1)
    assert table.lookup(PEER, xid_of(1)) is None
    assert table.lookup(PEER, xid_of(2)) is Outcome.COMMITTED


def test_a_flood_of_aborts_never_pushes_out_a_commit() -> None:
    table = OutcomeTable()
    table.record(PEER, xid_of(0), committed=True, now=0.0)
    for number in range(1, EXCHANGE_OUTCOMES_MAX + 10):
        table.record(PEER, xid_of(number), committed=False, now=1.0)
    assert len(table) == EXCHANGE_OUTCOMES_MAX + 1
    assert table.lookup(PEER, xid_of(0)) is Outcome.COMMITTED
    assert table.lookup(PEER, xid_of(1)) is None


def test_a_dispute_counts_once_and_only_for_what_is_known() -> None:
    table = OutcomeTable()
    table.record(PEER, xid_of(1), committed=True, now=0.0)
    assert [table.dispute(PEER, xid_of(1)) for _ in range(2)] == [True, False]
    assert not table.dispute(PEER, xid_of(2))


def test_a_caller_is_told_what_is_known_and_of_what_never_began_that_it_is_off() -> None:
    assert [status_of(known) for known in (None, *Outcome)] == [
        "unknown",
        "committed",
        "aborted",
        "aborted",
    ]


@pytest.mark.parametrize("committed", [True, False])
def test_so_many_outcomes_of_a_kind_are_kept_and_the_oldest_makes_room(committed: bool) -> None:
    table = OutcomeTable()
    for number in range(EXCHANGE_OUTCOMES_MAX):
        table.record(PEER, xid_of(number), committed=committed, now=0.0)
    assert table.lookup(PEER, xid_of(0)) is not None
    table.record(PEER, xid_of(EXCHANGE_OUTCOMES_MAX), committed=committed, now=0.0)
    assert table.lookup(PEER, xid_of(0)) is None
    assert table.lookup(PEER, xid_of(1)) is not None
    assert len(table) == EXCHANGE_OUTCOMES_MAX


@pytest.mark.parametrize("committed", [True, False])
def test_what_is_over_is_disputed_once_whichever_way_it_ended_here(committed: bool) -> None:
    table = OutcomeTable()
    table.record(PEER, xid_of(1), committed=committed, now=0.0)
    table.record(PEER, xid_of(2), committed=committed, now=limits.EXCHANGE_OUTCOME_KEEP_S + 0.1)
    assert [table.dispute(PEER, xid_of(1)) for _ in range(2)] == [False, False], "forgotten"
    assert [table.dispute(PEER, xid_of(2)) for _ in range(2)] == [True, False]
