"""One byte: a member that publishes slopes that it made up hinders the others, and no more."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import pytest
import torch

from swarmnode.strategies.base import Context, Record, TaskFacts
from swarmnode.strategies.one_byte import BOUNDED, OneByte, draw_direction, encode_slope
from swarmnode.tensor.layout import Layout
from swarmnode.testing.lab.tasks import DIM, Logistic

LIARS = {
    "largest, the wrong way": lambda slope, _node: -math.copysign(1000, slope),
    "largest, always up": lambda _slope, _node: 1000.0,
    "as large as counts, the wrong way": lambda slope, node: -math.copysign(most(node), slope),
    "next to nothing": lambda slope, _node: -math.copysign(1e-4, slope),
    "nothing": lambda _slope, _node: 0.0,
}
UNTRAINED = math.log(2)


def most(node: OneByte) -> float:
    known = node.recent[node.recent > 0]
    return node.config.bound * float(known.median()) if known.numel() else 1000.0


def trained(
    bound: float,
    lie: Callable[[float, OneByte], float] | None = None,
    *,
    seed: int,
    n: int = 5,
    liars: int = 1,
    alone_every: int = 0,
    rounds: int = 250,
) -> float:
    """Return the loss that n members come to, the last ones of them liars.

    All have the same model, so one stands for all. Every ``alone_every`` rounds the last one makes
    the round, of its own record only.
    """
    task = Logistic(n, seed)
    node = OneByte({"lr": 0.2, "bound": bound}, task.x[0])
    me = bytes(32)
    layout = Layout.of([("x", (DIM,), "float32")])
    node.start(Context(me, seed, None, layout, (me,), TaskFacts("logit")))
    for number in range(rounds):
        records = []
        for k in range(n):
            author = bytes([k + 1]) * 32
            slope = slope_of(node.x, task, draw_direction(seed, number, author, DIM))
            if lie is not None and k >= n - liars:
                slope = lie(slope, node)
            records.append(Record(author, encode_slope(slope), number))
        is_alone = alone_every != 0 and number % alone_every == 0
        node.on_records(number, records[-1:] if is_alone else records)
    return float(task.loss(node.x, task.rows, task.labels))


@functools.cache
def in_peace(bound: float, seed: int, n: int = 5) -> float:
    return trained(bound, seed=seed, n=n)


def slope_of(x: torch.Tensor, task: Logistic, z: torch.Tensor) -> float:
    loss, before = task.probe(0), x.clone()
    x.add_(z, alpha=1e-3)
    above = loss()
    x.copy_(before).sub_(z, alpha=1e-3)
    below = loss()
    x.copy_(before)
    return (above - below) / 2e-3


def kept(loss: float, peace: float) -> float:
    """Return which part of what is learnt in peace is learnt, and say it."""
    share = (UNTRAINED - loss) / (UNTRAINED - peace)
    print(f"loss {loss:.3f}, in peace {peace:.3f}: {share:.3f} of what is learnt")
    return share


@pytest.mark.parametrize("seed", [31, 32, 33])
@pytest.mark.parametrize("lie", LIARS)
def test_one_liar_of_five_leaves_most_of_what_is_learnt_in_peace(lie: str, seed: int) -> None:
    attacked = trained(BOUNDED["bound"], LIARS[lie], seed=seed)
    assert kept(attacked, in_peace(BOUNDED["bound"], seed)) > 0.8


def kept_among(n: int, liars: int, seed: int, **changes: int) -> float:
    bound, lie = BOUNDED["bound"], LIARS["largest, the wrong way"]
    attacked = trained(bound, lie, seed=seed, n=n, liars=liars, **changes)
    return kept(attacked, in_peace(bound, seed, n))


@pytest.mark.parametrize("seed", [41, 42, 43])
@pytest.mark.parametrize(("n", "liars"), [(4, 1), (8, 1), (8, 2), (16, 3)])
def test_a_fourth_may_lie(n: int, liars: int, seed: int) -> None:
    assert kept_among(n, liars, seed) > 0.7


@pytest.mark.parametrize("seed", [41, 42, 43])
@pytest.mark.parametrize(("n", "liars"), [(3, 1), (5, 2)])
def test_a_third_of_liars_undoes_what_the_others_learn(n: int, liars: int, seed: int) -> None:
    assert kept_among(n, liars, seed) < 0.2


@pytest.mark.parametrize("seed", [41, 42, 43])
def test_one_of_four_that_makes_every_fourth_round_alone_is_too_much_as_well(seed: int) -> None:
    assert kept_among(4, 1, seed, alone_every=4) < 0.2
    assert kept_among(8, 1, seed, alone_every=8) > 0.8


@pytest.mark.parametrize("seed", [31, 32, 33])
def test_a_liar_that_leaves_out_the_records_of_the_others_gains_little(seed: int) -> None:
    assert kept_among(5, 1, seed, alone_every=5) > 0.7


def test_without_the_bound_one_liar_ruins_the_model() -> None:
    assert trained(0.0, LIARS["largest, the wrong way"], seed=31) > 100 * UNTRAINED


@pytest.mark.parametrize("seed", [31, 32, 33])
def test_the_bound_takes_little_from_a_swarm_in_peace(seed: int) -> None:
    assert kept(in_peace(BOUNDED["bound"], seed), in_peace(0.0, seed)) > 0.9
