"""Rules over many vectors, whatever these are: order, equality, and what f of them can do."""

from __future__ import annotations

from typing import get_args

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmnode.strategies.merging.rules import candidates, find_rule
from swarmnode.strategies.merging.slot import GroupMerge

RULES = get_args(GroupMerge)

derandomized = settings(max_examples=60, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)
members = st.integers(1, 24)
WITHOUT_ORDER = sorted(set(RULES) - {"bristle"})  # chance goes by numbers


def drawn(n, seed, numel=50):
    return np.random.default_rng(seed).standard_normal((n, numel)).astype(np.float32)


def made(rule, rows, own=0):
    return candidates(find_rule(rule), lambda: iter([rows]), [1.0] * len(rows), own=own)


@derandomized
@given(st.sampled_from(WITHOUT_ORDER), members, seeds)
def test_the_order_of_members_does_not_matter(rule, n, seed):
    rows = drawn(n, seed)
    order = np.random.default_rng(seed).permutation(n)
    own = int(np.flatnonzero(order == 0)[0])
    for one, other in zip(made(rule, rows), made(rule, rows[order], own), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@derandomized
@given(st.sampled_from(sorted(RULES)), members, seeds)
def test_what_all_agree_on_comes_out(rule, n, seed):
    row = drawn(1, seed)[0]
    for found in made(rule, np.stack([row] * n)):
        np.testing.assert_allclose(found, row, rtol=1e-5, atol=1e-7)


@derandomized
@given(members, seeds, st.sampled_from([1e-3, 1.0, 1e4, 1e30]))
def test_f_members_keep_no_coordinate_away_from_the_honest_ones(n, seed, size):
    """Trimming leaves it within what honest members sent, mixing within twice their distance."""
    rng = np.random.default_rng(seed)
    n_hostile = n // 4
    rows = drawn(n, seed)
    honest = rows[n_hostile:].astype(np.float64)
    agreed = rng.standard_normal(rows.shape[1]) * size  # they know of each other
    rows[:n_hostile] = agreed + rng.standard_normal(rows[:n_hostile].shape) * rng.choice([0, size])
    low, high = honest.min(0), honest.max(0)
    (trimmed,) = made("trimmed-mean", rows)
    assert (trimmed >= low - 1e-5).all()
    assert (trimmed <= high + 1e-5).all()
    apart = max(np.linalg.norm(one - other) for one in honest for other in honest)
    (mixed,) = made("nnm-trimmed", rows)
    assert (mixed >= low - apart - 1e-5).all()
    assert (mixed <= high + apart + 1e-5).all()


@derandomized
@given(st.sampled_from(sorted(RULES)), members, seeds)
def test_equal_messages_give_equal_bits(rule, n, seed):
    rows = drawn(n, seed)
    for one, other in zip(made(rule, rows), made(rule, rows.copy(order="F")), strict=True):
        assert np.array_equal(one, other)
