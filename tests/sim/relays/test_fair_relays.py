"""Nodes that can punch nothing, on too few circuits: each trains with many others."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from swarmnode.protocol.relay.accounts import Quota, role_quota
from tests.sim.relays.crowd import Crowd, Member, jain

MINUTES_10 = 600.0
# Every node has 2.4 circuits, if all have as many: about what 100 nodes have on two volunteers.
N, SMALL = 20, Quota(circuits_max=24)


def partners(members: Iterable[Member]) -> list[int]:
    return [len(each.partners) for each in members]


def check_fair(crowd: Crowd, partners_min: int) -> None:
    members = crowd.members.values()
    found = partners(members)
    assert min(found) >= partners_min, sorted(found)
    assert jain(found) >= 0.9
    assert jain(each.circuit_s for each in members) >= 0.9


def test_twenty_nodes_on_a_small_relay_train_with_five_others_each() -> None:
    crowd = Crowd(N, [SMALL])
    crowd.run(MINUTES_10)
    check_fair(crowd, 5)


def test_without_sharing_late_nodes_train_with_few_or_none() -> None:
    """What is measured above is due to the sharing: this is the same without."""
    crowd = Crowd(N, [SMALL], is_fair=False)
    crowd.run(MINUTES_10)
    found = partners(crowd.members.values())
    assert min(found) == 0, sorted(found)
    assert jain(found) < 0.6


def test_64_nodes_behind_one_address_all_have_a_place_and_train() -> None:
    crowd = Crowd(64, [Quota()], host="192.0.2.1")
    crowd.run(45.0)
    assert all(each.shares for each in crowd.members.values())
    assert min(partners(crowd.members.values())) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["volunteers", "relays by profession"])
def test_a_hundred_nodes_on_two_relays_train_with_eight_others_each(kind: str) -> None:
    """Volunteers have 128 circuits in all, 2.6 a node, and 128 places: a second one for few."""
    quota = Quota() if kind == "volunteers" else role_quota(2 * 1024**3, 65_536, None)
    crowd = Crowd(100, [quota, quota])
    crowd.run(MINUTES_10)
    check_fair(crowd, 8)
    assert all(each.shares for each in crowd.members.values())
