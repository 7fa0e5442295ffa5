"""Where a node in a lineage is, whom it believes, and when it asks."""

from __future__ import annotations

import copy
import logging
from dataclasses import replace

import pytest
import torch

from swarmnode.strategies.base import Exchange, Intent, Kind, Meta, Received
from swarmnode.strategies.catch_up import (
    ANY_LINEAGE,
    COUNT_MAX,
    HASH_BITS,
    ROUNDS_AHEAD_MAX,
    CatchUps,
    Place,
    Words,
    extend_lineage,
    harm_at,
    lineage_refusal,
    lineage_version,
    no_harm,
    read_place,
)

WORDS_KEPT = 16
ASKS_MAX = 3
IDS = [bytes([n]) * 32 for n in range(1, WORDS_KEPT + 3)]
PULL = Intent(Kind.PULL, 0, tag="catch-up", base_version=b"version")
META = Meta(1, 1, 0.0)


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


# --- lineages -------------------------------------------------------------------------------------


def test_of_two_lineages_the_longer_one_is_further_and_then_the_larger_hash() -> None:
    places = [Place(1, 2**24 - 1, 0), Place(2, 0, 0), Place(2, 1, 0), Place(2, 256, 0)]
    versions = [place.version for place in places]
    assert versions == sorted(versions)
    assert len({*versions}) == len(versions)
    assert Place(2, 1, 9).version == Place(2, 1, 0).version, "the round is no part of it"
    assert lineage_version(torch.tensor([2.0, 256.0])) == versions[-1]


def test_an_outer_step_counts_and_hashes_over_who_took_part_and_over_what_was_before() -> None:
    def extended(lineage: torch.Tensor, *present: bytes) -> tuple[float, ...]:
        extend_lineage(lineage, present)
        return tuple(lineage.tolist())

    first = extended(torch.zeros(2), *IDS[:2])
    assert list(first) == [1, 7121804], "as every other version has it"
    others = {
        extended(torch.zeros(2), IDS[0]),
        extended(torch.zeros(2), IDS[1], IDS[0]),
        extended(torch.tensor([0.0, 1.0]), *IDS[:2]),
        first,
    }
    assert len(others) == 4
    hashes = [extended(torch.tensor([0.0, float(n)]), IDS[0])[1] for n in range(64)]
    assert max(hashes) >= 2 ** (HASH_BITS - 1)
    assert lineage_refusal(torch.tensor([1.0, max(hashes)])) is None


def test_the_count_begins_anew_before_a_float_could_not_tell_it() -> None:
    lineage = torch.tensor([float(COUNT_MAX - 2), 0.0])
    extend_lineage(lineage, IDS[:1])
    assert int(lineage[0]) == COUNT_MAX - 1
    assert lineage_refusal(lineage) is None
    extend_lineage(lineage, IDS[:1])
    assert int(lineage[0]) == 0


@pytest.mark.parametrize(
    ("values", "is_fine"),
    [
        ((0, 0), True),
        ((COUNT_MAX - 1, 2**HASH_BITS - 1), True),
        ((COUNT_MAX, 0), False),
        ((0, 2**HASH_BITS), False),
        ((-1, 0), False),
        ((0, -1), False),
    ],
)
def test_the_numbers_of_a_lineage_have_a_range(values: tuple[int, int], is_fine: bool) -> None:
    assert (lineage_refusal(numbers(*values)) is None) == is_fine
    assert isinstance(read_place(numbers(*values, COUNT_MAX)), Place) == is_fine


def test_a_place_has_as_many_outer_steps_as_rounds_and_some_more_at_the_most() -> None:
    assert read_place(numbers(7, 5, 9)) == Place(7, 5, 9)
    most = 9 + ROUNDS_AHEAD_MAX
    assert read_place(numbers(most, 5, 9)) == Place(most, 5, 9)
    assert f"got {most + 1} in round 9" in str(read_place(numbers(most + 1, 5, 9)))
    assert read_place(numbers(0, 0, COUNT_MAX)) == Place(0, 0, COUNT_MAX)
    for wrong in (-1, COUNT_MAX + 1):
        assert str(read_place(numbers(0, 0, wrong))).startswith("the round: ")


# --- whom it believes -----------------------------------------------------------------------------


def test_one_word_moves_a_node_so_far_and_a_second_one_further() -> None:
    words, limit = Words(), 10 + ROUNDS_AHEAD_MAX
    for near in (Place(limit, 1, 5), Place(5, 1, limit)):
        assert words.refusal(IDS[0], near, 10) is None
    for far in (Place(limit + 1, 1, 5), Place(5, 1, limit + 1)):
        assert f"got {limit + 1}, which no other peer" in str(words.refusal(IDS[0], far, 10))
    agreed = Place(0, 1, limit + 1 + ROUNDS_AHEAD_MAX)
    assert words.refusal(IDS[1], replace(agreed, round=agreed.round + 1), 10)
    assert words.refusal(IDS[2], agreed, 10) is None


def test_two_words_agree_in_either_order() -> None:
    far = 10 * ROUNDS_AHEAD_MAX
    for first, second in ((far, far + ROUNDS_AHEAD_MAX), (far + ROUNDS_AHEAD_MAX, far)):
        words = Words()
        assert words.refusal(IDS[0], Place(0, 0, first), 0)
        assert words.refusal(IDS[1], Place(0, 0, second), 0) is None


