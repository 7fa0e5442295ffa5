"""Where outer steps over random groups are stable: an exact condition on second moments.

A node's slow weights φ and its momentum m follow m' = μ m − γ (φ − φ̄_G), φ' = φ + m' where φ̄_G
is the mean over a random group G of n nodes, itself among them. In a large swarm V = Var φ,
C = Cov(φ, m) and D = Var m then follow a linear map, with k = (n − 1)/n::

    D' = μ² D − 2 μ γ k C + γ² k V
    E  = μ C − γ k V                              = Cov(φ, m')
    heavy ball   C' = E + D'                      V' = V + 2 E + D'
    Nesterov     φ' = φ + (1 + μ) m' − μ m,       with F = Cov(m', m) = μ D − γ k C
                 C' = E + (1 + μ) D' − μ F
                 V' = V + 2 ((1 + μ) E − μ C) + (1 + μ)² D' − 2 μ (1 + μ) F + μ² D

It is stable as long as every eigenvalue is inside the unit circle. For pairs and the heavy ball
that is 0 < γ < 2 (1 − μ²). J. Kolehmainen et al., "NoLoCo: No-all-reduce low communication training
method for large models", 2025, give a bound that grows with μ; simulation agrees with this one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_BISECTIONS = 40


def gamma_bound(momentum: float, group_size: int, *, nesterov: bool = False) -> float:
    """Return the γ up to which (exclusive) outer steps over random groups are stable.

    ``group_size``: nodes in a group, at least 2; 0 for everybody, whatever the number.
    """
    if group_size == 2 and not nesterov:
        return 2 * (1 - momentum**2)
    share = 1.0 if group_size == 0 else (group_size - 1) / group_size
    low, high = 0.0, 4.0 * (1 + momentum)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        values = np.linalg.eigvals(moment_map(momentum, middle, share, nesterov=nesterov))
        if np.abs(values).max() < 1:
            low = middle
        else:
            high = middle
    return low


def moment_map(
    momentum: float, gamma: float, share: float, *, nesterov: bool = False
) -> NDArray[np.float64]:
    """Return the map of (V, C, D): [3, 3]; ``share`` is k above."""
    v, c, d = np.eye(3)
    own = momentum
    d_next = own**2 * d - 2 * own * gamma * share * c + gamma**2 * share * v
    with_next = own * c - gamma * share * v
    if not nesterov:
        return np.stack([v + 2 * with_next + d_next, with_next + d_next, d_next])
    between = own * d - gamma * share * c
    ahead = 1 + own
    return np.stack(
        [
            v
            + 2 * (ahead * with_next - own * c)
            + ahead**2 * d_next
            - 2 * own * ahead * between
            + own**2 * d,
            with_next + ahead * d_next - own * between,
            d_next,
        ]
    )
