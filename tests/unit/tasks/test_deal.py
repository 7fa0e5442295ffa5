"""Dealing: each item once an epoch, alike everywhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmnode import limits
from swarmnode.tasks.deal import deal, shard_count, shuffled


@given(
    n_items=st.integers(1, 600),
    batch=st.integers(1, 40),
    n_shards=st.integers(1, 12),
    seed=st.integers(0, 2**32 - 1),
)
def test_each_item_is_dealt_once(n_items: int, batch: int, n_shards: int, seed: int) -> None:
    batches = [
        indices
        for shard in range(n_shards)
        for indices in deal(n_items, batch, epoch_seed=seed, shard=shard, n_shards=n_shards)
    ]
    assert sorted(np.concatenate(batches)) == list(range(n_items))
    assert sum(len(indices) < batch for indices in batches) == (n_items % batch > 0)


def test_shards_differ_by_one_batch_at_most() -> None:
    sizes = [len(list(deal(1000, 16, epoch_seed=1, shard=s, n_shards=5))) for s in range(5)]
    assert sum(sizes) == 63
    assert max(sizes) - min(sizes) == 1


def test_the_shuffle_is_written_in_stone() -> None:
    """Other versions of every library, and other implementations, must deal the same."""
    assert shuffled(np.arange(12), 12, 7).tolist() == [0, 4, 2, 9, 1, 5, 3, 8, 11, 10, 6, 7]


def test_another_seed_is_another_order_and_neither_is_the_first() -> None:
    n_items = 4000
    orders = [shuffled(np.arange(n_items), n_items, seed) for seed in (1, 2)]
    assert np.mean(orders[0] == orders[1]) < 0.01
    for order in orders:
        assert abs(np.corrcoef(order, np.arange(n_items))[0, 1]) < 0.06
        steps = np.diff(order)
        assert abs(np.corrcoef(steps[:-1], steps[1:])[0, 1] + 0.5) < 0.06, "as of random numbers"


def test_a_part_of_a_huge_set_is_dealt_alone() -> None:
    last = np.array([2**40 - 1, 0, 2**39])
    items = shuffled(last, 2**40, 3)
    assert len(set(items.tolist())) == 3
    assert ((items >= 0) & (items < 2**40)).all()


@pytest.mark.parametrize(
    ("n_items", "expected"), [(1, 1), (10_000, 9), (10**9, limits.SHARDS_PER_EPOCH_MAX)]
)
def test_the_number_of_shards_follows_from_the_data(n_items: int, expected: int) -> None:
    assert shard_count(n_items, 16, 64) == expected
