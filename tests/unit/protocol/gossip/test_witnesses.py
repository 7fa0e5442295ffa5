"""Whose witness a member is, who differs, and for how long that is held against anyone."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.group_events import Plan
from swarmnode.protocol.gossip.witnesses import (
    DOUBT_KEEP_S,
    WITNESS_SHARE,
    Doubts,
    differing,
    dissenters,
    shift,
    witnessed_by,
)
from swarmnode.wire.exchange.group import Prepared

PEERS = tuple(PeerId(bytes([number]) * 32) for number in range(1, 10))
ME, OTHER, THIRD, FOURTH = PEERS[:4]
GID = bytes(16)


def plan_bytes(number: int) -> bytes:
    return number.to_bytes(4, "big") + b"\xff" * 12


def test_the_witness_is_one_of_the_others_by_the_first_four_bytes_of_the_plan() -> None:
    assert [shift(plan_bytes(number), 4) for number in range(7)] == [1, 2, 3, 1, 2, 3, 1]
    assert [shift(plan_bytes(number), 2) for number in (0, 1, 2**32 - 1)] == [1, 1, 1]
    assert shift(plan_bytes(2**32 - 1), 8) == 1 + (2**32 - 1) % 7


@pytest.mark.parametrize("number", range(3))
def test_each_piece_has_one_witness_and_it_is_not_its_maker(number: int) -> None:
    found = [witnessed_by(peer, plan_bytes(number), PEERS[:4], 4) for peer in PEERS[:4]]
    assert sorted(piece for piece in found if piece is not None) == [0, 1, 2, 3]
    for index, piece in enumerate(found):
        assert piece is not None
        assert index == (piece + 1 + number) % 4


def test_where_there_are_fewer_pieces_than_members_some_are_no_witness() -> None:
    found = [witnessed_by(peer, plan_bytes(0), PEERS[:4], 2) for peer in PEERS[:4]]
    assert found == [None, 0, 1, None]


# --- who differs ---------------------------------------------------------------------------------

RIGHT = tuple(bytes([piece]) * 32 for piece in range(4))
LIE = b"?" * 32
# By this plan the witness of a piece is the member after its maker.
PLAN = Plan(
    contributors=PEERS[:4],
    plan=plan_bytes(0),
    n_pieces=4,
    held=set(),
    reducing=set(),
    result=b"r" * 32,
    hashes=RIGHT,
    witness=(RIGHT[3],),
)


def said(*witness: bytes, plan: bytes = PLAN.plan, result: bytes = PLAN.result) -> Prepared:
    return Prepared(GID, plan, result, witness)


def test_none_differs_where_each_hash_is_one_of_those_that_its_witness_says() -> None:
    told = {OTHER: said(RIGHT[0]), THIRD: said(LIE, RIGHT[1]), FOURTH: said()}
    assert differing(PLAN, ME, told) == ()


def test_a_piece_that_goes_by_another_hash_names_its_maker_and_its_witness() -> None:
    told = {OTHER: said(LIE), THIRD: said(RIGHT[0], LIE), FOURTH: said(RIGHT[2])}
    pairs = ((ME, OTHER), (OTHER, THIRD))
    assert differing(PLAN, ME, told) == pairs
    own = replace(PLAN, witness=(LIE,))
    assert differing(own, ME, {}) == ((FOURTH, ME),)


def test_what_is_said_of_another_plan_or_by_a_stranger_or_of_no_piece_is_not_heard() -> None:
    assert differing(PLAN, ME, {OTHER: said(LIE, plan=plan_bytes(3))}) == ()
    assert differing(PLAN, ME, {PEERS[5]: said(LIE)}) == ()
    assert differing(replace(PLAN, hashes=()), ME, {OTHER: said(LIE)}) == ()
    fewer = replace(PLAN, n_pieces=1, hashes=RIGHT[:1], witness=())
    assert differing(fewer, ME, {THIRD: said(LIE), OTHER: said(RIGHT[0])}) == ()


def test_who_holds_another_mean_of_the_plan_dissents_while_it_is_in_the_view() -> None:
    told = {OTHER: said(RIGHT[0]), THIRD: said(RIGHT[1], result=b"x" * 32)}
    assert dissenters(PLAN, ME, PEERS[:3], told) == {THIRD}
    assert dissenters(PLAN, ME, PEERS[:2], told) == frozenset(), "it has left the view"


# --- doubts --------------------------------------------------------------------------------------


class Coin(random.Random):
    """A coin that falls as it is told."""

    def __init__(self, value: float) -> None:
        super().__init__(0)
        self._value = value

    def random(self) -> float:
        return self._value


def test_without_a_doubt_a_coin_says_who_is_a_witness_and_after_one_all_are_for_a_while() -> None:
    doubts = Doubts()
    low, high = Coin(WITNESS_SHARE - 0.01), Coin(WITNESS_SHARE)
    assert doubts.is_witness(0.0, low) is True
    assert doubts.is_witness(0.0, high) is False
    doubts.add(ME, OTHER, 10.0)
    assert doubts.is_witness(10.0, high) is True
    doubts.add(ME, THIRD, 20.0)
    assert doubts.is_witness(20.0 + DOUBT_KEEP_S - 0.1, high) is True
    assert doubts.is_witness(20.0 + DOUBT_KEEP_S, high) is False
    assert doubts.is_witness(20.0 + DOUBT_KEEP_S, low) is True


@pytest.mark.parametrize(
    ("n_members", "n_differs"), [(2, 2), (7, 2), (8, 3), (11, 3), (12, 4), (16, 5)]
)
def test_who_differs_from_more_than_a_quarter_is_faulty(n_members: int, n_differs: int) -> None:
    doubts = Doubts()
    others = [PeerId(bytes([100 + number]) * 32) for number in range(n_differs)]
    for other in others[:-1]:
        doubts.add(*((ME, other) if other == others[0] else (other, ME)), 0.0)
        doubts.add(ME, other, 0.0)  # however often
    assert doubts.faulty(n_members, 1.0) == frozenset()
    doubts.add(ME, others[-1], 5.0)
    assert doubts.faulty(n_members, 5.0) == {ME}
    assert doubts.faulty(n_members, DOUBT_KEEP_S - 0.1) == {ME}
    assert doubts.faulty(n_members, DOUBT_KEEP_S) == frozenset(), "the first are forgotten"
