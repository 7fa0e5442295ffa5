"""The outer step: what pulls slow weights, and which settings are stable."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from swarmnode.errors import ConfigError
from swarmnode.strategies.base import Exchange, Intent, Kind, Meta, Received
from swarmnode.strategies.merge import variance_corrected
from swarmnode.strategies.outer import (
    PAIR,
    gamma_bound,
    learnt,
    moment_map,
    momentum_step,
    pull,
    refuse_fed_back,
    refuse_unstable,
    spell_codecs,
)
from swarmnode.tensor.layout import Layout

PEER = b"p" * 32
OWN = {"delta": [1.0, 2.0, -4.0], "phi": [3.0, 0.0, 1.0]}
THEIRS = {"delta": [5.0, -2.0, 0.0], "phi": [1.0, 4.0, 1.0]}


def tensors(views: dict[str, list[float]], *names: str) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(views[name]) for name in names}


def pair(*names: str, weights: tuple[float, float] = (30.0, 10.0)) -> Exchange:
    own, theirs = (Meta(8, 8, 8.0, weight=weight) for weight in weights)
    got = {PEER: Received(tensors(THEIRS, *names), theirs)}
    return Exchange(Intent(Kind.PAIR, 1), own, tensors(OWN, *names), got, 0)


def group(*names: str) -> Exchange:
    mean = tensors(THEIRS, *names)
    meta = Meta(8, 8, 8.0)
    return Exchange(Intent(Kind.GROUP, 1), meta, tensors(OWN, *names), {}, 0, mean=mean)


# --- what pulls -----------------------------------------------------------------------------------


def test_a_pair_pulls_by_the_mean_of_what_both_learnt_by_weight() -> None:
    found = pull(pair("delta"), beta=0.5, gamma=2.0)
    assert found.tolist() == [-1.0, -0.5, 1.5]  # −½ (¾ own + ¼ theirs)


def test_a_pair_pulls_slow_weights_half_of_the_way_to_the_other() -> None:
    found = pull(pair("delta", "phi"), beta=0.5, gamma=2.0)
    assert found.tolist() == [-1.0 - 2.0, -0.5 + 4.0, 1.5]


def test_slow_weights_that_began_apart_are_pulled_to_their_widened_mean() -> None:
    layout = Layout.of([("w", (3,), "float32")])
    own, theirs = torch.tensor(OWN["phi"]), torch.tensor(THEIRS["phi"])
    wide = variance_corrected([own, theirs], layout) - own
    found = pull(pair("delta", "phi"), beta=0.5, gamma=2.0, layout=layout)
    torch.testing.assert_close(found, torch.tensor([-1.0, -0.5, 1.5]) + 2.0 * wide)
    assert not torch.equal(found, pull(pair("delta", "phi"), beta=0.5, gamma=2.0))


def test_a_group_pulls_by_its_mean_and_slow_weights_all_of_the_way_to_it() -> None:
    assert pull(group("delta"), beta=0.5, gamma=2.0).tolist() == [-2.5, 1.0, 0.0]
    found = pull(group("delta", "phi"), beta=0.5, gamma=2.0)
    assert found.tolist() == [-2.5 - 4.0, 1.0 + 8.0, 0.0]


def test_with_neither_rate_nothing_of_what_a_node_sent_counts() -> None:
    assert learnt(tensors(OWN, "delta", "phi"), 0.0, 0.0).tolist() == [0.0, 0.0, 0.0]
    assert learnt(tensors(OWN, "delta"), 0.0, 0.0).tolist() == [-1.0, -2.0, 4.0]


@pytest.mark.parametrize(("nesterov", "moved"), [(False, [2.0, -1.0]), (True, [2.0, 0.5])])
def test_the_momentum_keeps_what_moved_and_nesterov_looks_ahead(
    nesterov: bool, moved: list[float]
) -> None:
    m, g = torch.tensor([2.0, -4.0]), torch.tensor([1.0, 1.0])
    found = momentum_step(m, g, 0.5, nesterov=nesterov)
    assert m.tolist() == [2.0, -1.0]
    assert found.tolist() == moved


# --- what is stable -------------------------------------------------------------------------------


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("n", [2, 3])
def test_the_map_of_moments_is_that_of_an_outer_step_over_a_random_group(
    n: int, nesterov: bool
) -> None:
    """Of nodes with the deviation x and the momentum d, or both with the other sign."""
    momentum, gamma, x, d = 0.6, 0.3, 2.0, -0.5
    found = moment_map(momentum, gamma, (n - 1) / n, nesterov=nesterov) @ [x * x, x * d, d * d]
    sums = np.zeros(3)
    for signs in itertools.product((1.0, -1.0), repeat=n):
        m = torch.tensor(signs[0] * d, dtype=torch.float64)
        g = torch.tensor(-gamma * x * (signs[0] - sum(signs) / n), dtype=torch.float64)
        new_x = signs[0] * x + float(momentum_step(m, g, momentum, nesterov=nesterov))
        sums += [new_x * new_x, new_x * float(m), float(m) ** 2]
    assert found == pytest.approx(sums / 2**n)


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.9])
def test_among_all_nodes_the_bound_is_that_of_one_outer_step(momentum: float) -> None:
    assert gamma_bound(momentum, 0) == pytest.approx(2 * (1 + momentum))
    looking_ahead = gamma_bound(momentum, 0, nesterov=True)
    assert looking_ahead == pytest.approx(2 * (1 + momentum) / (1 + 2 * momentum))


@pytest.mark.parametrize(("size", "nesterov"), [(2, True), (3, False), (3, True), (16, False)])
@pytest.mark.parametrize("momentum", [0.5, 0.95])
def test_at_the_bound_moments_neither_grow_nor_shrink(
    size: int, momentum: float, nesterov: bool
) -> None:
    bound = gamma_bound(momentum, size, nesterov=nesterov)
    share = (size - 1) / size

    def radius(gamma: float) -> float:
        values = np.linalg.eigvals(moment_map(momentum, gamma, share, nesterov=nesterov))
        return float(np.abs(values).max())

    assert radius(0.99 * bound) < 1 < radius(1.01 * bound)
    assert radius(bound) == pytest.approx(1.0, abs=1e-6)


def test_a_bound_for_pairs_is_that_of_the_moments() -> None:
    for momentum in (0.0, 0.5, 0.9):
        bound = gamma_bound(momentum, PAIR)
        assert bound == 2 * (1 - momentum**2)
        values = np.linalg.eigvals(moment_map(momentum, bound, 0.5))
        assert np.abs(values).max() == pytest.approx(1.0, abs=1e-6)


def test_a_pull_at_the_bound_is_refused_and_one_below_is_not() -> None:
    refuse_unstable("any", 0.5, 1.4999, PAIR)
    with pytest.raises(ConfigError, match=r"strategy any: expected gamma below 1\.5, .* pairs are"):
        refuse_unstable("any", 0.5, 1.5, PAIR)
    bound = gamma_bound(0.5, 0, nesterov=True)
    refuse_unstable("any", 0.5, bound - 1e-6, 0, nesterov=True)
    with pytest.raises(ConfigError, match=r"expected gamma below 1\.5, .* random groups are"):
        refuse_unstable("any", 0.5, bound, 0, nesterov=True)


# --- codecs ---------------------------------------------------------------------------------------


def test_codecs_in_small_letters_are_spelt_as_manifests_have_them() -> None:
    settings: dict[str, Any] = {"delta_codec": "e3m0", "every": 3, "merge": "mean"}
    expected = {"delta_codec": "E3M0", "every": 3, "merge": "mean"}
    assert spell_codecs(settings, "delta_codec", "weights_codec", "every") == expected


def test_a_codec_whose_error_must_be_carried_on_is_refused() -> None:
    refuse_fed_back("any", "E3M0", "", "Q8B64")
    for name in ("SIGN64", "TK2", "X9"):
        with pytest.raises(ConfigError, match=f"strategy any: .* stands alone.* got '{name}'"):
            refuse_fed_back("any", "", name)
