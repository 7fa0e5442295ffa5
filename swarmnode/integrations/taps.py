"""What a model in training is given and what comes out, where a loop does not tell: tokens, loss.

A batch size says nothing of tokens: sequences are padded to the longest of their batch, or several
are packed into one row, so that two steps of one run rarely count the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

_TOKENS = "input_ids"  # what the tokenizers of transformers call them
_EMBEDDED = "inputs_embeds"  # [batch, sequence, width]: tokens that the caller has looked up


def tokens_in(batch: Any) -> int:
    """Return the tokens of a batch, padding included; where it has none, its examples.

    Tokens are what is named ``input_ids``, or the first tensor if it is of integers [batch,
    sequence]. 0: there is no tensor in it.
    """
    if isinstance(batch, torch.Tensor):
        is_tokens = batch.ndim == 2 and not (batch.is_floating_point() or batch.is_complex())
        return batch.numel() if is_tokens else len(batch) if batch.ndim else 1
    if isinstance(batch, Mapping):
        tokens, embedded = batch.get(_TOKENS), batch.get(_EMBEDDED)
        if isinstance(tokens, torch.Tensor):
            return tokens.numel()
        if isinstance(embedded, torch.Tensor) and embedded.ndim == 3:
            return embedded.shape[0] * embedded.shape[1]
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        return next(filter(None, map(tokens_in, batch)), 0)
    return 0


class TokenTap:
    """Counts what a model in training mode is given, where a loop does not show its batches."""

    def __init__(self) -> None:
        self._tokens = 0

    @contextmanager
    def of(self, model: torch.nn.Module) -> Iterator[None]:
        """Listen to ``model`` while the block is open."""
        handle = model.register_forward_pre_hook(self._take, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

    def take(self) -> int:
        """Return the tokens since the last call."""
        tokens, self._tokens = self._tokens, 0
        return tokens

    def _take(self, model: torch.nn.Module, inputs: Any, named: dict[str, Any]) -> None:
        if model.training:  # evaluation trains nothing
            self._tokens += tokens_in(named) or tokens_in(inputs)


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
