"""Dealing a fixed set of items into the shards of an epoch, each item exactly once.

The items are shuffled, cut into batches, and batch j goes to shard j modulo the number of
shards. All nodes must shuffle alike, whatever version of torch or numpy they run, so the
shuffle is written out here and is part of what a task's ``version`` names: a Feistel network
over the smallest power of four that holds all items, walked until it lands on one (Black,
Rogaway, "Ciphers with arbitrary finite domains", 2002). Any part of it is computed alone, so
that a shard of a large corpus costs no more than its own items.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from swarmnode import limits

Indices = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]

_ROUNDS = 4
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # odd, its bits without a pattern: 2^64 / phi
_HALF_WORD = np.uint64(32)


def deal(
    n_items: int, batch: int, *, epoch_seed: int, shard: int, n_shards: int
) -> Iterator[Indices]:
    """Yield the batches of one shard as indices of items, int64 [batch]; the epoch's last is
    shorter where ``batch`` does not divide ``n_items``.
    """
    n_batches = math.ceil(n_items / batch)
    starts = np.arange(shard, n_batches, n_shards, dtype=np.int64) * batch
    positions = (starts[:, None] + np.arange(batch, dtype=np.int64)).ravel()
    order = shuffled(positions[positions < n_items], n_items, epoch_seed)
    for begin in range(0, len(order), batch):
        yield order[begin : begin + batch]


def shard_count(n_items: int, batch: int, batches_per_shard: int) -> int:
    """Return how many shards of about ``batches_per_shard`` batches the items make."""
    n_shards = n_items // (batch * batches_per_shard)
    return min(max(n_shards, 1), limits.SHARDS_PER_EPOCH_MAX)


def shuffled(positions: Indices, n_items: int, seed: int) -> Indices:
    """Return what lies at these positions once 0..n_items-1 are shuffled.

    Args:
        positions: int64 [n], each in 0..n_items-1.
        n_items: at most 2^62.
        seed: names the shuffle.

    Returns:
        int64 [n]; different positions give different items.
    """
    half_bits = max(1, (max(n_items - 1, 1).bit_length() + 1) // 2)
    material = hashlib.sha256(f"swarmnode/deal/1/{seed}".encode()).digest()
    keys = np.frombuffer(material, dtype="<u8", count=_ROUNDS)
    words = positions.astype(np.uint64)
    outside = np.arange(len(words))
    while outside.size:
        words[outside] = _feistel(words[outside], keys, half_bits)
        outside = outside[words[outside] >= n_items]
    return words.astype(np.int64)


def _feistel(words: _Words, keys: _Words, half_bits: int) -> _Words:
    """Permute the numbers below 4^half_bits."""
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = words >> shift, words & mask
    for key in keys:
        mixed = (right ^ key) * _MULTIPLIER
        mixed = (mixed ^ (mixed >> _HALF_WORD)) * _MULTIPLIER
        left, right = right, left ^ (mixed >> _HALF_WORD & mask)
    return left << shift | right
