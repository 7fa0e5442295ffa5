"""Language models in the laboratory, on real text: those of the built-in tasks, and a tiny one."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Literal

import torch
from torch.nn import functional

from swarmnode.strategies.base import TaskFacts
from swarmnode.strategies.context import LossAt
from swarmnode.tasks.base import Task
from swarmnode.tensor.layout import Layout
from swarmnode.testing.lab.tasks import LabTask
from swarmnode.worker.model.arena import Arena as ModelArena

_CONTEXT, _EMBEDDING, _WIDTH, _BYTES = 8, 12, 60, 256
_BATCH = 16
_HELD_OUT_SHARE = 0.1
_WINDOWS = 4096  # held out, over all texts: losses differ by a thousandth between samples
_SHAPES: dict[str, tuple[int, ...]] = {
    "embedding": (_BYTES, _EMBEDDING),
    "0.weight": (_CONTEXT * _EMBEDDING, _WIDTH),
    "0.bias": (_WIDTH,),
    "1.weight": (_WIDTH, _BYTES),
    "1.bias": (_BYTES,),
}


class TextTask(LabTask):
    """A language model of the built-in tasks in the laboratory: ``n`` nodes train it on real text.

    Each has batches of its own.

    Gradients are those of one model: a node's row of ``x`` is copied into it when it is its turn.

    Attributes:
        text: the task that it is made of.
    """

    judged_by: Literal["loss"] = "loss"

    def __init__(
        self, task: Task, n: int, *, seed: int, model_seed: int, clip_norm: float = 0.0
    ) -> None:
        """Build the model once.

        ``seed``: of the batches; ``model_seed``: of the first weights, as in a manifest;
        ``clip_norm``: the largest norm of a node's own gradient, 0: any.
        """
        self._clip_norm = clip_norm
        torch.manual_seed(model_seed)
        self.text, self._model = task, task.build_model(model_seed)
        self._arena = ModelArena(self._model)
        self.facts = TaskFacts(task.name)
        self.x = self._arena.flat.repeat(n, 1)
        self._batches: list[Iterator[Any]] = [task.batches(1000 * seed + i) for i in range(n)]

    @property
    def layout(self) -> Layout:
        """That of the model."""
        return self._arena.layout

    def gradients(self, nodes: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        losses, gradients = [], []
        for node in nodes:
            loss, gradient = self._gradient(self.x[node], next(self._batches[node]))
            losses.append(loss)
            if self._clip_norm:
                gradient.mul_((self._clip_norm / gradient.norm()).clamp(max=1.0))
            gradients.append(gradient)
        return torch.tensor(losses), torch.stack(gradients)

    def mean_gradient(self, x: torch.Tensor) -> torch.Tensor:
        """Return the gradient of one model [numel] on a batch of every node: [numel]."""
        return self._gradient(x, torch.cat([next(batches) for batches in self._batches]))[1]

    def probe(self, node: int) -> Callable[[], float]:
        batch = next(self._batches[node])

        def loss() -> float:
            self._arena.flat.copy_(self.x[node])
            with torch.no_grad():
                return float(self.text.loss(self._model, batch))

        return loss

    def measure(self, mean: torch.Tensor, alive: Sequence[int]) -> dict[str, float]:
        own = [self.evaluate(self.x[node]) for node in alive]
        return {"loss": self.evaluate(mean), "own_loss": sum(own) / len(own)}

    def public_probe(self) -> LossAt | None:
        """See LabTask: the few examples that nodes have, not what results are judged by."""
        examples = self.text.public_probe()
        return lambda x: self._measured(x, lambda model: self.text.loss(model, examples))

    def mislabel(self, nodes: Collection[int]) -> None:
        """Let ``nodes`` learn from texts in which any byte follows any other."""
        for node in nodes:
            generator = torch.Generator().manual_seed(node)
            self._batches[node] = _shuffled(self._batches[node], generator)

    def judge(self, x: torch.Tensor) -> float:
        """Return the held-out loss of a model [numel]."""
        return self.evaluate(x)

    def evaluate(self, x: torch.Tensor) -> float:
        """Return the held-out loss of a model [numel]."""
        return self._measured(x, self.text.evaluate)

    def _measured(
        self, x: torch.Tensor, loss_of: Callable[[torch.nn.Module], torch.Tensor | float]
    ) -> float:
        self._arena.flat.copy_(x)
        self._model.eval()
        try:
            with torch.no_grad():
                return float(loss_of(self._model))
        finally:
            self._model.train()

    def _gradient(self, x: torch.Tensor, batch: Any) -> tuple[float, torch.Tensor]:
        self._arena.flat.copy_(x)
        loss = self.text.loss(self._model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        gradient = self._arena.gradient()
        self._model.zero_grad(set_to_none=True)
        return loss.item(), gradient


def _shuffled(batches: Iterator[Any], generator: torch.Generator) -> Iterator[Any]:
    """Yield batches of tokens [batch, context + 1] with all tokens of each in a random order."""
    for batch in batches:
        order = torch.randperm(batch.numel(), generator=generator)
        yield batch.flatten()[order].view_as(batch)


class Prose(LabTask):
    """The next byte of a text from the eight before it, for all nodes at once.

    A table of bytes, one tanh layer and a softmax: 24,320 parameters that learn a text well enough
    for a percent of loss to mean something, at about a millisecond a step of four nodes. Nodes draw
    their batches from one text, or each from one of its own; what is held out is of all texts.

    ``loss`` is that of the mean model on what is held out, ``own_loss`` the mean over nodes.
    """

    def __init__(
        self, n: int, seed: int, texts: Sequence[bytes], *, is_mixed: bool = False
    ) -> None:
        """``texts``: node i learns from number i modulo their count; ``is_mixed``: from all."""
        self.facts = TaskFacts("prose")
        self._generators = [torch.Generator().manual_seed(1000 * seed + i) for i in range(n)]
        cut = [_split(text) for text in texts]
        own = [torch.cat([text for text, _ in cut])] if is_mixed else [text for text, _ in cut]
        self._trained = [own[i % len(own)] for i in range(n)]
        share = _WINDOWS // len(cut)
        self._held_out = torch.cat([_spread(held_out, share) for _, held_out in cut])
        self.x = _init(seed).repeat(n, 1)

    @property
    def layout(self) -> Layout:
        """Of the model."""
        return Layout.of([(name, shape, "float32") for name, shape in _SHAPES.items()])

    def gradients(self, nodes: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.x[list(nodes)].requires_grad_()
        losses = _losses(x, torch.stack([self._draw(node) for node in nodes]))
        (gradients,) = torch.autograd.grad(losses.sum(), x)
        return losses.detach(), gradients

    def public_probe(self) -> LossAt | None:
        return self.evaluate

    def probe(self, node: int) -> Callable[[], float]:
        windows = self._draw(node)[None]
        return lambda: float(_losses(self.x[node : node + 1], windows))

    def measure(self, mean: torch.Tensor, alive: Sequence[int]) -> dict[str, float]:
        own = [self.evaluate(self.x[node]) for node in alive]
        return {"loss": self.evaluate(mean), "own_loss": sum(own) / len(own)}

    def evaluate(self, x: torch.Tensor) -> float:
        """Return the held-out loss of a model [numel]."""
        with torch.no_grad():
            return float(_losses(x[None], self._held_out[None]))

    def _draw(self, node: int) -> torch.Tensor:
        text, generator = self._trained[node], self._generators[node]
        starts = torch.randint(len(text) - _CONTEXT, (_BATCH, 1), generator=generator)
        return text[starts + torch.arange(_CONTEXT + 1)].long()


def _split(text: bytes) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what is trained on and what is held out: uint8 [n_bytes]."""
    numbers = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    begin = int(len(numbers) * (1 - _HELD_OUT_SHARE))
    return numbers[:begin], numbers[begin:]


