"""Whose turn it is to be sent chunks: a few peers at a time, the others hear that we are busy.

A peer that is being sent chunks goes on being sent them, so that some finish soon. Only when
others were turned away lately does a turn end, after BLOB_TURN_S; then all may try for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from swarmnode import limits
from swarmnode.ids import PeerId


@dataclass
class _Turn:
    since: float
    n_owed: int = 0
    is_over: bool = False


class Turns:
    """At most ``n_max`` peers at once. Times are monotonic seconds."""

    def __init__(self, rate_bytes_per_s: float | None) -> None:
        """``rate_bytes_per_s``: what all of them share, if it is limited."""
        self._n_max = limits.BLOB_UPLOADS_MAX
        if rate_bytes_per_s is not None:
            # A chunk each in half of the time after which a fetcher takes us for dead.
            chunks = rate_bytes_per_s * limits.BLOB_IDLE_S / 2 / limits.BLOB_CHUNK_BYTES
            self._n_max = max(1, min(self._n_max, int(chunks)))
        self._turns: dict[PeerId, _Turn] = {}
        self._refused_at = -math.inf

    @property
    def n_peers(self) -> int:
        """How many peers are owed chunks."""
        return sum(turn.n_owed > 0 for turn in self._turns.values())

    def admit(self, peer: PeerId, now: float) -> bool:
        """Whether a request of this peer is served; then :meth:`done` follows."""
        turn = self._turns.get(peer) or self._begin(peer, now)
        if turn is None:
            self._refused_at = now
            return False
        is_crowded = now - self._refused_at < limits.BLOB_TURN_S
        if turn.is_over or (is_crowded and now - turn.since > limits.BLOB_TURN_S):
            self._end(peer, turn)
            return False
        turn.n_owed += 1
        return True

    def done(self, peer: PeerId) -> None:
        """Note that a request which was admitted has been answered, or never will be."""
        turn = self._turns[peer]
        turn.n_owed -= 1
        if turn.is_over:
            self._end(peer, turn)

    def _begin(self, peer: PeerId, now: float) -> _Turn | None:
        if len(self._turns) >= self._n_max:
            idle = next((who for who, turn in self._turns.items() if not turn.n_owed), None)
            if idle is None:
                return None
            del self._turns[idle]
        turn = self._turns[peer] = _Turn(since=now)
        return turn

    def _end(self, peer: PeerId, turn: _Turn) -> None:
        turn.is_over = True
        if not turn.n_owed:
            del self._turns[peer]
