"""Readings as the text that Prometheus reads: its own format, or OpenMetrics where asked for.

Only what the catalogue names is written, in its order, so that a page looks the same whichever
node's readings it shows. The Prometheus client writes it; importing that takes 3 MB, so it is done
at the first scrape, which most volunteers' nodes never see. No global registry is used: many
nodes fit into one process.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from swarmnode.telemetry.catalogue import FAMILIES, Family
from swarmnode.telemetry.metrics import HistogramSnapshot
from swarmnode.telemetry.readings import Readings


def render(readings: Readings, accept: str = "") -> tuple[str, bytes]:
    """Return content type and body for a scrape; ``accept`` is the request's Accept header."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(readings))
    encode, content_type = choose_encoder(accept)
    return content_type, encode(registry)


class _Page(Collector):
    """Hands the families of one page to the encoder."""

    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    def collect(self) -> Iterator[Metric]:
        for family in FAMILIES:
            metric = _metric(family, self._readings)
            if metric.samples:
                yield metric


def _metric(family: Family, readings: Readings) -> Metric:
    # The client adds the suffixes of counters and facts itself.
    name = family.name.removesuffix({"counter": "_total", "info": "_info"}.get(family.kind, "\0"))
    metric = Metric(name, family.help, family.kind)
    histogram = readings.histograms.get(family.name)
    if histogram is not None:
        _add_buckets(metric, family, histogram)
        return metric
    for labels, value in readings.values.get(family.name, {}).items():
        metric.add_sample(family.name, dict(zip(family.label_names, labels, strict=True)), value)
    return metric


def _add_buckets(metric: Metric, family: Family, histogram: HistogramSnapshot) -> None:
    totals = list(accumulate(histogram.counts))
    for bound, total in zip((*map(str, family.bounds), "+Inf"), totals, strict=True):
        metric.add_sample(family.name + "_bucket", {"le": bound}, total)
    metric.add_sample(family.name + "_sum", {}, histogram.sum)
    metric.add_sample(family.name + "_count", {}, totals[-1])
