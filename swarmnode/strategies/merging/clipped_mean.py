"""The mean of messages, none of which is longer than most of them are.

Source: A. Sarfi, B. Thérien, J. Lidin, E. Belilovsky, "Communication efficient LLM pre-training
with SparseLoCo", 2025, and the authors' code: the norm of each peer's values is brought down to the
median over the peers of the round, never up. A peer that sends a message a thousand times too long
then has the weight of one member, as long as fewer than half of them do.

Deviations: the norm is that of the whole message, in their code of each tensor of it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch

from swarmnode.strategies.exchanges import Message
from swarmnode.tensor.magnitude import measure


def clipped_mean(messages: Sequence[Message]) -> torch.Tensor:
    """Return Σ clip(message) / n, float32 [numel] on the CPU, of one message or more.

    Of an even number the lower one in the middle is the median. Cost: each message is read twice.
    """
    norms = [_norm(message.read()) for message in messages]
    bound = sorted(norms)[(len(norms) - 1) // 2]
    total: torch.Tensor | None = None
    for message, norm in zip(messages, norms, strict=True):
        values = message.read()
        if norm > bound:
            values.mul_(_rounded(bound / norm))
        total = values if total is None else total.add_(values)
    assert total is not None, "a gathering has a message at least"
    return total.div_(len(messages))


def _norm(values: torch.Tensor) -> float:
    return measure(values.numpy().data).norm


def _rounded(value: float) -> float:
    """Return it as float32, so that equal messages give equal bits on every machine."""
    (rounded,) = struct.unpack("f", struct.pack("f", value))
    return float(rounded)
