"""A2CiD2 on plain vectors: what flows between exchanges, and what steps and exchanges do."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch

from swarmnode.strategies.a2cid2 import A2CiD2
from swarmnode.strategies.base import (
    Context,
    Exchange,
    Intent,
    Kind,
    Meeting,
    Meta,
    Received,
    Selector,
    Sent,
    TaskFacts,
)
from swarmnode.strategies.topology import graph_over
from swarmnode.tensor.layout import Layout

IDS = tuple(bytes([n]) * 32 for n in range(1, 9))
X, X_TILDE = torch.tensor([1.0, -2.0, 0.0]), torch.tensor([5.0, 2.0, -1.0])


def context(n: int = 8, topology: str = "ring") -> Context:
    return Context(
        self_id=IDS[0],
        seed=0,
        rng=random.Random(0),
        layout=Layout.of([("x", (len(X),), "float32")]),
        members=IDS[:n],
        facts=TaskFacts("any"),
        topology=graph_over(topology, n),
    )


def apart(n: int = 8, topology: str = "ring", **settings: Any) -> A2CiD2:
    """Return a node whose two vectors are apart."""
    strategy = A2CiD2(settings, X.clone())
    strategy.start(context(n, topology))
    strategy.x_tilde.copy_(X_TILDE)
    return strategy


def met(strategy: A2CiD2, own: torch.Tensor, theirs: torch.Tensor) -> Exchange:
    (intent,) = strategy.answers()
    meta = Meta(4, 4, 4.0)
    return Exchange(intent, meta, {"x": own}, {IDS[1]: Received({"x": theirs}, meta)}, 0)


def test_it_sends_its_weights_and_meets_so_often() -> None:
    strategy = apart(rate=4.0)
    (intent,) = strategy.on_clock(1.0)
    expected = Intent(Kind.PAIR, 0, (strategy.whole("x"),), selector=Selector.NEIGHBOUR)
    assert intent == expected
    assert strategy.clock_rate() == 2.0, "the other half of its exchanges others start"
    assert A2CiD2.meeting(strategy.config) == Meeting(Kind.PAIR, 0.25, (Sent(),))
    assert [*strategy.buffers()] == ["x_tilde"]


def test_the_two_vectors_flow_into_each_other_and_keep_their_sum() -> None:
    strategy = apart(cap=0.0)
    strategy.flow(1.5)
    e = math.exp(-2 * strategy.eta * 1.5)
    assert 0.1 < e < 0.9
    torch.testing.assert_close(strategy.x, ((1 + e) * X + (1 - e) * X_TILDE) / 2)
    torch.testing.assert_close(strategy.x_tilde, ((1 - e) * X + (1 + e) * X_TILDE) / 2)
    before = strategy.x.clone()
    strategy.flow(1.5)
    assert torch.equal(strategy.x, before), "no time has passed"


def test_between_two_exchanges_the_flow_advances_by_so_many_intervals_of_them() -> None:
    strategy, free = apart(rate=2.0, cap=3.0), apart(rate=2.0, cap=0.0)
    for t in (0.5, 1.5, 1.7, 40.0):
        strategy.flow(t)
    free.flow(1.5)
    torch.testing.assert_close(strategy.x, free.x)
    strategy.apply(met(strategy, strategy.x, strategy.x.clone()))
    strategy.flow(41.0)
    free.flow(2.5)
    torch.testing.assert_close(strategy.x, free.x)
    strategy.flow(60.0)
    free.flow(3.0)
    torch.testing.assert_close(strategy.x, free.x)


def test_a_step_moves_both_vectors_alike() -> None:
    v = torch.tensor([0.5, 0.0, -3.0])
    told, shown = apart(), apart()
    told.local_update(v)
    shown.before_update(shown.x)
    shown.x.sub_(v)
    shown.after_update(shown.x)
    for strategy in (told, shown):
        torch.testing.assert_close(strategy.x_tilde, X_TILDE - v)


def test_an_exchange_moves_x_halfway_and_its_companion_further() -> None:
    strategy = apart()
    own, theirs = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([3.0, 1.0, -1.0])
    m = theirs - own
    assert strategy.alpha_tilde > 0.9
    strategy.apply(met(strategy, own, theirs))
    torch.testing.assert_close(strategy.x, X + m / 2)
    torch.testing.assert_close(strategy.x_tilde, X_TILDE + strategy.alpha_tilde * m)


@pytest.mark.parametrize(("n", "topology"), [(1, ""), (3, "0-1 2-3")])
def test_without_a_way_to_all_others_nothing_flows(n: int, topology: str) -> None:
    strategy = apart(n, topology)
    strategy.flow(2.0)
    assert torch.equal(strategy.x, X)
    assert (strategy.eta, strategy.alpha_tilde) == (0.0, 0.5)
    unstarted = A2CiD2({}, X.clone())
    assert (unstarted.eta, unstarted.alpha_tilde) == (0.0, 0.5)


def test_among_all_members_it_is_tuned_to_their_number() -> None:
    strategy = apart(4, "", rate=3.0)
    assert strategy.eta == pytest.approx(4 * 3.0 / 3 / 2)  # chi1 = chi2 = (n − 1) / (n rate)
    assert strategy.alpha_tilde == pytest.approx(0.5)
    strategy.on_membership(IDS[:2])
    assert strategy.eta == pytest.approx(2 * 3.0 / 2)


def test_it_tells_how_many_of_the_promised_exchanges_complete() -> None:
    strategy = apart(rate=0.5)
    figures = strategy.metrics()
    expected = {"eta": strategy.eta, "alpha_tilde": strategy.alpha_tilde}
    assert figures == {**expected, "exchange_rate_ratio": 1.0}
    strategy.flow(8.0)
    assert strategy.metrics()["exchange_rate_ratio"] == 0.0
    for _ in range(3):
        strategy.apply(met(strategy, X, X.clone()))
    assert strategy.metrics()["exchange_rate_ratio"] == 3 / 4
