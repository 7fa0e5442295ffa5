"""Figures of findings: means over seeds with their standard error, and numbers that fit a page."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

import msgspec

from swarmnode.bench.fidelity.finding import Check

_DIGITS = 4  # that a figure is kept with
_SEEDS_MIN = 3  # from which on a standard error says something


def check(what: str, value: float, *, low: float | None = None, high: float | None = None) -> Check:
    """Return a figure with the bounds that the claim gives it."""
    found = short(value) if math.isfinite(value) else None
    return Check(what=what, value=found, low=low, high=high)


def claim(
    what: str, values: Sequence[float], *, low: float | None = None, high: float | None = None
) -> Check:
    """Return a mean over seeds with the bounds that the claim gives it, and its standard error."""
    found = check(what, mean(values), low=low, high=high)
    if len(values) < _SEEDS_MIN or found.value is None:
        return found
    return msgspec.structs.replace(found, error=short(standard_error(values)))


def standard_error(values: Sequence[float]) -> float:
    """Return that of the mean of two or more values."""
    return statistics.stdev(values) / math.sqrt(len(values))


def mean(values: Iterable[float]) -> float:
    """Return their mean."""
    found = list(values)
    return sum(found) / len(found)


def ratio(value: float, base: float) -> float:
    """Return value / base; no number where base is 0, as where nothing was exchanged."""
    return value / base if base else math.nan


def short(value: float) -> float:
    """Return the value with as many digits as say something."""
    return float(f"{value:.{_DIGITS}g}")


def number(value: float) -> str:
    """Return a cell of a table."""
    if not math.isfinite(value):
        return "diverges"
    if value and not 1e-3 <= abs(value) < 1e7:
        return f"{value:.2e}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{short(value):g}"
