"""DADAO on plain vectors: what flows, what a gradient and an exchange do, and which epoch it is."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from swarmnode.errors import ConfigError
from swarmnode.strategies.base import (
    Context,
    Exchange,
    Intent,
    Kind,
    Meeting,
    Meta,
    Offer,
    Received,
    Selector,
    Sent,
    TaskFacts,
    View,
)
from swarmnode.strategies.dadao import Constants, Dadao, exchange_rates
from swarmnode.strategies.registry import check_strategy
from swarmnode.strategies.topology import Graph, build_graph, graph_over
from swarmnode.tensor.layout import Layout

IDS = tuple(bytes([n]) * 32 for n in range(1, 6))
NUMEL = 3
MEASURED_RINGS = 50  # how many exchanges the share of those that complete is told by
EPOCHS = 2**53
META = Meta(0, 0, 0.0)


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def context(
    members: Sequence[bytes] = IDS[:2], topology: str = "", rank: int = 0, life: int = 0
) -> Context:
    return Context(
        self_id=members[rank],
        seed=0,
        rng=random.Random(0),
        layout=Layout.of([("x", (NUMEL,), "float64")]),
        members=tuple(members),
        facts=TaskFacts("lsq", 0.5, 4.0),
        topology=graph_over(topology, len(members)),
        life=life,
    )


def begun(ctx: Context | None = None, **settings: Any) -> Dadao:
    strategy = Dadao(settings, torch.zeros(NUMEL, dtype=torch.float64))
    strategy.start(ctx or context())
    return strategy


def filled(**settings: Any) -> tuple[Dadao, dict[str, torch.Tensor]]:
    """Return a node all of whose vectors have other numbers in them, and these."""
    strategy = Dadao(settings, vector(1.0, -2.0, 0.5))
    strategy.start(context())
    for n, each in enumerate(strategy.buffers().values(), 1):
        each.copy_(vector(n, 1 / n, -n * n))
    return strategy, state(strategy)


def state(strategy: Dadao) -> dict[str, torch.Tensor]:
    return {name: each.clone() for name, each in {"x": strategy.x, **strategy.buffers()}.items()}


def exchange(strategy: Dadao, own: torch.Tensor, theirs: torch.Tensor) -> Exchange:
    (intent,) = strategy.answers()
    got = {IDS[1]: Received({"y+z": theirs}, META)}
    return Exchange(intent, META, {"y+z": own}, got, 0)


def offer(strategy: Dadao, epoch: int) -> Offer:
    (intent,) = strategy.answers()
    return Offer(IDS[1], replace(intent, round=epoch), META)


def rates_of(topology: str) -> Graph:
    graph = build_graph(topology, 4)
    assert graph is not None
    return exchange_rates(graph)


# --- what it is for, and what it sends ------------------------------------------------------------


@pytest.mark.parametrize("facts", [TaskFacts("any", 0.5), TaskFacts("any", None, 4.0)])
def test_a_task_of_which_half_is_known_is_refused(facts: TaskFacts) -> None:
    with pytest.raises(ConfigError, match=r"strongly convex task whose mu and L are known"):
        check_strategy("dadao", {}, facts)
    with pytest.raises(ConfigError, match=r"strongly convex task whose mu and L are known"):
        begun(replace(context(), facts=facts))
    check_strategy("dadao", {}, TaskFacts("any", 0.5, 4.0))


def test_it_sends_the_sum_of_two_duals_and_no_weights() -> None:
    strategy, before = filled()
    (intent,) = strategy.on_clock(3.0)
    expected = View("y+z", "RAW64", 0, NUMEL, is_scaled=False)
    assert intent == Intent(
        Kind.PAIR, 0, (expected,), selector=Selector.NEIGHBOUR, base_version=strategy.base_version
    )
    out = torch.empty(NUMEL, dtype=torch.float64)
    strategy.view(intent, "y+z", out)
    assert torch.equal(out, before["y"] + before["z"])
    assert Dadao.meeting(strategy.config) == Meeting(Kind.PAIR, 0.0, (Sent("RAW64"),))


def test_a_joiner_takes_no_duals_and_begins_where_its_weights_are() -> None:
    strategy = begun()
    assert [*strategy.buffers()] == ["x_tilde", "y", "y_tilde", "z", "z_tilde"]
    assert not strategy.shipped()
    strategy.x.copy_(vector(1.0, 2.0, 3.0))
    strategy.join({})
    assert torch.equal(strategy.buffers()["x_tilde"], strategy.x)
    strategy.flow(2.0)
    torch.testing.assert_close(strategy.x, vector(1.0, 2.0, 3.0))


# --- the local process ----------------------------------------------------------------------------


def test_between_events_all_six_flow_as_the_text_has_it() -> None:
    strategy, s = filled()
    c = strategy.constants
    moment = 1e-7
    strategy.flow(moment)
    slopes = {
        "x": c.eta * (s["x_tilde"] - s["x"]),
        "x_tilde": c.eta_t * (s["x"] - s["x_tilde"]),
        "y": c.alpha * (s["y_tilde"] - s["y"]),
        "y_tilde": -c.theta * (s["y"] + s["z"] + c.nu * s["x_tilde"]),
        "z": c.alpha * (s["z_tilde"] - s["z"]),
        "z_tilde": c.alpha_t * (s["z"] - s["z_tilde"]),
    }
    for name, after in state(strategy).items():
        torch.testing.assert_close((after - s[name]) / moment, slopes[name], rtol=1e-5, atol=1e-6)


def test_what_flows_does_not_depend_on_how_often_that_is_done() -> None:
    (often, _), (once, before) = filled(), filled()
    for t in (0.5, 0.5, 1.75, 3.0):
        often.flow(t)
    once.flow(3.0)
    matrix = torch.from_numpy(once.constants.flow_matrix())
    expected = torch.linalg.matrix_exp(3.0 * matrix) @ torch.stack([*before.values()])
    for found in (often, once):
        torch.testing.assert_close(torch.stack([*state(found).values()]), expected)


def test_a_gradient_moves_both_weights_and_the_share_of_the_duals() -> None:
    strategy, s = filled()
    c, v = strategy.constants, vector(3.0, 0.0, -1.0)
    strategy.local_update(v)
    g = v - c.nu * s["x"] - s["y_tilde"]
    s["x"] -= c.gamma * g
    s["x_tilde"] -= c.gamma_t * g
    s["y_tilde"] += (c.delta + c.delta_t) * g
    for name, after in state(strategy).items():
        torch.testing.assert_close(after, s[name], msg=name)
    strategy.flow(0.0)
    assert torch.equal(strategy.x, state(strategy)["x"])


def test_an_exchange_brings_the_consensus_duals_together() -> None:
    strategy, s = filled()
    own, theirs = vector(1.0, 2.0, 3.0), vector(5.0, 2.0, -1.0)
    strategy.apply(exchange(strategy, own, theirs.clone()))
    s["z"] += 0.5 * (theirs - own)
    s["z_tilde"] += strategy.constants.beta_t * (theirs - own)
    for name, after in state(strategy).items():
        torch.testing.assert_close(after, s[name], msg=name)


# --- rates ----------------------------------------------------------------------------------------


def test_a_node_starts_half_of_the_exchanges_that_it_takes_part_in() -> None:
    assert begun().node_rate() == pytest.approx(math.sqrt(0.5))  # 2 chi1 chi2 = 1 with one edge
    assert begun().clock_rate() == pytest.approx(math.sqrt(0.5) / 2)
    complete = begun(context(IDS[:4]))
    graph = rates_of("complete")
    assert complete.node_rate() == pytest.approx(3 * graph.rates[0, 1])
    complete.on_membership(IDS[:2])
    assert complete.node_rate() == pytest.approx(math.sqrt(0.5))


def test_the_centre_of_a_star_takes_part_in_all_of_its_exchanges() -> None:
    rate = rates_of("star").rates[0, 1]
    centre, leaf = (begun(context(IDS[:4], "star", rank)) for rank in (0, 2))
    assert centre.node_rate() == pytest.approx(3 * rate)
    assert leaf.node_rate() == pytest.approx(rate)
    assert centre.constants == leaf.constants


def test_a_task_that_is_steeper_has_smaller_steps() -> None:
    """For mu = 2 and L = 16: nu = 1, q = 1/4."""
    c = Constants.of(2.0, 16.0, chi1=3.0)
    assert (c.nu, c.alpha, c.alpha_t, c.eta, c.eta_t) == (1.0, 1 / 16, 1 / 32, 1 / 32, 1 / 32)
    assert (c.theta, c.delta, c.delta_t) == (2.0, 1 / 16, 1.0)
    assert (c.gamma, c.gamma_t, c.beta, c.beta_t) == (1 / 64, 1 / 16, 0.5, 24.0)


def test_constants_are_those_of_the_graph_and_of_the_task() -> None:
    graph = rates_of("ring")
    expected = Constants.of(0.5, 4.0, graph.mixing().chi1, safety=0.25)
    assert begun(context(IDS[:4], "ring"), safety=0.25).constants == expected
    assert begun().constants == Constants.of(0.5, 4.0, math.sqrt(0.5), safety=0.5)


@pytest.mark.parametrize(("n", "topology"), [(1, ""), (3, "0-1 2-3")])
def test_who_is_alone_or_cannot_reach_all_has_no_exchanges_and_full_speed(
    n: int, topology: str
) -> None:
    strategy = begun(context(IDS[:n], topology), guard=1.0)
    assert strategy.clock_rate() == 0
    assert strategy.constants.beta_t == 0
    strategy.flow(1000.0)
    strategy.local_update(vector(1.0, 1.0, 1.0))
    assert strategy.pace() == 1.0
    assert strategy.metrics() == {"exchange_rate_ratio": 1.0, "pace": 1.0}


# --- the guard ------------------------------------------------------------------------------------


def test_what_completes_is_measured_against_what_is_promised() -> None:
    strategy = begun(guard=0.0)
    assert strategy.metrics() == {"exchange_rate_ratio": 1.0, "pace": 1.0}
    strategy.flow(20.0)
    left = math.exp(-20.0 * math.sqrt(0.5) / MEASURED_RINGS)
    assert strategy.metrics()["exchange_rate_ratio"] == pytest.approx(left)
    strategy.apply(exchange(strategy, vector(0, 0, 0), vector(0, 0, 0)))
    assert strategy.metrics()["exchange_rate_ratio"] == pytest.approx(left + 1 / MEASURED_RINGS)
    strategy.local_update(vector(0, 0, 0))
    assert strategy.pace() == 1.0, "there is no guard"


def test_below_the_guard_gradients_are_as_much_slower_as_exchanges_are_lacking() -> None:
    strategy = begun(guard=0.5)
    strategy.flow(10.0)
    strategy.local_update(vector(0, 0, 0))
    assert strategy.pace() == 1.0, "enough complete"
    strategy.flow(100.0)
    measured = strategy.metrics()["exchange_rate_ratio"]
    assert measured < 0.5
    assert strategy.pace() == 1.0, "as of the last gradient"
    strategy.local_update(vector(0, 0, 0))
    assert strategy.pace() == strategy.metrics()["pace"] == pytest.approx(measured / 0.5)
    slow = strategy.pace()
    strategy.flow(100.0 + slow)
    decay = math.exp(-math.sqrt(0.5) / MEASURED_RINGS)
    assert strategy.metrics()["exchange_rate_ratio"] == pytest.approx(measured * decay), (
        "a step that is taken slowly has as much time for exchanges"
    )


def test_gradients_never_stop_altogether() -> None:
    strategy = begun()
    strategy.flow(5000.0)
    strategy.local_update(vector(0, 0, 0))
    assert strategy.pace() == 1e-4


# --- epochs ---------------------------------------------------------------------------------------


def test_each_change_of_members_begins_one_epoch() -> None:
    strategy = begun(context(life=7))
    assert strategy.epoch == 7
    one = strategy.base_version
    strategy.on_membership(IDS[:2])
    assert (strategy.epoch, strategy.base_version) == (7, one)
    strategy.on_membership(IDS[:3])
    assert strategy.epoch == 8
    assert strategy.base_version != one
    assert begun(context(IDS[:3], rank=2)).base_version == strategy.base_version
    strategy.on_membership(IDS[:2])
    assert (strategy.epoch, strategy.base_version) == (9, one)
    strategy.start(context(life=7))
    assert strategy.epoch == 9, "on a graph it is started again, and no epoch is entered twice"


def test_weights_stay_when_an_epoch_begins_and_duals_do_not() -> None:
    strategy, before = filled()
    strategy.on_membership(IDS[:3])
    for name, after in state(strategy).items():
        expected = before[name] if name in ("x", "x_tilde") else torch.zeros_like(before[name])
        assert torch.equal(after, expected), name


def test_of_later_epochs_the_first_is_answered_with_one_that_is_later_still() -> None:
    strategy, _ = filled()
    assert strategy.accept(offer(strategy, 0)) is None
    assert strategy.buffers()["z"].any()
    assert strategy.accept(offer(strategy, 1)) == "round: it was not there, so that epoch 2 begins"
    assert not strategy.buffers()["z"].any()
    strategy.buffers()["z"].fill_(1.0)
    assert strategy.accept(offer(strategy, 2)) is None
    assert strategy.buffers()["z"].all(), "it is the same epoch"
    assert strategy.accept(offer(strategy, 3)) is None
    assert strategy.epoch == 3
    assert not strategy.buffers()["z"].any()
    assert strategy.accept(offer(strategy, 2)) == "round: expected epoch 3, got 2"


def test_an_epoch_beyond_the_circle_is_refused() -> None:
    strategy = begun()
    wrong = offer(strategy, EPOCHS)
    assert strategy.accept(wrong) == f"round: expected epoch 0, got {EPOCHS}"
    assert strategy.accept(offer(strategy, 5)) == "round: it was not there, so that epoch 6 begins"
    other = replace(offer(strategy, 6).intent, base_version=bytes(32))
    assert strategy.accept(Offer(IDS[1], other, META)) == "base: it knows of other members"


def test_later_is_up_to_half_of_the_circle_ahead() -> None:
    strategy = begun(context(life=10))
    strategy.accept(offer(strategy, 10 + 20))  # the first that it meets
    assert strategy.accept(offer(strategy, 30)) == "round: expected epoch 31, got 30"
    beyond = 31 + EPOCHS // 2 + 1
    assert strategy.accept(offer(strategy, beyond)) == f"round: expected epoch 31, got {beyond}"
    assert strategy.accept(offer(strategy, 31 + EPOCHS // 2)) is None
    assert strategy.epoch == 31 + EPOCHS // 2
    assert strategy.accept(offer(strategy, 31)) is None, "either of two halves comes to the other"
    assert strategy.epoch == 31


@pytest.mark.parametrize("named", [EPOCHS - 1, EPOCHS // 2, EPOCHS // 2 + 5, 3])
def test_wherever_a_liar_leads_one_the_others_meet_it_again(named: int) -> None:
    """One node goes along with any number, to which it adds one; then members come and go."""
    led, other = begun(context(life=5)), begun(context(life=6))
    led.accept(offer(led, named))
    for members in (IDS[:3], IDS[:2]):
        led.on_membership(members)
        other.on_membership(members)
        for _ in range(2):  # the first that a node meets is answered with a later one
            for one, two in ((led, other), (other, led)):
                one.accept(offer(two, two.epoch))
        assert led.epoch == other.epoch
        assert led.accept(offer(other, other.epoch)) is None


def test_epochs_go_on_past_the_end_of_the_circle() -> None:
    strategy = begun(context(life=EPOCHS - 1))
    strategy.on_membership(IDS[:3])
    assert strategy.epoch == 0
    assert strategy.accept(offer(strategy, EPOCHS - 1)) == (
        f"round: expected epoch 0, got {EPOCHS - 1}"
    )
    strategy.start(context(IDS[:3], life=EPOCHS - 1))
    assert strategy.epoch == 0, "it has left that one"


def test_what_was_exchanged_among_other_members_does_not_count() -> None:
    strategy, before = filled()
    old = exchange(strategy, vector(0, 0, 0), vector(1, 1, 1))
    strategy.apply(replace(old, intent=replace(old.intent, base_version=bytes(32))))
    strategy.apply(replace(old, intent=replace(old.intent, round=1)))
    for name, after in state(strategy).items():
        assert torch.equal(after, before[name])
    assert strategy.metrics()["exchange_rate_ratio"] == 1.0
