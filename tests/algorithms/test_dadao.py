"""DADAO: to the optimum on every graph, with the gradients and exchanges of the theory."""

import dataclasses
import math
import random
from functools import cache

import numpy as np
import pytest
import torch

from swarmnode.errors import ConfigError
from swarmnode.strategies.base import Context, Exchange, Meta, Offer, Received, TaskFacts
from swarmnode.strategies.dadao import Constants, Dadao, exchange_rates, exponential
from swarmnode.strategies.registry import check_strategy
from swarmnode.strategies.topology import build_graph
from swarmnode.tensor.layout import Layout
from swarmnode.testing.lab.arena import Arena
from swarmnode.testing.lab.faults import Faults, Outage
from swarmnode.testing.lab.tasks import Quadratic
from tests.algorithms.kit import total

PAPER = {"safety": 1.0, "guard": 0.0}
GRAPHS = ("complete", "star", "torus", "grid", "ring")


def solve(task, graph, target, *, strategy=Dadao, settings=PAPER, loss=0.0, seed=0, limit=3000):
    """Run until the error is ``target``; return the arena, or None if it gets nowhere."""
    arena = Arena(
        task,
        lambda x: strategy(settings, x),
        graph=build_graph(graph, task.n),
        seed=seed,
        faults=Faults(loss=loss),
    )
    while arena.now < limit:
        arena.run(1)
        error = arena.measure()["error"]
        if not error < 1e6:
            return None
        if error <= target:
            return arena
    return None


@cache
def on_graph(graph, seed):
    return solve(Quadratic.lsq(16, seed), graph, 1e-12, seed=seed)


# --- constants ------------------------------------------------------------------------------


def test_constants():
    """For mu = 0.5 and L = 4: nu = 1/4, q = 1/4."""
    assert dataclasses.asdict(Constants.of(0.5, 4.0, chi1=3.0)) == {
        "nu": 1 / 4,
        "alpha": 1 / 16,
        "alpha_t": 1 / 32,
        "eta": 1 / 32,
        "eta_t": 1 / 32,
        "theta": 2.0,
        "delta": 1 / 16,
        "delta_t": 1.0,
        "gamma": 1 / 16,
        "gamma_t": 1 / 4,
        "beta": 0.5,
        "beta_t": 24.0,
    }
    assert Constants.of(0.5, 4.0, chi1=3.0, safety=0.5).beta_t == 12.0


@pytest.mark.parametrize("kappa", [4.0, 5.1, 16.0, 64.0, 256.0, 1000.0])
def test_spectrum_of_the_flow(kappa):
    """{0, 0, −q/4, −3q/8, and a pair with real part −q/8 and product 1/8}."""
    q = math.sqrt(1 / (2 * kappa))
    matrix = Constants.of(1 / kappa, 1.0, chi1=2.0).flow_matrix()
    values = sorted(np.linalg.eigvals(matrix).tolist(), key=lambda v: (v.real, v.imag))
    pair = math.sqrt(1 / 8 - (q / 8) ** 2)
    expected = [
        complex(-3 * q / 8),
        complex(-q / 4),
        complex(-q / 8, -pair),
        complex(-q / 8, pair),
        0j,
        0j,
    ]
    assert values == [pytest.approx(v, abs=1e-7) for v in expected]


@pytest.mark.parametrize("kappa", [4.0, 5.1, 256.0, 1000.0])
@pytest.mark.parametrize("elapsed", [1e-9, 0.01, 0.3, 1.0, 7.0])
def test_exponential_is_that_of_torch(kappa, elapsed):
    """A cached eigendecomposition is garbage for 4 and 256."""
    matrix = Constants.of(1 / kappa, 1.0, chi1=2.0).flow_matrix()
    expected = torch.linalg.matrix_exp(torch.from_numpy(matrix) * elapsed).numpy()
    np.testing.assert_allclose(exponential(matrix, elapsed), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("graph", "n", "rate"),
    [
        ("complete", 16, 10.61),
        ("star", 16, 15.0),
        ("grid", 16, 26.3),
        ("ring", 16, 39.7),
        ("path", 16, 76.5),
        ("complete", 8, 4.95),
        ("ring", 8, 9.78),
    ],
)
def test_exchanges_per_unit_of_time(graph, n, rate):
    rates = exchange_rates(build_graph(graph, n))
    assert sum(rates.rates.values()) == pytest.approx(rate, rel=0.003)
    mixing = rates.mixing()
    assert 2 * mixing.chi1 * mixing.chi2 == pytest.approx(1.0)