def _spread(text: torch.Tensor, n: int) -> torch.Tensor:
    """Return windows all over a text: int64 [n, context + 1]."""
    starts = torch.linspace(0, len(text) - _CONTEXT - 1, n).long()
    return text[starts[:, None] + torch.arange(_CONTEXT + 1)].long()


def _init(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for name, shape in _SHAPES.items():
        drawn = torch.randn(math.prod(shape), generator=generator)
        scale = 1.0 if name == "embedding" else shape[0] ** -0.5
        parts.append(torch.zeros_like(drawn) if len(shape) == 1 else drawn * scale)
    return torch.cat(parts)


def _losses(x: torch.Tensor, windows: torch.Tensor) -> torch.Tensor:
    """Return the loss of each model of x [k, numel] on its windows [k, n, context + 1]: [k]."""
    k, n = windows.shape[:2]
    sizes = [math.prod(shape) for shape in _SHAPES.values()]
    parts = zip(torch.split(x, sizes, 1), _SHAPES.values(), strict=True)
    embedding, weight, bias, weight_out, bias_out = (part.view(k, *shape) for part, shape in parts)
    rows = windows[:, :, :_CONTEXT] + _BYTES * torch.arange(k)[:, None, None]
    known = functional.embedding(rows, embedding.reshape(-1, _EMBEDDING)).view(k, n, -1)
    hidden = torch.tanh(torch.baddbmm(bias[:, None], known, weight))
    logits = torch.baddbmm(bias_out[:, None], hidden, weight_out)
    targets = windows[:, :, _CONTEXT].reshape(-1)
    each = functional.cross_entropy(logits.flatten(0, 1), targets, reduction="none")
    return each.view(k, n).mean(1)
