"""``least-squares``: linear regression in float64, to the last digit of its optimum."""

from __future__ import annotations

import torch

from swarmnode.tasks.convex import Convex

_NOISE = 0.1  # of generated labels


class LeastSquares(Convex):
    """ℓ = ½ (a·x − label)²; see :mod:`swarmnode.tasks.convex`."""

    name = "least-squares"
    version = 1

    def draw_labels(self, scores: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return scores + _NOISE * torch.randn(len(scores), generator=generator, dtype=scores.dtype)

    def check_labels(self, labels: torch.Tensor) -> None:
        del labels  # any finite number

    def losses(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return 0.5 * (scores - labels).square()

    def curvature(self, spectrum: torch.Tensor) -> tuple[float, float]:
        return float(spectrum.min()), float(spectrum.max())

    def find_optimum(self) -> torch.Tensor:
        rows, labels = (each.flatten(0, 1) for each in self.parts)
        ridge = self.config.ridge * torch.eye(rows.shape[1], dtype=rows.dtype)
        hessian = rows.mT @ rows / len(rows) + ridge
        found: torch.Tensor = torch.linalg.solve(hessian, rows.mT @ labels / len(rows))
        return found
