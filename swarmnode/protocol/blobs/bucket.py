"""A token bucket: how much may be moved now, so that a rate is kept over time."""

from __future__ import annotations

from swarmnode import limits


class TokenBucket:
    """Bytes become free at a rate, up to a burst. One taking may overdraw it, never two."""

    def __init__(self, rate_bytes_per_s: float) -> None:
        assert rate_bytes_per_s > 0
        self._rate = rate_bytes_per_s
        self._burst = rate_bytes_per_s * limits.BLOB_BURST_S
        self._level = self._burst
        self._filled_at: float | None = None

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

    def free_at(self) -> float:
        """Return when :meth:`try_take` succeeds again, given that it failed just now."""
        assert self._filled_at is not None
        # A little later than exact: rounding must not wake us just before.
        return self._filled_at + max(0.0, -self._level) / self._rate + 1e-6

    def _fill(self, now: float) -> None:
        if self._filled_at is not None:
            added = (now - self._filled_at) * self._rate
            self._level = min(self._burst, self._level + added)
        self._filled_at = now
