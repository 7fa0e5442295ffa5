"""What each part of trust is for: without it one of the promises is broken, and that is seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from swarmnode.ids import PeerId
from swarmnode.protocol.trust import HALF_LIFE_S, NEUTRAL, Seen, Trust

PEER = PeerId(b"\x11" * 32)
VOTERS = [PeerId(bytes([number]) * 32) for number in range(1, 9)]
SALT = b"\x07" * 16


class NeverFades(Trust):
    """What was once seen counts for ever."""

    def weight(self, peer: PeerId, now: float) -> float:
        return super().weight(peer, 0.0)


class BelievesAll(Trust):
    """Each word counts, praise too, of whoever says it."""

    def __init__(self, salt: bytes) -> None:
        super().__init__(salt)
        self.words: dict[PeerId, dict[PeerId, float]] = {}

    def told(self, author: PeerId, verdicts: Mapping[PeerId, float]) -> None:
        for subject, weight in verdicts.items():
            self.words.setdefault(subject, {})[author] = weight

    def heard_of(self, peer: PeerId) -> float:
        said = self.words.get(peer, {}).values()
        return sum(said) / len(said) if said else NEUTRAL


class BelievesOthersOnly(Trust):
    """What it has measured itself does not count."""

    def note(self, peer: PeerId, seen: Seen, now: float) -> None:
        """Count nothing."""


def a_misjudged_member_comes_back(book: Trust) -> bool:
    for _ in range(5):
        book.note(PEER, Seen.REFUSED, 0.0)
    return book.chance(PEER, 5 * HALF_LIFE_S) > 0.9


def a_few_liars_change_nothing(book: Trust) -> bool:
    for voter in VOTERS:
        book.note(voter, Seen.USEFUL, 0.0)
    for liar in VOTERS[:2]:
        book.told(liar, {PEER: 0.0})
    return book.weight(PEER, 0.0) == NEUTRAL


def praise_lifts_no_liar(book: Trust) -> bool:
    for voter in VOTERS:
        book.note(voter, Seen.USEFUL, 0.0)
        book.told(voter, {PEER: 1.0})
    return book.weight(PEER, 0.0) <= NEUTRAL


def who_is_always_refused_is_met_less(book: Trust) -> bool:
    for _ in range(20):
        book.note(PEER, Seen.REFUSED, 0.0)
    return book.chance(PEER, 0.0) < 0.05


PROMISES: list[Callable[[Trust], bool]] = [
    a_misjudged_member_comes_back,
    a_few_liars_change_nothing,
    praise_lifts_no_liar,
    who_is_always_refused_is_met_less,
]


@pytest.mark.parametrize("keeps", PROMISES)
def test_the_book_keeps_its_promises(keeps: Callable[[Trust], bool]) -> None:
    assert keeps(Trust(SALT))


@pytest.mark.parametrize(
    ("mutant", "broken"),
    [
        (NeverFades, {a_misjudged_member_comes_back}),
        (BelievesAll, {a_few_liars_change_nothing, praise_lifts_no_liar}),
        (BelievesOthersOnly, {who_is_always_refused_is_met_less}),
    ],
)
def test_without_a_part_of_it_a_promise_is_broken(
    mutant: type[Trust], broken: set[Callable[[Trust], bool]]
) -> None:
    assert {keeps for keeps in PROMISES if not keeps(mutant(SALT))} == broken
