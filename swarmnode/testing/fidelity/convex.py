"""DADAO: linear convergence on every graph, for the gradients and exchanges of the theory."""

from __future__ import annotations

import math
from dataclasses import dataclass

from swarmnode.bench.fidelity.figures import check, mean, number, ratio, short
from swarmnode.bench.fidelity.finding import Finding, Plot, Series, Table
from swarmnode.strategies.dadao import Dadao, exchange_rates
from swarmnode.strategies.topology import Graph, build_graph
from swarmnode.testing.fidelity.kit import Point, fit, line
from swarmnode.testing.lab.arena import Arena
from swarmnode.testing.lab.isolation import is_isolated
from swarmnode.testing.lab.tasks import Quadratic

_PAPER = {"safety": 1.0, "guard": 0.0}  # the constants as published, without our guard
_GRAPHS = ("complete", "star", "torus", "grid", "ring")
_N = 16
_TARGET, _QUICK_TARGET = 1e-12, 1e-2
_TIME_MAX = 5000.0
_ISOLATED_TIME_MAX = 100.0  # without exchange it never arrives: this shows it
_SEED = 0


@dataclass(frozen=True)
class _Solved:
    """A graph on which the optimum was reached. ``rate``: √(2 χ1 χ2)."""

    graph: str
    rate: float
    gradients: int
    exchanges: int
    curve: list[Point]  # (time, error)

    @property
    def per_rate(self) -> float:
        """Exchanges in units of what the graph costs."""
        return self.exchanges / self.rate

    @property
    def fit(self) -> tuple[float, float]:
        """Slope and R² of the logarithm of the error."""
        return fit([(t, math.log(error)) for t, error in self.curve])

    def row(self) -> list[str]:
        """Return it as a row of the table."""
        slope, r2 = self.fit
        figures = (self.rate, self.gradients, self.exchanges, self.per_rate, -slope, r2)
        return [self.graph, *map(number, figures)]


_HEADER = ["graph", "√(2 χ1 χ2)", "gradients", "exchanges", "per √(2 χ1 χ2)", "rate", "R²"]


def dadao(quick: bool) -> Finding:
    """Solve least squares on five graphs to 1e-12, and quadratics of two condition numbers."""
    target, coarse = (_QUICK_TARGET, 1e-1) if quick else (_TARGET, 1e-8)
    found = [_on(name, target) for name in (("complete", "ring") if quick else _GRAPHS)]
    middle = mean(solved.per_rate for solved in found)
    spread = max(abs(ratio(solved.per_rate, middle) - 1) for solved in found)
    gradients = [solved.gradients for solved in found]
    times_slower = _time(64.0, coarse) / _time(16.0, coarse)
    return Finding(
        name="dadao",
        title="DADAO: to the optimum on every graph",
        source="A. Nabli, E. Oyallon, “DADAO: Decoupled Accelerated Decentralized Asynchronous"
        " Optimization”, ICML 2023",
        claim="Linear convergence to the exact optimum, with O(n √(L/μ) log 1/ε) gradients whatever"
        " the graph is, and O(n √(χ1 χ2) √(L/μ) log 1/ε) exchanges.",
        experiment=f"Least squares on {_N} nodes in float64, five unknowns, data of their own,"
        f" gradients and exchanges at Poisson times, until Σ‖x_i − x*‖² ≤ {target:g}, with the"
        " constants as published. Then quadratics of condition number 16 and 64 on a ring of 8:"
        " by √(L/μ) the second takes twice the time.",
        seeds=[_SEED],
        checks=[
            check("fewest gradients of a graph", min(gradients), low=6000, high=8500),
            check("most gradients of a graph", max(gradients), low=6000, high=8500),
            check("exchanges / √(2 χ1 χ2), largest deviation from the mean", spread, high=0.1),
            check("R² of log error over time, worst", min(s.fit[1] for s in found), low=0.99),
            check("time at condition 64 over time at 16", times_slower, low=1.8, high=2.2),
        ],
        table=Table(header=_HEADER, rows=[solved.row() for solved in found]),
        plots=_plots(found, middle),
    )


def _plots(found: list[_Solved], per_rate: float) -> list[Plot]:
    used = [(short(solved.rate), float(solved.exchanges)) for solved in found]
    last = used[-1][0]
    return [
        Plot(
            name="error",
            title="Error until 1e-12",
            x="gradients of a node (units of time)",
            y="Σ‖x − x*‖²",
            log_y=True,
            series=[line(solved.graph, solved.curve) for solved in found],
        ),
        Plot(
            name="exchanges",
            title="Exchanges for what the graph costs",
            x="√(2 χ1 χ2) of the graph",
            y="exchanges",
            series=[
                Series(name="five graphs", points=used, style="dots"),
                line("proportional", [(0.0, 0.0), (last, per_rate * last)], "dashes"),
            ],
        ),
    ]


def _on(name: str, target: float) -> _Solved:
    graph = _graph(name, _N)
    arena, curve = _solve(Quadratic.lsq(_N, _SEED), graph, target)
    rate = math.fsum(exchange_rates(graph).rates.values())
    return _Solved(name, rate, arena.tally.gradients, arena.tally.exchanges, curve)


def _graph(name: str, n: int) -> Graph:
    graph = build_graph(name, n)
    assert graph is not None, "all nodes with all is no graph for DADAO"
    return graph


def _solve(task: Quadratic, graph: Graph, target: float) -> tuple[Arena, list[Point]]:
    """Return the arena that has arrived, and its error over time."""
    arena = Arena(task, lambda x: Dadao(_PAPER, x), graph=graph, seed=_SEED)
    curve = [(0.0, arena.measure()["error"])]
    end = _ISOLATED_TIME_MAX if is_isolated() else _TIME_MAX
    while target < curve[-1][1] < math.inf and arena.now < end:
        arena.run(1.0)
        curve.append((arena.now, arena.measure()["error"]))
    return arena, curve


def _time(kappa: float, target: float) -> float:
    return _solve(Quadratic.conditioned(8, kappa, seed=_SEED), _graph("ring", 8), target)[0].now
