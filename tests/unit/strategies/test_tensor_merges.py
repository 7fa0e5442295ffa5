"""What the rules tensor by tensor come to, by formula; and what numbers of a peer may be."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from swarmnode.errors import ConfigError
from swarmnode.ipc.names import MERGE_RULES
from swarmnode.strategies.merge import (
    mean,
    merge_of,
    rda,
    share,
    share_numel,
    variance_corrected,
)
from swarmnode.strategies.ranges import magnitude_of, not_finite, outside, scale_of, too_large
from swarmnode.tensor.layout import Layout
from swarmnode.tensor.magnitude import Magnitude

LAYOUT = Layout.of([("w", (2, 3), "float32"), ("pair", (2,), "float32"), ("s", (), "float32")])
SPANS = ((0, 6), (6, 8), (8, 9))


def strangers(n: int, seed: int = 1) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    found = [torch.randn(9, generator=generator, dtype=torch.float64) for _ in range(n)]
    for number, vector in enumerate(found):  # two that turn into each other are no relatives
        vector[6:8] = torch.tensor([1.0, -2.0]) * (-1) ** number + 0.1 * number
    return found


def by_formula(vectors: Sequence[torch.Tensor], weights: Sequence[float]) -> NDArray[np.float64]:
    """Return what the text of the correction says, with variances of numpy's."""
    rows = np.stack([vector.numpy() for vector in vectors])
    shares = np.array(weights) / sum(weights)
    merged: NDArray[np.float64] = shares @ rows
    for begin, end in SPANS:
        tensors = rows[:, begin:end]
        centred = tensors - tensors.mean(1, keepdims=True)
        lengths = np.linalg.norm(centred, axis=1)
        v = tensors.var(1, ddof=1).mean() if end - begin > 1 else 0.0
        if v == 0 or cosine(centred / lengths[:, None]) >= 0.5:
            continue
        mixed = merged[begin:end]
        scale = math.sqrt((v + 1e-6 * v) / (mixed.var(ddof=1) + 1e-6 * v))
        merged[begin:end] = mixed.mean() + (mixed - mixed.mean()) * scale
    return merged


def cosine(directions: NDArray[np.float64]) -> float:
    n = len(directions)
    pairs = [directions[i] @ directions[j] for i in range(n) for j in range(i)]
    return float(np.mean(pairs)) if pairs else 1.0


@pytest.mark.parametrize("n", [2, 3, 4, 7])
def test_the_variance_that_comes_back_is_that_of_the_text(n: int) -> None:
    vectors, weights = strangers(n, seed=n), [1.0 + number for number in range(n)]
    found = variance_corrected(vectors, LAYOUT, weights)
    np.testing.assert_allclose(found, by_formula(vectors, weights), rtol=1e-10)
    assert not np.allclose(found[:8], mean(vectors, weights)[:8], rtol=1e-3)


def of_rows(*rows: Sequence[float]) -> tuple[list[torch.Tensor], Layout]:
    layout = Layout.of([("w", (len(rows[0]),), "float32")])
    return [torch.tensor(row, dtype=torch.float64) for row in rows], layout


def test_a_tensor_of_two_numbers_has_a_variance_and_one_of_one_has_none() -> None:
    vectors, layout = of_rows([0.0, 2.0], [3.0, 0.0])
    expected = np.array([1.5, 1.0]) - 1.25
    expected *= math.sqrt((3.25 + 3.25e-6) / (0.125 + 3.25e-6))
    np.testing.assert_allclose(variance_corrected(vectors, layout), expected + 1.25, rtol=1e-12)
    made_apart = apart("variance-corrected", vectors, layout)
    np.testing.assert_allclose(made_apart, expected + 1.25, rtol=0, atol=4e-7)
    vectors, layout = of_rows([4.0], [-1.0])
    assert variance_corrected(vectors, layout).tolist() == [1.5]


def test_a_variance_of_one_is_one_like_any_other() -> None:
    vectors, layout = of_rows([0.0, 1.0, 2.0], [1.0, 2.0, 0.0])  # their cosine is -1/2
    found = variance_corrected(vectors, layout)
    assert float(found.var()) == pytest.approx(1.0, rel=1e-4)
    widened = apart("variance-corrected", vectors, layout)
    assert float(widened.var()) == pytest.approx(1.0, rel=1e-4)


