"""Graphs and their figures, against closed forms."""

import math

import pytest

from swarmnode.errors import ConfigError
from swarmnode.strategies.topology import TOPOLOGIES, Graph, build_graph, observed


@pytest.mark.parametrize(
    ("name", "n", "edges"),
    [
        ("ring", 16, 16),
        ("ring", 3, 3),
        ("ring", 2, 1),
        ("torus", 16, 32),
        ("torus", 12, 24),
        ("complete", 16, 120),
        ("star", 16, 15),
        ("path", 16, 15),
        ("grid", 16, 24),
        ("exponential", 16, 56),
        ("exponential", 5, 10),
        ("exponential", 2, 1),
    ],
)
def test_edges(name, n, edges):
    graph = build_graph(name, n)
    assert len(graph.edges) == edges
    assert math.isfinite(graph.mixing().chi1), "connected"
    assert set(graph.neighbours(0)) == {i + j for i, j in graph.edges if 0 in (i, j)}


@pytest.mark.parametrize(("n", "chi1"), [(8, 3.41), (16, 13.14), (32, 52.0), (64, 207.7)])
def test_a_ring_on_which_every_node_takes_part_in_one_exchange_per_step(n, chi1):
    mixing = build_graph("ring", n).with_node_rate(1.0).mixing()
    assert mixing.chi1 == pytest.approx(chi1, rel=0.002)
    assert mixing.lambda2 == pytest.approx(1 - math.cos(2 * math.pi / n))
    assert mixing.chi2 == pytest.approx((n - 1) / n)  # resistance of an edge in a ring, rate 1/2


def test_a_complete_graph_has_one_chi():
    mixing = build_graph("complete", 16).mixing()
    assert mixing.chi1 == pytest.approx(1 / 16)
    assert mixing.chi2 == pytest.approx(1 / 16)
    assert mixing.acceleration == pytest.approx(1 / 16)


def test_what_twice_the_rates_do():
    graph = build_graph("torus", 16)
    once, twice = graph.mixing(), graph.scaled(2.0).mixing()
    assert twice.lambda2 == pytest.approx(2 * once.lambda2)
    assert twice.chi2 == pytest.approx(once.chi2 / 2)


def test_a_star_gives_its_centre_more():
    graph = build_graph("star", 5).with_node_rate(1.0)
    assert graph.neighbours(3) == {0: 0.625}  # half its own starts, an eighth of the centre's


def test_observed_exchanges_in_two_parts_never_mix():
    graph = observed(4, {(0, 1): 10, (2, 3): 4, (1, 2): 0}, duration=2.0)
    assert graph.rates == {(0, 1): 5.0, (2, 3): 2.0}
    mixing = graph.mixing()
    assert (mixing.lambda2, mixing.chi1, mixing.chi2) == (0.0, math.inf, math.inf)
    assert observed(4, {}, 1.0).mixing().chi1 == math.inf


@pytest.mark.parametrize("times", [10**6, 10**7])
def test_two_parts_never_mix_however_often_two_nodes_meet_in_one_of_them(times):
    edges = {(0, 1): times, (1, 2): 1, (2, 3): 3, (4, 5): 2}
    assert observed(6, edges, duration=3.0).mixing().chi1 == math.inf
    joined = observed(6, {**edges, (3, 4): 1}, duration=3.0).mixing()
    assert joined.chi1 == pytest.approx(7.5, rel=1e-3)


def test_what_is_no_graph_is_refused():
    with pytest.raises(ConfigError, match=r"expected a topology among ring, .*'line'"):
        build_graph("line", 4)
    with pytest.raises(ConfigError, match="at least 2 nodes"):
        build_graph("ring", 1)
    with pytest.raises(ConfigError, match="expected edges"):
        Graph(3, {(2, 1): 1.0})
    assert build_graph("matching", 4) is None
    assert all(name == "matching" or build_graph(name, 6) for name in TOPOLOGIES)
