"""NoLoCo against the exact second moments of a random walk, and on digits."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from swarmnode.errors import ConfigError
from swarmnode.strategies.base import Context, Exchange, Meta, Received, StepInfo, TaskFacts
from swarmnode.strategies.noloco import NoLoCo
from swarmnode.strategies.outer import gamma_bound, moment_map
from swarmnode.strategies.registry import check_strategy
from swarmnode.tensor.layout import Layout
from swarmnode.testing.lab.faults import Faults
from swarmnode.testing.lab.setups import slow_variance, walk
from tests.algorithms.outer_kit import SEEDS, digits, stationary

SETTINGS = {"every": 50, "momentum": 0.5, "beta": 0.7, "gamma": 0.7}
LR = 0.01
FACTS = TaskFacts("any")


# --- theory ------------------------------------------------------------------------------------


@pytest.mark.claim
@SEEDS
def test_the_variance_is_what_second_moments_predict(seed):
    """V = (1 - M)^-1 beta² s²/2 (1, 1, 1) with s² = lr² H sigma²: 1.3125 of it."""
    noise = 0.7**2 / 2 * np.ones(3)
    predicted = np.linalg.solve(np.eye(3) - moment_map(0.5, 0.7, 0.5), noise)[0]
    assert predicted == pytest.approx(1.3125, abs=1e-3)
    measured = stationary(NoLoCo, SETTINGS, seed=seed) / (LR**2 * 50)
    assert 1.0 <= measured <= 1.5


@pytest.mark.claim
def test_it_grows_as_the_square_of_the_learning_rate():
    one = stationary(NoLoCo, {**SETTINGS, "every": 10})
    two = stationary(NoLoCo, {**SETTINGS, "every": 10}, lr=2 * LR)
    assert 3.7 <= two / one <= 4.3


@pytest.mark.parametrize(
    ("momentum", "gamma", "is_stable"),
    [(0.5, 1.4, True), (0.5, 1.6, False), (0.9, 0.7, False), (0.9, 0.3, True)],
)
def test_the_boundary_of_stability(momentum, gamma, is_stable):
    settings = {**SETTINGS, "every": 2, "momentum": momentum, "gamma": gamma}
    arena = walk(NoLoCo, settings, numel=256)
    arena.run(2 * 100)
    before = slow_variance(arena)
    arena.run(2 * 150)
    growth = slow_variance(arena) / before
    assert growth < 3 if is_stable else growth > 100


def test_the_bound_is_closed_for_pairs_and_the_moments_for_all_others():
    for momentum in (0.0, 0.3, 0.5, 0.7, 0.9):
        low, high = 0.0, 4.0
        for _ in range(40):
            middle = (low + high) / 2
            is_stable = np.abs(np.linalg.eigvals(moment_map(momentum, middle, 0.5))).max() < 1
            low, high = (middle, high) if is_stable else (low, middle)
        assert gamma_bound(momentum, 2) == pytest.approx(low, abs=1e-6)
    found = [gamma_bound(momentum, 4) for momentum in (0.3, 0.5, 0.9)]
    assert found == pytest.approx([2.14, 2.0, 0.69], abs=0.01)
    found = [gamma_bound(momentum, 8) for momentum in (0.3, 0.5, 0.9)]
    assert found == pytest.approx([2.35, 2.40, 1.17], abs=0.01)
    assert gamma_bound(0.5, 0) == pytest.approx(2 * 1.5, abs=1e-6)  # everybody: no randomness


def test_settings_outside_are_refused_with_the_bound():
    check_strategy("noloco", SETTINGS, FACTS)
    with pytest.raises(ConfigError, match=r"expected gamma below 1\.5, .* over random pairs"):
        check_strategy("noloco", {"momentum": 0.5, "gamma": 1.5}, FACTS)
    with pytest.raises(ConfigError, match=r"gamma below 0\.38, .* got 0\.7"):
        check_strategy("noloco", {"momentum": 0.9, "gamma": 0.7}, FACTS)


# --- failures ----------------------------------------------------------------------------------


WELL = {"n": 16, "pull": 1.0, "rounds": 60}  # walks in a well, so that a lost pair costs progress


def test_with_half_of_the_pairs_lost_the_nodes_that_keep_training_hardly_notice():
    quiet = stationary(NoLoCo, SETTINGS, **WELL)
    lossy = stationary(NoLoCo, SETTINGS, faults=Faults(loss=0.5), **WELL)
    assert lossy <= 1.3 * quiet


class Repeats(NoLoCo):
    """A known bug: without a partner the old momentum is applied again."""

    def on_abort(self, intent, why):
        super().on_abort(intent, why)
        self.phi.add_(self.m)


def test_mutant_repeating_the_momentum_without_a_partner_explodes():
    quiet = stationary(NoLoCo, SETTINGS, **WELL)
    lossy = stationary(Repeats, SETTINGS, faults=Faults(loss=0.7), **WELL)
    assert lossy > 100 * quiet


class Overwrites(NoLoCo):
    """A known bug: what was learnt while the exchange was under way is thrown away."""

    def apply(self, exchange):
        super().apply(exchange)
        self.x.copy_(self.phi)


@pytest.mark.parametrize(("strategy", "survives"), [(NoLoCo, True), (Overwrites, False)])
def test_steps_taken_in_flight_survive(strategy, survives):
    """The mean of x moves as beta over 1 - mu of the mean step says, however long an exchange."""
    found = []
    for latency in (0.0, 5.0):
        arena = walk(
            strategy,
            {"every": 10, "momentum": 0.0, "beta": 1.0, "gamma": 1.0},
            n=16,
            faults=Faults(latency=latency),
        )
        arena.run(10 * 40)
        found.append(float(arena.x.mean(0).square().sum()))
    assert (found[1] == pytest.approx(found[0], rel=0.05)) is survives


def test_the_probe_is_asked_of_where_the_step_leads():
    members, meta = (b"1" * 32, b"2" * 32), Meta(0, 0, 0.0)
    layout = Layout.of([("x", (64,), "float32")])
    for theirs, share in ((0.5, 1.0), (-0.1, 0.0)):
        node = NoLoCo({**SETTINGS, "every": 1}, torch.zeros(64))
        context = Context(members[0], 0, random.Random(0), layout, members, FACTS, weighs=True)
        node.start(replace(context, probe=lambda x: float((x - 1.0).square().sum())))
        node.x.fill_(0.2)
        (intent,) = node.after_step(StepInfo(1, 1.0, 0.0, 0.1))
        sent = {name: torch.empty(64) for name in ("delta", "phi")}
        for name, out in sent.items():
            node.view(intent, name, out)
        views = {"delta": torch.zeros(64), "phi": torch.full((64,), theirs)}
        verdict = node.weigh(Exchange(intent, meta, sent, {members[1]: Received(views, meta)}, 0))
        assert (verdict.refusal, verdict.share) == (None, share)


# --- digits ------------------------------------------------------------------------------------


@pytest.mark.claim
@SEEDS
def test_digits_are_learnt_in_consensus_which_gamma_alone_brings_about(seed):
    with_pull, figures = digits(NoLoCo, {"every": 20}, seed=seed, steps=400)
    without, _ = digits(NoLoCo, {"every": 20, "gamma": 0.0}, seed=seed, steps=400)
    # One node that stumbles shows in a single measurement, so it is the mean over ten rounds;
    # nodes that never meet are at 64 here.
    assert over_rounds(with_pull) <= 0.15 * over_rounds(without)
    assert figures["loss"] <= 0.16
    assert figures["accuracy"] >= 0.955


def over_rounds(arena):
    found = []
    for _ in range(10):
        arena.run(20)
        found.append(arena.consensus())
    return sum(found) / len(found)


def test_a_restart_goes_on_in_the_round_where_it_was():
    one = NoLoCo({"every": 4}, torch.zeros(3))
    assert [step for step in range(1, 12) if one.rounds.due(step)] == [4, 8]
    two = NoLoCo({"every": 4}, torch.zeros(3))
    two.join({name: tensor.clone() for name, tensor in one.buffers().items()})
    assert two.rounds.due(12) == one.rounds.due(12) == [(0, 3)]
    two.set_round_steps(2)
    due = {step: two.rounds.due(step) for step in range(13, 19)}
    assert {step: found for step, found in due.items() if found} == {16: [(0, 4)], 18: [(0, 5)]}


@pytest.mark.parametrize("own_steps", [0, 5000])
def test_a_joiner_has_the_rounds_of_its_peer_and_steps_of_its_own(own_steps):
    donor = NoLoCo({"every": 4}, torch.zeros(3))
    for step in range(1, 804):
        donor.rounds.due(step)
    joiner = NoLoCo({"every": 4}, torch.zeros(3))
    joiner.join({name: tensor.clone() for name, tensor in donor.buffers().items()})
    due = [(step, joiner.rounds.due(own_steps + step)) for step in range(1, 9)]
    assert [found for found in due if found[1]] == [(4, [(0, 201)]), (8, [(0, 202)])]
