"""When rounds begin, what is due in between, and how a vector is shared out over fragments."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from swarmnode import limits
from swarmnode.errors import ConfigError
from swarmnode.strategies.merging.pieces import PIECE_ELEMS
from swarmnode.strategies.rounds import (
    Flights,
    Fragment,
    Rounds,
    Turns,
    cut,
    layout_of,
    refuse_rounds,
)
from swarmnode.tensor.layout import Layout


def dues(
    rounds: Rounds, steps: Sequence[int], calls: Sequence[int] = ()
) -> dict[int, list[tuple[int, int]]]:
    """Return what is due after each step, but for those with nothing; some come with a call."""
    found = {}
    for step in steps:
        if step in calls:
            rounds.call()
        if due := rounds.due(step):
            found[step] = due
    return found


def at(rounds: Rounds, number: int, begin: int, steps: int) -> Rounds:
    rounds.state.copy_(torch.tensor([number, begin, steps]))
    return rounds


# --- settings -------------------------------------------------------------------------------------


def test_there_is_at_most_one_fragment_a_step() -> None:
    refuse_rounds("any", every=4, fragments=4, overlap=0)
    with pytest.raises(ConfigError, match="at most one fragment a step, got fragments 5 in rounds"):
        refuse_rounds("any", every=4, fragments=5, overlap=0)


def test_a_fragment_lands_before_the_next_one_is_sent() -> None:
    refuse_rounds("any", every=9, fragments=2, overlap=4)
    refuse_rounds("any", every=1, fragments=1, overlap=1)  # each step: there is no other way
    for every in (2, 8):
        with pytest.raises(ConfigError, match=f"overlap below every / fragments = {every / 2:g}"):
            refuse_rounds("any", every=every, fragments=2, overlap=every // 2)


# --- rounds ---------------------------------------------------------------------------------------


def test_a_round_ends_with_its_last_step_and_its_fragments_are_spread_over_it() -> None:
    assert dues(Rounds(3), range(1, 8)) == {3: [(0, 1)], 6: [(0, 2)]}
    assert dues(Rounds(8, 3), range(1, 17)) == {
        2: [(1, 0)],
        5: [(2, 0)],
        8: [(0, 1)],
        10: [(1, 1)],
        13: [(2, 1)],
        16: [(0, 2)],
    }
    assert dues(Rounds(1), range(1, 4)) == {step: [(0, step)] for step in range(1, 4)}


def test_where_there_are_fewer_steps_than_fragments_several_are_due_at_once() -> None:
    assert dues(Rounds(2, 4), range(1, 4)) == {
        1: [(2, 0), (3, 0)],
        2: [(0, 1), (1, 1)],
        3: [(2, 1), (3, 1)],
    }


def test_other_steps_count_from_the_next_round_on_and_are_enough_for_all_fragments() -> None:
    rounds = Rounds(8, 2)
    assert not dues(rounds, range(1, 4))
    rounds.set_steps(4)
    assert dues(rounds, range(4, 14)) == {4: [(1, 0)], 8: [(0, 1)], 10: [(1, 1)], 12: [(0, 2)]}
    rounds.set_steps(1)
    assert list(dues(rounds, range(14, 20))) == [14, 16, 17, 18, 19]
    assert rounds.state.tolist() == [4, 18, 2]


@pytest.mark.parametrize("own_step", [3, 99, 108, 500])
def test_a_joiner_goes_on_in_the_round_of_its_peer_with_steps_of_its_own(own_step: int) -> None:
    """Of a round that began at step 100 of the peer's, and has eight."""
    rounds = at(Rounds(8), 7, 100, 8)
    found = dues(rounds, range(own_step, own_step + 9))
    if own_step == 108:
        assert found == {108: [(0, 8)], 116: [(0, 9)]}, "as if it were its own"
    else:
        assert found == {own_step + 7: [(0, 8)]}


def test_at_the_first_step_of_a_round_its_first_fragment_is_due() -> None:
    assert at(Rounds(8, 2), 7, 100, 8).due(100) == [(0, 7)]
    called = at(Rounds(8, 2), 7, 100, 8)
    assert dues(called, range(100, 105), calls=(100,)) == {100: [(0, 7)], 101: [(1, 7)]}


def test_a_node_catches_up_with_later_rounds_and_goes_to_any() -> None:
    rounds = Rounds(8)
    rounds.catch_up(5)
    rounds.catch_up(3)
    assert rounds.number == 5
    rounds.go_to(3)
    assert rounds.number == 3
    assert dues(rounds, range(1, 9)) == {8: [(0, 4)]}


