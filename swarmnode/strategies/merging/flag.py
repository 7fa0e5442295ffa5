"""Flag aggregator: the mean of what all vectors have in common, a subspace of few directions.

Source: R. Chowdhury, K. Sanyal, Y. Su, S. Kadambi, V. Patel, H. Zhang, "Flag aggregator: scalable
distributed training under failures and augmented losses using convex optimization", 2024. With
ĝ_i of length 1, the subspace Y of m = ⌈(n + 1) / 2⌉ dimensions minimises Σ √(1 − ‖Yᵀĝ_i‖²), by
iterative reweighting: a_i = (1 − ‖Yᵀĝ_i‖²)^(−1/4), and Y are the first m left singular vectors of
[a_i ĝ_i]. What comes out is the mean of the projections on Y.

Deviations: only inner products are needed, since Y lies in what the ĝ_i span: with K = ĜᵀĜ and
A = diag(a), A K A = V S² Vᵀ, the projection of Ĝ 1 is Ĝ A V S⁻² Vᵀ A K 1. The pairwise term is left
out (λ = 0). Reweighting begins with a = 1 and is done _ROUNDS times, where the authors' code does
it once from a random start. The mean of directions is given the median of the lengths, and counts
by weight.
Coefficients are rounded to 2⁻²⁰: eigenvalues differ in their last bits between machines.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from swarmnode.strategies.merging.mixing import Mix, Round

_ROUNDS = 8
_FLOOR = 1e-7  # the authors': a vector within Y has a finite weight
_GRAIN = 2.0**20


def flag(about: Round) -> tuple[Mix, ...]:
    """Return the mean of projections on the flag's subspace; zero where all vectors are."""
    norms = about.norms
    present = norms > 0
    shares = np.zeros(about.n)
    if present.any():
        bound = np.sort(norms[present])[(int(present.sum()) - 1) // 2]
        cosines = about.gram[np.ix_(present, present)] / np.outer(norms[present], norms[present])
        wanted = np.array(about.weights)[present]
        found = np.rint(_projected(cosines, wanted) * _GRAIN) / _GRAIN
        shares[present] = found * bound / norms[present]
    return (Mix(shares[None], (sum(about.weights),)),)


def _projected(cosines: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return c, so that Σ c_i ĝ_i is the projection of Σ wanted_i ĝ_i on Y."""
    n = len(wanted)
    reweighted = np.ones(n)
    for _ in range(_ROUNDS):
        values, vectors = np.linalg.eigh(cosines * np.outer(reweighted, reweighted))
        m = min((n + 2) // 2, int((values > _FLOOR * values[-1]).sum()))
        basis = reweighted[:, None] * vectors[:, n - m :] / np.sqrt(values[n - m :])  # Y = Ĝ basis
        inside = np.square(cosines @ basis).sum(1)
        reweighted = (np.abs(1 - inside) + _FLOOR) ** -0.25
    projected: NDArray[np.float64] = basis @ (basis.T @ (cosines @ wanted))
    return projected
