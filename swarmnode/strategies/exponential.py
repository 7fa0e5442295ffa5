"""The exponential of a small matrix, for flows that are applied lazily."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

_TERMS = 9


def exponential(m: Matrix, elapsed: float) -> Matrix:
    """Return exp(m elapsed), to rounding: Taylor's series of a small part of it, squared.

    Of at most 1/8 in norm, nine terms leave 1e-16. torch.linalg.matrix_exp and scipy do the same
    at four and thirty times the cost, and two of these are needed for every exchange.
    """
    identity = np.eye(len(m))
    size = elapsed * float(np.abs(m).sum(axis=0).max())
    squarings = max(0, math.ceil(math.log2(8 * size))) if size else 0
    part = m * (elapsed / 2**squarings)
    result: Matrix = identity + part / _TERMS
    for term in range(_TERMS - 1, 0, -1):
        result = identity + part @ result / term
    for _ in range(squarings):
        result = result @ result
    return result
