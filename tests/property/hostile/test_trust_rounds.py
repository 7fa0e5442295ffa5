"""What trust does to rounds: liars get few of them, and a member that was misjudged comes back."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from swarmnode.protocol.trust import NEUTRAL
from tests.property.models.trust_world import Refuses, TrustWorld, peer

N = 20
LIARS = frozenset(range(16, 20))
ROUNDS = 200


def liars_are_refused(seed: int, honest: float) -> Refuses:
    """Liars always, honest members now and then."""
    rng = random.Random(seed)
    return lambda _one, two, _round: two in LIARS or rng.random() < honest


def counted(world: TrustWorld) -> int:
    return sum(n for pair, n in world.counted.items() if not LIARS & set(pair))


@pytest.mark.parametrize("honest", [0.0, 0.1])
def test_liars_lose_most_of_their_rounds_and_the_others_win_them(honest: float) -> None:
    shares, gained = {}, {}
    for is_on in (False, True):
        world = TrustWorld(N, liars_are_refused(1, honest), liars=LIARS, is_on=is_on)
        world.run(ROUNDS)
        before, so_far = Counter(world.met), counted(world)
        world.run(50)
        shares[is_on], gained[is_on] = world.share_of(LIARS, before), counted(world) - so_far
    assert shares[False] > 0.3
    assert shares[True] < 0.12
    assert gained[True] > 1.05 * gained[False]


def test_what_four_of_twenty_say_of_the_others_puts_none_below_neutral() -> None:
    world = TrustWorld(N, liars_are_refused(2, 0.0), liars=LIARS)
    world.run(ROUNDS)
    honest = sorted(set(range(N)) - LIARS)
    for one in honest:
        book = world.books[one]
        assert all(book.weight(peer(two), world.now) >= NEUTRAL for two in honest if two != one)
        assert all(book.weight(peer(liar), world.now) < NEUTRAL for liar in LIARS)


def test_a_member_that_all_misjudge_five_times_is_back_within_two_hours() -> None:
    rng, times = random.Random(3), Counter[int]()

    def refuses(one: int, two: int, _round: int) -> bool:
        """The data of member 0 differ: each other refuses it five times."""
        if two == 0 and times[one] < 5:
            times[one] += 1
            return True
        return rng.random() < 0.05

    world = TrustWorld(12, refuses)
    world.run(650)
    before = Counter(world.counted)
    world.run(70)
    rates = Counter[int]()
    for pair, n in (world.counted - before).items():
        for member in pair:
            rates[member] += n
    others = [rates[number] for number in range(1, 12)]
    assert world.now <= 7200.0
    assert rates[0] > 0.8 * sum(others) / len(others)
