"""Grids give the exact mean; a claimed weight counts up to a bound."""

import hashlib
import random

import pytest

from swarmnode import limits
from swarmnode.errors import ConfigError
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip import matching
from swarmnode.protocol.gossip.groups import (
    GROUP_SIZE_MAX,
    fair_weights,
    grid,
    seats,
    weights_of,
)

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


def test_weights_that_all_knew_count_as_they_are_and_claimed_ones_within_bounds():
    one, two, three = peers(3)
    agreed, told = {one: 3.0, two: 99.0, three: 0.5}, {one: 1.0, two: 4.0, three: 1.0}
    assert weights_of((two, one), agreed, told) == (99.0, 3.0)
    assert weights_of((two, one), {}, told) == (1.0, 1.0)
    assert weights_of((two, one, three), {}, told) == fair_weights([4.0, 1.0, 1.0])


def test_seats_are_taken_in_the_order_of_ids():
    members = peers(5)
    assert seats(members, 3) == tuple(sorted(members)[:3])
    assert seats(reversed(members), 9) == tuple(sorted(members))


def test_the_mean_of_a_grid_is_weighted_as_it_was_asked_for():
    rng = random.Random(5)
    for size in range(2, GROUP_SIZE_MAX + 1):
        for n in (1, 2, 3, 7, 9, 17, 33, 65):
            members = peers(n)
            values = {peer: rng.uniform(-1, 1) for peer in members}
            weights = {peer: rng.uniform(0.1, 9.0) for peer in members}
            total = sum(weights.values())
            exact = sum(weights[peer] * values[peer] for peer in members) / total
            for groups in grid(SALT, members, size, weights):
                for group in groups:
                    pairs = list(zip(group.members, group.weights, strict=True))
                    mean = sum(w * values[p] for p, w in pairs) / sum(group.weights)
                    values |= dict.fromkeys(group.members, mean)
            assert max(abs(value - exact) for value in values.values()) < 1e-12, (n, size)


def test_one_line_averages_with_the_weights_that_its_members_were_given():
    members = matching.order(SALT, 0, peers(3))
    ((group,),) = grid(SALT, members, 3)
    assert (group.members, group.weights) == (tuple(members), (1.0, 1.0, 1.0))
    weights = dict(zip(members, (1.0, 2.0, 5.0), strict=True))
    ((group,),) = grid(SALT, members, 3, weights)
    assert (group.members, group.weights) == (tuple(members), (1.0, 2.0, 5.0))


def test_two_of_a_longer_line_share_its_weight_in_a_group():
    """Five members in two lines, of three and of two."""
    members = matching.order(SALT, 0, peers(5))
    first, second = grid(SALT, members, 4)
    assert [group.members for group in first] == [tuple(members[number::4]) for number in range(4)]
    ((group),) = second
    assert group.members == (members[0], members[4], *members[1:4])
    assert group.weights == (1.0, 1.0, 1.0, 1.0, 1.0)
    weights = dict.fromkeys(members, 1.0) | {members[4]: 3.0}
    _, ((group),) = grid(SALT, members, 4, weights)
    assert group.weights == (2.0, 2.0, 1.0, 1.0, 1.0)


@pytest.mark.parametrize("size", [1, GROUP_SIZE_MAX + 1])
def test_a_group_has_two_members_or_more_and_no_more_than_fit(size):
    with pytest.raises(ConfigError, match="expected groups of 2"):
        grid(SALT, peers(3), size)
    assert grid(SALT, peers(3), min(max(size, 2), GROUP_SIZE_MAX))
