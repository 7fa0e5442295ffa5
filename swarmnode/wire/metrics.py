"""Records of ``metrics/1``: one member asks another for its metrics, to show them to Prometheus.

A snapshot names metrics as ``telemetry/catalogue.py`` does, without ``swarmnode_``; what a reader
does not know it leaves out, so that versions may differ. See ``proto/metrics.md``.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from swarmnode import limits
from swarmnode.wire.records import Count

MetricName = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[a-z][a-z0-9_]*$")]
LabelValue = Annotated[str, Meta(max_length=64)]


class MetricsRequest(msgspec.Struct, frozen=True):
    """Give me your metrics."""


class MetricSample(msgspec.Struct, frozen=True):
    """One value, and the values of the metric's labels in the order of the catalogue."""

    labels: Annotated[tuple[LabelValue, ...], Meta(max_length=limits.METRICS_LABELS_MAX)]
    value: float


class MetricFamily(msgspec.Struct, frozen=True):
    """All samples of one gauge, counter or fact."""

    name: MetricName
    samples: Annotated[tuple[MetricSample, ...], Meta(max_length=limits.METRICS_SAMPLES_MAX)]


class MetricHistogram(msgspec.Struct, frozen=True):
    """Observations by bucket, not cumulated; the last bucket has no upper bound."""

    name: MetricName
    counts: Annotated[tuple[Count, ...], Meta(max_length=limits.METRICS_BUCKETS_MAX)]
    sum: float


class MetricsSnapshot(msgspec.Struct, frozen=True):
    """The answer. Counters without a value are 0, other metrics without a value are not known."""

    families: Annotated[tuple[MetricFamily, ...], Meta(max_length=limits.METRICS_FAMILIES_MAX)]
    histograms: Annotated[
        tuple[MetricHistogram, ...], Meta(max_length=limits.METRICS_HISTOGRAMS_MAX)
    ] = ()
