"""Readings as the text that Prometheus reads: its own format, or OpenMetrics where asked for.

Only what the catalogue names is written, in its order, so that a page looks the same whoever's
readings it shows. What stays the same between two pages, such as ``name{label="value"}``, is
made once.

Source: Prometheus, "Exposition formats", text format 0.0.4; OpenMetrics 1.0.0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

from swarmnode.telemetry.catalogue import FAMILIES, Family
from swarmnode.telemetry.metrics import HistogramSnapshot
from swarmnode.telemetry.readings import Labels, Readings

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def render(readings: Readings, accept: str = "") -> tuple[str, bytes]:
    """Return content type and body for a scrape; ``accept`` is the request's Accept header."""
    is_open = wants_openmetrics(accept)
    lines: list[str] = []
    for family in FAMILIES:
        samples = list(_samples(family, readings))
        if samples:
            lines.append(_head(family, is_open=is_open))
            lines += samples
    if is_open:
        lines.append("# EOF\n")
    return OPENMETRICS_TYPE if is_open else TEXT_TYPE, "".join(lines).encode()


def wants_openmetrics(accept: str) -> bool:
    """Whether the Accept header names OpenMetrics 1.0.0 and does not refuse it with ``q=0``."""
    for each in accept.split(","):
        kind, *parameters = (part.strip().lower() for part in each.split(";"))
        if kind == "application/openmetrics-text":
            given = dict(part.split("=", 1) for part in parameters if "=" in part)
            is_ours = given.get("version", "1.0.0") == "1.0.0"
            if is_ours and given.get("escaping", "underscores") != "allow-utf-8":
                return given.get("q", "1").strip("0.") != ""
    return False


def _samples(family: Family, readings: Readings) -> Iterator[str]:
    histogram = readings.histograms.get(family.name)
    if histogram is not None:
        yield from _buckets(family, histogram)
        return
    for labels, value in readings.values.get(family.name, {}).items():
        yield f"{_series(family.name, family.label_names, labels)} {_number(value)}\n"


def _buckets(family: Family, histogram: HistogramSnapshot) -> Iterator[str]:
    total = 0
    for bound, count in zip((*map(str, family.bounds), "+Inf"), histogram.counts, strict=True):
        total += count
        yield f"{_series(family.name + '_bucket', ('le',), (bound,))} {total}\n"
    yield f"{family.name}_sum {_number(histogram.sum)}\n{family.name}_count {total}\n"


@lru_cache(maxsize=2 * len(FAMILIES))
def _head(family: Family, *, is_open: bool) -> str:
    """Return the lines before a family; the two formats name counters and facts differently."""
    kind, name = family.kind, family.name
    if is_open:
        name = name.removesuffix({"counter": "_total", "info": "_info"}.get(kind, "\0"))
    elif kind == "info":
        kind = "gauge"
    text = family.help.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


@lru_cache(maxsize=4096)  # pages of some peers; a page has a few hundred
def _series(name: str, label_names: tuple[str, ...], labels: Labels) -> str:
    if not labels:
        return name
    pairs = ",".join(
        f'{key}="{_escaped(value)}"' for key, value in zip(label_names, labels, strict=True)
    )
    return f"{name}{{{pairs}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if value.is_integer():
        return f"{value:.0f}" if abs(value) < 2**63 else repr(value)
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)
