"""Token buckets: a rate with a burst, of one thing or of many by name."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from swarmnode import limits


class TokenBucket:
    """Bytes become free at a rate, up to a burst. One taking may overdraw it, never two.

    It counts requests as well as bytes; without a burst, blobs' own is meant.
    """

    def __init__(self, rate_bytes_per_s: float, burst_bytes: float | None = None) -> None:
        assert rate_bytes_per_s > 0
        self._rate = rate_bytes_per_s
        self._burst = rate_bytes_per_s * limits.BLOB_BURST_S if burst_bytes is None else burst_bytes
        self._level = self._burst
        self._filled_at: float | None = None

    def change(self, rate_bytes_per_s: float, burst_bytes: float, now: float) -> None:
        """Let bytes become free at another rate from now on; what is owed stays owed."""
        self._fill(now)
        self._rate, self._burst = rate_bytes_per_s, burst_bytes
        self._level = min(self._level, burst_bytes)

    def try_take(self, n_bytes: int, now: float) -> bool:
        """Take ``n_bytes`` unless the bucket is overdrawn."""
        self._fill(now)
        if self._level < 0:
            return False
        self._level -= n_bytes
        return True

    def spend(self, n_bytes: int, now: float) -> None:
        """Take ``n_bytes`` in any case: what cannot wait is paid for later."""
        self._fill(now)
        self._level -= n_bytes

    def has(self, n_bytes: float, now: float) -> bool:
        """Whether so much is free; with 0, whether :meth:`try_take` would succeed."""
        self._fill(now)
        return self._level >= n_bytes

    def is_full(self, now: float) -> bool:
        """Whether everything was paid back: it is as good as a new one."""
        self._fill(now)
        return self._level >= self._burst

    def free_at(self, n_bytes: float = 0) -> float:
        """Return when so much is free, or :meth:`try_take` succeeds, if it was not just now."""
        assert self._filled_at is not None
        # A little later than exact: rounding must not wake us just before.
        return self._filled_at + max(0.0, n_bytes - self._level) / self._rate + 1e-6

    def _fill(self, now: float) -> None:
        if self._filled_at is not None:
            added = (now - self._filled_at) * self._rate
            self._level = min(self._burst, self._level + added)
        self._filled_at = now


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
