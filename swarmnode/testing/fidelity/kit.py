"""What the experiments share beside arenas: curves, and numbers that fit a page."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence

from swarmnode.bench.fidelity.finding import Check, Series, Style
from swarmnode.testing.lab.arena import Arena

Point = tuple[float, float]

_POINTS_MAX = 60  # of a curve: a picture has no room for more
_DIGITS = 4  # that a figure is kept with
_SEEDS_MIN = 3  # from which on a standard error says something
_ERROR = 0.333  # of the margin


def trace(arena: Arena, until: float, every: float, measure: Callable[[], float]) -> list[Point]:
    """Run, and return (time, figure) for every so many steps, the present first."""
    points = [(arena.now, measure())]
    while arena.now < until:
        arena.run(every)
        points.append((arena.now, measure()))
    return points


def line(name: str, points: Sequence[Point], style: Style = "line") -> Series:
    """Return a curve of about as many points as a picture has room for, as far as it is finite."""
    points = [point for point in points if math.isfinite(point[1])]
    step = max(1, math.ceil(len(points) / _POINTS_MAX))
    kept = [*points[:-1:step], *points[-1:]]
    return Series(name=name, points=[(short(x), short(y)) for x, y in kept], style=style)


def check(what: str, value: float, *, low: float | None = None, high: float | None = None) -> Check:
    """Return a figure with the bounds that the claim gives it."""
    found = short(value) if math.isfinite(value) else None
    return Check(what=what, value=found, low=low, high=high)


def claim(what: str, values: Sequence[float], *, low: float) -> list[Check]:
    """Return checks of a mean over seeds: that it is so high, and not by luck.

    It is no luck where its standard error is below a third of what it is above the bound by.
    """
    found = check(what, mean(values), low=low)
    if len(values) < _SEEDS_MIN:
        return [found]
    error = statistics.stdev(values) / math.sqrt(len(values))
    margin = max(mean(values) - low, 0.0)
    return [found, check("its standard error over the margin", ratio(error, margin), high=_ERROR)]


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


def fit(points: Sequence[Point]) -> tuple[float, float]:
    """Return slope and R² of the straight line through points."""
    xs, ys = zip(*points, strict=True)
    x_mean, y_mean = mean(xs), mean(ys)
    xx = sum((x - x_mean) ** 2 for x in xs)
    xy = sum((x - x_mean) * (y - y_mean) for x, y in points)
    yy = sum((y - y_mean) ** 2 for y in ys)
    return xy / xx, ratio(xy * xy, xx * yy)
