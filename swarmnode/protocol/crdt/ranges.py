"""Digests of ranges of heads: how two replicas find what differs without listing all.

A range is all peers whose id begins with some hexadecimal digits; its fingerprint is the sum,
modulo 2^256, of the hashes of its heads. A sum can be kept up to date in O(1) and does not
depend on order (Bellare and Micciancio, "A new paradigm for collision-free hashing:
incrementality at reduced cost", 1997). Ids are hashes, so ranges are about equally full.

Reconciliation in the manner of Meyer, "Range-based set reconciliation", 2023: equal
fingerprints end it, short ranges are listed, long ones are split into sixteen.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from swarmnode.wire.crdt import Head, Range

_DIGITS = "0123456789abcdef"
_SUMMED_DIGITS = 2  # sums are kept for prefixes up to here; 273 of them
_MODULUS = 1 << 256


@dataclass
class _Sum:
    n_heads: int = 0
    total: int = 0


class _Weighed(NamedTuple):
    head: Head
    weight: int  # what it adds to a sum


class RangeIndex:
    """Heads by peer id, with sums over ranges. Cost: O(1) a change, O(n / 256) a deep range."""

    def __init__(self) -> None:
        self._buckets: dict[str, dict[bytes, _Weighed]] = defaultdict(dict)
        self._sums: dict[str, _Sum] = defaultdict(_Sum)

    def get(self, peer: bytes) -> Head | None:
        """Return the head of a peer."""
        held = self._bucket(peer).get(peer)
        return None if held is None else held.head

    def put(self, head: Head) -> None:
        """Set or replace the head of a peer."""
        bucket, weight = self._bucket(head.peer), _weight(head)
        held = bucket.get(head.peer)
        bucket[head.peer] = _Weighed(head, weight)
        if held is None:
            self._count(head.peer, 1, weight)
        else:
            self._count(head.peer, 0, weight - held.weight)

    def remove(self, peer: bytes) -> None:
        """Drop the head of a peer, if there is one."""
        held = self._bucket(peer).pop(peer, None)
        if held is not None:
            self._count(peer, -1, -held.weight)

    def digest(self, prefix: str) -> Range:
        """Return number and fingerprint of a range."""
        if len(prefix) <= _SUMMED_DIGITS:
            held = self._sums.get(prefix, _Sum())
            return _range(prefix, held.n_heads, held.total)
        heads = self.heads(prefix)
        return _range(prefix, len(heads), sum(map(_weight, heads)) % _MODULUS)

    def heads(self, prefix: str) -> list[Head]:
        """Return the heads of a range in id order."""
        first = prefix[:_SUMMED_DIGITS]
        found = [
            held.head
            for bucket, heads in self._buckets.items()
            if bucket.startswith(first)
            for peer, held in heads.items()
            if peer.hex().startswith(prefix)
        ]
        return sorted(found, key=lambda head: head.peer)

    def split(self, prefix: str) -> tuple[Range, ...]:
        """Return the sixteen parts of a range."""
        return tuple(self.digest(prefix + digit) for digit in _DIGITS)

    def __len__(self) -> int:
        return self._sums[""].n_heads

    def _bucket(self, peer: bytes) -> dict[bytes, _Weighed]:
        return self._buckets[peer.hex()[:_SUMMED_DIGITS]]

    def _count(self, peer: bytes, n_more: int, weight_more: int) -> None:
        digits = peer.hex()[:_SUMMED_DIGITS]
        for length in range(_SUMMED_DIGITS + 1):
            held = self._sums[digits[:length]]
            held.n_heads += n_more
            held.total = (held.total + weight_more) % _MODULUS


def _weight(head: Head) -> int:
    body = head.peer + head.epoch.to_bytes(8, "big") + head.sequence.to_bytes(8, "big") + head.hash
    return int.from_bytes(hashlib.sha256(body).digest(), "big")


def _range(prefix: str, n_heads: int, total: int) -> Range:
    return Range(prefix, n_heads, total.to_bytes(32, "big"))
