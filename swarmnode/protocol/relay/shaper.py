"""Who may send next, where bandwidth is what is scarce: deficit round robin over circuits.

A piece that fits into the bandwidth of its peer and of the relay passes at once. Otherwise it
waits, and the waiting circuits take turns, each with the same number of bytes a turn. A circuit
whose peer has used up its own bandwidth stands aside, so that none waits behind it.

Source: Shreedhar and Varghese, Efficient Fair Queuing using Deficit Round Robin (1995). The
quantum is the largest piece, so each turn passes at least one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from swarmnode import limits
from swarmnode.protocol.blobs.bucket import TokenBucket
from swarmnode.protocol.relay.accounts import Account

_QUANTUM_BYTES = limits.RELAY_PIECE_BYTES


@dataclass(slots=True, eq=False)
class Flow:
    """What of one circuit waits: at most one piece each way."""

    circuit: int
    account: Account
    waiting: deque[tuple[int, int]] = field(default_factory=deque)  # (side, bytes)
    deficit_bytes: int = 0
    has_turn: bool = False
    is_gone: bool = False


class Shaper:
    """The pieces that wait, and the bandwidth that they wait for."""

    def __init__(self, total: TokenBucket | None) -> None:
        self._total = total
        self._ring: deque[Flow] = deque()
        self._aside: list[Flow] = []

    def try_pass(self, flow: Flow, n_bytes: int, now: float) -> bool:
        """Let a piece pass at once if none waits for the same bandwidth."""
        if self._ring or flow.waiting or not (_is_free(self._total, now)):
            return False
        if not _is_free(flow.account.rate, now):
            return False
        self._spend(flow, n_bytes, now)
        return True

    def wait(self, flow: Flow, side: int, n_bytes: int) -> None:
        """Put a piece in line; :meth:`release` tells when it may pass."""
        flow.waiting.append((side, n_bytes))
        if len(flow.waiting) > 1:
            return
        # Of each direction only one piece waits here: whoever sends small ones has its turn in
        # several parts.
        flow.has_turn = n_bytes <= flow.deficit_bytes
        if flow.has_turn:
            self._ring.appendleft(flow)
        else:
            self._ring.append(flow)

    def drop(self, flow: Flow) -> None:
        """Forget what waits of a circuit that is over."""
        flow.is_gone = True
        flow.waiting.clear()
        self._ring = deque(each for each in self._ring if not each.is_gone)
        self._aside = [each for each in self._aside if not each.is_gone]

    def release(self, now: float) -> list[tuple[Flow, int]]:
        """Return (flow, side) of the pieces that pass now, in order."""
        passed: list[tuple[Flow, int]] = []
        self._call_back(now)
        while self._ring and _is_free(self._total, now):
            flow = self._ring[0]
            if not flow.has_turn:
                flow.has_turn = True
                flow.deficit_bytes = min(flow.deficit_bytes, _QUANTUM_BYTES) + _QUANTUM_BYTES
            if self._may_go_on(flow, now):
                side, n_bytes = flow.waiting.popleft()
                flow.deficit_bytes -= n_bytes
                self._spend(flow, n_bytes, now)
                passed.append((flow, side))
            else:
                self._end_turn(now)
        if self._ring and not self._ring[0].waiting:
            self._end_turn(now)
        return passed

    def next_deadline(self) -> float | None:
        """Return when :meth:`release` may give something; call it after :meth:`release`."""
        moments = [flow.account.rate.free_at() for flow in self._aside if flow.account.rate]
        if self._ring and self._total is not None:
            moments.append(self._total.free_at())
        return min(moments, default=None)

    def _may_go_on(self, flow: Flow, now: float) -> bool:
        """Whether the flow whose turn it is may send its next piece, as far as it is concerned."""
        has_piece = bool(flow.waiting) and flow.waiting[0][1] <= flow.deficit_bytes
        return has_piece and _is_free(flow.account.rate, now)

    def _end_turn(self, now: float) -> None:
        flow = self._ring.popleft()
        flow.has_turn = False
        is_held_up = not _is_free(flow.account.rate, now)
        if is_held_up:
            flow.deficit_bytes = 0
        if flow.waiting:
            (self._aside if is_held_up else self._ring).append(flow)

    def _call_back(self, now: float) -> None:
        back = [flow for flow in self._aside if _is_free(flow.account.rate, now)]
        if back:
            self._aside = [flow for flow in self._aside if flow not in back]
            self._ring.extend(back)

    def _spend(self, flow: Flow, n_bytes: int, now: float) -> None:
        for bucket in (self._total, flow.account.rate):
            if bucket is not None:
                bucket.spend(n_bytes, now)


def _is_free(bucket: TokenBucket | None, now: float) -> bool:
    return bucket is None or bucket.has(0, now)
