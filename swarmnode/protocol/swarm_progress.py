"""How far the whole swarm is, and how many train: the same at every member, from what all say.

::

    progress = sum of all counters of tokens + pace of each · time since its counter was last heard
    members  = sum of the weights of those that train

Counters are reported every few seconds, so that between two reports each member is counted on at
the pace that it had; for no longer than SWARM_PROGRESS_AHEAD_S. A member's weight rises from 0 to 1
between two marks of the progress, ``ramp``, which it says itself when it begins: all members have
heard of it by then, and see the same weight at the same progress. One that is gone cannot say when;
its weight falls over MEMBERS_RAMP_S from the moment at which each has noticed. So the learning rate
has no jumps, and that of two members differs by no more than what a report is late.

All of this is self-reported. A lie moves the schedule of the swarm, by what PACE_TIMES_MAX members
could: no pace counts for more than so many medians of all paces, and the sum of counters comes in
bounded as well (``plausible.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median_low

from swarmnode import limits
from swarmnode.ids import PeerId

_PACE_KEEP = 0.7  # of the pace known so far, where a report gives another measure of it
_ERROR_KEEP = 0.7  # of what a report is off from where we thought that its member was
_JITTER_S = 3.0  # so much of its pace: more is no lateness
# The fastest accelerator trains a hundred times as fast as a laptop.
PACE_TIMES_MAX = 100
_PACE_WINDOW_S = 1.0  # reports closer to each other say little of a pace


@dataclass(frozen=True)
class Said:
    """What a member says of itself, this node among them.

    Attributes:
        ramp: progress at which its weight begins to rise, and is 1.
        heard_at: when that was last said, monotonic.
    """

    tokens: int
    steps: int
    step_time_s: float  # 0: not said
    is_training: bool
    ramp: tuple[float, float]
    heard_at: float

    @property
    def claimed_per_s(self) -> float:
        """Its pace by what it says of its steps: tokens a second."""
        if self.steps <= 0 or self.step_time_s <= 0:
            return 0.0
        return self.tokens / self.steps / self.step_time_s


@dataclass(frozen=True)
class SwarmState:
    """See :class:`swarmnode.ipc.control.SwarmProgress`."""

    others_tokens: float
    others_per_s: float
    others_counted: int
    own_tokens: int
    members: float
    members_per_token: float  # by which that grows

    @property
    def tokens(self) -> float:
        """How far the swarm is, but for what this node has not reported yet."""
        return self.others_tokens + self.own_tokens


@dataclass
class _Pace:
    """What is known of one other member over time."""

    tokens: int  # its counter
    at: float  # when it was last heard to have grown
    per_s: float
    counted: float  # how far it was then, as far as we knew
    weight: float = 0.0
    lost_at: float | None = None  # since when it does not train
    is_training: bool = True

    def ahead(self, now: float) -> float:
        """Return how far it is beyond its counter, negative if we were too fast."""
        if not self.is_training:
            return 0.0
        since_s = min(max(0.0, now - self.at), limits.SWARM_PROGRESS_AHEAD_S)
        return self.counted + self.per_s * since_s - self.tokens

    def note(self, said: Said, now: float, most_per_s: float) -> None:
        if said.tokens > self.tokens:
            passed_s = now - self.at
            error = said.tokens - (self.tokens + self.ahead(now))
            if passed_s >= _PACE_WINDOW_S:
                measured = (said.tokens - self.tokens) / passed_s
                measured = min(measured, most_per_s)
                self.per_s = _PACE_KEEP * self.per_s + (1 - _PACE_KEEP) * measured
            # Reports are late by up to a heartbeat, each by another time: that evens out.
            is_jitter = abs(error) <= _JITTER_S * self.per_s
            self.counted = said.tokens - (_ERROR_KEEP * error if is_jitter else 0.0)
            self.tokens, self.at = said.tokens, now
        self.per_s = min(self.per_s or said.claimed_per_s, most_per_s)
        self.is_training = said.is_training


class SwarmProgressCore:
    """Follows the counters of all members."""

    def __init__(self, self_id: PeerId) -> None:
        self._self_id = self_id
        self._others: dict[PeerId, _Pace] = {}  # members, as many as the failure detector knows
        self._own: Said | None = None
        self._total = 0
        self._said: Mapping[PeerId, Said] = {}

    def note(self, said: Mapping[PeerId, Said], total: int, now: float) -> None:
        """Take what all live members say now; ``total`` is the sum of tokens, the dead included."""
        self._own = said.get(self._self_id)
        self._said, self._total = said, total
        most_per_s = self._most_per_s()
        for peer, each in said.items():
            if peer == self._self_id:
                continue
            known = self._others.get(peer)
            if known is None:
                heard_at = min(each.heard_at, now)
                per_s = min(each.claimed_per_s, most_per_s)
                known = _Pace(each.tokens, heard_at, per_s, each.tokens)
                self._others[peer] = known
            known.note(each, now, most_per_s)
            known.lost_at = None if each.is_training else known.lost_at or now
        for peer, known in list(self._others.items()):
            if peer not in said:
                known.is_training, known.lost_at = False, known.lost_at or now
                if now - known.lost_at > limits.MEMBERS_RAMP_S:
                    del self._others[peer]

    def _most_per_s(self) -> float:
        """Return the pace that none counts beyond, by what is known of all, our own too."""
        paces = sorted(
            per_s
            for peer, each in self._said.items()
            if (per_s := self._known_per_s(peer) or each.claimed_per_s) > 0
        )
        return PACE_TIMES_MAX * median_low(paces) if paces else math.inf

    def _known_per_s(self, peer: PeerId) -> float:
        return self._others[peer].per_s if peer in self._others else 0.0

    def state(self, now: float) -> SwarmState:
        """Return where the swarm is."""
        own = self._own.tokens if self._own is not None else 0
        ahead = sum(known.ahead(now) for known in self._others.values())
        counted = max(0, self._total - own)
        others = max(0.0, counted + ahead)
        per_s = sum(known.per_s for known in self._others.values() if known.is_training)
        members, growth = self._members(others + own, now)
        return SwarmState(others, per_s, counted, own, members, growth)

    def ramp(self, own_per_s: float, now: float) -> tuple[float, float]:
        """Return the marks between which this node's weight is to rise if it begins now."""
        state = self.state(now)
        pace = state.others_per_s + own_per_s
        # Where all begin at about the same time no member waits for longer than they have trained.
        begin = state.tokens + min(pace * limits.MEMBERS_RAMP_DELAY_S, state.tokens)
        return begin, begin + min(pace * limits.MEMBERS_RAMP_S, state.tokens)

    def _members(self, progress: float, now: float) -> tuple[float, float]:
        """Return how many train, and by how much more with each token."""
        members = growth = 0.0
        for peer, known in self._others.items():
            if known.lost_at is None:
                known.weight, rise = _risen(self._said[peer].ramp, progress)
                members, growth = members + known.weight, growth + rise
            else:
                left = 1 - (now - known.lost_at) / limits.MEMBERS_RAMP_S
                members += known.weight * max(0.0, left)
        own, rise = (1.0, 0.0) if self._own is None else _risen(self._own.ramp, progress)
        return max(1.0, members + own), growth + rise


def _risen(ramp: tuple[float, float], progress: float) -> tuple[float, float]:
    """Return the weight of a member at this progress, and its growth with each token."""
    begin, end = ramp
    if progress >= end:
        return 1.0, 0.0
    if progress < begin:
        return 0.0, 0.0
    return (progress - begin) / (end - begin), 1 / (end - begin)
