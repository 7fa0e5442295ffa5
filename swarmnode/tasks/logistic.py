"""``logistic``: regression on two classes in float64, to the last digit of its optimum."""

from __future__ import annotations

from typing import Annotated

import torch
from msgspec import Meta as Range

from swarmnode.tasks.base import DataError
from swarmnode.tasks.convex import Convex

# Newton's method doubles its digits in every step; it is at the end of float64 long before.
_NEWTON_STEPS = 60
_STEEPEST = 0.25  # the largest curvature of ℓ


class Logistic(Convex):
    """ℓ = log(1 + exp(a·x)) − label a·x, labels 0 and 1; see :mod:`swarmnode.tasks.convex`.

    Its curvature goes to zero far out, so mu is the ridge's alone.
    """

    name = "logistic"
    version = 1

    class Config(Convex.Config, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """As that of every convex task, with a ridge that makes it strongly convex."""

        ridge: Annotated[float, Range(gt=0.0, le=1e6)] = 0.1

    config: Config

    def draw_labels(self, scores: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        drawn = torch.rand(len(scores), generator=generator, dtype=scores.dtype)
        return (torch.sigmoid(scores) > drawn).to(scores.dtype)

    def check_labels(self, labels: torch.Tensor) -> None:
        found = sorted(set(labels.flatten().tolist()))
        if not set(found) <= {0.0, 1.0}:
            raise DataError(
                "data_dir: expected labels 0 and 1 in the last column, got"
                f" {', '.join(f'{value:g}' for value in found[:8])}"
            )

    def losses(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.softplus(scores) - labels * scores

    def curvature(self, spectrum: torch.Tensor) -> tuple[float, float]:
        return 0.0, _STEEPEST * float(spectrum.max())

    def find_optimum(self) -> torch.Tensor:
        """Return it by Newton's method, with halved steps as long as one leads uphill."""
        rows, labels = (each.flatten(0, 1) for each in self.parts)
        ridge = self.config.ridge
        x = torch.zeros(rows.shape[1], dtype=rows.dtype)

        def value(at: torch.Tensor) -> float:
            return float(self.losses(rows @ at, labels).mean() + ridge / 2 * at.square().sum())

        for _ in range(_NEWTON_STEPS):
            p = torch.sigmoid(rows @ x)
            slope = rows.mT @ (p - labels) / len(rows) + ridge * x
            hessian = rows.mT @ (rows * (p * (1 - p))[:, None]) / len(rows)
            step = torch.linalg.solve(hessian + ridge * torch.eye(len(x), dtype=x.dtype), slope)
            if float(step.norm()) <= 1e-16 * float(x.norm()):
                break
            while value(x - step) > value(x) and float(step.norm()) > 1e-9:
                step = step / 2
            x = x - step
        return x
