"""Nodes of unequal speed that average in groups cost a swarm no more than the tokens they lack.

Where the cause is switched off (no calls, no pacing, no weights) the claims do not hold.
"""

from __future__ import annotations

import pytest

from tests.algorithms.uneven_kit import DILOCO, STREAMING, UNCALLED, Make, swarm_loss

_QUARTER = (1.0, 1.0, 1.0, 0.25)
_EIGHTH = (1.0, 0.5, 0.25, 0.125)
# Of all nodes together: four equal ones take 1,600 in the time in which three and a quarter take
# 1,300.
_STEPS, _STEPS_OF_QUARTER = 1600, 1300
_groups = pytest.mark.parametrize("make", [STREAMING, DILOCO], ids=["streaming", "diloco"])


@_groups
def test_one_of_four_at_a_quarter_of_the_speed_costs_its_missing_tokens(make: Make) -> None:
    equal = swarm_loss(make, _STEPS_OF_QUARTER)
    assert swarm_loss(make, _STEPS_OF_QUARTER, _QUARTER) <= equal


def test_where_others_wait_for_it_it_costs_more() -> None:
    equal = swarm_loss(UNCALLED, _STEPS_OF_QUARTER)
    assert swarm_loss(UNCALLED, _STEPS_OF_QUARTER, _QUARTER) > 1.01 * equal


@_groups
def test_speeds_of_one_to_eight_learn_as_equal_ones_at_equal_tokens(make: Make) -> None:
    assert swarm_loss(make, _STEPS, _EIGHTH) <= 1.01 * swarm_loss(make, _STEPS)


def test_where_others_wait_they_learn_less() -> None:
    assert swarm_loss(UNCALLED, _STEPS, _EIGHTH) > 1.02 * swarm_loss(UNCALLED, _STEPS)
