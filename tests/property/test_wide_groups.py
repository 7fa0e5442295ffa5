"""24 and 64 members, of which some die at any moment, stay on one lineage."""

import pytest

from tests.property.models.lineage_world import LineageWorld


def trained(n, rounds, deaths_per_round, seed):
    world = LineageWorld(n, seed)
    world.train(rounds, deaths_per_round=deaths_per_round)
    world.check_one_lineage()
    newest = max(member.version[0] for member in world.members)
    behind = [newest - member.version[0] for member in world.survivors]
    assert sum(gap <= 2 for gap in behind) >= 0.8 * len(behind)  # one that is just back catches up
    committed = sum(member.committed for member in world.members)
    aborted = sum(member.aborted for member in world.members)
    assert committed >= 0.8 * (committed + aborted)
    return world


@pytest.mark.parametrize("n", [2, 3, 8])
def test_a_few_members_stay_on_one_lineage(n):
    trained(n, 12, 0.2, 1)


def test_24_members_stay_on_one_lineage_for_a_while():
    trained(24, 6, 0.5, 1)


@pytest.mark.parametrize("n", [24, pytest.param(64, marks=pytest.mark.slow)])
def test_many_members_stay_on_one_lineage_under_churn(n):
    world = trained(n, 50, 0.3, 2)
    assert sum(member.life for member in world.members) > 10


def test_canary_without_a_quorum_two_halves_go_on(monkeypatch):
    for quorum, branches in ((True, 1), (False, 2)):
        world = LineageWorld(6, 3)
        if not quorum:
            monkeypatch.setattr(
                "swarmnode.protocol.gossip.group_events.has_majority",
                lambda _electorate, _view: True,
            )
        for member in world.members:
            member.train()
        world.run(3.0)
        for one in range(3):
            for two in range(3, 6):
                world.cut(one, two)
        world.run(12.0)
        assert max(len(made) for made in world.made.values()) == branches
