"""The merge rule of gossip: what two nodes make of models that began apart."""

import random

import pytest
import torch

from swarmnode.errors import ConfigError
from swarmnode.strategies.base import Context, Exchange, Meta, Received, StepInfo, TaskFacts
from swarmnode.strategies.merging.variance_corrected import pair_pull
from swarmnode.strategies.noloco import NoLoCo
from swarmnode.strategies.pair_average import PairAverage
from swarmnode.strategies.registry import check_strategy
from swarmnode.strategies.rounds import cut, layout_of
from swarmnode.strategies.streaming import Streaming
from swarmnode.tensor.layout import Layout
from swarmnode.testing.lab.arena import Arena
from swarmnode.testing.lab.digits import Digits
from swarmnode.testing.lab.tasks import Sgd

LAYOUT = Layout.of([("w", (64, 64), "float32"), ("b", (64,), "float32"), ("s", (), "float32")])
CORRECTED = {"merge": "variance-corrected"}
WHOLE = {"meet": "pair", "every": 1, "fragments": 1, "overlap": 0, "local_share": 0.0}
WHOLE |= {"reference": False, "nesterov": False}


def two(seed=0):
    return torch.randn(2, LAYOUT.numel, generator=torch.Generator().manual_seed(seed))


def test_two_strangers_come_to_the_same_with_the_variance_of_both():
    one, other = two()
    from_one = one + pair_pull("variance-corrected", one, other.clone(), LAYOUT)
    from_other = other + pair_pull("variance-corrected", other, one.clone(), LAYOUT)
    torch.testing.assert_close(from_one, from_other, rtol=0, atol=1e-6)
    assert from_one[: 64 * 64].var() == pytest.approx(1.0, abs=0.05)
    assert ((one + other) / 2)[: 64 * 64].var() == pytest.approx(0.5, abs=0.05)
    assert from_one[-1] == pytest.approx(float(one[-1] + other[-1]) / 2)  # a scalar is averaged


def test_relatives_are_averaged():
    one, other = two()
    other = one + 0.1 * other
    pulled = pair_pull("variance-corrected", one, other.clone(), LAYOUT)
    torch.testing.assert_close(pulled, (other - one) / 2, rtol=0, atol=1e-6)


def test_the_mean_is_what_it_was():
    one, other = two()
    assert torch.equal(pair_pull("mean", one, other.clone(), LAYOUT), (other - one) / 2)


def test_noloco_steps_to_what_the_rule_makes_of_slow_weights():
    one, other = two()
    node = NoLoCo({**CORRECTED, "every": 1, "momentum": 0.0, "gamma": 1.0}, one.clone())
    members = (b"1" * 32, b"2" * 32)
    node.start(Context(members[0], 0, random.Random(0), LAYOUT, members, TaskFacts("numbers")))
    (intent,) = node.after_step(StepInfo(1, 1.0, 0.0, 0.1))
    meta, still = Meta(0, 0, 0.0), torch.zeros_like(one)
    theirs = Received({"delta": still.clone(), "phi": other.clone()}, meta)
    node.apply(
        Exchange(intent, meta, {"delta": still, "phi": one.clone()}, {members[1]: theirs}, 0)
    )
    merged = one + pair_pull("variance-corrected", one, other.clone(), LAYOUT)
    torch.testing.assert_close(node.phi, merged)
    torch.testing.assert_close(node.x, merged)


STRATEGIES = [
    (PairAverage, {"every": 1}),
    (NoLoCo, {"every": 1, "momentum": 0.0, "beta": 1.0, "gamma": 1.0}),
    (Streaming, {**WHOLE, "momentum": 0.0, "beta": 1.0, "gamma": 1.0}),
    (Streaming, {**WHOLE, "every": 2, "fragments": 2, "momentum": 0.0, "beta": 1.0, "gamma": 1.0}),
]


def spread(strategy, settings):
    """Return the variance of the largest tensor after rounds of pairs in which nothing is learnt,
    by what it was; the mean over nodes."""
    task = Digits(8, seed=1, widths=(64, 64, 64, 10), same_init=False)
    _, begin, end = list(task.layout.spans())[2]
    before = task.x[:, begin:end].var(dim=1).mean()
    exact = {"delta_codec": "", "weights_codec": ""} if strategy is Streaming else {}
    arena = Arena(
        task, lambda x: strategy({**settings, **exact}, x), optimizer=Sgd(task.x, 0.0), seed=1
    )
    arena.run(6)
    return float(task.x[:, begin:end].var(dim=1).mean() / before)


@pytest.mark.parametrize(("strategy", "settings"), STRATEGIES)
def test_the_variance_vanishes_with_the_mean_and_stays_with_the_rule(strategy, settings):
    assert spread(strategy, settings) <= 0.3
    assert spread(strategy, {**settings, **CORRECTED}) >= 0.6


def test_parts_of_tensors_lie_in_a_fragment_as_it_gathers_them():
    fragments = cut(LAYOUT, 4)
    for fragment in fragments:
        assert layout_of(fragment, LAYOUT).numel == fragment.numel
    names = [spec.name.split("/")[1] for spec in layout_of(fragments[-1], LAYOUT).specs]
    assert set(names) <= {"w", "b", "s"}


@pytest.mark.parametrize("more", [{}, {"reference": False, "meet": "group", "gamma": 0.0}])
def test_streaming_takes_it_for_pairs_without_a_reference_only(more):
    with pytest.raises(ConfigError, match="expected reference false and meet pair with merge"):
        check_strategy("streaming", {**CORRECTED, **more}, TaskFacts("digits"))
    check_strategy(
        "streaming", {**CORRECTED, "meet": "pair", "reference": False}, TaskFacts("digits")
    )


def test_other_rules_are_named():
    with pytest.raises(ConfigError, match="merge"):
        check_strategy("pair-average", {"merge": "median"}, TaskFacts("digits"))
