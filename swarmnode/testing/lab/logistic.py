"""Logistic regression on 2,000 samples of 30 numbers, for methods that measure losses only.

Every node draws batches from all samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from swarmnode.strategies.base import TaskFacts
from swarmnode.testing.lab.tasks import LabTask

DIM = 30
_SAMPLES = 2000
_BATCH = 64


class Logistic(LabTask):
    """``loss`` is that of the mean model over all samples."""

    def __init__(self, n: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.rows = torch.randn(_SAMPLES, DIM, generator=generator)
        truth = torch.randn(DIM, generator=generator)
        noise = torch.rand(_SAMPLES, generator=generator)
        self.labels = (torch.sigmoid(2 * self.rows @ truth) > noise).float()
        self._generators = [torch.Generator().manual_seed(1000 + i) for i in range(n)]
        self.x = torch.zeros(n, DIM)
        self.facts = TaskFacts("logit")

    def loss(self, x: torch.Tensor, rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of x [DIM] on samples: a scalar with gradients."""
        return torch.nn.functional.binary_cross_entropy_with_logits(rows @ x, labels)

    def probe(self, node: int) -> Callable[[], float]:
        chosen = torch.randint(_SAMPLES, (_BATCH,), generator=self._generators[node])
        rows, labels = self.rows[chosen].double(), self.labels[chosen].double()
        return lambda: float(self.loss(self.x[node].double(), rows, labels))

    def gradients(self, nodes: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        raise AssertionError(f"only losses are measured here, asked for gradients of {nodes}")

    def measure(self, mean: torch.Tensor, alive: Sequence[int]) -> dict[str, float]:
        del alive
        return {"loss": float(self.loss(mean, self.rows, self.labels))}
