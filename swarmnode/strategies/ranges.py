"""What numbers of a peer or a file may be, before anything counts on them.

Each function returns why something is refused, or None. They are for ``Strategy.check_received``
and for the worker, which checks a whole snapshot by them before it changes anything.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from swarmnode.tensor.magnitude import Magnitude, Scale, refusal

# Enough for a standard error below one percent, and few enough to cost no step anything.
_VECTOR_SAMPLE_ELEMS = 2**16


def magnitude_of(vector: torch.Tensor) -> Magnitude:
    """Return how large a vector is."""
    if not vector.numel():
        return Magnitude()
    values = vector.detach().flatten()
    largest = float(torch.linalg.vector_norm(values, float("inf")))
    return Magnitude(largest, float(torch.linalg.vector_norm(values, dtype=torch.float64)) ** 2)


def scale_of(x: torch.Tensor) -> Scale:
    """Return the scale of the weights ``x``, over a sample: it is asked for at every exchange."""
    stride = max(1, x.numel() // _VECTOR_SAMPLE_ELEMS)
    sample = magnitude_of(x.detach()[::stride])
    n = -(-x.numel() // stride)
    return Scale((sample.square_sum / max(1, n)) ** 0.5, sample.largest)


def not_finite(tensors: Mapping[str, torch.Tensor]) -> str | None:
    """Refuse a NaN or an infinity."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return f"tensor {name} is not finite"
    return None


def too_large(tensors: Mapping[str, torch.Tensor], own: torch.Tensor) -> str | None:
    """Refuse vectors that are implausibly large beside the weights ``own``.

    A model may begin with zeros or very small numbers, so that ones count as its own at the least.
    """
    known = magnitude_of(own)
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            continue
        numel = tensor.numel()
        rms = max(1.0, (known.square_sum / max(1, own.numel())) ** 0.5)
        beside = Magnitude(max(1.0, known.largest), rms**2 * numel)
        why = refusal(magnitude_of(tensor), beside, f"tensor {name}")
        if why:
            return why
    return None


def outside(name: str, value: float, low: int, high: int) -> str | None:
    """Refuse what is no whole number from ``low`` to ``high``, both included."""
    if not (low <= value <= high) or value != int(value):
        return f"{name}: expected a whole number from {low} to {high}, got {value:g}"
    return None
