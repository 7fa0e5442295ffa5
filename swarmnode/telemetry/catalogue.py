"""The metrics of a node: names, help texts and labels, and their rendering from a snapshot.

No global registry is used, so that many nodes fit into one process. Every known value of a label
is there from the start with 0: an alert on a rate needs the first sample.

Names: prefix ``swarmnode_``, base units, ``_total`` for counters, ``_info`` for facts,
timestamps instead of ages.

Importing this takes 3 MB, with all that the Prometheus client brings: it is done at the first
scrape, which most volunteers' nodes never see.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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

from swarmnode.telemetry.metrics import (
    EXCHANGE_RESULTS,
    PLANES,
    STATES,
    WAYS,
    HistogramSnapshot,
    NodeSnapshot,
)


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
        yield from _strategy_families(self._snapshot)


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


def _strategy_families(node: NodeSnapshot) -> Iterator[Metric]:
    if node.mixing is not None:
        yield GaugeMetricFamily(
            "swarmnode_swarm_lambda2",
            "Second smallest eigenvalue of the Laplacian of the swarm's exchanges, per second.",
            node.mixing.lambda2,
        )
        yield GaugeMetricFamily(
            "swarmnode_swarm_chi1",
            "Seconds of the slowest mixing, 1 / lambda2; infinite if the swarm is in parts.",
            node.mixing.chi1,
        )
        yield GaugeMetricFamily(
            "swarmnode_swarm_chi2",
            "Half the largest effective resistance of an edge of the swarm's exchanges, seconds.",
            node.mixing.chi2,
        )
    values = GaugeMetricFamily(
        "swarmnode_strategy_value", "The strategy's own figures by name.", labels=["name"]
    )
    for name, value in node.strategy.items():
        values.add_metric([name], value)
    yield values


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
