"""Swarms in the simulator: their members, the sessions between these, and what each says."""

from __future__ import annotations

import pytest

from swarmnode.errors import ConfigError
from swarmnode.testing.net_model import PROFILES, Weather
from swarmnode.testing.simulate import Simulation, dht_of, run_simulation
from swarmnode.testing.world import ToyIdentity, World
from swarmnode.testing.world_state import Reader
from swarmnode.testing.world_swarm import (
    SESSIONS_MAX,
    SESSIONS_WANTED,
    Stopwatch,
    state_of,
    swim_of,
)
from tests.kits.crdt_world import NETWORK, ToySigner, signed_record


@pytest.fixture(scope="module")
def calm() -> Simulation:
    simulation = Simulation(30, "calm", 5, members_max=16)
    simulation.run()
    assert simulation.world.violations == []
    return simulation


def test_nodes_are_spread_over_swarms_of_equal_size(calm: Simulation) -> None:
    assert [len(swarm.members) for swarm in calm.swarms.all] == [15, 15]
    for swarm in calm.swarms.all:
        ids = {node.peer_id for node in swarm.members}
        for node in swarm.members:
            assert {*swim_of(node).core.live_members(), node.peer_id} == ids


def test_every_node_has_some_sessions_and_none_many(calm: Simulation) -> None:
    for swarm in calm.swarms.all:
        counts = [state_of(node).core.statistics().neighbours for node in swarm.members]
        assert min(counts) >= SESSIONS_WANTED
        assert max(counts) <= SESSIONS_MAX


def test_all_read_what_all_said(calm: Simulation) -> None:
    for swarm in calm.swarms.all:
        views = [state_of(node).core.view for node in swarm.members]
        now = calm.world.now
        assert views[0].members(now) == tuple(sorted(node.peer_id for node in swarm.members))
        assert views[0].counters()["steps"] > 1000
        assert all(view.counters() == views[0].counters() for view in views)
        for node in swarm.members:
            assert views[0].of(node.peer_id, now).get("address", ()) == node.addresses
        spoken = {len(view.registers()) for view in views}
        assert spoken == {15}


def test_records_are_said_far_less_often_than_they_are_taken_in(calm: Simulation) -> None:
    watch = calm.swarms.state_watch
    assert watch.words >= 30 * 840 / 100
    assert watch.records == 15 * watch.words


def test_who_is_behind_a_nat_names_no_address_and_is_a_member_like_all(calm: Simulation) -> None:
    nodes = list(calm.world.up.values())
    nated = [node for node in nodes if node.place.is_nated]
    assert 2 <= len(nated) <= 10
    assert any(not node.addresses for node in nated)
    for node in nated:
        assert dht_of(node).bootstrapped_at is not None
        assert calm.world.network.delay_s(nodes[0].number, node.number, 1e6, anew=True) is None


def test_replaced_nodes_join_the_swarm_that_lost_one() -> None:
    simulation = Simulation(24, "churn", 4, members_max=8)
    simulation.run()
    assert simulation.world.violations == []
    assert len(simulation.world.nodes) > 24
    assert [len(swarm.members) for swarm in simulation.swarms.all] == [8, 8, 8]


def test_a_stopwatch_counts_from_the_change_and_gives_up() -> None:
    world = World(1, Weather(), ToyIdentity.from_seed, lambda node: [])
    watch = Stopwatch(world, lambda: world.now >= 12.0, limit_s=20.0)
    world.at(5.0, lambda: watch.start(3.0))
    world.run(100.0)
    assert watch.took_s == 9.0
    never = Stopwatch(world, lambda: False, limit_s=20.0)
    never.start(world.now)
    world.run(200.0)
    assert never.took_s is None


def test_a_record_is_opened_once_and_never_taken_for_another() -> None:
    reader = Reader()
    opened = signed_record(ToySigner.make(1))
    first = reader.read(opened.signed, NETWORK)
    assert reader.read(opened.signed, NETWORK) is first
    other = signed_record(ToySigner.make(2))
    forged = type(other.signed)(other.signed.body, other.signed.public_key, opened.signed.signature)
    assert reader.read(forged, NETWORK).signed == forged


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((1, "calm"), "at least 2 nodes, not 1"),
        ((9, "storm"), "expected a profile of calm, churn, partition, lossy, grey, got 'storm'"),
        ((9, "calm", 1), "at least 2 members, not 1"),
    ],
)
def test_bad_arguments_are_named(arguments: tuple[int, str, int], problem: str) -> None:
    nodes, profile, *members = arguments
    with pytest.raises(ConfigError, match=problem):
        Simulation(nodes, profile, 1, members_max=members[0] if members else None)


@pytest.mark.slow
def test_a_large_swarm_heals() -> None:
    result, violations = run_simulation(200, "partition", 1, members_max=200, real=False)
    assert violations == []
    assert result.membership_converged_s is not None
    assert result.membership_converged_s <= PROFILES["partition"].membership_s
    assert result.state_converged_s is not None
    assert result.state_converged_s <= PROFILES["partition"].state_s
