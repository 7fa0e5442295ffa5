"""Whole swarms of failure detectors: which deaths are false, and how soon real ones are known."""

from __future__ import annotations

import itertools
import random
from functools import partial

import pytest

from swarmnode import limits
from swarmnode.protocol.membership.swim_events import Leave, MemberState
from tests.property.models.swim_model import SwimNetwork

ONCE_IN_S = 600.0


def settled(n_nodes: int, seed: int, *, loss: float = 0.01) -> SwimNetwork:
    net = SwimNetwork(n_nodes, seed, loss=loss)
    net.run_until(net.agree, 60.0)
    return net


def with_pauses(net: SwimNetwork, seconds: float, pause_s_max: float) -> None:
    """Stop each node's world about once in ten minutes, for up to ``pause_s_max``."""
    for node in net.nodes:
        at = net.now
        while (at := at + net.rng.expovariate(1 / ONCE_IN_S)) < net.now + seconds:
            net.at(at, partial(net.pause, node, net.rng.uniform(0.0, pause_s_max)))
    net.run(seconds)


def test_in_calm_no_member_is_declared_dead_for_an_hour() -> None:
    net = settled(50, seed=1)
    net.run(3600.0)
    assert net.probes() > 80_000
    assert len(net.deaths) <= net.probes() / 1000
    assert net.deaths == [], "the bound is one in a thousand; the figure is none"
    assert net.agree()


def test_short_pauses_kill_hardly_any_member() -> None:
    """Shorter than a suspicion: only where a refutation is late too, once in 60,000 probes."""
    net = settled(50, seed=2)
    with_pauses(net, 600.0, pause_s_max=6.0)
    assert sum(node.core.statistics().stalls_total for node in net.nodes) > 20
    assert len(net.deaths) <= net.probes() / 1000


def test_long_pauses_hurt_only_the_paused_and_not_for_long() -> None:
    """After a minute's standstill a node is believed dead, rightly; awake, it soon is not."""
    net = settled(50, seed=3)
    with_pauses(net, 600.0, pause_s_max=60.0)
    assert len(net.deaths_of("paused")) > 0
    wrong = net.deaths_of("fine")  # it was awake again, and its refutation on its way
    assert len(wrong) <= net.probes() / 100
    net.run(60.0)
    net.run_until(net.agree, 30.0)
    assert net.deaths_of("down", "cut") == []


@pytest.mark.parametrize("seed", [4, 5])
def test_a_crash_is_known_to_all_within_half_a_minute(seed: int) -> None:
    net = settled(100, seed)
    victims = net.rng.sample(net.nodes, 3)
    for victim in victims:
        net.crash(victim)
    assert net.run_until(net.agree, 40.0) <= 32.0
    assert {death.of for death in net.deaths} == {victim.number for victim in victims}
    for victim in victims:
        net.restart(victim)
    assert net.run_until(net.agree, 40.0) <= 20.0
    assert len(net.deaths_of("fine")) == 0


@pytest.mark.parametrize("seed", [6, pytest.param(7, marks=pytest.mark.slow)])
def test_a_healed_partition_converges_within_half_a_minute(seed: int) -> None:
    net = settled(100, seed)
    net.cut({node.peer: int(node.number < 40) for node in net.nodes})
    net.run(120.0)
    for node in net.nodes:
        same_side = {other.peer for other in net.nodes if (other.number < 40) == (node.number < 40)}
        assert set(node.core.live_members()) == same_side - {node.peer}
    net.cut({})
    assert net.run_until(net.agree, 30.0) <= 30.0


def test_who_leaves_is_known_to_have_left() -> None:
    net = settled(30, seed=8)
    leaver = net.nodes[5]
    net.feed(leaver, Leave("enough for today"))
    leaver.is_up = False
    assert net.run_until(net.agree, 10.0) <= 5.0
    assert net.deaths == []
    told = [c for _, _, c in net.changes if c.state is MemberState.LEFT]
    assert len(told) == 29
    assert {change.reason for change in told} == {"enough for today"}


@pytest.mark.parametrize(("loss", "share_max"), [(0.1, 0.0), (0.25, 0.01)])
def test_lost_messages_kill_hardly_any_member(loss: float, share_max: float) -> None:
    net = SwimNetwork(30, seed=9, loss=loss)
    net.run(300.0)
    assert len(net.deaths) <= net.probes() * share_max
    assert sum(node.core.statistics().suspected_total for node in net.nodes) > 0


@pytest.mark.parametrize("seed", range(3))
def test_any_mixture_of_faults_ends_well(seed: int) -> None:
    """Versions never fall (the model checks it all along); when faults end, all agree."""
    net = SwimNetwork(20, seed, loss=0.05)
    rng = random.Random(f"faults {seed}")
    for _ in range(40):
        net.run(rng.uniform(0.0, 15.0))
        node = rng.choice(net.nodes)
        fault = rng.randrange(5)
        if fault == 0 and len(net.up()) > 10:
            net.crash(node)
        elif fault == 1 and not node.is_up:
            net.restart(node)
        elif fault == 2:
            net.pause(node, rng.uniform(0.0, 60.0))
        elif fault == 3:
            net.cut({other.peer: rng.randrange(2) for other in net.nodes})
        else:
            net.cut({})
    net.cut({})
    net.loss = 0.0
    for node in net.nodes:
        if not node.is_up:
            net.restart(node)
    net.run(60.0)
    net.run_until(net.agree, 60.0)
    for first, second in itertools.pairwise(net.nodes):
        own = first.core.version_of(first.peer)
        assert second.core.version_of(first.peer) == own


def test_the_same_seed_gives_the_same_history() -> None:
    def digest(seed: int) -> str:
        net = SwimNetwork(15, seed, loss=0.1)
        net.run(60.0)
        net.crash(net.nodes[3])
        net.run(60.0)
        return net.digest()

    assert digest(10) == digest(10)
    assert digest(10) != digest(11)


def test_messages_stay_within_their_bounds() -> None:
    net = SwimNetwork(60, seed=12)
    largest = 0
    send = net.send

    def watched(node, peer, message):  # type: ignore[no-untyped-def]
        nonlocal largest
        largest = max(largest, len(getattr(message, "news", ())))
        send(node, peer, message)

    net.send = watched  # type: ignore[method-assign]
    net.run(30.0)
    assert 0 < largest <= limits.SWIM_NEWS_MAX
    net.run(60.0)
    assert all(node.core.statistics().rumours == 0 for node in net.nodes), "old news ends"