# --- convergence ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (2, 3))])
def test_five_graphs_to_the_optimum(seed):
    per_rate = {}
    for graph in GRAPHS:
        arena = on_graph(graph, seed)
        assert arena is not None, graph
        # measured with seed 0: 7485, 7417, 7214, 7001, 6730
        assert 6000 <= arena.tally.gradients <= 8500, graph
        rate = sum(exchange_rates(arena.graph).rates.values())
        per_rate[graph] = arena.tally.exchanges / rate
    # measured with seed 0: 464, 451, 452, 434, 435 exchanges for each unit of √(2 χ1 χ2)
    middle = sum(per_rate.values()) / len(per_rate)
    assert all(value == pytest.approx(middle, rel=0.1) for value in per_rate.values()), per_rate


@pytest.mark.slow
def test_a_path_to_the_optimum():
    arena = on_graph("path", 0)  # it takes as many exchanges as three other graphs together
    assert 6000 <= arena.tally.gradients <= 8500  # measured 6811
    ratio = arena.tally.exchanges / sum(exchange_rates(arena.graph).rates.values())
    assert 400 <= ratio <= 490  # measured 429


def test_the_duals_sum_to_zero():
    arena = on_graph("ring", 0)
    for name in ("z", "z_tilde"):
        assert float(total(arena, name).abs().max()) <= 1e-12  # measured 6e-14


def conditioned(kappa, **kwargs):
    return solve(Quadratic.conditioned(8, kappa, seed=0), "ring", 1e-8, **kwargs)


@cache
def time_at_16():
    return conditioned(16.0).now


def test_four_times_the_condition_takes_twice_the_time():
    ratio = conditioned(64.0).now / time_at_16()
    assert ratio == pytest.approx(2.0, abs=0.2)  # measured 2.00 (1295 over 646)


# --- mutants ----------------------------------------------------------------------------------


class ThetaSign(Dadao):
    """A mutant: the dual of the gradients runs away from its goal."""

    def start(self, ctx):
        super().start(ctx)
        self.constants = dataclasses.replace(self.constants, theta=-self.constants.theta)
        self._m = self.constants.flow_matrix()


class SendsZ(Dadao):
    """A mutant: z is sent in place of y + z."""

    def view(self, intent, name, out):
        out.copy_(self.buffers()["z"])


class PlainBeta(Dadao):
    """A mutant: no acceleration in the exchanges."""

    def start(self, ctx):
        super().start(ctx)
        self.constants = dataclasses.replace(self.constants, beta_t=self.constants.beta)


@pytest.mark.parametrize("mutant", [ThetaSign, SendsZ])
def test_a_mutant_never_arrives(mutant):
    assert conditioned(16.0, strategy=mutant, limit=700) is None


def test_without_acceleration_in_the_exchanges_it_takes_half_as_long_again():
    limit = 1.5 * time_at_16()
    assert conditioned(16.0, strategy=PlainBeta, limit=limit) is None  # measured 2.3 times


# --- the guard --------------------------------------------------------------------------------


def test_half_of_the_exchanges_failing_diverges_with_the_constants_of_the_paper():
    assert conditioned(16.0, loss=0.5) is None


def test_half_of_the_safety_stands_half_of_the_exchanges_failing():
    arena = conditioned(16.0, loss=0.5, settings={"safety": 0.5, "guard": 0.0})
    assert arena is not None
    assert arena.now <= 1.5 * time_at_16()  # measured 763 against 646


def test_the_guard_slows_gradients_down_until_there_are_exchanges_enough():
    arena = conditioned(16.0, loss=0.5, settings={"safety": 1.0, "guard": 0.75})
    assert arena is not None
    paces = [node.strategy.metrics()["pace"] for node in arena.nodes]
    assert sum(paces) / len(paces) == pytest.approx(0.5 / 0.75, abs=0.15)
    assert arena.tally.gradients <= 2 * 8 * time_at_16()


