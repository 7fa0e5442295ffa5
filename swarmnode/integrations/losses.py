"""The loss of a step, where a loop does not tell its callbacks: from the model's output."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class LossTap:
    """Keeps the last ``output.loss`` of a model in training mode."""

    def __init__(self) -> None:
        self._loss: torch.Tensor | None = None

    @contextmanager
    def of(self, model: torch.nn.Module) -> Iterator[None]:
        """Listen to ``model`` while the block is open."""
        handle = model.register_forward_hook(self._take)
        try:
            yield
        finally:
            handle.remove()

    def take(self) -> float | None:
        """Return the loss since the last call, None if there was none. Waits for a GPU."""
        loss, self._loss = self._loss, None
        return None if loss is None else float(loss)

    def _take(self, model: torch.nn.Module, inputs: Any, output: Any) -> None:
        del inputs
        loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
        if model.training and isinstance(loss, torch.Tensor) and loss.numel() == 1:
            self._loss = loss.detach()
