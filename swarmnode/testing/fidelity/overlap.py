"""DiLoCo, its eager form, streaming gossip and the codecs that they send through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from swarmnode.bench.fidelity.figures import (
    check,
    claim,
    mean,
    number,
    ratio,
    short,
    standard_error,
)
from swarmnode.bench.fidelity.finding import Finding, Plot, Table
from swarmnode.strategies.base import Exchange
from swarmnode.strategies.diloco import DiLoCo
from swarmnode.strategies.noloco import NoLoCo
from swarmnode.strategies.streaming import Streaming
from swarmnode.testing.fidelity.kit import Point, line
from swarmnode.testing.lab.codecs import through
from swarmnode.testing.lab.descent import AdamW, cosine
from swarmnode.testing.lab.digits import Digits
from swarmnode.testing.lab.setups import ADAM_LR, Settings, StrategyClass, digits

_EVERY = 20
_PAIRS: Settings = {"meet": "pair", "every": _EVERY}
_FP32: Settings = {"delta_codec": "", "weights_codec": ""}
_NEVER = 10**6  # steps of a round: no exchange
_SHARE = "share of the gain of data parallelism, own models"
# Pairs kept .73 with a standard error of .09 over three seeds: two fifths of it are shown.
_STREAMING_SHARE, _DILOCO_SHARE = 0.4, 0.8


@dataclass(frozen=True)
class _Trained:
    """Means over the seeds; ``curve`` is that of the first.

    ``own_losses``: for each seed the mean over the nodes of their own models.
    """

    loss: float
    accuracy: float
    sent_bytes: float  # by all nodes
    curve: list[Point]
    own_losses: list[float]

    def row(self, name: str, n: int) -> list[str]:
        """Return it as a row of a table: bytes of one node."""
        figures = (self.loss, mean(self.own_losses), self.accuracy, self.sent_bytes / n / 1e3)
        return [name, *map(number, figures)]


_HEADER = ["run", "loss", "loss of a node", "accuracy", "kB sent by a node"]
_LR_FACTORS = (0.5, 1.0, 2.0)  # of which a baseline has the best


@dataclass(frozen=True)
class _Baselines:
    """One node alone and data parallelism, each at the best of three rates with a cosine."""

    alone: _Trained
    parallel: _Trained

    def shares(self, run: _Trained) -> list[float]:
        """Return for each seed what own models keep of the gain of data parallelism."""
        pairs = zip(self.alone.own_losses, self.parallel.own_losses, run.own_losses, strict=True)
        return [ratio(alone - own, alone - parallel) for alone, parallel, own in pairs]


def _train(
    strategy: StrategyClass, settings: Settings, *, n: int, steps: int, seeds: list[int]
) -> _Trained:
    figures, curves, sent = [], [], []
    for seed in seeds:
        arena = digits(strategy, settings, n=n, seed=seed)
        curve = []
        while arena.now < steps:
            arena.run(_EVERY)
            found = arena.measure()
            curve.append((arena.now, found["loss"]))
        figures.append(found)
        curves.append(curve)
        sent.append(arena.tally.bytes)
    return _Trained(
        mean(f["loss"] for f in figures),
        mean(f["accuracy"] for f in figures),
        mean(sent),
        curves[0],
        [f["local_loss"] for f in figures],
    )


def _baselines(*, n: int, steps: int, seeds: list[int]) -> _Baselines:
    """Train both at three rates. One node alone has an n-th of the data, as in the swarm."""

    def best(*, is_parallel: bool) -> _Trained:
        runs = [
            _train_baseline(n=n, steps=steps, seeds=seeds, lr=ADAM_LR * f, is_parallel=is_parallel)
            for f in _LR_FACTORS
        ]
        return min(runs, key=lambda run: mean(run.own_losses))

    return _Baselines(best(is_parallel=False), best(is_parallel=True))


def _train_baseline(
    *, n: int, steps: int, seeds: list[int], lr: float, is_parallel: bool
) -> _Trained:
    """Train with the mean gradient of all nodes at every step, or each node for itself."""
    figures, curves = [], []
    for seed in seeds:
        task = Digits(n, seed)
        optimizer = AdamW(task.x, cosine(lr, steps), (0.9, 0.99), weight_decay=0.0)
        curve = []
        for step in range(1, steps + 1):
            _, gradients = task.gradients(range(n))
            if is_parallel:
                gradients = gradients.mean(0, keepdim=True).expand_as(gradients)
            task.x -= optimizer.steps(range(n), gradients)
            if step % _EVERY == 0:
                found = task.measure(task.x.mean(0), range(n))
                curve.append((float(step), found["loss"]))
        figures.append(found)
        curves.append(curve)
    return _Trained(
        mean(f["loss"] for f in figures),
        mean(f["accuracy"] for f in figures),
        steps * 2 * (n - 1) * 4 * task.x.shape[1] if is_parallel else 0.0,
        curves[0],
        [f["local_loss"] for f in figures],
    )


# --- streaming gossip --------------------------------------------------------------------------


def streaming(quick: bool) -> Finding:
    """Streaming in pairs against the papers that it joins, on digits."""
    seeds = [1] if quick else [1, 2, 3]
    n, steps = 8, 40 if quick else 600
    runs: dict[str, tuple[StrategyClass, Settings]] = {
        "streaming": (Streaming, _PAIRS),
        "streaming, fp32": (Streaming, {**_PAIRS, **_FP32}),
        "NoLoCo, fp32": (NoLoCo, {"every": _EVERY}),
        "no exchange": (NoLoCo, {"every": _NEVER}),
    }
    found = {
        name: _train(strategy, settings, n=n, steps=steps, seeds=seeds)
        for name, (strategy, settings) in runs.items()
    }
    ours = found["streaming"]
    baselines = _baselines(n=n, steps=steps, seeds=seeds)
    found["one node alone"], found["data parallel"] = baselines.alone, baselines.parallel
    return Finding(
        name="streaming",
        title="Streaming gossip: a fifth of the bytes, the same loss",
        source="A. Douillard et al., “Streaming DiLoCo with overlapping communication”,"
        " arXiv:2501.18512, over the pairs of NoLoCo, arXiv:2506.10911",
        claim="Fragments that are sent one after the other, merged while training goes on, with"
        " outer gradients of four bits, train as well as whole exchanges in full precision.",
        experiment=f"Digits on {n} nodes, Adam, H = {_EVERY}, {steps} steps, pairs at random, four"
        " fragments, τ = 2, half of the local weights kept, E3M0 for Δ and 8 bits for φ. Loss and"
        " accuracy are the mean model's.",
        seeds=seeds,
        checks=[
            check("loss", ours.loss, high=0.17),
            check("accuracy", ours.accuracy, low=0.955),
            claim(_SHARE, baselines.shares(ours), low=_STREAMING_SHARE),
            check(
                "bytes against NoLoCo in fp32",
                ours.sent_bytes / max(found["NoLoCo, fp32"].sent_bytes, 1.0),
                high=0.2,
            ),
        ],
        table=Table(header=_HEADER, rows=[run.row(name, n) for name, run in found.items()]),
        plots=[
            Plot(
                name="loss",
                title="Held-out loss of the mean model, 8 nodes",
                x="local steps",
                y="loss",
                log_y=True,
                series=[line(name, run.curve) for name, run in found.items()],
            )
        ],
    )


# --- DiLoCo and what overlaps with training ----------------------------------------------------


class Delayed(DiLoCo):
    """What eager updates are compared with: the whole mean of the last round, a round late."""

    _late: torch.Tensor | None = None

    def _begin_eagerly(self) -> None:
        self._sent, self._awaits_mean = self.phi - self.x, True
        if self._late is not None:
            self._step(self._late)
        self.x.add_(self.phi - self.x)

    def apply(self, exchange: Exchange) -> None:
        self._late = exchange.mean["delta"].clone()
        super().apply(exchange)


def diloco(quick: bool) -> Finding:
    """Data parallelism, DiLoCo, Streaming DiLoCo, and two ways to overlap a whole round."""
    seeds = [1] if quick else [1, 2, 3]
    n, steps = 4, 40 if quick else 600
    outer: Settings = {"every": _EVERY, "lr": 0.4, "momentum": 0.9}
    # As in its paper: the mean comes while training goes on, and half of the local weights stay.
    group: Settings = {"every": _EVERY, "meet": "group", "beta": 0.4, "momentum": 0.9, "gamma": 0.0}
    group |= {"overlap": 2, "local_share": 0.5}
    runs: dict[str, tuple[StrategyClass, Settings]] = {
        "DiLoCo": (DiLoCo, outer),
        "Streaming DiLoCo, E3M0": (Streaming, {**group, "nesterov": True}),
        "eager": (DiLoCo, {**outer, "eager": True}),
        "a round late": (Delayed, {**outer, "eager": True}),
    }
    baselines = _baselines(n=n, steps=steps, seeds=seeds)
    found = {"one node alone": baselines.alone, "data parallel": baselines.parallel}
    for name, (strategy, settings) in runs.items():
        found[name] = _train(strategy, settings, n=n, steps=steps, seeds=seeds)
    parallel, whole, late = (found[k] for k in ("data parallel", "DiLoCo", "a round late"))
    streamed = found["Streaming DiLoCo, E3M0"]
    return Finding(
        name="diloco",
        title="DiLoCo: rarely, in fragments, eagerly",
        source="A. Douillard et al., “DiLoCo”, arXiv:2311.08105; “Streaming DiLoCo”,"
        " arXiv:2501.18512; S. Kale et al., “Eager Updates for Overlapped Communication and"
        " Computation in DiLoCo”, arXiv:2502.12996",
        claim="Nodes that exchange once in H steps train nearly as well as data parallelism, in"
        " fragments of four bits as well; where a whole round overlaps with training, the own fresh"
        " share with the others' last one works, and the last mean of all does not.",
        experiment=f"Digits on {n} nodes, Adam, H = {_EVERY}, {steps} steps, outer Nesterov with"
        " lr 0.4 and momentum 0.9; in fragments τ = 2, and half of the local weights kept. Data"
        " parallel: the mean of all gradients at every step; its"
        " bytes are 2 (n−1)/n of the model a step.",
        seeds=seeds,
        checks=[
            check("loss of DiLoCo", whole.loss, high=0.27),
            check("loss of Streaming DiLoCo", streamed.loss, high=0.2),
            claim(_SHARE, baselines.shares(streamed), low=_DILOCO_SHARE),
            check("loss, eager", found["eager"].loss, high=0.4),
            check("loss, a round late (or infinite)", min(late.loss, 1e9), low=1.0),
            check(
                "accuracy of data parallel less that of streaming",
                parallel.accuracy - streamed.accuracy,
                high=0.01,
            ),
            check(
                "bytes of Streaming DiLoCo against data parallel",
                streamed.sent_bytes / parallel.sent_bytes,
                high=0.01,
            ),
        ],
        table=Table(header=_HEADER, rows=[run.row(name, n) for name, run in found.items()]),
        plots=[
            Plot(
                name="loss",
                title="Held-out loss of the mean model, 4 nodes",
                x="local steps",
                y="loss",
                log_y=True,
                series=[line(name, run.curve) for name, run in found.items()],
            )
        ],
    )


# --- codecs ------------------------------------------------------------------------------------


def codecs(quick: bool) -> Finding:
    """Streaming gossip with pseudo-gradients in fewer and fewer bits."""
    seeds = [1, 2] if quick else list(range(1, 13))
    n, early, steps = 8, 20 if quick else 100, 40 if quick else 600
    runs = {
        name: [
            _train(Streaming, {**_PAIRS, "delta_codec": codec}, n=n, steps=steps, seeds=[s])
            for s in seeds
        ]
        for name, codec in (("fp32", ""), ("Q8B64", "Q8B64"), ("Q4B64", "Q4B64"), ("E3M0", "E3M0"))
    }
    losses = {
        name: ([_at(r, early) for r in found], [r.loss for r in found])
        for name, found in runs.items()
    }
    rows = []
    for name, found in runs.items():
        means = [mean(values) for values in losses[name]]
        gaps = [_difference(*pair) for pair in zip(losses[name], losses["fp32"], strict=True)]
        cells = [f"{number(m)} ({d:+.4f} ± {e:.4f})" for m, (d, e) in zip(means, gaps, strict=True)]
        accuracy, sent = mean(r.accuracy for r in found), mean(r.sent_bytes for r in found)
        rows.append([name, *cells, number(accuracy), number(sent / n / 1e3)])
    e3m0 = [_difference(*pair)[0] for pair in zip(losses["E3M0"], losses["fp32"], strict=True)]
    apart = _train(Streaming, {**_PAIRS, "every": _NEVER}, n=n, steps=steps, seeds=seeds[:1])
    gained = runs["E3M0"][0].own_losses[0] / apart.own_losses[0]
    error, zeros, cosine = _e3m0_on_noise()
    return Finding(
        name="codecs",
        title="Outer gradients of four bits lose nothing",
        source="A. Douillard et al., “Streaming DiLoCo with overlapping communication”,"
        " arXiv:2501.18512",
        claim="Pseudo-gradients as E3M0, a sign and three bits of exponent, train as well as in"
        " full precision.",
        experiment=f"Streaming gossip, digits on {n} nodes, H = {_EVERY}; φ at 8 bits in all runs."
        f" Loss of the mean model after {early} steps, while it still falls, and after {steps}; in"
        " parentheses the difference to fp32 of the same seed, its mean and standard error. Then"
        " E3M0 on 102,400 numbers of N(0, 1).",
        seeds=seeds,
        checks=[
            check(f"loss with E3M0 less that with fp32, {early} steps", e3m0[0], high=0.003),
            check(f"loss with E3M0 less that with fp32, {steps} steps", e3m0[1], high=0.01),
            check("largest relative error of what is not zero", error, high=0.415),
            check("share that becomes zero", zeros, low=0.02, high=0.035),
            check("cosine to the original", cosine, low=0.975),
            check("loss of a node with E3M0 over that without exchange", gained, high=0.7),
        ],
        table=Table(
            header=["Δ as", f"loss, {early} steps", f"loss, {steps} steps", *_HEADER[3:]],
            rows=rows,
        ),
        plots=[
            Plot(
                name="loss",
                title="Held-out loss of the mean model, 8 nodes, one seed",
                x="local steps",
                y="loss",
                log_y=True,
                series=[line(name, found[0].curve) for name, found in runs.items()],
            )
        ],
    )


def _at(run: _Trained, step: int) -> float:
    """Return the loss at a step of the curve."""
    return next(loss for t, loss in run.curve if t >= step)


def _difference(ours: list[float], others: list[float]) -> tuple[float, float]:
    """Return the mean difference of pairs, and its standard error."""
    differences = [a - b for a, b in zip(ours, others, strict=True)]
    return mean(differences), standard_error(differences)


def _e3m0_on_noise() -> tuple[float, float, float]:
    """Return largest relative error, share of zeros and cosine."""
    values = torch.randn(102_400, generator=torch.Generator().manual_seed(0))
    decoded, _ = through("E3M0", values)
    kept = decoded != 0
    error = float(((decoded - values).abs() / values.abs())[kept].max())
    cosine: Any = torch.cosine_similarity(values, decoded, dim=0)
    return error, 1 - float(kept.float().mean()), short(float(cosine))
