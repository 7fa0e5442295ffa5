"""What a node tells Prometheus: the catalogue, and its rendering from a snapshot.

The daemon fills a :class:`NodeSnapshot` at scrape time; nothing is counted here between two
scrapes, and no global registry is used, so that many nodes fit into one process. Every known
value of a label is there from the start with 0: an alert on a rate needs the first sample.

Names: prefix ``swarmnode_``, base units, ``_total`` for counters, ``_info`` for facts,
timestamps instead of ages.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import get_args

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from swarmnode.wire.membership import PeerState

PLANES = ("control", "state", "tensor")
WAYS = ("direct", "punched", "webrtc", "relayed")
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

    def __post_init__(self) -> None:
        _check_known("state", [self.state], STATES)
        _check_known("way", self.connections, WAYS)
        _check_known("plane", [*self.sent_bytes, *self.received_bytes], PLANES)
        _check_known("result", self.exchanges, EXCHANGE_RESULTS)


def render(snapshot: NodeSnapshot, accept: str = "") -> tuple[str, bytes]:
    """Return content type and body for a scrape; ``accept`` is the request's Accept header."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_SnapshotCollector(snapshot))
    encode, content_type = choose_encoder(accept)
    return content_type, encode(registry)


class _SnapshotCollector(Collector):
    """Hands the families of one snapshot to the encoder."""

    def __init__(self, snapshot: NodeSnapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        yield from _node_families(self._snapshot)
        yield from _network_families(self._snapshot)
        yield from _exchange_families(self._snapshot)
        yield from _training_families(self._snapshot)


def _node_families(node: NodeSnapshot) -> Iterator[Metric]:
    yield InfoMetricFamily(
        "swarmnode_build",
        "Version of swarmnode and what it runs on.",
        {"version": node.version, "python": node.python, "native_isa": node.native_isa},
    )
    yield InfoMetricFamily(
        "swarmnode_node",
        "What this node is, and where it takes part.",
        {"role": node.role, "device": node.device, "swarm": node.swarm},
    )
    yield GaugeMetricFamily(
        "swarmnode_start_timestamp_seconds",
        "Unix time at which the daemon started.",
        node.start_unix_s,
    )
    state = GaugeMetricFamily("swarmnode_state", "1 for the state it is in.", labels=["state"])
    for name in STATES:
        state.add_metric([name], float(name == node.state))
    yield state
    yield CounterMetricFamily(
        "swarmnode_worker_restarts",
        "Times the training process was started again after a failure.",
        node.worker_restarts,
    )


def _network_families(node: NodeSnapshot) -> Iterator[Metric]:
    yield GaugeMetricFamily("swarmnode_peers", "Peers of the swarm believed alive.", node.peers)
    connections = GaugeMetricFamily(
        "swarmnode_connections", "Open sessions by the way they take.", labels=["way"]
    )
    for way in WAYS:
        connections.add_metric([way], node.connections.get(way, 0))
    yield connections
    yield _counter("swarmnode_sent_bytes", "Bytes sent to peers.", "plane", PLANES, node.sent_bytes)
    yield _counter(
        "swarmnode_received_bytes",
        "Bytes received from peers.",
        "plane",
        PLANES,
        node.received_bytes,
    )


def _exchange_families(node: NodeSnapshot) -> Iterator[Metric]:
    yield _counter(
        "swarmnode_exchanges",
        "Exchanges of model fragments by how they ended.",
        "result",
        EXCHANGE_RESULTS,
        node.exchanges,
    )
    yield HistogramMetricFamily(
        "swarmnode_exchange_duration_seconds",
        "Time from the offer of an exchange to its end.",
        buckets=_cumulated(node.exchange_duration_s),
        sum_value=node.exchange_duration_s.sum,
    )
    yield from _gauge_if_known(
        "swarmnode_last_exchange_timestamp_seconds",
        "Unix time of the last committed exchange.",
        node.last_exchange_unix_s,
    )
    yield CounterMetricFamily(
        "swarmnode_encode_seconds", "Time spent compressing tensors for the wire.", node.encode_s
    )


def _training_families(node: NodeSnapshot) -> Iterator[Metric]:
    yield CounterMetricFamily("swarmnode_local_steps", "Optimizer steps taken here.", node.steps)
    yield CounterMetricFamily("swarmnode_tokens", "Tokens (or samples) trained on.", node.tokens)
    yield from _gauge_if_known(
        "swarmnode_step_duration_seconds",
        "Running mean of one optimizer step, without waiting.",
        node.step_duration_s,
    )
    yield from _gauge_if_known("swarmnode_loss", "Running mean of the training loss.", node.loss)
    yield from _gauge_if_known(
        "swarmnode_eval_loss", "Loss on the public probe set of the task.", node.eval_loss
    )


def _counter(
    name: str, text: str, label: str, known: tuple[str, ...], values: Mapping[str, int]
) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for value in known:
        family.add_metric([value], values.get(value, 0))
    return family


def _gauge_if_known(name: str, text: str, value: float | None) -> Iterator[Metric]:
    if value is not None:
        yield GaugeMetricFamily(name, text, value)


def _cumulated(histogram: HistogramSnapshot) -> list[tuple[str, float]]:
    total, buckets = 0, []
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets


def _check_known(what: str, given: Mapping[str, int] | list[str], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            raise ValueError(f"unknown {what} {name!r}: expected one of {', '.join(known)}")