@pytest.mark.parametrize("grow", [False, True])
def test_the_state_of_a_peer_is_taken_up_to_its_limits(grow: bool) -> None:
    most = 8 * limits.ROUND_LONGER_MAX if grow else 8
    latest = limits.TRAINED_STEPS_MAX

    def refusal(number: int, begin: int, steps: int) -> str:
        return Rounds(8, 2, grow=grow).refusal(torch.tensor([number, begin, steps])) or ""

    for fine in ((0, -most, 2), (latest, latest, most)):
        assert not refusal(*fine)
    for wrong in (-1, latest + 1):
        assert refusal(wrong, 0, 8).startswith("rounds: ")
    for wrong in (-most - 1, latest + 1):
        assert refusal(0, wrong, 8).startswith("the step at which the round began: ")
    for wrong in (1, most + 1):
        assert refusal(0, 0, wrong).startswith("the steps of a round: ")


def test_rounds_of_fewer_steps_than_fragments_have_a_step_for_each_at_the_most() -> None:
    def refusal(steps: int) -> str | None:
        return Rounds(2, 4).refusal(torch.tensor([0, 0, steps]))

    assert refusal(4) is None
    assert refusal(3)
    assert refusal(5)


# --- calls ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", [16, 32])
def test_a_call_at_a_moment_that_is_due_anyway_brings_no_other_forward(moment: int) -> None:
    assert list(dues(Rounds(32, 2), range(1, 65), calls=(moment,))) == [16, 32, 48, 64]


def test_a_call_counts_from_the_last_moment_on_and_once() -> None:
    fewest = int(16 * limits.PACING_FEWEST_SHARE)
    found = dues(Rounds(32, 2), range(1, 65), calls=(17,))
    assert found == {16: [(1, 0)], 16 + fewest: [(0, 1)], 34: [(1, 1)], 50: [(0, 2)]}


# --- turns ----------------------------------------------------------------------------------------


def test_a_round_that_is_due_while_one_is_on_its_way_follows_it_at_once() -> None:
    turns, rounds = Turns(), Rounds(4)
    assert [turns.is_next_due(rounds, step, 0) for step in range(1, 5)] == [False] * 3 + [True]
    turns.post(b"a")
    assert not any(turns.is_next_due(rounds, step, 0) for step in range(5, 10))
    assert not turns.end(b"b"), "it is not the one on its way"
    assert not turns.is_next_due(rounds, 10, 0)
    assert turns.end(b"a")
    assert not turns.end(b"a"), "it is over already"
    assert turns.is_next_due(rounds, 11, 1)
    turns.post(b"b")
    assert turns.end(b"b")
    assert not turns.is_next_due(rounds, 13, 2), "one round, however long it waited"
    assert turns.is_next_due(rounds, 16, 2)


def test_a_round_that_was_not_posted_stays_due() -> None:
    turns, rounds = Turns(), Rounds(4)
    assert [turns.is_next_due(rounds, step, 0) for step in range(3, 8)] == [False] + [True] * 4


def test_others_call_for_the_round_that_this_node_stands_at_and_while_none_is_on_its_way() -> None:
    turns, rounds = Turns(), Rounds(32)
    turns.call(3)
    assert not any(turns.is_next_due(rounds, step, 2) for step in range(1, 10))
    assert turns.is_next_due(rounds, 10, 3), "it stands there now"
    turns.post(b"a")
    turns.call(4)
    assert not any(turns.is_next_due(rounds, step, 4) for step in range(11, 30))
    turns.end(b"a")
    assert turns.is_next_due(rounds, 30, 4)


def test_a_call_is_answered_by_one_round() -> None:
    turns, rounds = Turns(), Rounds(32)
    turns.call(0)
    assert turns.is_next_due(rounds, 32, 0), "as it is due anyway"
    turns.post(b"a")
    turns.end(b"a")
    assert next(step for step in range(33, 70) if turns.is_next_due(rounds, step, 0)) == 64
    turns.post(b"b")
    assert not any(turns.is_next_due(rounds, step, 1) for step in range(65, 98))
    turns.end(b"b")
    turns.call(2)
    assert turns.is_next_due(rounds, 98, 2), "it was due while the last one was on its way"
    turns.post(b"c")
    turns.end(b"c")
    assert next(step for step in range(99, 140) if turns.is_next_due(rounds, step, 3)) == 128


def test_a_node_that_leaves_what_is_on_its_way_posts_another_at_once() -> None:
    turns, rounds = Turns(), Rounds(4)
    assert turns.is_next_due(rounds, 4, 0)
    turns.post(b"a")
    turns.end(b"a")
    turns.leave()
    assert not turns.is_next_due(rounds, 5, 0), "there was none to leave"
    turns.post(b"a")
    turns.leave()
    assert turns.is_next_due(rounds, 6, 5)
    assert not turns.end(b"a")