def alike(n: int, cosine: float) -> list[torch.Tensor]:
    """Return vectors of which any two have this cosine, and none has a mean."""
    basis = torch.zeros(n + 1, 2 * n + 2, dtype=torch.float64)
    for number, row in enumerate(basis):
        row[2 * number], row[2 * number + 1] = 0.5**0.5, -(0.5**0.5)
    return [math.sqrt(cosine) * basis[n] + math.sqrt(1 - cosine) * row for row in basis[:n]]


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("has_met", [False, True])
def test_models_are_relatives_from_a_mean_cosine_of_a_half_on(n: int, has_met: bool) -> None:
    vectors = alike(n, 0.51 if has_met else 0.49)
    layout = Layout.of([("w", (2 * n + 2,), "float32")])
    plain = mean(vectors)
    for found in (
        variance_corrected(vectors, layout),
        apart("variance-corrected", vectors, layout),
    ):
        assert torch.allclose(found.double(), plain, rtol=1e-6) is has_met


@pytest.mark.parametrize(("third", "is_widened"), [(0.5, False), (0.4995, True)])
def test_of_shares_a_cosine_of_just_a_half_makes_relatives(third: float, is_widened: bool) -> None:
    """Of two nodes, whose mean direction is (1/2, 1/2, 1/2, 0) where their cosine is 1/2."""
    layout = Layout.of([("w", (4,), "float32")])
    model, direction, variance = [1.0, 2.0, 3.0, 6.0], [0.5, 0.5, third, 0.0], [100.0]
    found = merge_of("variance-corrected", torch.tensor(model + direction + variance), layout, 2)
    assert (found.tolist() != model) is is_widened


def apart(rule: str, vectors: Sequence[torch.Tensor], layout: Layout = LAYOUT) -> torch.Tensor:
    shares = [share(rule, vector, layout) for vector in vectors]
    return merge_of(rule, mean(shares), layout, len(vectors))


@pytest.mark.parametrize("n", [1, 2, 3, 6])
def test_what_nodes_make_apart_is_what_one_makes_of_all(n: int) -> None:
    vectors = strangers(n, seed=10 + n)
    together = {
        "mean": mean(vectors),
        "tokens": mean(vectors),
        "variance-corrected": variance_corrected(vectors, LAYOUT),
        "rda": rda(vectors, LAYOUT),
    }
    assert list(together) == list(MERGE_RULES)
    for rule, expected in together.items():
        found = apart(rule, vectors)
        assert found.dtype == torch.float32
        assert torch.allclose(found.double(), expected, rtol=1e-5, atol=1e-4)


def test_a_share_holds_what_its_rule_needs() -> None:
    layout = Layout.of([("w", (2,), "float32"), ("s", (), "float32")])
    x = torch.tensor([3.0, 7.0, -5.0])
    half = 0.5**0.5
    shares = {
        "mean": [3.0, 7.0, -5.0],
        "tokens": [3.0, 7.0, -5.0],
        "variance-corrected": [3.0, 7.0, -5.0, -half, half, 0.0, 8.0, 0.0],
        "rda": [3 / 58**0.5, 7 / 58**0.5, -1.0, 58**0.5, 5.0],
    }
    for rule, expected in shares.items():
        found = share(rule, x, layout)
        assert found.tolist() == pytest.approx(expected)
        assert len(found) == share_numel(rule, layout)
        found.add_(1.0)
    assert x.tolist() == [3.0, 7.0, -5.0], "a share is a copy"


@pytest.mark.parametrize("rule", MERGE_RULES)
def test_a_share_of_another_model_is_refused(rule: str) -> None:
    numel = share_numel(rule, LAYOUT)
    for wrong in (numel - 1, numel + 1):
        with pytest.raises(ConfigError, match=f"expected {numel} numbers for this model, got"):
            merge_of(rule, torch.zeros(wrong), LAYOUT, 2)


def test_a_rule_that_is_none_is_refused_on_both_ways() -> None:
    with pytest.raises(ConfigError, match="expected a merge rule among mean, tokens"):
        share("median", torch.zeros(9), LAYOUT)
    with pytest.raises(ConfigError, match="expected a merge rule among mean, tokens"):
        merge_of("median", torch.zeros(9), LAYOUT, 2)


def test_of_pseudo_gradients_the_mean_length_goes_along_the_mean_direction() -> None:
    vectors, layout = of_rows([3.0, 0.0], [1.0, 0.0], [0.0, 2.0])
    direction = np.array([2.0, 1.0]) / 5**0.5
    np.testing.assert_allclose(rda(vectors, layout), 2.0 * direction, rtol=1e-12)
    weighted = rda(vectors, layout, [1.0, 1.0, 2.0])
    np.testing.assert_allclose(weighted, 2.0 * np.array([0.5, 0.5]) / 0.5**0.5, rtol=1e-12)
    np.testing.assert_allclose(rda(vectors[:2], layout), [2.0, 0.0], rtol=1e-12)
    vectors, layout = of_rows([0.0, 0.0], [0.0, 4.0])
    np.testing.assert_allclose(rda(vectors, layout), [0.0, 2.0], rtol=1e-12)
    np.testing.assert_allclose(apart("rda", vectors, layout), [0.0, 2.0], rtol=1e-6)


