"""Readings of this node for another one, and those of another one for a page of ours.

Nothing that a peer sends reaches a page but numbers, values of labels that the catalogue knows,
and a few words that keep to a pattern and are not too many over time: in Prometheus each new
word is a series for ever, so that a peer that invents words could fill the operator's disk.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection

from swarmnode.errors import MalformedMessage
from swarmnode.telemetry.catalogue import BY_NAME, PREFIX, SHORT_ID, Family
from swarmnode.telemetry.metrics import HistogramSnapshot
from swarmnode.telemetry.readings import Labels, Readings
from swarmnode.wire import metrics as wire

# Texts that one peer may make labels of over time, for a metric whose labels are its own words:
# each is a series that Prometheus keeps. Versions and devices change rarely.
METRICS_TEXTS_MAX = 32

# The swarm as a peer sees it is not its own news; one page about it is enough.
_LOCAL_ONLY = PREFIX + "swarm_"
_NODE = BY_NAME[PREFIX + "node_info"]
_NODE_LABELS_TOLD = 5  # its name, the last one, stands in the shared state, and versions before
# it would know no more of a node that told six


def label_name(name: str) -> str:
    """Return a name as a label: letters, digits and a few signs, others as underscores."""
    return re.sub(r"[^\w .+-]", "_", name)


def pack(readings: Readings) -> wire.MetricsSnapshot:
    """Return what another member is told."""
    families = [
        wire.MetricFamily(_short(name), tuple(_samples(BY_NAME[name], values)))
        for name, values in readings.values.items()
        if not name.startswith(_LOCAL_ONLY)
    ]
    histograms = (
        wire.MetricHistogram(_short(name), each.counts, each.sum)
        for name, each in readings.histograms.items()
    )
    return wire.MetricsSnapshot(tuple(each for each in families if each.samples), tuple(histograms))


def _short(name: str) -> str:
    return name.removeprefix(PREFIX)


def _samples(family: Family, values: dict[Labels, float]) -> list[wire.MetricSample]:
    """A counter that is 0 goes without saying, and so does what is no number."""
    return [
        wire.MetricSample(labels[:_NODE_LABELS_TOLD] if family is _NODE else labels, value)
        for labels, value in values.items()
        if math.isfinite(value) and (value or family.kind != "counter")
    ]


class PeerWords:
    """Reads the snapshots of one peer, and remembers which words it has used."""

    def __init__(self, peer: str, swarm: str, name: Callable[[], str] = lambda: "") -> None:
        """``peer`` is its short id; ``swarm`` is the name of our common swarm.

        ``name`` returns what it is called, as the shared state says.
        """
        self._peer = peer
        self._swarm = swarm
        self._name = name
        self._words: dict[str, set[Labels]] = {}

    def unpack(self, snapshot: wire.MetricsSnapshot, members: Collection[str]) -> Readings:
        """Return its readings; what the catalogue does not know is left out.

        Args:
            members: short ids of those that the peer may speak of.

        Raises:
            MalformedMessage: a number is none, or cannot be.
        """
        readings = Readings()
        for each in snapshot.families:
            family = BY_NAME.get(PREFIX + each.name)
            if family is None or family.kind == "histogram" or _is_local(family):
                continue
            for sample in each.samples:
                labels = self._own_labels(family, sample.labels)
                if self._may_show(family, labels, members):
                    readings.set(each.name, _checked(family, sample.value), *labels)
        for histogram in snapshot.histograms:
            family = BY_NAME.get(PREFIX + histogram.name)
            if family is not None and family.kind == "histogram":
                readings.observe(histogram.name, _histogram(family, histogram))
        return readings

    def _own_labels(self, family: Family, labels: Labels) -> Labels:
        """Return the labels; which peer it is, and in which swarm, is ours to say."""
        if family is not _NODE:
            return labels
        told = labels[2:_NODE_LABELS_TOLD]
        return (self._peer, self._swarm, *told, label_name(self._name()))

    def _may_show(self, family: Family, labels: Labels, members: Collection[str]) -> bool:
        if len(labels) != len(family.labels):
            return False
        for label, value in zip(family.labels, labels, strict=True):
            if not label.allows(value):
                return False
            if label.pattern == SHORT_ID and value not in members:
                return False
        return family.is_closed or family.is_of_peers or self._is_used_word(family, labels)

    def _is_used_word(self, family: Family, labels: Labels) -> bool:
        words = self._words.setdefault(family.name, set())
        if len(words) < METRICS_TEXTS_MAX:
            words.add(labels)
        return labels in words


def _is_local(family: Family) -> bool:
    return family.name.startswith(_LOCAL_ONLY)


def _checked(family: Family, value: float) -> float:
    if not math.isfinite(value) or (family.kind == "counter" and value < 0):
        raise MalformedMessage(f"expected a finite {family.kind} {family.name}, got {value}")
    return 1.0 if family.kind == "info" else value


def _histogram(family: Family, said: wire.MetricHistogram) -> HistogramSnapshot:
    n_buckets = len(family.bounds) + 1
    if len(said.counts) != n_buckets or not math.isfinite(said.sum) or said.sum < 0:
        raise MalformedMessage(
            f"expected {n_buckets} buckets of {family.name} and a finite sum, got"
            f" {len(said.counts)} and {said.sum}"
        )
    return HistogramSnapshot(family.bounds, said.counts, said.sum)