def test_the_guard_costs_nothing_where_nothing_fails():
    arena = conditioned(16.0, settings={"safety": 1.0, "guard": 0.5})
    assert arena.now <= 1.05 * time_at_16()


# --- what it is for ---------------------------------------------------------------------------


def test_other_tasks_and_other_precision_are_refused():
    with pytest.raises(ConfigError, match=r"strongly convex task .* use a2cid2"):
        check_strategy("dadao", {}, TaskFacts("digits"))
    with pytest.raises(ConfigError, match=r"expected parameters of torch\.float64"):
        Dadao({}, torch.zeros(3))


# --- epochs -----------------------------------------------------------------------------------


def test_the_optimum_stays_where_it_is_when_a_node_is_lost_and_comes_back():
    """Its duals are gone; with those of the others kept, all would converge to another point."""
    task = Quadratic.conditioned(4, 4.0, seed=0)
    outage = Outage(node=2, begin=30.0, end=50.0)
    arena = Arena(
        task, lambda x: Dadao({}, x), graph=build_graph("ring", 4), faults=Faults(outages=(outage,))
    )
    arena.run(350)
    assert arena.measure()["error"] <= 1e-6
    assert len({node.strategy.epoch for node in arena.nodes}) == 1
    for name in ("z", "z_tilde"):
        assert float(total(arena, name).abs().max()) <= 1e-9


def test_who_has_seen_other_members_for_a_moment_takes_the_rest_along():
    """One node sees two members go and come: the others, which did not, begin again with it."""
    arena = Arena(
        Quadratic.conditioned(4, 4.0, seed=0), lambda x: Dadao({}, x), graph=build_graph("ring", 4)
    )
    arena.run(30)
    one = arena.nodes[1]
    one.strategy.on_membership(arena.ids[:3])
    one.strategy.on_membership(arena.ids)
    arena.run(30)
    (epoch,) = {node.strategy.epoch for node in arena.nodes}
    assert 2 < epoch <= 2 + 4  # each node has gone one further the first time
    for name in ("z", "z_tilde"):
        assert float(total(arena, name).abs().max()) <= 1e-9
    arena.run(300)
    assert arena.measure()["error"] <= 1e-6


def offer(strategy, epoch):
    (intent,) = strategy.answers()
    return Offer(b"\1" * 32, dataclasses.replace(intent, round=epoch), Meta(0, 0, 0.0))


def strategy_of(life):
    strategy = Dadao({}, torch.zeros(3, dtype=torch.float64))
    members = (bytes(32), b"\1" * 32)
    layout = Layout.of([("x", (3,), "float64")])
    facts = TaskFacts("lsq", 0.5, 2.0)
    strategy.start(Context(bytes(32), 0, random.Random(0), layout, members, facts, life=life))
    return strategy


def test_an_epoch_that_an_earlier_life_may_have_been_in_is_not_gone_over_to():
    strategy = strategy_of(life=5)
    assert strategy.epoch == 5
    assert strategy.accept(offer(strategy, 4)).startswith("round: ")
    assert strategy.accept(offer(strategy, 7)).startswith("round: ")
    assert strategy.epoch == 8
    assert strategy.accept(offer(strategy, 8)) is None
    assert strategy.accept(offer(strategy, 9)) is None  # made after this life began
    assert strategy.epoch == 9
    assert strategy.accept(offer(strategy, 2**62)).startswith("round: ")
    assert strategy.epoch == 9


def test_what_was_exchanged_in_another_epoch_does_not_count():
    strategy = strategy_of(life=5)
    (intent,) = strategy.answers()
    view = torch.ones(3, dtype=torch.float64)
    meta = Meta(0, 0, 0.0)
    for round_number, counts in ((4, False), (6, False), (5, True)):
        got = {b"\1" * 32: Received({"y+z": view.clone()}, meta)}
        sent = {"y+z": torch.zeros(3, dtype=torch.float64)}
        posted = dataclasses.replace(intent, round=round_number)
        strategy.apply(Exchange(posted, meta, sent, got, steps_since=0))
        assert bool(strategy.buffers()["z"].any()) == counts
