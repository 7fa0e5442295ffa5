"""One direction of a node's line: what passes, what for, and how much of it may pass now.

Control and state are never held: they pass at once and are paid for by what comes after them. What
may wait asks :meth:`Line.free_at` first, by its purpose. While several purposes wait, each has its
share of what is free, exchanges most of it: on a thin line a copy of the model would otherwise take
half, and no exchange would end in time.

Source of the sharing: Goyal, Vin and Cheng, Start-time fair queueing (1996). Deviation: no queue
stands here, the bytes wait where they are; a purpose that has waited lately counts as waiting.
"""

from __future__ import annotations

import math
from enum import IntEnum

from swarmnode import limits
from swarmnode.protocol.blobs.bucket import TokenBucket

# A limited line: what may pass at once, in seconds of its rate, and the least in any case.
_TRAFFIC_BURST_S = 0.25
_TRAFFIC_BURST_BYTES_MIN = 16 * limits.KIB
# One turn of bulk, in seconds of the rate: what all others wait behind. Two packets at least, or
# what says that they came is late (RFC 9293, delayed acknowledgements).
_TRAFFIC_TURN_S = 0.1
_TRAFFIC_TURN_BYTES_MIN = 4 * limits.KIB
# A purpose that has waited within so many turns counts as waiting: its task is about to ask again.
_WAITING_TURNS = 4

# What TCP and IP add to a packet of so many bytes, options included, and what a packet brings
# forth that only says it came: one for two, as RFC 5681 has it.
_PACKET_BYTES = 1400
_HEADER_BYTES = 52


class Purpose(IntEnum):
    """What bytes are for. The first are those that may be held."""

    EXCHANGE = 0
    RELAYING = 1  # for others
    SNAPSHOTS = 2
    STATE = 3  # all the rest: who is there, what they know, and how to reach them


# Streams that are known by name; other tensors are exchanges. A leg carries another session.
_SNAPSHOT_SERVICE = "blob/"
_LEG_SERVICE = "relay-leg/"

# Of a line on which all of them wait: eight elevenths are for exchanges.
_SHARES = {Purpose.EXCHANGE: 8, Purpose.RELAYING: 2, Purpose.SNAPSHOTS: 1, Purpose.STATE: 1}


def purpose_of(service: str, *, is_bulk: bool) -> Purpose:
    """Return what a stream is for; a peer that opens one may say anything of its priority."""
    if service.startswith(_SNAPSHOT_SERVICE):
        return Purpose.SNAPSHOTS
    if service.startswith(_LEG_SERVICE):
        return Purpose.RELAYING
    return Purpose.EXCHANGE if is_bulk else Purpose.STATE


def on_the_wire(n_bytes: int) -> int:
    """Return what the line carries for so many bytes of a stream: headers count for the owner."""
    return n_bytes + -(-n_bytes // _PACKET_BYTES) * _HEADER_BYTES


def receipts(n_bytes: int) -> int:
    """Return what goes back for so many bytes that came; few of them ride on what is sent."""
    return n_bytes // (2 * _PACKET_BYTES) * _HEADER_BYTES


class Line:
    """One direction; without a rate it only counts.

    Attributes:
        for_purpose: bytes, by Purpose.
        throttled_s: how long bulk had to wait, overlapping waits once.
    """

    def __init__(self) -> None:
        self.rate_bytes_per_s = 0.0
        self.for_purpose = [0 for _ in Purpose]
        self.throttled_s = 0.0
        self._bucket: TokenBucket | None = None
        self._throttled_until = 0.0
        self._served = [0.0 for _ in Purpose]  # bytes by share, since it waits
        self._waits_until = [-math.inf for _ in Purpose]

    @property
    def total_bytes(self) -> int:
        """All that has passed."""
        return sum(self.for_purpose)

    def by_purpose(self) -> dict[str, int]:
        """Return the bytes that have passed, by the name of what they were for."""
        return {each.name.lower(): self.for_purpose[each] for each in Purpose}

    @property
    def is_limited(self) -> bool:
        """Whether anything is ever held."""
        return self._bucket is not None

    def limit(self, rate_bytes_per_s: float) -> None:
        """Keep a rate from now on; 0 is none."""
        self.rate_bytes_per_s = rate_bytes_per_s
        burst_bytes = max(rate_bytes_per_s * _TRAFFIC_BURST_S, _TRAFFIC_BURST_BYTES_MIN)
        self._bucket = TokenBucket(rate_bytes_per_s, burst_bytes) if rate_bytes_per_s else None

    def spend(self, n_bytes: int, now: float, purpose: Purpose = Purpose.STATE) -> None:
        """Count what has passed or is about to."""
        self.count(n_bytes, purpose)
        self._served[purpose] += n_bytes / _SHARES[purpose]
        self.pay(n_bytes, now)

    def count(self, n_bytes: int, purpose: Purpose) -> None:
        """Note what bytes were for that :meth:`pay` has paid for."""
        self.for_purpose[purpose] += n_bytes

    def pay(self, n_bytes: int, now: float) -> None:
        """Take from what is allowed before it is known what it is for."""
        if self._bucket is not None:
            self._bucket.spend(n_bytes, now)

    def free_at(self, now: float, purpose: Purpose = Purpose.EXCHANGE) -> float:
        """Return when bytes of this purpose may pass; ``now`` or earlier means now.

        To ask is to wait: others leave it its share for a moment.
        """
        bucket = self._bucket
        if bucket is None:
            return now
        turn_s = self.turn_bytes_max / self.rate_bytes_per_s
        if not bucket.has(0, now):
            free_at = bucket.free_at()
        elif self._is_behind_others(purpose, now):
            free_at = now + turn_s / 2
        else:
            free_at = now
        self._note_waiting(purpose, now, free_at + _WAITING_TURNS * turn_s)
        return free_at

    def debt_s(self, now: float) -> float:
        """Return how long it takes to pay for what has passed."""
        if self._bucket is None or self._bucket.has(0, now):
            return 0.0
        return self._bucket.free_at() - now

    def note_wait(self, now: float, until: float) -> None:
        """Note that bulk waits; however many sessions do, a second counts once."""
        begin = max(now, self._throttled_until)
        self.throttled_s += max(0.0, until - begin)
        self._throttled_until = max(begin, until)

    @property
    def window_bytes(self) -> int:
        """How much a peer may send on a bulk stream before it is given more credit."""
        if self._bucket is None:
            return limits.BULK_WINDOW_BYTES
        second_bytes = int(self.rate_bytes_per_s)
        return min(limits.BULK_WINDOW_BYTES, max(limits.STREAM_WINDOW_BYTES, second_bytes))

    @property
    def turn_bytes_max(self) -> int:
        """The most that one turn of bulk should be, so that the rate is kept smoothly."""
        if self._bucket is None:
            return limits.FRAME_DATA_BYTES_MAX
        turn_bytes = int(self.rate_bytes_per_s * _TRAFFIC_TURN_S)
        return min(limits.FRAME_DATA_BYTES_MAX, max(_TRAFFIC_TURN_BYTES_MIN, turn_bytes))

    def _note_waiting(self, purpose: Purpose, now: float, until: float) -> None:
        if self._waits_until[purpose] < now:  # it begins where the others are: no credit for rest
            waiting = [self._served[other] for other in Purpose if self._waits_until[other] >= now]
            self._served[purpose] = min(waiting, default=0.0)
        self._waits_until[purpose] = until

    def _is_behind_others(self, purpose: Purpose, now: float) -> bool:
        return any(
            self._waits_until[other] >= now and self._served[other] < self._served[purpose]
            for other in Purpose
            if other is not purpose
        )
