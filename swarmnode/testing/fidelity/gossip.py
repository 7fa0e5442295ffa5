"""A2CiD2 against AD-PSGD: what the acceleration is worth on rings."""

from __future__ import annotations

import math

from swarmnode.bench.fidelity.figures import check, mean, number, ratio
from swarmnode.bench.fidelity.finding import Finding, Plot, Table
from swarmnode.strategies.a2cid2 import A2CiD2
from swarmnode.strategies.pair_average import PairAverage
from swarmnode.strategies.topology import build_graph
from swarmnode.testing.fidelity.kit import Point, line, trace
from swarmnode.testing.lab.setups import StrategyClass, digits, momentum_sgd, still

_SOURCE = (
    "A. Nabli, E. Belilovsky, E. Oyallon, “A²CiD²: Accelerating Asynchronous Communication in"
    " Decentralized Deep Learning”, NeurIPS 2023"
)
_RATE = {"rate": 1.0}
# Until when the variance of pair averaging is watched: about six half-lives.
_PLAIN_END = {16: 150.0, 32: 400.0, 64: 800.0}
_FAST_END = {16: 100.0, 32: 150.0, 64: 250.0}
_SETTLED = 0.4  # share of a run of pair averaging after which only the slowest mode is left


def a2cid2_rings(quick: bool) -> Finding:
    """How fast vectors on a ring come together, without gradients."""
    seeds = [0] if quick else [0, 1]
    rows, gains, curves = [], {}, []
    for n in (16,) if quick else (16, 32, 64):
        plain = [_curve(PairAverage, n, _PLAIN_END[n], seed) for seed in seeds]
        fast = [_curve(A2CiD2, n, _FAST_END[n], seed) for seed in seeds]
        rates = mean(_decay(c, _SETTLED) for c in plain), mean(_decay(c, 0.2) for c in fast)
        promised = _promised(n)
        gains[n] = ratio(rates[1], rates[0])
        rows.append([str(n), *map(number, (*rates, gains[n], promised))])
        curves = [line("AD-PSGD", plain[0]), line("A²CiD²", fast[0])]
    largest = max(gains)
    return Finding(
        name="a2cid2-rings",
        title="A2CiD2: consensus on a ring",
        source=_SOURCE,
        claim="A second vector and a continuous momentum turn the time that a graph needs to mix"
        " from χ1 to √(χ1 χ2): on a ring that is √(χ1/χ2) times faster, for the same bytes.",
        experiment="Random vectors on rings, one exchange per node and unit of time, no gradients;"
        " the rate at which the variance between nodes decays, once the slowest mode is left.",
        seeds=seeds,
        checks=[
            check(f"times faster on a ring of {n}", gains[n], low=8.0 if n == 64 else 2.0)
            for n in gains
        ],
        table=Table(
            header=["ring of", "rate AD-PSGD", "rate A²CiD²", "times faster", "√(χ1/χ2)"], rows=rows
        ),
        plots=[
            Plot(
                name="decay",
                title=f"Vectors on a ring of {largest} come together",
                x="exchanges of a node",
                y="variance between nodes",
                log_y=True,
                series=curves,
            )
        ],
    )


def _promised(n: int) -> float:
    """Return √(χ1/χ2) of a ring on which every node exchanges once in a unit of time."""
    ring = build_graph("ring", n)
    assert ring is not None, "a ring is a graph"
    mixing = ring.with_node_rate(1.0).mixing()
    return math.sqrt(mixing.chi1 / mixing.chi2)


def _curve(strategy: StrategyClass, n: int, end: float, seed: int) -> list[Point]:
    arena = still(strategy, _RATE, n=n, graph="ring", seed=seed)
    return trace(arena, end, end / 50, arena.consensus)


def _decay(curve: list[Point], settled: float) -> float:
    """Return the rate at which it falls, from the share ``settled`` of the time on."""
    (begin, before), (end, after) = curve[round(settled * (len(curve) - 1))], curve[-1]
    return math.log(before / after) / (end - begin)


def a2cid2_digits(quick: bool) -> Finding:
    """Digits on a ring of 16: the same consensus for half of the exchanges."""
    seeds = [1] if quick else [1, 2, 3]
    steps = 40 if quick else 400
    runs = {
        "AD-PSGD, rate 1": (PairAverage, 1.0),
        "AD-PSGD, rate 2": (PairAverage, 2.0),
        "A²CiD², rate 1": (A2CiD2, 1.0),
    }
    rows, settled, curves = [], {}, []
    for name, (strategy, rate) in runs.items():
        found = [_train(strategy, rate, steps, seed) for seed in seeds]
        settled[name] = mean(consensus for _, consensus, _, _ in found)
        accuracy, sent = mean(f[2] for f in found), mean(f[3] for f in found)
        rows.append([name, *map(number, (settled[name], accuracy, sent / 1e6))])
        curves.append(line(name, found[0][0]))
    accelerated = settled["A²CiD², rate 1"]
    return Finding(
        name="a2cid2-digits",
        title="A2CiD2 at rate 1 is AD-PSGD at rate 2",
        source=_SOURCE,
        claim="On a ring, adding A²CiD² is worth as much as doubling the rate of communication.",
        experiment=f"Digits on a ring of 16, an MLP of 13,130 parameters, momentum SGD, {steps}"
        " steps; consensus is (1/n) Σ‖x_i − x̄‖², its mean over the second half.",
        seeds=seeds,
        checks=[
            check(
                "consensus against AD-PSGD at rate 2",
                accelerated / settled["AD-PSGD, rate 2"],
                low=0.6,
                high=1.4,
            ),
            check(
                "consensus against AD-PSGD at rate 1",
                accelerated / settled["AD-PSGD, rate 1"],
                high=0.75,
            ),
        ],
        table=Table(header=["run", "consensus", "accuracy of a node", "MB sent"], rows=rows),
        plots=[
            Plot(
                name="consensus",
                title="Digits on a ring of 16",
                x="local steps",
                y="consensus",
                log_y=True,
                series=curves,
            )
        ],
    )


def _train(
    strategy: StrategyClass, rate: float, steps: int, seed: int
) -> tuple[list[Point], float, float, float]:
    """Return consensus over time, its mean over the second half, accuracy and bytes."""
    arena = digits(strategy, {"rate": rate}, n=16, seed=seed, graph="ring", optimizer=momentum_sgd)
    curve = trace(arena, steps, 4.0, arena.consensus)[1:]
    second_half = [consensus for t, consensus in curve if t > steps / 2]
    accuracy = arena.measure()["local_accuracy"]
    return curve, mean(second_half), accuracy, float(arena.tally.bytes)
