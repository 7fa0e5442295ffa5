"""NoLoCo: the variance that its theory predicts, where it is stable, and what holds it together."""

from __future__ import annotations

import math

import numpy as np

from swarmnode.bench.fidelity.figures import check, mean, number, ratio, short
from swarmnode.bench.fidelity.finding import Finding, Plot, Series, Table
from swarmnode.strategies.noloco import NoLoCo
from swarmnode.strategies.outer import gamma_bound, moment_map
from swarmnode.testing.fidelity.kit import Point, fit, line, trace
from swarmnode.testing.lab.setups import Settings, digits, slow_variance, walk

_SOURCE = (
    "J. Kolehmainen, N. Blagoev, J. Donaghy, O. Ersoy, C. Nies, “NoLoCo: No-all-reduce Low"
    " Communication Training Method for Large Models”, arXiv:2506.10911"
)
_PAPER: Settings = {"every": 50, "momentum": 0.5, "beta": 0.7, "gamma": 0.7}
_LR = 0.01
_PAIR_SHARE = 0.5  # k = (n − 1)/n of the moments


def noloco_variance(quick: bool) -> Finding:
    """Random walks: the spread of the slow weights in units of lr² H σ²."""
    seeds = [1] if quick else [1, 2, 3]
    rounds = 10 if quick else 80
    noise = 0.7**2 / 2 * np.ones(3)
    predicted = np.linalg.solve(np.eye(3) - moment_map(0.5, 0.7, _PAIR_SHARE), noise)[0]
    unit = _LR**2 * _PAPER["every"]
    curves = [_variances(_PAPER, _LR, rounds, seed) for seed in seeds]
    found = [_settled(curve) / unit for curve in curves]
    short_rounds = {**_PAPER, "every": 10}
    one, two = (
        mean(_settled(_variances(short_rounds, lr, rounds, seed)) for seed in seeds)
        for lr in (_LR, 2 * _LR)
    )
    scaled = [(t, variance / unit) for t, variance in curves[0]]
    return Finding(
        name="noloco-variance",
        title="NoLoCo: how far the nodes are apart",
        source=_SOURCE,
        claim="The variance between replicas settles at a level that is proportional to the square"
        " of the inner learning rate.",
        experiment="64 nodes that walk at random (gradients are N(0, 1) and nothing else), pairs at"
        f" random, H = 50, μ = ½, β = γ = 0.7, lr = {_LR}, {rounds} rounds. The exact second"
        f" moments of the outer step give V = {predicted:.4f} lr² H σ² in the long run.",
        seeds=seeds,
        checks=[
            check("V / (lr² H σ²), the lowest seed", min(found), low=1.0, high=1.5),
            check("V / (lr² H σ²), the highest seed", max(found), low=1.0, high=1.5),
            check(
                "V at twice the learning rate over V (H = 10)", ratio(two, one), low=3.7, high=4.3
            ),
        ],
        plots=[
            Plot(
                name="variance",
                title="Variance of the slow weights",
                x="rounds of 50 steps",
                y="V / (lr² H σ²)",
                series=[
                    line("64 random walks", scaled),
                    Series(
                        name="second moments",
                        points=[(0.0, short(predicted)), (float(rounds), short(predicted))],
                        style="dashes",
                    ),
                ],
            )
        ],
    )


def _variances(settings: Settings, lr: float, rounds: int, seed: int) -> list[Point]:
    """Return (round, variance of slow weights)."""
    arena = walk(NoLoCo, settings, n=64, lr=lr, seed=seed)
    every = settings["every"]
    return [
        (t / every, v) for t, v in trace(arena, rounds * every, every, lambda: slow_variance(arena))
    ]


