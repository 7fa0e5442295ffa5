"""Graphs and their figures, against closed forms."""

import math

import numpy as np
import pytest

from swarmnode.errors import ConfigError
from swarmnode.strategies.topology import (
    TOPOLOGIES,
    Graph,
    Mixing,
    build_graph,
    complete_mixing,
    exponential,
    graph_over,
    observed,
    parse_edge,
)


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


@pytest.mark.parametrize(
    ("name", "n", "edges"),
    [
        ("ring", 5, "0-1 0-4 1-2 2-3 3-4"),
        ("path", 4, "0-1 1-2 2-3"),
        ("star", 4, "0-1 0-2 0-3"),
        ("complete", 4, "0-1 0-2 0-3 1-2 1-3 2-3"),
        ("exponential", 6, "0-1 0-2 0-4 0-5 1-2 1-3 1-5 2-3 2-4 3-4 3-5 4-5"),
        ("grid", 6, "0-1 0-3 1-2 1-4 2-5 3-4 4-5"),
        ("grid", 7, "0-1 1-2 2-3 3-4 4-5 5-6"),
        ("torus", 6, "0-1 0-2 0-3 1-2 1-4 2-5 3-4 3-5 4-5"),
        ("torus", 5, "0-1 0-4 1-2 2-3 3-4"),
        ("torus", 10, "0-1 0-4 0-5 1-2 1-6 2-3 2-7 3-4 3-8 4-9 5-6 5-9 6-7 7-8 8-9"),
    ],
)
def test_who_is_whose_neighbour(name: str, n: int, edges: str) -> None:
    graph = build_graph(name, n)
    assert graph is not None
    assert [f"{i}-{j}" for i, j in graph.edges] == edges.split()
    assert set(graph.rates.values()) == {1.0}
    assert graph_over(name, n) == graph


def test_edges_and_neighbours_come_in_ascending_order() -> None:
    graph = Graph(4, {(2, 3): 4.0, (0, 2): 2.0, (1, 2): 3.0, (0, 1): 1.0})
    assert graph.edges == ((0, 1), (0, 2), (1, 2), (2, 3))
    assert list(graph.neighbours(2).items()) == [(0, 2.0), (1, 3.0), (3, 4.0)]
    assert graph.neighbours(3) == {2: 4.0}
    assert graph.scaled(2.5).rates == {(2, 3): 10.0, (0, 2): 5.0, (1, 2): 7.5, (0, 1): 2.5}


def test_a_path_of_two_rates_mixes_as_its_laplacian_says() -> None:
    graph = Graph(3, {(0, 1): 2.0, (1, 2): 1.0})
    assert graph.laplacian().tolist() == [[2, -2, 0], [-2, 3, -1], [0, -1, 1]]
    mixing = graph.mixing()
    assert mixing.lambda2 == pytest.approx(3 - math.sqrt(3))
    assert mixing.chi1 == pytest.approx(1 / (3 - math.sqrt(3)))
    assert mixing.chi2 == pytest.approx(1 / 2)  # the slower edge has a resistance of 1
    assert mixing.acceleration == pytest.approx(math.sqrt(mixing.chi1 / 2))
    two = Graph(2, {(0, 1): 4.0}).mixing()
    assert (two.lambda2, two.chi1, two.chi2) == pytest.approx((8.0, 1 / 8, 1 / 8))


def test_one_node_has_no_other_to_mix_with() -> None:
    alone = Mixing(math.inf, 0.0, 0.0)
    assert Graph(1, {}).mixing() == alone
    assert complete_mixing(1, 3.0) == complete_mixing(0, 3.0) == alone


@pytest.mark.parametrize("edge", [(-1, 1), (1, 1), (2, 1), (1, 3)])
def test_an_edge_is_between_two_nodes_that_are_there(edge: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="expected edges"):
        Graph(3, {edge: 1.0})
    assert Graph(3, {(0, 1): 1.0, (1, 2): 1.0}).edges == ((0, 1), (1, 2))


def test_two_members_are_enough_for_a_graph() -> None:
    assert graph_over("ring", 2) == build_graph("ring", 2) == Graph(2, {(0, 1): 1.0})
    assert graph_over("1-0 1-2", 2) == Graph(2, {(0, 1): 1.0}), "of node 2 there is none"
    assert graph_over("0-1", 1) is None


def test_an_edge_is_read_with_the_smaller_end_first() -> None:
    assert parse_edge("0-1") == parse_edge("1-0") == (0, 1)
    assert parse_edge("12-7") == (7, 12)
    for bad in ("3-3", "0-", "0-1-2", "a-1", "0-²", "0-١"):
        with pytest.raises(ConfigError, match="expected an edge"):
            parse_edge(bad)


@pytest.mark.parametrize("elapsed", [1e-12, 0.01, 0.125, 0.2, 1.0, 6.5, 100.0])
def test_the_exponential_of_a_rotation_is_exact_to_rounding(elapsed: float) -> None:
    rate = 1.0
    found = exponential(np.array([[0.0, -rate], [rate, 0.0]]), elapsed)
    c, s = math.cos(rate * elapsed), math.sin(rate * elapsed)
    np.testing.assert_allclose(found, [[c, -s], [s, c]], rtol=0, atol=3e-16 * max(4, 8 * elapsed))


def test_where_no_time_passes_or_nothing_flows_all_stays_as_it_is() -> None:
    for rate, elapsed in ((1.0, 0.0), (0.0, 5.0)):
        found = exponential(np.array([[0.0, -rate], [rate, 0.0]]), elapsed)
        assert found.tolist() == [[1, 0], [0, 1]]
