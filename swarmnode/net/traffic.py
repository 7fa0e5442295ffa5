"""What all sessions of a node together may send and receive: rates, and whether tensors at all.

A session asks before it sends or allows bulk; control and state pass at once, and what they take
is paid for by the bulk after them. So a limit is kept over a second, and a probe never waits for
a tensor. What comes cannot be delayed without delaying everything behind it on the same channel:
the credit of bulk streams is given late instead, and a peer that opens new ones is sent away while
the line is owed much.
"""

from __future__ import annotations

import math

import trio

from swarmnode import limits
from swarmnode.errors import Overloaded
from swarmnode.protocol.blobs.bucket import TokenBucket
from swarmnode.protocol.session.core import SessionCore

# A limited line: what may pass at once, in seconds of its rate, and the least in any case.
_TRAFFIC_BURST_S = 0.25
_TRAFFIC_TURN_BYTES_MIN = 16 * limits.KIB
# A peer that opens a stream for tensors while we owe the line more than this is sent elsewhere;
# the first windows of a few streams are always allowed.
_TRAFFIC_DEBT_S = 2.0
_TRAFFIC_DEBT_BYTES_MIN = limits.MIB


class Line:
    """One direction; without a rate it only counts."""

    def __init__(self) -> None:
        self.rate_bytes_per_s = 0.0
        self.total_bytes = 0
        self.throttled_s = 0.0  # how long bulk had to wait, overlapping waits once
        self._bucket: TokenBucket | None = None
        self._throttled_until = 0.0

    def limit(self, rate_bytes_per_s: float) -> None:
        """Keep a rate from now on; 0 is none."""
        self.rate_bytes_per_s = rate_bytes_per_s
        burst_bytes = max(rate_bytes_per_s * _TRAFFIC_BURST_S, _TRAFFIC_TURN_BYTES_MIN)
        self._bucket = TokenBucket(rate_bytes_per_s, burst_bytes) if rate_bytes_per_s else None

    def spend(self, n_bytes: int, now: float) -> None:
        """Count what has passed or is about to."""
        self.total_bytes += n_bytes
        if self._bucket is not None:
            self._bucket.spend(n_bytes, now)

    def free_at(self, now: float) -> float:
        """Return when bulk may pass; ``now`` or earlier means now."""
        bucket = self._bucket
        if bucket is None or bucket.has(0, now):
            return now
        return bucket.free_at()

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
        turn_bytes = int(self.rate_bytes_per_s * _TRAFFIC_BURST_S)
        return min(limits.FRAME_DATA_BYTES_MAX, max(_TRAFFIC_TURN_BYTES_MIN, turn_bytes))


class Traffic:
    """Both directions; one for all sessions that share a registry of services.

    Attributes:
        why_no_tensors: told to peers and callers that want to pass one; "" lets them.
    """

    def __init__(self) -> None:
        self.up = Line()
        self.down = Line()
        self.why_no_tensors = ""

    def refusal(self, now: float) -> str:
        """Return why a peer may not open a stream for tensors just now, "" if it may."""
        if self.why_no_tensors:
            return self.why_no_tensors
        rate = self.down.rate_bytes_per_s
        owed_bytes = (self.down.free_at(now) - now) * rate
        is_deep = owed_bytes > max(_TRAFFIC_DEBT_BYTES_MIN, rate * _TRAFFIC_DEBT_S)
        return "its line is busy" if is_deep else ""

    def hold_back(self, core: SessionCore, now: float) -> float:
        """Tell a session what it must keep back; return when to look again, if ever."""
        look_again_at = math.inf
        if self.up.rate_bytes_per_s:
            free_at = self.up.free_at(now)
            is_waiting = core.hold_bulk(free_at > now)
            if free_at > now:
                look_again_at = free_at
                if is_waiting:
                    self.up.note_wait(now, free_at)
        if self.down.rate_bytes_per_s:
            free_at = self.down.free_at(now)
            core.bulk_window_bytes = self.down.window_bytes
            is_waiting = core.hold_credit(free_at > now)
            if free_at > now:
                look_again_at = min(look_again_at, free_at)
                if is_waiting:
                    self.down.note_wait(now, free_at)
        return look_again_at

    async def wait_for_turn(self) -> None:
        """Wait until both directions owe nothing, before a stream for tensors is opened.

        Raises:
            Overloaded: none may pass.
        """
        while not self.why_no_tensors:
            now = trio.current_time()
            free_at = max(self.up.free_at(now), self.down.free_at(now))
            if free_at <= now:
                return
            await trio.sleep_until(free_at)
        raise Overloaded(f"no tensors are sent or received now: {self.why_no_tensors}")
