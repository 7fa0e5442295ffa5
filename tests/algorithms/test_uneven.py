"""Nodes of unequal speed that average in groups cost a swarm no more than the tokens they lack.

Where the cause is switched off (no calls, no pacing, no weights) the claims do not hold.
"""

from __future__ import annotations

import pytest

from swarmnode.testing.lab import gatherings
from swarmnode.testing.lab.arena import Arena
from swarmnode.testing.lab.gatherings import Gatherings
from tests.algorithms.uneven_kit import GROUP, swarm_loss

_QUARTER = (1.0, 1.0, 1.0, 0.25)
_EIGHTH = (1.0, 0.5, 0.25, 0.125)
# Of all nodes together: four equal ones take 1,600 in the time in which three and a quarter take
# 1,300.
_STEPS, _STEPS_OF_QUARTER = 1600, 1300


@pytest.fixture
def without_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gatherings, "fair_weights", lambda claimed: (1.0,) * len(claimed))
    monkeypatch.setattr(Gatherings, "_call", lambda *_: None)
    monkeypatch.setattr(Arena, "_pace", lambda _: None)


def test_one_of_four_at_a_quarter_of_the_speed_costs_its_missing_tokens() -> None:
    equal = swarm_loss(GROUP, _STEPS_OF_QUARTER)
    assert swarm_loss(GROUP, _STEPS_OF_QUARTER, _QUARTER) <= equal


@pytest.mark.usefixtures("without_the_cause")
def test_where_others_wait_for_it_it_costs_more() -> None:
    equal = swarm_loss(GROUP, _STEPS_OF_QUARTER)
    assert swarm_loss(GROUP, _STEPS_OF_QUARTER, _QUARTER) > 1.01 * equal


def test_speeds_of_one_to_eight_learn_as_equal_ones_at_equal_tokens() -> None:
    assert swarm_loss(GROUP, _STEPS, _EIGHTH) <= 1.01 * swarm_loss(GROUP, _STEPS)


@pytest.mark.usefixtures("without_the_cause")
def test_where_others_wait_they_learn_less() -> None:
    assert swarm_loss(GROUP, _STEPS, _EIGHTH) > 1.02 * swarm_loss(GROUP, _STEPS)
