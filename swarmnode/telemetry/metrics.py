"""What metrics are made of: values of labels, histograms, and what other parts hand in.

``catalogue.py`` names the metrics, ``readings.py`` holds their values at one moment.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from swarmnode.ipc.names import FAILURE_KINDS, GUARD_REFUSALS
from swarmnode.protocol.crdt.ledger import Verdict
from swarmnode.protocol.membership.swim_events import MemberState
from swarmnode.protocol.trust import Seen
from swarmnode.protocol.uplink import Purpose
from swarmnode.wire.admission import Role
from swarmnode.wire.connect.relay import RefusalCode
from swarmnode.wire.exchange.gossip import REASON_CODES
from swarmnode.wire.membership import PeerState

PauseReason = Literal[
    "none",  # nothing holds it
    "manual",  # until it is resumed by hand
    "schedule",
    "battery",
    "user",  # a person works at this machine
    "gpu-busy",  # another program uses the GPU
    "gpu-hot",
    "metered",  # the network costs money
    "quota",  # this month's bytes are used up
    "disk",
    "memory",
]
LimitName = Literal["upload", "download", "cpu"]

PLANES: Final = ("control", "state", "tensor")
PATHS: Final = ("direct", "punched-tcp", "rtc", "relay", "other")  # net/paths.py
STATES: Final[tuple[str, ...]] = get_args(PeerState)
ROLES: Final[tuple[str, ...]] = get_args(Role)
PAUSE_REASONS: Final[tuple[str, ...]] = get_args(PauseReason)
THROTTLES: Final = (*PAUSE_REASONS[1:], *get_args(LimitName))
LINE_DIRECTIONS: Final = ("upload", "download")
PURPOSES: Final = tuple(purpose.name.lower() for purpose in Purpose)
DIRECTIONS: Final = ("sent", "received")
BLOB_DIRECTIONS: Final = ("sent", "received", "wasted")  # wasted: received for nothing
EXCHANGE_RESULTS: Final = ("committed", "aborted", "busy", "in_doubt")
EXCHANGE_FAILURES: Final = tuple(sorted(REASON_CODES))
GROUP_RESULTS: Final = ("committed", "aborted", "refused")
STANDSTILLS: Final = ("log", "group", "lineage", "full")
REFUSED_KINDS: Final = ("pair", "group", "pull")
GUARD_REASONS: Final = GUARD_REFUSALS
SEEN_OF_PEERS: Final = tuple(seen.value for seen in Seen)
PULL_RESULTS: Final = ("pulled", "failed", "given", "declined")
CODEC_PHASES: Final = ("encode", "requantize", "decode")
WORKER_FAILURES: Final = tuple(sorted(FAILURE_KINDS | {"killed", "hung"}))
DIAL_FAILURES: Final = ("timeout", "unreachable", "handshake", "refused", "other")
MEMBER_STATES: Final = tuple(state.value for state in MemberState)
CRDT_VERDICTS: Final = tuple(verdict.value for verdict in Verdict)
DHT_REJECTIONS: Final = ("forged", "oversized", "expired", "malformed", "full")
RELAY_REFUSALS: Final[tuple[str, ...]] = get_args(RefusalCode)
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
PROCESSES: Final = ("daemon", "worker")
STATISTICS: Final = ("min", "median", "max")
SWARM_ROLES: Final = (*ROLES, "unknown")
SWARM_STATES: Final = (*STATES, "unknown")
VERSIONS: Final = ("same", "older", "newer", "unknown")

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
class LimitsSnapshot:
    """What the owner allows, and what holds the node back. Counters count since the start.

    Attributes:
        paused: why it does not train now; empty: nothing holds it.
        bytes_per_s: by one of LINE_DIRECTIONS, only where there is a limit.
        quota_bytes: a month; None: no quota.
        throttled_s: by one of THROTTLES.
        line_bytes: by one of LINE_DIRECTIONS, and that by one of PURPOSES.
    """

    paused: tuple[PauseReason, ...] = ()
    bytes_per_s: Mapping[str, float] = field(default_factory=dict)
    quota_bytes: int | None = None
    quota_used_bytes: int | None = None
    throttled_s: Mapping[str, float] = field(default_factory=dict)
    line_bytes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
