"""One holder of a blob: what it has, what it owes us, and how fast it is."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmnode import limits
from swarmnode.ids import PeerId

_NEWEST_WEIGHT = 0.3  # of one measurement in the average: follows a change within ten chunks


def has_bit(bitmap: bytes | bytearray, index: int) -> bool:
    """Whether bit ``index`` is set; bits beyond the end are not."""
    return index >> 3 < len(bitmap) and bool(bitmap[index >> 3] >> (index & 7) & 1)


def bitmap_of(indices: set[int] | range, n_chunks: int) -> bytes:
    """Return the bitmap of these chunks."""
    bits = bytearray((n_chunks + 7) // 8)
    for index in indices:
        bits[index >> 3] |= 1 << (index & 7)
    return bytes(bits)


@dataclass
class Holder:
    """A peer that we may ask. Times are monotonic seconds."""

    peer: PeerId
    have: bytearray
    asked: dict[int, float] = field(default_factory=dict)  # chunk to when it was asked for
    delivered_at: float = 0.0  # when it last sent a chunk, or began to owe
    heard_at: float = 0.0  # when anything of a chunk last came, or it began to owe
    resting_until: float = 0.0  # it said busy
    rate_bytes_per_s: float = 0.0  # 0: not measured
    bytes_received: int = 0

    @property
    def idle_at(self) -> float | None:
        """When its silence ends our patience, or None if it owes nothing."""
        return self.heard_at + limits.BLOB_IDLE_S if self.asked else None

    def room(self, chunk_bytes: int, now: float) -> int:
        """Return how many more chunks it should be asked for now."""
        if now < self.resting_until:
            return 0
        ahead = int(self.rate_bytes_per_s * limits.BLOB_AHEAD_S / chunk_bytes) + 1
        wanted = max(limits.BLOB_REQUESTS_PER_HOLDER_MIN, ahead)
        return min(wanted, limits.BLOB_REQUESTS_PER_HOLDER_MAX) - len(self.asked)

    def ask(self, index: int, now: float) -> None:
        """Note a request."""
        if not self.asked:
            self.heard_at = self.delivered_at = now
        self.asked[index] = now

    def deliver(self, index: int, size_bytes: int, now: float) -> float:
        """Note a chunk that came; return how long it took since the request."""
        took_s = now - self.asked.pop(index)
        # Chunks of one holder queue behind each other: what counts is the time between two.
        between_s = max(now - self.delivered_at, 1e-6)
        rate = size_bytes / between_s
        newest = _NEWEST_WEIGHT if self.rate_bytes_per_s else 1.0
        self.rate_bytes_per_s += newest * (rate - self.rate_bytes_per_s)
        self.heard_at = self.delivered_at = now
        self.bytes_received += size_bytes
        return took_s