def test_a_direction_that_is_as_long_as_one_is_given_its_length() -> None:
    vectors, layout = of_rows([3.0, 0.0], [5.0, 0.0])
    assert apart("rda", vectors, layout).tolist() == [4.0, 0.0]


def test_means_are_uniform_or_by_weight_and_in_the_type_of_the_vectors() -> None:
    vectors, _ = of_rows([1.0, 2.0], [5.0, 4.0], [0.0, 9.0])
    assert mean(vectors).tolist() == pytest.approx([2.0, 5.0])
    assert mean(vectors, [2.0, 1.0, 1.0]).tolist() == pytest.approx([1.75, 4.25])
    assert mean([vector.float() for vector in vectors]).dtype == torch.float32
    with pytest.raises(AssertionError):
        mean(vectors, [1.0, 2.0])


# --- what numbers of a peer may be ----------------------------------------------------------------


def test_a_magnitude_is_the_largest_value_and_the_sum_of_squares() -> None:
    assert magnitude_of(torch.tensor([[3.0], [-4.0]])) == Magnitude(4.0, 25.0)
    assert magnitude_of(torch.zeros(0)) == Magnitude(0.0, 0.0)


SAMPLED = 2**16


@pytest.mark.parametrize(
    ("numel", "n_even", "n_odd"),
    [(1, 1, 0), (2 * SAMPLED - 1, SAMPLED, SAMPLED - 1), (2 * SAMPLED + 1, 1, 0)],
)
def test_the_scale_of_weights_is_that_of_a_sample_of_them(
    numel: int, n_even: int, n_odd: int
) -> None:
    x = torch.full((numel,), 3.0)
    x[1::2] = 4.0
    found = scale_of(x)
    assert found.rms == pytest.approx(math.sqrt((9 * n_even + 16 * n_odd) / (n_even + n_odd)))
    assert found.largest == (4.0 if n_odd else 3.0)
    assert scale_of(torch.zeros(0)).rms == 0.0


def test_numbers_that_are_none_are_named() -> None:
    fine = {"a": torch.ones(2), "count": torch.tensor([7])}
    assert not_finite(fine) is None
    for number in (math.nan, math.inf):
        bad = fine | {"b": torch.tensor([1.0, number])}
        assert not_finite(bad) == "tensor b is not finite"


@pytest.mark.parametrize("numel", [1, 4])
def test_a_vector_may_be_a_hundred_times_as_long_as_the_own_weights(numel: int) -> None:
    own = torch.full((numel,), 3.0)
    assert too_large({"count": torch.tensor([10**9]), "a": torch.full((9,), 299.9)}, own) is None
    why = too_large({"a": torch.full((9,), 300.1)}, own)
    assert "tensor a: expected a norm up to 900" in str(why)
    spike = torch.zeros(10**4)
    spike[7] = 2.9e4
    assert too_large({"a": spike}, own) is None
    spike[7] = 3.1e4
    assert "tensor a: expected values up to 3e+04" in str(too_large({"a": spike}, own))


def test_beside_weights_that_are_small_a_vector_of_ones_is_the_measure() -> None:
    for own in (torch.full((4,), 1e-3), torch.zeros(0), torch.full((3,), 0.5)):
        assert too_large({"a": torch.full((9,), 99.9)}, own) is None
        assert too_large({"a": torch.full((9,), 100.1)}, own) is not None
        spike = torch.zeros(4 * 10**4)
        spike[7] = 0.99e4
        assert too_large({"a": spike}, own) is None
        spike[7] = 1.01e4
        assert "tensor a: expected values up to 1e+04" in str(too_large({"a": spike}, own))


def test_a_count_is_a_whole_number_in_its_range() -> None:
    for value in (2, 5, 7.0):
        assert outside("n", value, 2, 7) is None
    for value in (1, 8, 2.5, 6.999):
        assert outside("n", value, 2, 7) == f"n: expected a whole number from 2 to 7, got {value:g}"
    assert outside("n", math.nan, 2, 7) is not None
    assert outside("n", math.inf, 2, 7) is not None
