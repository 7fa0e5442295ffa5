"""How long no round has closed, and for how long there was no majority."""

from __future__ import annotations

import pytest

from swarmnode import limits
from swarmnode.daemon.collective.log_cargo import LogWait

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
