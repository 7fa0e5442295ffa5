"""What a node tells Prometheus, as plain values; ``catalogue.py`` gives them names and text.

The daemon fills a :class:`NodeSnapshot` at scrape time; nothing is counted here between two
scrapes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

from swarmnode.telemetry.nat import NatSnapshot
from swarmnode.wire.membership import PeerState

PLANES = ("control", "state", "tensor")
WAYS = ("direct", "punched-tcp", "rtc", "relay", "other")  # net/paths.py
EXCHANGE_RESULTS = ("committed", "aborted", "busy", "in_doubt")
STATES: tuple[str, ...] = get_args(PeerState)

# From a LAN exchange of a small model to a large one over a slow uplink, doubling.
EXCHANGE_SECONDS_BOUNDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0)


@dataclass(frozen=True)
class HistogramSnapshot:
    """``counts[i]`` observations fell into bucket i, not cumulated; the last has no upper bound."""

    bounds: tuple[float, ...] = EXCHANGE_SECONDS_BOUNDS
    counts: tuple[int, ...] = (0,) * (len(EXCHANGE_SECONDS_BOUNDS) + 1)
    sum: float = 0.0

    def __post_init__(self) -> None:
        assert len(self.counts) == len(self.bounds) + 1


class Histogram:
    """Counts observations for as long as the process lives."""

    def __init__(self, bounds: tuple[float, ...] = EXCHANGE_SECONDS_BOUNDS) -> None:
        """``bounds`` are the inclusive upper ends of the buckets, ascending."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def snapshot(self) -> HistogramSnapshot:
        """Return what was counted so far."""
        return HistogramSnapshot(self._bounds, tuple(self._counts), self._sum)


@dataclass(frozen=True)
class MixingFigures:
    """How well the graph of the swarm's exchanges mixes; see ``strategies/topology.py``."""

    lambda2: float
    chi1: float
    chi2: float


@dataclass(frozen=True, kw_only=True)
class NodeSnapshot:
    """One node at one moment. Seconds are Unix time; counters count since the process started.

    Raises:
        ValueError: A state, plane, way or result is none of the known ones.
    """

    version: str
    python: str
    native_isa: str
    role: str
    device: str
    swarm: str
    state: str
    start_unix_s: float

    peers: int = 0
    connections: Mapping[str, int] = field(default_factory=dict)  # by one of WAYS
    sent_bytes: Mapping[str, int] = field(default_factory=dict)  # by one of PLANES
    received_bytes: Mapping[str, int] = field(default_factory=dict)

    exchanges: Mapping[str, int] = field(default_factory=dict)  # by one of EXCHANGE_RESULTS
    exchange_duration_s: HistogramSnapshot = HistogramSnapshot()
    last_exchange_unix_s: float | None = None  # the last one committed

    steps: int = 0
    tokens: int = 0
    step_duration_s: float | None = None
    loss: float | None = None  # None before there is one: NaN is left to mean divergence
    eval_loss: float | None = None
    encode_s: float = 0.0
    worker_restarts: int = 0

    nat: NatSnapshot = field(default_factory=NatSnapshot)
    mixing: MixingFigures | None = None  # None: not computed
    strategy: Mapping[str, float] = field(default_factory=dict)  # the strategy's own figures

    def __post_init__(self) -> None:
        _check_known("state", [self.state], STATES)
        _check_known("way", self.connections, WAYS)
        _check_known("plane", [*self.sent_bytes, *self.received_bytes], PLANES)
        _check_known("result", self.exchanges, EXCHANGE_RESULTS)


def _check_known(what: str, given: Mapping[str, int] | list[str], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            raise ValueError(f"unknown {what} {name!r}: expected one of {', '.join(known)}")