def _settled(curve: list[Point]) -> float:
    """Return the mean over the second half."""
    return mean(variance for _, variance in curve[len(curve) // 2 :])


def noloco_boundary(quick: bool) -> Finding:
    """The γ from which slow weights run away from each other."""
    seed = 1
    gammas = [1.4, 1.6] if quick else [1.2, 1.3, 1.4, 1.45, 1.55, 1.6, 1.7, 1.8]
    growths = {gamma: _growth(0.5, gamma, seed, quick=quick) for gamma in gammas}
    unstable = [(gamma, math.log(g)) for gamma, g in growths.items() if gamma > 1.5]
    if quick:
        boundary = unstable[0][0]
    else:  # where a straight line through what grows says that nothing does
        slope, _ = fit(unstable)
        boundary = mean(g for g, _ in unstable) - mean(v for _, v in unstable) / slope
    fast = {gamma: _growth(0.9, gamma, seed, quick=quick) for gamma in (0.3, 0.7)}
    predicted = {
        (momentum, gamma): max(1.0, _radius(momentum, gamma))
        for momentum, found in ((0.5, growths), (0.9, fast))
        for gamma in found
    }
    rows = [
        [str(momentum), str(gamma), f"{found[gamma]:.4f}", f"{predicted[momentum, gamma]:.4f}"]
        for momentum, found in ((0.5, growths), (0.9, fast))
        for gamma in found
    ]
    axis = np.linspace(min(gammas), max(gammas), 31).tolist()
    return Finding(
        name="noloco-boundary",
        title="NoLoCo: where it is stable",
        source=_SOURCE,
        claim="γ has an upper bound beyond which replicas diverge. The paper's grows with the"
        " momentum μ; the exact second moments give 0 < γ < 2 (1 − μ²) on pairs. At μ = ½ both say"
        " 1.5. For μ = 0.9 ours is 0.38, and it is ours that swarmnode refuses settings by.",
        experiment="64 nodes that walk at random, H = 2: by which factor the variance of their slow"
        " weights grows in a round, over 150 rounds after the first 100.",
        seeds=[seed],
        checks=[
            check("growth per round at μ = 0.5, γ = 1.4", growths[1.4], high=1.005),
            check("growth per round at μ = 0.5, γ = 1.6", growths[1.6], low=1.02),
            check("boundary at μ = 0.5, from what grows", boundary, low=1.4, high=1.6),
            check("growth per round at μ = 0.9, γ = 0.3", fast[0.3], high=1.005),
            check("growth per round at μ = 0.9, γ = 0.7", fast[0.7], low=1.02),
        ],
        table=Table(header=["μ", "γ", "growth per round", "second moments"], rows=rows),
        plots=[
            Plot(
                name="growth",
                title=f"Growth of the variance, μ = 0.5 (bound {gamma_bound(0.5, 2):g})",
                x="γ",
                y="factor per round",
                series=[
                    line("64 random walks", sorted(growths.items()), "dots"),
                    line(
                        "second moments", [(g, max(1.0, _radius(0.5, g))) for g in axis], "dashes"
                    ),
                ],
            )
        ],
    )


def _growth(momentum: float, gamma: float, seed: int, *, quick: bool) -> float:
    """Return the factor by which the variance grows in a round."""
    begin, rounds = (5, 10) if quick else (100, 150)
    settings = {"every": 2, "momentum": momentum, "beta": 0.7, "gamma": gamma}
    arena = walk(NoLoCo, settings, n=64, lr=_LR, seed=seed, numel=256)
    arena.run(2 * begin)
    before = slow_variance(arena)
    arena.run(2 * rounds)
    return float(ratio(slow_variance(arena), before) ** (1 / rounds))


def _radius(momentum: float, gamma: float) -> float:
    """Return what the map of second moments says of the same."""
    return float(np.abs(np.linalg.eigvals(moment_map(momentum, gamma, _PAIR_SHARE))).max())


def noloco_digits(quick: bool) -> Finding:
    """Digits with and without the pull between slow weights."""
    seeds = [1] if quick else [1, 2, 3]
    steps = 60 if quick else 600
    runs: dict[str, Settings] = {
        "γ = 0.7": {"every": 20},
        "γ = 0": {"every": 20, "gamma": 0.0},
        "no exchange": {"every": 10**6},
    }
    rows, apart, losses, curves = [], {}, {}, []
    for name, settings in runs.items():
        arenas = [digits(NoLoCo, settings, n=8, seed=seed) for seed in seeds]
        found = [trace(arena, steps, 20.0, arena.consensus)[1:] for arena in arenas]
        apart[name] = mean(_settled(curve) for curve in found)
        figures = [arena.measure() for arena in arenas]
        losses[name] = mean(f["loss"] for f in figures)
        accuracy = mean(f["accuracy"] for f in figures)
        rows.append([name, *map(number, (apart[name], losses[name], accuracy))])
        curves.append(line(name, found[0]))
    return Finding(
        name="noloco-digits",
        title="NoLoCo: the γ term is what holds the swarm together",
        source=_SOURCE,
        claim="Outer steps over random pairs with the modified momentum train like those over all"
        " nodes; the term that pulls slow weights together keeps the replicas close.",
        experiment=f"Digits on 8 nodes, Adam, H = 20, {steps} steps, μ = ½, β = 0.7; consensus over"
        " the second half, loss and accuracy of the mean model.",
        seeds=seeds,
        checks=[
            check("consensus against γ = 0", apart["γ = 0.7"] / apart["γ = 0"], high=0.15),
            check("loss of the mean model", losses["γ = 0.7"], high=0.16),
        ],
        table=Table(header=["run", "consensus", "loss", "accuracy"], rows=rows),
        plots=[
            Plot(
                name="consensus",
                title="Digits on 8 nodes, pairs",
                x="local steps",
                y="consensus",
                log_y=True,
                series=curves,
            )
        ],
    )
