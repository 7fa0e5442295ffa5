"""Grids give the exact mean; a claimed weight counts up to a bound."""

import hashlib
import random

import pytest

from swarmnode import limits
from swarmnode.errors import ConfigError
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.groups import GROUP_SIZE_MAX, fair_weights, grid

SALT = b"swarm"


def peers(n):
    return [PeerId(hashlib.sha256(b"%d" % number).digest()) for number in range(n)]


def average(n, size):
    """Return (rounds, largest error of any member) of a grid mean over n random numbers."""
    rng = random.Random(n)
    values = {peer: rng.uniform(-1, 1) for peer in peers(n)}
    exact = sum(values.values()) / n
    rounds = grid(SALT, values, size)
    for groups in rounds:
        assert sorted(peer for group in groups for peer in group.members) == sorted(values)
        for group in groups:
            assert len(group.members) <= limits.FINALIZE_GROUP_MEMBERS_MAX
            total = sum(group.weights)
            mean = (
                sum(
                    weight * values[peer]
                    for peer, weight in zip(group.members, group.weights, strict=True)
                )
                / total
            )
            values |= dict.fromkeys(group.members, mean)
    return len(rounds), max(abs(value - exact) for value in values.values())


@pytest.mark.parametrize(
    ("n", "size", "rounds"), [(4, 4, 1), (16, 4, 2), (64, 4, 3), (256, 4, 4), (64, 8, 2)]
)
def test_powers_of_the_size_take_the_least_rounds(n, size, rounds):
    taken, error = average(n, size)
    assert taken == rounds
    assert error < 1e-12


def test_it_is_exact_for_any_number_of_members_and_any_size():
    for size in range(2, GROUP_SIZE_MAX + 1):
        for n in (1, 2, 3, 5, 7, 9, 13, 17, 31, 33, 50, 65, 100, 127):
            assert average(n, size)[1] < 1e-12, (n, size)


def test_sizes_that_would_not_fit_are_refused():
    with pytest.raises(ConfigError, match="expected groups of 2 to 8, got 9"):
        grid(SALT, peers(20), 9)


def test_weights_count_between_two_bounds_and_keep_their_ratios_there():
    assert fair_weights([1.0] * 4 + [1e18]) == (1.0,) * 5
    assert fair_weights([100.0, 25.0, 100.0, 100.0]) == (1.0, 0.25, 1.0, 1.0)
    assert fair_weights([1.0, 2.0, 4.0, 8.0]) == (0.5, 1.0, 1.0, 1.0)
    assert fair_weights([7.0]) == (1.0,)
    # A member that has just come counts too, and does not vanish in the sum.
    assert fair_weights([100.0, 100.0, 1.0]) == (1.0, 1.0, limits.GROUP_WEIGHT_MEDIANS_MIN)
    assert fair_weights([1e18, 5e-324]) == (1.0, 1.0)


def test_who_claims_more_gains_nothing_over_a_mean_without_weights():
    for n in range(2, 12):
        honest = [1.0] * (n - 1)
        for claim in (1.0, 3.0, 1e18):
            counted = fair_weights([*honest, claim])
            assert counted[-1] / sum(counted) <= 1 / n + 1e-12


def test_fewer_than_half_that_lie_together_do_not_widen_the_bound():
    rng, most_medians = random.Random(3), limits.FINALIZE_WEIGHT_MEDIANS_MAX
    for n in range(3, limits.FINALIZE_GROUP_MEMBERS_MAX + 1):
        for claim in (1e18, 1e-18):
            honest = [rng.uniform(1.0, 4.0) for _ in range(n // 2 + 1)]
            liars = [claim] * (n - len(honest))
            counted = fair_weights(honest + liars, most=most_medians, least=0.0)
            share = sum(counted[len(honest) :]) / sum(counted)
            most = most_medians * max(honest) * len(liars)
            assert share <= most / (most + sum(honest)) + 1e-12
            if claim < 1:  # then the median is an honest one, or smaller than all of these
                assert [w / counted[0] for w in counted[: len(honest)]] == pytest.approx(
                    [w / honest[0] for w in honest]
                )