# --- fragments ------------------------------------------------------------------------------------


def spans(numel: Sequence[int], n: int) -> list[list[tuple[int, int]]]:
    layout = Layout.of((f"t{i}", (each,), "float32") for i, each in enumerate(numel))
    return [list(fragment.spans) for fragment in cut(layout, n)]


def test_large_tensors_are_dealt_out_in_parts_of_whole_blocks() -> None:
    """Eight parts for each fragment, or a few less: of 64 elements, or of twice as many."""
    one, other = spans([1024], 2)
    assert one == [(begin, begin + 64) for begin in range(0, 1024, 128)]
    assert other == [(begin, begin + 64) for begin in range(64, 1024, 128)]
    one, other = spans([1025], 2)
    assert one == [(0, 128), (256, 384), (512, 640), (768, 896), (1024, 1025)]
    assert other == [(128, 256), (384, 512), (640, 768), (896, 1024)]


def test_the_fragment_that_has_fewest_is_dealt_the_next_and_neighbours_become_one() -> None:
    assert spans([1000], 1) == [[(0, 1000)]]
    assert spans([64, 10, 20, 40, 64], 2) == [[(0, 64), (134, 198)], [(64, 134)]]
    assert spans([10], 4) == [[(0, 10)]], "there is nothing for the others"


def test_a_fragment_gathers_its_elements_and_adds_to_them_alone() -> None:
    fragment = Fragment(((1, 3), (6, 7)))
    assert fragment.numel == 3
    flat = torch.arange(8.0)
    taken = fragment.gather(flat)
    assert taken.tolist() == [1, 2, 6]
    taken.fill_(0)
    assert flat[1] == 1, "it is a copy"
    fragment.add(flat, torch.tensor([10.0, 20.0, 30.0]))
    fragment.add(flat, torch.tensor([2.0, 4.0, 6.0]), alpha=-0.5)
    assert flat.tolist() == [0, 10, 20, 3, 4, 5, 33, 7]


def test_pieces_of_a_fragment_lie_in_it_and_in_the_vector() -> None:
    p = PIECE_ELEMS
    fragment = Fragment(((5, 8), (100, 100 + p + 4)))
    vector = torch.empty(0)
    found = list(fragment.pieces(vector))
    assert found == [
        (slice(0, 3), slice(5, 8)),
        (slice(3, 3 + p), slice(100, 100 + p)),
        (slice(3 + p, 7 + p), slice(100 + p, 104 + p)),
    ]
    for n, after in enumerate((0, 3, 3 + p, 7 + p)):
        assert list(fragment.pieces(vector, after)) == found[n:]


def test_the_layout_of_a_fragment_has_the_parts_of_tensors_that_are_in_it() -> None:
    layout = Layout.of([("a", (2, 5), "float32"), ("b", (6,), "float16"), ("c", (4,), "float32")])
    found = layout_of(Fragment(((0, 3), (8, 10), (12, 14), (16, 20))), layout)
    assert [(spec.name, spec.shape, spec.dtype) for spec in found.specs] == [
        ("0/a", (3,), "float32"),
        ("1/a", (2,), "float32"),
        ("2/b", (2,), "float16"),
        ("3/c", (4,), "float32"),
    ]
    assert found.numel == 11


def test_fast_weights_are_those_of_so_many_steps_after_the_fragment_was_sent() -> None:
    fragment = Fragment(((1, 3),))
    x = torch.zeros(4)
    flights = Flights(overlap=2)
    flights.note_step(7, x)
    flights.begin(0, fragment, x)
    flights.note_step(8, x.fill_(8))
    flights.begin(1, fragment, x)
    for step in (9, 10, 11):
        flights.note_step(step, x.fill_(step))
    assert flights.end(0).tolist() == [9, 9]
    assert flights.end(1).tolist() == [10, 10]
    assert flights.end(2).tolist() == [], "it was never sent"


def test_what_is_sent_before_the_first_step_is_of_step_0() -> None:
    flights, x = Flights(overlap=1), torch.zeros(4)
    flights.begin(0, Fragment(((1, 3),)), x)
    flights.note_step(1, x.fill_(1))
    assert flights.end(0).tolist() == [1, 1]


def test_without_an_overlap_no_fast_weights_are_kept() -> None:
    flights = Flights(overlap=0)
    flights.begin(0, Fragment(((0, 2),)), torch.ones(2))
    flights.note_step(1, torch.ones(2))
    assert len(flights.end(0)) == 0
