"""What the experiments share beside arenas: curves, and lines through them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from swarmnode.bench.fidelity.figures import mean, ratio, short
from swarmnode.bench.fidelity.finding import Series, Style
from swarmnode.testing.lab.arena import Arena

Point = tuple[float, float]

_POINTS_MAX = 60  # of a curve: a picture has no room for more


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


def fit(points: Sequence[Point]) -> tuple[float, float]:
    """Return slope and R² of the straight line through points."""
    xs, ys = zip(*points, strict=True)
    x_mean, y_mean = mean(xs), mean(ys)
    xx = sum((x - x_mean) ** 2 for x in xs)
    xy = sum((x - x_mean) * (y - y_mean) for x, y in points)
    yy = sum((y - y_mean) ** 2 for y in ys)
    return xy / xx, ratio(xy * xy, xx * yy)
