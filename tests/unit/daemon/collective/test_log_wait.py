"""How long no round has closed, for how long there was no majority, and who is waited for."""

from __future__ import annotations

import pytest

from swarmnode import limits
from swarmnode.daemon.collective.log_cargo import LogPatience, LogWait
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.log_book import LogBook
from swarmnode.wire.exchange.log import LogShare

ALL = [(alone, called) for alone in (False, True) for called in (False, True)]


def look_for(wait: LogWait, begin_s: float, seconds: float) -> float:
    """Look for a majority every LOG_WAIT_S in vain; return when the next look is."""
    now = begin_s
    while now < begin_s + seconds:
        wait.look(now, has_majority=False)
        now += limits.LOG_WAIT_S
    return now


@pytest.mark.parametrize(
    ("alone", "called", "after_s"),
    [
        (False, False, limits.LOG_GONE_S),
        (False, True, limits.LOG_GONE_CALLED_S),
        (True, False, limits.LOG_GONE_ALONE_S),
        (True, True, limits.LOG_GONE_ALONE_S),
    ],
)
def test_members_are_gone_after_a_while(alone: bool, called: bool, after_s: float) -> None:
    wait = LogWait()
    now = look_for(wait, 50.0, after_s - limits.LOG_WAIT_S)
    assert not wait.are_gone(is_alone=alone, is_called=called)
    look_for(wait, now, limits.LOG_WAIT_S)
    assert wait.are_gone(is_alone=alone, is_called=called)


def test_one_look_with_a_majority_begins_the_while_again() -> None:
    wait = LogWait()
    now = look_for(wait, 0.0, 2 * limits.LOG_GONE_ALONE_S)
    wait.look(now, has_majority=True)
    assert not any(wait.are_gone(is_alone=alone, is_called=called) for alone, called in ALL)


def test_a_machine_that_was_suspended_has_looked_at_nothing() -> None:
    wait = LogWait()
    now = look_for(wait, 0.0, limits.LOG_WAIT_S)
    look_for(wait, now + 8 * 3600.0, limits.LOG_WAIT_S)
    assert not any(wait.are_gone(is_alone=alone, is_called=called) for alone, called in ALL)


def test_the_wait_is_that_of_records_here() -> None:
    wait = LogWait()
    assert wait.waited_s(100.0) == 0.0
    wait.want(10.0)
    wait.want(20.0)
    assert wait.waited_s(100.0) == 90.0
    wait.note_round(100.0, is_more_wanted=True)
    assert wait.waited_s(130.0) == 30.0
    wait.note_round(130.0, is_more_wanted=False)
    assert wait.waited_s(190.0) == 0.0
    wait.want(200.0)
    wait.forget()
    assert wait.waited_s(300.0) == 0.0


SELF, OTHER, THIRD, SILENT = MEMBERS = tuple(PeerId(bytes([n]) * 32) for n in range(1, 5))
GID = bytes(16)


def test_one_that_held_a_run_is_left_out_until_it_has_paid() -> None:
    now = [0.0]
    patience = LogPatience(SELF, lambda: now[0])
    book = LogBook(0)
    assert patience.begin(book, GID, MEMBERS).members == MEMBERS
    patience.note_held(SILENT, limits.LOG_ENLIST_S)
    begin = patience.begin(book, GID, MEMBERS)
    assert begin.members == MEMBERS[:3]
    assert begin.doubted == {SILENT}
    owes_s = limits.LOG_ENLIST_S - limits.EXCHANGE_BUDGET_S + limits.EXCHANGE_PATIENCE_S_MIN
    now[0] = owes_s / limits.EXCHANGE_BUDGET_REFILL - 1.0
    assert patience.begin(book, GID, MEMBERS).members == MEMBERS[:3]
    now[0] += 2.0
    assert patience.begin(book, GID, MEMBERS).members == MEMBERS


def test_one_without_which_the_others_have_no_majority_is_waited_for() -> None:
    patience = LogPatience(SELF, lambda: 0.0)
    book = LogBook(0)
    book.close(book.read(book.make((peer, LogShare(None, 0, 0, b"")) for peer in (SELF, SILENT))))
    patience.note_held(SILENT, limits.LOG_ENLIST_S)
    assert patience.begin(book, GID, (SELF, SILENT)).members == (SELF, SILENT)
    # Of the four that are there now three are many, but two decide on the round.
    other = LogPatience(SILENT, lambda: 0.0)
    other.note_held(SELF, limits.LOG_ENLIST_S)
    assert other.begin(book, GID, MEMBERS).members == MEMBERS
    assert patience.begin(book, GID, MEMBERS).members == MEMBERS[:3], "the smallest id decides"


def test_all_are_asked_for_one_that_makes_up_runs_once_in_a_while() -> None:
    now = [0.0]
    patience = LogPatience(SELF, lambda: now[0])
    assert patience.is_news(OTHER)
    assert not patience.is_news(OTHER)
    assert patience.is_news(THIRD), "of each by itself"
    now[0] = limits.LOG_WAIT_S
    assert patience.is_news(OTHER)


def test_one_that_left_a_question_unanswered_has_less_time_for_the_next() -> None:
    patience = LogPatience(SELF, lambda: 0.0)
    assert patience.answer_s(OTHER) == limits.LOG_ASK_S
    patience.note_asked(OTHER, has_answered=False)
    assert patience.answer_s(OTHER) == limits.EXCHANGE_ANSWER_S_MIN
    assert patience.answer_s(THIRD) == limits.LOG_ASK_S
    patience.note_asked(OTHER, has_answered=True)
    assert patience.answer_s(OTHER) == limits.LOG_ASK_S
