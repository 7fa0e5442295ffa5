"""An MLP 64-64-64-64-10 with tanh on scikit-learn's digits, for all nodes at once.

1,400 digits train, 397 are held out. Each node has a share of them, equal in kind or with labels
by a Dirichlet distribution. Forward and backward are written out over batched products: sixteen
nodes take a step in two milliseconds, where sixteen models in autograd take fifty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from swarmnode.errors import ConfigError
from swarmnode.strategies.base import TaskFacts
from swarmnode.strategies.context import LossAt
from swarmnode.tensor.layout import Layout
from swarmnode.testing.lab.tasks import LabTask

_TRAIN_EXAMPLES = 1400
_SPLIT_SEED = 1797  # one order for all runs: the file is sorted by writer
_BATCH = 32
_PROBE_EXAMPLES = 128  # of those that train, as they are in an order of their own: none is a test


class Digits(LabTask):
    """``loss`` and ``accuracy`` are the mean model's; ``local_…`` is the mean over nodes."""

    def __init__(
        self,
        n: int,
        seed: int,
        *,
        dirichlet: float | None = None,
        widths: tuple[int, ...] = (64, 64, 64, 64, 10),
        same_init: bool = True,
    ) -> None:
        """``dirichlet``: alpha of the label split, smaller is more uneven; None: equal in kind."""
        self._widths = widths
        self.loss_trivial = math.log(widths[-1])
        self.facts = TaskFacts("digits")
        pixels, labels = _load()
        self._pixels, self._labels = pixels[:_TRAIN_EXAMPLES], labels[:_TRAIN_EXAMPLES]
        self._test = pixels[_TRAIN_EXAMPLES:], labels[_TRAIN_EXAMPLES:]
        self._shares = _split(self._labels, n, dirichlet, seed)
        self._generators = [torch.Generator().manual_seed(1000 * seed + i) for i in range(n)]
        inits = [self._init(seed if same_init else 1000 * seed + i) for i in range(n)]
        self.x = torch.stack(inits)

    @property
    def layout(self) -> Layout:
        """Weights and biases, layer by layer."""
        tensors: list[tuple[str, tuple[int, ...], str]] = []
        for number, (fan_in, fan_out) in enumerate(self._layers()):
            tensors.append((f"{number}.weight", (fan_in, fan_out), "float32"))
            tensors.append((f"{number}.bias", (fan_out,), "float32"))
        return Layout.of(tensors)

    def gradients(self, nodes: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.stack([self._draw(node) for node in nodes])
        pixels, labels = self._pixels[chosen], self._labels[chosen]
        x = self.x if len(nodes) == self.n else self.x[list(nodes)]
        weights, activations = self._forward(x, pixels)
        log_p = torch.log_softmax(activations[-1], dim=2)
        losses = -log_p.gather(2, labels[..., None]).mean((1, 2))
        delta = log_p.exp_()
        delta.scatter_add_(
            2, labels[..., None], torch.full_like(labels[..., None], -1.0, dtype=x.dtype)
        )
        delta /= labels.shape[1]
        return losses, self._backward(x, weights, activations, delta)

    def public_probe(self) -> LossAt | None:
        pixels, labels = self._pixels[:_PROBE_EXAMPLES], self._labels[:_PROBE_EXAMPLES]
        return lambda x: self._loss(x, pixels, labels)[0]

    def probe(self, node: int) -> Callable[[], float]:
        chosen = self._draw(node)
        pixels, labels = self._pixels[chosen], self._labels[chosen]
        return lambda: self._loss(self.x[node], pixels, labels)[0]

    def measure(self, mean: torch.Tensor, alive: Sequence[int]) -> dict[str, float]:
        loss, accuracy = self._loss(mean, *self._test)
        losses, accuracies = zip(
            *(self._loss(self.x[node], *self._test) for node in alive), strict=True
        )
        return {
            "loss": loss,
            "accuracy": accuracy,
            "local_loss": sum(losses) / len(losses),
            "local_accuracy": sum(accuracies) / len(accuracies),
        }

    # --- the model -----------------------------------------------------------------------

    def _layers(self) -> list[tuple[int, int]]:
        return list(zip(self._widths[:-1], self._widths[1:], strict=True))

    def _init(self, seed: int) -> torch.Tensor:
        """Return Xavier-normal weights and zero biases: [numel]."""
        generator = torch.Generator().manual_seed(seed)
        parts = []
        for fan_in, fan_out in self._layers():
            std = (2 / (fan_in + fan_out)) ** 0.5
            parts += [std * torch.randn(fan_in * fan_out, generator=generator)]
            parts += [torch.zeros(fan_out)]
        return torch.cat(parts)

    def _forward(
        self, x: torch.Tensor, pixels: torch.Tensor
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return weights [k, in, out] and activations [k, batch, width] for x [k, numel]."""
        weights, activations = [], [pixels]
        layers = self._layers()
        begin = 0
        for number, (fan_in, fan_out) in enumerate(layers):
            end = begin + fan_in * fan_out
            weight = x[:, begin:end].view(-1, fan_in, fan_out)
            bias = x[:, None, end : end + fan_out]
            begin = end + fan_out
            out = torch.baddbmm(bias, activations[-1], weight)
            weights.append(weight)
            activations.append(out.tanh_() if number < len(layers) - 1 else out)
        return weights, activations

    def _backward(
        self,
        x: torch.Tensor,
        weights: list[torch.Tensor],
        activations: list[torch.Tensor],
        delta: torch.Tensor,
    ) -> torch.Tensor:
        """Return the gradients [k, numel]; ``delta`` is that of the last layer's output."""
        gradients = torch.empty_like(x)
        end = x.shape[1]
        for number in reversed(range(len(weights))):
            fan_in, fan_out = self._layers()[number]
            begin = end - fan_out
            gradients[:, begin:end] = delta.sum(1)
            end, begin = begin, begin - fan_in * fan_out
            gradients[:, begin:end] = torch.bmm(activations[number].mT, delta).flatten(1)
            end = begin
            if number:
                a = activations[number]
                delta = torch.bmm(delta, weights[number].mT).mul_(1 - a * a)
        return gradients

    def _loss(
        self, x: torch.Tensor, pixels: torch.Tensor, labels: torch.Tensor
    ) -> tuple[float, float]:
        """Return loss and accuracy of one model [numel] on examples."""
        logits = self._forward(x[None], pixels[None])[1][-1][0]
        loss = torch.nn.functional.cross_entropy(logits, labels)
        return float(loss), float((logits.argmax(1) == labels).float().mean())

    def _draw(self, node: int) -> torch.Tensor:
        share = self._shares[node]
        picked = torch.randint(len(share), (_BATCH,), generator=self._generators[node])
        return share[picked]


def _load() -> tuple[torch.Tensor, torch.Tensor]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ConfigError(
            "task digits needs scikit-learn: pip install '.[digits]' in the clone of swarmnode"
        ) from error
    pixels, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(_SPLIT_SEED))
    return torch.tensor(pixels).float()[order] / 16, torch.tensor(labels).long()[order]


def _split(labels: torch.Tensor, n: int, dirichlet: float | None, seed: int) -> list[torch.Tensor]:
    """Return each node's examples; no node is left with none."""
    rng = np.random.default_rng(seed)
    if dirichlet is None:
        return [torch.tensor(part) for part in np.array_split(rng.permutation(len(labels)), n)]
    shares: list[list[int]] = [[] for _ in range(n)]
    for label in range(10):
        examples = rng.permutation(np.flatnonzero(labels.numpy() == label))
        ends = np.cumsum(rng.dirichlet([dirichlet] * n)) * len(examples)
        for node, part in enumerate(np.split(examples, ends.astype(int)[:-1])):
            shares[node] += part.tolist()
    for share in shares:
        if not share:
            share.append(int(rng.integers(len(labels))))
    return [torch.tensor(share) for share in shares]
