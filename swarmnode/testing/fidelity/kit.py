"""What the experiments share: arenas in one line, curves, and numbers that fit a page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from swarmnode.bench.fidelity.finding import Check, Series, Style
from swarmnode.strategies.base import Strategy
from swarmnode.strategies.topology import build_graph
from swarmnode.testing.lab.arena import Arena
from swarmnode.testing.lab.codecs import RAW
from swarmnode.testing.lab.digits import Digits
from swarmnode.testing.lab.faults import Faults
from swarmnode.testing.lab.tasks import Adam, Optimizer, Sgd, Walk

Point = tuple[float, float]
Settings = dict[str, Any]
StrategyClass = Callable[[Settings, torch.Tensor], Strategy]

_POINTS_MAX = 60  # of a curve: a picture has no room for more
_DIGITS = 4  # that a figure is kept with
ADAM_LR = 1e-2
SGD_LR, SGD_MOMENTUM = 0.05, 0.9


def still(
    strategy: StrategyClass, settings: Settings, *, n: int, graph: str, seed: int, numel: int = 8
) -> Arena:
    """Return an arena of random vectors in which nothing moves but by exchanges."""
    task = Walk(n, numel, seed)
    return Arena(
        task,
        lambda x: strategy(settings, x),
        graph=build_graph(graph, n),
        optimizer=Sgd(task.x, 0.0),
        seed=seed,
    )


def walk(
    strategy: StrategyClass, settings: Settings, *, n: int, lr: float, seed: int, numel: int = 64
) -> Arena:
    """Return an arena of random walks that start at 0: gradients are N(0, 1) and nothing else."""
    task = Walk(n, numel, seed, noise=1.0)
    task.x.zero_()
    return Arena(task, lambda x: strategy(settings, x), optimizer=Sgd(task.x, lr), seed=seed)


def digits(
    strategy: StrategyClass,
    settings: Settings,
    *,
    n: int,
    seed: int,
    optimizer: Callable[[torch.Tensor], Optimizer] = lambda x: Adam(x, ADAM_LR),
    graph: str = "matching",
    dirichlet: float | None = None,
    codec: str = RAW,
    faults: Faults = Faults(),  # noqa: B008  frozen
) -> Arena:
    """Return an arena that trains digits, with Adam unless told otherwise."""
    task = Digits(n, seed, dirichlet=dirichlet)
    return Arena(
        task,
        lambda x: strategy(settings, x),
        graph=build_graph(graph, n),
        optimizer=optimizer(task.x),
        seed=seed,
        codec=codec,
        faults=faults,
    )


def momentum_sgd(x: torch.Tensor) -> Optimizer:
    """Return the optimizer of the gossip papers."""
    return Sgd(x, SGD_LR, momentum=SGD_MOMENTUM)


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
    kept = [*points[:-1:step], points[-1]]
    return Series(name=name, points=[(short(x), short(y)) for x, y in kept], style=style)


def check(what: str, value: float, *, low: float | None = None, high: float | None = None) -> Check:
    """Return a figure with the bounds that the claim gives it."""
    found = short(value) if math.isfinite(value) else None
    return Check(what=what, value=found, low=low, high=high)


def mean(values: Iterable[float]) -> float:
    """Return their mean."""
    found = list(values)
    return sum(found) / len(found)


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
    return xy / xx, xy * xy / (xx * yy)
