"""``synthetic``: noisy least squares whose optimum is known exactly, for tests and benches.

Every node draws rows a ~ N(0, I) and labels a·x* + noise, in float32. The optimum of the
swarm is x*, so the evaluation is simply the distance ‖x − x*‖.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch

from swarmnode.tasks.base import PositiveFloat, PositiveInt, Task, TaskConfig

# x* is the same for every swarm: only the seed of the batches differs between nodes.
_OPTIMUM_SEED = 20240229


class Synthetic(Task):
    """Linear regression; batches are (rows [batch, dim], labels [batch])."""

    name = "synthetic"
    version = 1
    exchange_every_steps = 32  # its steps take well under a millisecond
    batches_per_shard = 4096

    class Config(TaskConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Size, noise, and what learns."""

        dim: PositiveInt = 64
        batch: PositiveInt = 8
        noise: PositiveFloat = 0.5
        lr: PositiveFloat = 0.02
        optimizer: Literal["sgd", "adam"] = "sgd"

    config: Config

    @property
    def tokens_per_batch(self) -> int:
        return self.config.batch

    def optimum(self) -> torch.Tensor:
        """Return x*: float32 [dim]."""
        generator = torch.Generator().manual_seed(_OPTIMUM_SEED)
        return torch.randn(self.config.dim, generator=generator)

    def build_model(self, seed: int) -> torch.nn.Module:
        del seed  # torch's generator has it
        return torch.nn.Linear(self.config.dim, 1, bias=False)

    def build_optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        kind = torch.optim.Adam if self.config.optimizer == "adam" else torch.optim.SGD
        return kind(model.parameters(), lr=self.config.lr)

    def batches(self, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        optimum = self.optimum()
        while True:
            rows = torch.randn(self.config.batch, self.config.dim, generator=generator)
            noise = torch.randn(self.config.batch, generator=generator)
            yield rows, rows @ optimum + self.config.noise * noise

    def loss(
        self, model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        rows, labels = batch
        residual: torch.Tensor = model(rows).squeeze(-1) - labels
        return 0.5 * residual.square().mean()

    def evaluate(self, model: torch.nn.Module) -> float:
        x = next(model.parameters()).detach().cpu().flatten()
        return float((x - self.optimum()).norm())
