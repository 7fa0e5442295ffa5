"""Language models of the built-in tasks in the laboratory, on real text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Literal

import torch

from swarmnode.strategies.base import TaskFacts
from swarmnode.strategies.context import LossAt
from swarmnode.tasks.base import Task
from swarmnode.tensor.layout import Layout
from swarmnode.testing.lab.tasks import LabTask
from swarmnode.worker.model.arena import Arena as ModelArena


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
