"""Nodes that differ cost a swarm no more than the tokens they lack: in speed, in data, by kills.

Where the cause is switched off (no calls, no pacing, no weights; rare means) the claims do not
hold.
"""

from __future__ import annotations

import pytest

from tests.algorithms.uneven_kit import (
    DEFAULT,
    DILOCO,
    OFTEN,
    PAIRS,
    STREAMING,
    UNCALLED,
    UNWEIGHTED,
    Make,
    dialects,
    kills,
    share,
    swarm_loss,
)

_QUARTER = (1.0, 1.0, 1.0, 0.25)
_EIGHTH = (1.0, 0.5, 0.25, 0.125)
# Of all nodes together: four equal ones take 1,600 in the time in which three and a quarter take
# 1,300.
_STEPS, _STEPS_OF_QUARTER = 1600, 1300
# Twenty seconds of steps that take a tenth of one; three kills while the swarm takes these.
_KILL_EVERY, _STEPS_WITH_KILLS = 200, 3200
_all = pytest.mark.parametrize(
    "make", [STREAMING, DILOCO, PAIRS], ids=["streaming", "diloco", "pairs"]
)
_groups = pytest.mark.parametrize("make", [STREAMING, DILOCO], ids=["streaming", "diloco"])


@_groups
def test_one_of_four_at_a_quarter_of_the_speed_costs_its_missing_tokens(make: Make) -> None:
    equal = swarm_loss(make, _STEPS_OF_QUARTER)
    assert swarm_loss(make, _STEPS_OF_QUARTER, _QUARTER) <= equal


def test_where_others_wait_for_it_it_costs_more() -> None:
    equal = swarm_loss(UNCALLED, _STEPS_OF_QUARTER)
    assert swarm_loss(UNCALLED, _STEPS_OF_QUARTER, _QUARTER) > 1.01 * equal


@_all
def test_speeds_of_one_to_eight_learn_as_equal_ones_at_equal_tokens(make: Make) -> None:
    assert swarm_loss(make, _STEPS, _EIGHTH) <= 1.01 * swarm_loss(make, _STEPS)


@pytest.mark.parametrize(
    "make", [STREAMING, DILOCO, DEFAULT], ids=["streaming", "diloco", "default"]
)
@pytest.mark.parametrize("seed", [5, 6, 7])
def test_by_the_rule_of_groups_they_learn_no_less(make: Make, seed: int) -> None:
    """It counts the first only up to a length; where that was the third's, 2.5 to 5.4 % more were
    lost. What the rule has was chosen on seed 1, this limit after these."""
    equal = swarm_loss(make, _STEPS, guarded=True, seed=seed)
    assert swarm_loss(make, _STEPS, _EIGHTH, guarded=True, seed=seed) <= 1.015 * equal


def test_as_shipped_they_learn_no_less() -> None:
    """Its means are due every fifth step of the fastest, in which the slowest takes none."""
    assert swarm_loss(DEFAULT, _STEPS, _EIGHTH) <= swarm_loss(DEFAULT, _STEPS)


def test_where_pairs_have_no_weights_they_learn_less() -> None:
    weighted = swarm_loss(PAIRS, _STEPS, _EIGHTH)
    assert swarm_loss(UNWEIGHTED, _STEPS, _EIGHTH) > 1.01 * weighted  # measured 1.017


def test_where_others_wait_they_learn_less() -> None:
    assert swarm_loss(UNCALLED, _STEPS, _EIGHTH) > 1.02 * swarm_loss(UNCALLED, _STEPS)


@_groups
def test_a_kill_every_twenty_seconds_costs_a_twentieth_of_the_tokens_at_most(make: Make) -> None:
    faults = kills(4, _KILL_EVERY, _STEPS_WITH_KILLS // 4)
    fewer = int(0.95 * _STEPS_WITH_KILLS)
    assert swarm_loss(make, _STEPS_WITH_KILLS, faults=faults) <= swarm_loss(make, fewer)


def test_nodes_with_a_corpus_each_keep_nine_tenths_of_the_share_that_they_reach_on_one() -> None:
    assert share(OFTEN, _STEPS, dialects()) >= 0.9 * share(OFTEN, _STEPS)


def test_where_means_are_rare_they_do_not() -> None:
    assert share(STREAMING, _STEPS, dialects()) < 0.8 * share(STREAMING, _STEPS)
