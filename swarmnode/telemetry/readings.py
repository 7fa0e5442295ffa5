"""The values of all metrics of one node at one moment, by the names of the catalogue."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from swarmnode.telemetry.catalogue import BY_NAME, FAMILIES, PREFIX, Family
from swarmnode.telemetry.metrics import HistogramSnapshot

Labels = tuple[str, ...]


class Readings:
    """A page before it is text.

    Every counter is there from the start, with 0 for all known values of its labels, and so is
    every histogram. Names are given without ``swarmnode_``.

    Attributes:
        values: by family name, then by the values of its labels in their order.
        histograms: by family name.
    """

    def __init__(self) -> None:
        self.values: dict[str, dict[Labels, float]] = {
            name: dict(zeros) for name, zeros in _ZEROS.items()
        }
        self.histograms: dict[str, HistogramSnapshot] = dict(_EMPTY)

    def set(self, name: str, value: float | None, *labels: str) -> None:
        """Note one value; None is not noted.

        Raises:
            ValueError: the catalogue has no such metric, or no such value of a label.
        """
        if value is None:
            return
        family = _family(name)
        _check(family, labels)
        samples = self.values.setdefault(family.name, {})
        if len(samples) < family.samples_max or family.is_closed or labels in samples:
            samples[labels] = float(value)

    def each(self, name: str, values: Mapping[str, float]) -> None:
        """Note the values of a metric with one label. Raises ValueError as :meth:`set`."""
        for label, value in values.items():
            self.set(name, value, label)

    def one_of(self, name: str, *chosen: str) -> None:
        """Note 1 for these values of the only label and 0 for all others.

        Raises:
            ValueError: one of them is not known.
        """
        family = _family(name)
        for value in chosen:
            _check(family, (value,))
        (label,) = family.labels
        self.values[family.name] = {(value,): float(value in chosen) for value in label.values}

    def observe(self, name: str, histogram: HistogramSnapshot) -> None:
        """Note a histogram. Raises ValueError if the catalogue has none with these bounds."""
        family = _family(name)
        if family.bounds != histogram.bounds:
            raise ValueError(f"{name}: expected a histogram with the bounds of the catalogue")
        self.histograms[family.name] = histogram

    def get(self, name: str, *labels: str) -> float | None:
        """Return one value, None if it is not there."""
        return self.values.get(PREFIX + name, {}).get(labels)


def _family(name: str) -> Family:
    family = BY_NAME.get(PREFIX + name)
    if family is None:
        raise ValueError(f"unknown metric {name!r}: the catalogue has none of this name")
    return family


def _check(family: Family, labels: Labels) -> None:
    if len(labels) != len(family.labels):
        raise ValueError(f"{family.name}: expected labels {family.label_names}, got {labels}")
    for label, value in zip(family.labels, labels, strict=True):
        if not label.allows(value):
            known = ", ".join(label.values) or label.pattern
            raise ValueError(
                f"{family.name}: unknown {label.name} {value!r}: expected one of {known}"
            )


def _zeros() -> dict[str, dict[Labels, float]]:
    return {
        family.name: dict.fromkeys(itertools.product(*(each.values for each in family.labels)), 0.0)
        for family in FAMILIES
        if family.kind == "counter"
    }


_ZEROS = _zeros()
_EMPTY = {
    family.name: HistogramSnapshot(family.bounds, (0,) * (len(family.bounds) + 1))
    for family in FAMILIES
    if family.kind == "histogram"
}
