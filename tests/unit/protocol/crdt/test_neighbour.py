"""What is remembered of one neighbour, so that nothing is sent to it, or asked of it, twice."""

from __future__ import annotations

import pytest

from swarmnode import limits
from swarmnode.protocol.crdt.courier import STATE_KNOWN_PER_NEIGHBOUR_MAX, Neighbour
from tests.kits.crdt_world import ToySigner

PEER, AUTHOR, OTHER = (ToySigner.make(number).peer_id for number in range(3))
MANY = [ToySigner.make(number).peer_id for number in range(3, 4 + STATE_KNOWN_PER_NEIGHBOUR_MAX)]


@pytest.fixture
def neighbour() -> Neighbour:
    return Neighbour(PEER)


def test_who_has_a_record_has_those_before_it(neighbour: Neighbour) -> None:
    assert not neighbour.has(AUTHOR, (1, 1))
    neighbour.note_received(AUTHOR, (1, 2), 0.0)
    assert [neighbour.has(AUTHOR, version) for version in ((1, 1), (1, 2), (1, 3), (2, 1))] == [
        True,
        True,
        False,
        False,
    ]
    assert not neighbour.has(OTHER, (1, 1))


def test_what_it_told_us_is_told_apart_from_what_we_sent(neighbour: Neighbour) -> None:
    assert not neighbour.has_told(AUTHOR, (1, 1))
    neighbour.note_received(AUTHOR, (1, 2), 0.0)
    assert [neighbour.has_told(AUTHOR, (1, n)) for n in (1, 2, 3)] == [True, True, False]
    assert not neighbour.is_on_the_way(AUTHOR, (1, 2), 0.0)
    neighbour.note_sent(OTHER, (1, 2), 0.0)
    assert neighbour.has(OTHER, (1, 2))
    assert not neighbour.has_told(OTHER, (1, 2))


def test_what_we_sent_is_on_the_way_for_a_while(neighbour: Neighbour) -> None:
    assert not neighbour.is_on_the_way(AUTHOR, (1, 2), 5.0)
    neighbour.note_sent(AUTHOR, (1, 2), 5.0)
    assert [neighbour.is_on_the_way(AUTHOR, (1, n), 5.0) for n in (1, 2, 3)] == [True, True, False]
    end = 5.0 + limits.STATE_RESEND_S
    assert neighbour.is_on_the_way(AUTHOR, (1, 2), end - 0.001)
    assert not neighbour.is_on_the_way(AUTHOR, (1, 2), end)
    assert neighbour.has(AUTHOR, (1, 2)), "what comes after a listing goes by the listing"


@pytest.mark.parametrize("version", [(1, 1), (1, 2)])
def test_what_it_tells_us_late_does_not_hide_what_we_sent(
    neighbour: Neighbour, version: tuple[int, int]
) -> None:
    neighbour.note_sent(AUTHOR, (1, 2), 0.0)
    neighbour.note_received(AUTHOR, version, 1.0)
    assert neighbour.is_on_the_way(AUTHOR, (1, 2), 1.0)
    neighbour.note_received(AUTHOR, (1, 3), 1.0)
    assert neighbour.has_told(AUTHOR, (1, 3))


def test_what_was_noted_long_ago_is_forgotten_when_something_else_is(neighbour: Neighbour) -> None:
    neighbour.note_sent(AUTHOR, (1, 1), 0.0)
    neighbour.note_sent(OTHER, (1, 1), limits.STATE_RESEND_S)
    assert neighbour.has(AUTHOR, (1, 1))
    neighbour.note_sent(OTHER, (1, 2), limits.STATE_RESEND_S + 0.001)
    assert not neighbour.has(AUTHOR, (1, 1))
    assert neighbour.has(OTHER, (1, 2))


def test_what_was_noted_anew_is_not_what_was_noted_longest_ago(neighbour: Neighbour) -> None:
    neighbour.note_sent(AUTHOR, (1, 1), 0.0)
    neighbour.note_sent(OTHER, (1, 1), 1.0)
    neighbour.note_sent(AUTHOR, (1, 2), 2.0)
    neighbour.note_sent(MANY[0], (1, 1), 1.5 + limits.STATE_RESEND_S)
    assert neighbour.has(AUTHOR, (1, 2))
    assert not neighbour.has(OTHER, (1, 1))


def test_of_many_authors_the_latest_are_remembered(neighbour: Neighbour) -> None:
    *most, last = MANY
    assert len(most) == STATE_KNOWN_PER_NEIGHBOUR_MAX
    for author in most:
        neighbour.note_sent(author, (1, 1), 0.0)
    assert all(neighbour.has(author, (1, 1)) for author in most)
    neighbour.note_sent(last, (1, 1), 0.0)
    assert [author for author in MANY if not neighbour.has(author, (1, 1))] == [most[0]]


def test_it_is_asked_once_in_a_while_for_what_follows_one_record(neighbour: Neighbour) -> None:
    pause_s = limits.STATE_RESEND_S
    assert neighbour.may_ask(AUTHOR, (1, 1), 0.0)
    assert not neighbour.may_ask(AUTHOR, (1, 1), pause_s - 0.001)
    assert neighbour.may_ask(AUTHOR, (1, 1), pause_s), "what was refused does not begin it anew"
    assert not neighbour.may_ask(AUTHOR, (1, 1), pause_s + 1.0)
    assert neighbour.may_ask(AUTHOR, (1, 2), pause_s + 1.0), "that is another question"
    assert neighbour.may_ask(OTHER, (1, 2), pause_s + 1.0)


def test_of_questions_on_many_authors_the_latest_are_remembered(neighbour: Neighbour) -> None:
    first, *_, last = MANY
    for author in MANY[:-1]:
        neighbour.may_ask(author, (1, 1), 0.0)
    assert not neighbour.may_ask(first, (1, 1), 1.0), "which counts as a question again"
    neighbour.may_ask(last, (1, 1), 1.0)
    assert not neighbour.may_ask(first, (1, 1), 1.0)
    assert not neighbour.may_ask(last, (1, 1), 1.0)
    assert neighbour.may_ask(MANY[1], (1, 1), 1.0)
