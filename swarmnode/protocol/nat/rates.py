"""Many equal rates, one for each name: who has not asked lately costs no memory."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from swarmnode.protocol.blobs.bucket import TokenBucket

NameT = TypeVar("NameT", bound=Hashable)


class Rates(Generic[NameT]):
    """Token buckets of at most ``names_max`` names; further names are refused, not forgotten."""

    def __init__(self, per_s: float, burst: float, names_max: int) -> None:
        self._per_s = per_s
        self._burst = burst
        self._names_max = names_max
        self._buckets: dict[NameT, TokenBucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def try_take(self, name: NameT, now: float) -> bool:
        """Take one for ``name``; False: it has had its share, or too many others have."""
        bucket = self._buckets.get(name)
        if bucket is None:
            if len(self._buckets) >= self._names_max:
                self._forget_full(now)
                if len(self._buckets) >= self._names_max:
                    return False
            bucket = self._buckets[name] = TokenBucket(self._per_s, self._burst)
        return bucket.try_take(1, now)

    def _forget_full(self, now: float) -> None:
        self._buckets = {
            name: bucket for name, bucket in self._buckets.items() if not bucket.is_full(now)
        }