def test_the_last_word_of_a_peer_counts_and_the_oldest_ones_are_forgotten() -> None:
    def far(n: int) -> Place:
        return Place(0, 0, n * 10 * ROUNDS_AHEAD_MAX)

    words = Words()
    assert words.refusal(IDS[0], far(1), 0)
    assert words.refusal(IDS[0], far(2), 0)
    assert words.refusal(IDS[1], far(1), 0), "it does not say so any more"
    words = Words()
    for n, peer in enumerate(IDS[:WORDS_KEPT]):
        assert words.refusal(peer, far(n + 1), 0)
    assert copy.deepcopy(words).refusal(IDS[WORDS_KEPT], far(1), 0) is None, "all are kept yet"
    assert words.refusal(IDS[0], far(1), 0), "it has said so again"
    assert words.refusal(IDS[WORDS_KEPT], far(99), 0)
    assert words.refusal(IDS[WORDS_KEPT + 1], far(2), 0), "of the second peer: too long ago"
    assert words.refusal(IDS[0], far(99), 0) is None


@pytest.mark.parametrize(("after", "is_fine"), [(1.115, True), (1.125, False), (0.1, True)])
def test_a_model_is_replaced_by_those_that_are_little_worse(after: float, is_fine: bool) -> None:
    def loss(x: torch.Tensor) -> float:
        return float(x[0])

    own, fine, other = (torch.tensor([each]) for each in (1.0, 0.9, after))
    why = harm_at(loss, own, [fine, other])
    assert why is None if is_fine else f"near 1, got {after:.3g}" in str(why)
    lost = torch.tensor([float("inf")])
    assert harm_at(loss, lost, [other]) is None, "it has nothing to lose"
    assert no_harm({"phi": own}) is None


# --- when it asks ---------------------------------------------------------------------------------


def due(catch_ups: CatchUps) -> list[bytes]:
    """Return the versions that it asks for what is beyond them."""
    return [intent.base_version for intent in catch_ups.due(lambda: PULL)]


def answer(*place: float, phi: float = 0.5) -> Exchange:
    views = {"phi": torch.full((4,), phi), "place": numbers(*place)}
    return Exchange(PULL, META, {}, {IDS[0]: Received(views, META)}, 0)


def place_of(catch_ups: CatchUps, exchange: Exchange) -> Place | None:
    return catch_ups.place_of(exchange, 0, torch.ones(4))


def test_for_a_missed_round_one_question_is_asked_and_no_second_one_meanwhile() -> None:
    catch_ups = CatchUps()
    assert due(catch_ups) == []
    catch_ups.note_missed()
    assert due(catch_ups) == [PULL.base_version]
    catch_ups.note_missed()
    assert due(catch_ups) == [], "an answer is on its way"
    catch_ups.note_unanswered()
    assert due(catch_ups) == [PULL.base_version], "for what was missed meanwhile"
    catch_ups.note_unanswered()
    assert due(catch_ups) == []


def test_a_stray_node_asks_for_any_lineage() -> None:
    catch_ups = CatchUps()
    catch_ups.note_missed()
    catch_ups.is_stray = True
    assert due(catch_ups) == [ANY_LINEAGE]
    catch_ups.note_unanswered()
    assert due(catch_ups) == [], "one question is for both"


def test_what_was_said_of_where_it_stood_is_forgotten_where_it_has_gone_on() -> None:
    catch_ups = CatchUps()
    catch_ups.note_missed()
    assert due(catch_ups)
    catch_ups.note_missed()
    catch_ups.is_stray = True
    assert place_of(catch_ups, answer(3, 1, 3)) == Place(3, 1, 3)
    assert catch_ups.refused == 0
    assert due(catch_ups) == []
    catch_ups.note_missed()
    assert due(catch_ups), "no answer is on its way any more"


@pytest.mark.parametrize(
    ("exchange", "why"),
    [
        (answer(-1, 0, 0), "the outer steps of a lineage: "),
        (answer(0, 0, ROUNDS_AHEAD_MAX + 1), "which no other peer has said"),
        (answer(1, 1, 1, phi=float("nan")), "phi is not finite"),
        (answer(1, 1, 1, phi=1e30), "phi: expected"),
    ],
)
def test_for_a_refused_answer_others_are_asked_up_to_three_in_all(
    exchange: Exchange, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    catch_ups = CatchUps()
    catch_ups.note_missed()
    for n in range(ASKS_MAX):
        assert due(catch_ups) == [PULL.base_version]
        assert place_of(catch_ups, exchange) is None
        assert catch_ups.refused == n + 1
    assert due(catch_ups) == []
    with caplog.at_level(logging.WARNING):
        place_of(catch_ups, exchange)
    assert f"the answer of {IDS[0].hex()[:8]} to a catch-up is refused: " in caplog.text
    assert why in caplog.text
    assert due(catch_ups) == []
    catch_ups.note_missed()
    assert due(catch_ups), "of the next round it asks again"


def test_a_refused_answer_to_a_stray_node_leaves_what_it_has_missed_meanwhile() -> None:
    catch_ups = CatchUps()
    catch_ups.is_stray = True
    assert due(catch_ups) == [ANY_LINEAGE]
    assert place_of(catch_ups, answer(-1, 0, 0)) is None
    assert due(catch_ups) == []
    catch_ups.is_stray = True
    assert due(catch_ups) == [ANY_LINEAGE]
    catch_ups.note_missed()
    for _ in range(ASKS_MAX):
        assert place_of(catch_ups, answer(-1, 0, 0)) is None
    assert due(catch_ups) == [PULL.base_version]


def test_vectors_that_do_harm_are_refused_and_the_place_is_none_of_them() -> None:
    catch_ups = CatchUps()
    seen: list[str] = []

    def harm(vectors: object) -> str | None:
        assert isinstance(vectors, dict)
        seen.extend(vectors)
        return "it would be worse"

    found = catch_ups.place_of(answer(1, 1, 1), 0, torch.ones(4), harm)
    assert found is None
    assert seen == ["phi"]
    assert catch_ups.refused == 1
