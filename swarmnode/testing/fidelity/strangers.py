"""Gossip of models that began apart, by the merge rule of strategies, beside a server's mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import torch
from torch.nn import functional

from swarmnode.bench.fidelity.figures import claim, mean, number
from swarmnode.bench.fidelity.finding import Finding, Plot, Table
from swarmnode.strategies.pair_average import PairAverage
from swarmnode.tensor.layout import Layout
from swarmnode.testing.fidelity.kit import Point, line
from swarmnode.testing.lab.arena import Arena
from swarmnode.testing.lab.digits import Digits
from swarmnode.testing.lab.isolation import is_isolated
from swarmnode.testing.lab.setups import momentum_sgd

_N = 8
_EVERY = 2  # steps between two meetings
_LOOK = 4  # rounds between two looks: each is over all examples held out, for every node
_DEEP = (64, 64, 64, 64, 64, 64, 10)  # widths: the effect grows with depth
_ROUNDS, _QUICK_ROUNDS = 120, 4
_JUDGED = 40  # the round at which the plain mean still stands where it began

_SIDE = 8  # pixels
_CHANNELS = (1, 8, 8, 16, 16)
_STRIDES = (1, 2, 1, 2)
_KERNEL = 3
_CLASSES = 10
_FEATURES = _CHANNELS[-1] * (_SIDE // math.prod(_STRIDES)) ** 2


def _shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    for layer, (fan_in, fan_out) in enumerate(pairwise(_CHANNELS)):
        yield f"conv{layer}.weight", (fan_out, fan_in, _KERNEL, _KERNEL)
        yield f"conv{layer}.bias", (fan_out,)
    yield "head.weight", (_CLASSES, _FEATURES)
    yield "head.bias", (_CLASSES,)


_SHAPES = tuple(_shapes())


class ConvDigits(Digits):
    """A small conv net on the same examples, for all nodes at once.

    Four convolutions of 3x3 with tanh, the second and the fourth with stride 2, then one linear
    layer. ``vmap`` makes one grouped convolution of those of all nodes.
    """

    @property
    def layout(self) -> Layout:
        """Weights and biases, layer by layer."""
        return Layout.of((name, shape, "float32") for name, shape in _SHAPES)

    def gradients(self, nodes: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.stack([self._draw(node) for node in nodes])
        batch = self._pixels[chosen], self._labels[chosen]
        x = self.x if len(nodes) == self.n else self.x[list(nodes)]
        found = torch.func.vmap(torch.func.grad_and_value(_cross_entropy))(x, *batch)
        gradients, losses = found
        return losses.detach(), gradients.detach()

    def _init(self, seed: int) -> torch.Tensor:
        """Return Xavier-normal weights and zero biases: [numel]."""
        generator = torch.Generator().manual_seed(seed)
        parts = []
        for _, shape in _SHAPES:
            if len(shape) == 1:
                parts.append(torch.zeros(shape))
                continue
            field = math.prod(shape[2:])
            std = (2 / (field * (shape[0] + shape[1]))) ** 0.5
            parts.append(std * torch.randn(math.prod(shape), generator=generator))
        return torch.cat(parts)

    def _loss(
        self, x: torch.Tensor, pixels: torch.Tensor, labels: torch.Tensor
    ) -> tuple[float, float]:
        logits = _logits(x, pixels)
        loss = functional.cross_entropy(logits, labels)
        return float(loss), float((logits.argmax(1) == labels).float().mean())


def _cross_entropy(x: torch.Tensor, pixels: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(_logits(x, pixels), labels)


def _logits(x: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
    """Return logits [batch, 10] of one model [numel] on pixels [batch, 64]."""
    tensors = torch.split(x, [math.prod(shape) for _, shape in _SHAPES])
    *convolutions, weight, bias = (
        tensor.view(shape) for tensor, (_, shape) in zip(tensors, _SHAPES, strict=True)
    )
    found = pixels.view(-1, 1, _SIDE, _SIDE)
    layers = zip(convolutions[::2], convolutions[1::2], _STRIDES, strict=True)
    for kernel, offset, stride in layers:
        found = torch.tanh(functional.conv2d(found, kernel, offset, stride, padding=1))
    return functional.linear(found.flatten(1), weight, bias)


MakeTask = Callable[[int, bool], Digits]

_MODELS: dict[str, MakeTask] = {
    "MLP of six layers": lambda seed, same: Digits(_N, seed, widths=_DEEP, same_init=same),
    "conv net": lambda seed, same: ConvDigits(_N, seed, same_init=same),
}
_PLAIN, _CORRECTED, _SERVER = "gossip, mean", "gossip, variance-corrected", "federated averaging"


def variance_corrected(quick: bool) -> Finding:
    """Pairs of eight nodes with inits of their own, against the mean of all from one init."""
    seeds = [1] if quick else [1, 2, 3]
    rounds = _QUICK_ROUNDS if quick else _ROUNDS
    checks, rows, plots = [], [], []
    for model, make in _MODELS.items():
        curves = {
            _PLAIN: [_gossip(make(seed, False), "mean", rounds, seed) for seed in seeds],
            _CORRECTED: [
                _gossip(make(seed, False), "variance-corrected", rounds, seed) for seed in seeds
            ],
            _SERVER: [_federated(make(seed, True), rounds) for seed in seeds],
        }
        at = {name: [_at(curve, _JUDGED) for curve in found] for name, found in curves.items()}
        end = {name: [_at(curve, rounds) for curve in found] for name, found in curves.items()}
        rows += [[model, name, number(mean(at[name])), number(mean(end[name]))] for name in curves]
        gained = [a - b for a, b in zip(at[_CORRECTED], at[_PLAIN], strict=True)]
        behind = [a - b for a, b in zip(end[_SERVER], end[_CORRECTED], strict=True)]
        checks += [
            claim(f"{model}: accuracy gained at round {_JUDGED}", gained, low=0.2),
            claim(f"{model}: behind federated averaging in the end", behind, high=0.03),
        ]
        plots.append(
            Plot(
                name=model.replace(" ", "-").lower(),
                title=f"{model}: eight inits that average in pairs",
                x="rounds",
                y="accuracy of a node",
                series=[line(name, found[0]) for name, found in curves.items()],
            )
        )
    return Finding(
        name="variance-corrected",
        title="Gossip of strangers learns like federated averaging",
        source="“Vanishing Variance Problem in Fully Decentralized Neural-Network Systems”,"
        " arXiv:2404.04616",
        claim="With the variance put back at every averaging, gossip between nodes with inits of"
        " their own comes to the accuracy of federated averaging, which begins with one init.",
        experiment=f"Digits on {_N} nodes, momentum SGD. Gossip: pair-average every {_EVERY} steps"
        " by random matchings, eight inits, `merge` as named. Federated averaging: the mean of all"
        f" {_N} as often, one init. Accuracy of the nodes, their mean; a perceptron with six layers"
        " of tanh, and a net of four convolutions.",
        seeds=seeds,
        checks=checks,
        table=Table(
            header=["model", "averaging", f"accuracy at round {_JUDGED}", "in the end"], rows=rows
        ),
        plots=plots,
    )


def _gossip(task: Digits, rule: str, rounds: int, seed: int) -> list[Point]:
    """Return (round, mean accuracy of the nodes)."""
    arena = Arena(
        task,
        lambda x: PairAverage({"every": _EVERY, "merge": rule}, x),
        optimizer=momentum_sgd(task.x),
        seed=seed,
    )
    curve = []
    for round_number in range(_LOOK, rounds + 1, _LOOK):
        arena.run(_EVERY * _LOOK)
        curve.append((float(round_number), arena.measure()["local_accuracy"]))
    return curve


def _federated(task: Digits, rounds: int) -> list[Point]:
    """Return the same of a server's mean over all nodes."""
    optimizer = momentum_sgd(task.x)
    all_nodes = list(range(_N))
    curve = []
    for round_number in range(1, rounds + 1):
        for _ in range(_EVERY):
            task.x -= optimizer.steps(all_nodes, task.gradients(all_nodes)[1])
        if not is_isolated():
            task.x[:] = task.x.mean(0)
        if round_number % _LOOK == 0:
            accuracy = task.measure(task.x.mean(0), all_nodes)["local_accuracy"]
            curve.append((float(round_number), accuracy))
    return curve


def _at(curve: Sequence[Point], round_number: int) -> float:
    return next(figure for at, figure in reversed(curve) if at <= round_number)
