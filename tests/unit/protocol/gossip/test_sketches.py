"""Sketches of slow weights: who says what, and who holds other ones than most."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.sketches import SKETCHES_MAX, TOLERANCE, Sketches, parse

PLACES = [f"{number:06x}" for number in range(20)]


def peer(number: int) -> PeerId:
    return PeerId(bytes([number]) * 32)


def node(*values: float, length: float = 1.0) -> Sketches:
    """Return what a node says that has been at the first places, one after the other."""
    made = Sketches()
    for place, value in zip(PLACES, values, strict=False):
        made.note(place, value, length, follows=True)
    return made


def others_of(own: Sketches, *said: Sketches | str) -> list[int]:
    told = {peer(n): each if isinstance(each, str) else each.said for n, each in enumerate(said)}
    return [peer_id[0] for peer_id in own.others(told)]


def test_the_newest_is_said_first_and_read_again() -> None:
    assert node().said == ""
    assert node(1.0, -2.5e-7).said == "000001:-2.5e-07,000000:1"
    assert parse("000001:-2.5e-07,000000:1") == {"000001": -2.5e-07, "000000": 1.0}


@given(st.lists(st.floats(-1e30, 1e30), max_size=20))
@example([0.000667870704392207])  # ten digits after the point
def test_whatever_is_said_fits_in_a_register_and_is_read_as_nearly_the_same(
    values: list[float],
) -> None:
    made = node(*values)
    last = dict(zip(PLACES, values, strict=False))
    expected = {place: last[place] for place in list(last)[-SKETCHES_MAX:]}
    assert len(made.said) <= 256
    assert parse(made.said) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "said",
    [
        *("", ",", "x", "000000", "000000:", "00000:1", "00000G:1", "000000:nan", "000000:inf"),
        *("000000:1e999", "000000:1.2.3", "000000:--1", "000000:1 ", "000000:0x1", "000000:1e5"),
    ],
)
def test_what_makes_no_sense_counts_as_not_said(said: str) -> None:
    assert parse(said) == {}


@given(st.text(max_size=256))
def test_any_text_is_read(said: str) -> None:
    assert len(parse(said)) <= SKETCHES_MAX
    assert others_of(node(0.0), said, said) in ([], [0, 1])


def test_more_than_are_kept_are_not_read() -> None:
    said = ",".join(f"{place}:1" for place in PLACES)
    assert list(parse(said)) == PLACES[:SKETCHES_MAX]


def test_all_that_hold_the_same_are_content() -> None:
    assert others_of(node(1.0, 2.0), node(1.0, 2.0), node(1.0)) == []
    assert others_of(node(1.0, 2.0)) == []


def test_one_that_holds_something_else_is_told_who_holds_what_most_hold() -> None:
    right = node(1.0, 2.0, 3.0)
    assert others_of(node(1.0, 2.0, 9.0), right, right) == [0, 1]
    assert others_of(right, node(1.0, 2.0, 9.0), right) == [], "the other is to ask"


def test_two_that_differ_do_not_know_which_of_them_is_right() -> None:
    assert others_of(node(1.0), node(9.0)) == []


def test_those_that_have_not_said_anything_of_a_place_may_hold_the_same() -> None:
    """So a few who lie are not most because they are the first to speak."""
    liar = node(1.0, 9.0)
    assert others_of(node(1.0, 2.0), liar, liar, node(1.0)) == []
    assert others_of(node(1.0, 2.0), liar, liar, node(1.0), "") == []
    assert others_of(node(1.0, 2.0), liar, liar, liar, node(1.0)) == [0, 1, 2], "they are most"


def test_those_that_differ_from_each_other_are_no_majority() -> None:
    assert others_of(node(1.0), node(2.0), node(3.0), node(4.0)) == []
    assert others_of(node(1.0), node(1.0), node(2.0), node(2.0), node(4.0)) == []
    assert others_of(node(1.0), node(2.0), node(4.0), node(2.0)) == [0, 2]


def test_an_earlier_place_tells_where_the_last_is_not_known_to_others_yet() -> None:
    right = node(1.0, 2.0)
    assert others_of(node(1.0, 9.0, 9.0), right, right) == [0, 1]


def test_what_other_hardware_rounds_is_no_difference() -> None:
    length = 50.0
    near, far = TOLERANCE * length * 0.99, TOLERANCE * length * 1.01
    for sign in (-1, 1):
        apart = node(1.0 + sign * near)
        assert others_of(node(1.0, length=length), apart, apart) == []
        apart = node(1.0 + sign * far)
        assert others_of(node(1.0, length=length), apart, apart) == [0, 1]


def test_what_was_said_of_weights_that_are_left_is_not_said_again() -> None:
    made = node(1.0, 2.0, 9.0)
    made.note(PLACES[2], 3.0, 1.0, follows=False)
    assert made.said == "000002:3"
    made.note(PLACES[3], 4.0, 1.0, follows=True)
    assert made.said == "000003:4,000002:3"
    made.forget()
    assert made.said == ""


def test_a_place_is_said_once() -> None:
    made = node(1.0, 2.0)
    made.note(PLACES[0], 5.0, 1.0, follows=True)
    assert made.said == "000000:5,000001:2"
