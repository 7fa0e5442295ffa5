"""Merge rules: one flat vector out of several, tensor by tensor where the rule needs it.

| rule | for |
|---|---|
| :func:`mean` | models of one family; by tokens where nodes trained unequally |
| :func:`variance_corrected` | models that have never met: other inits |
| :func:`rda` | pseudo-gradients of unequal length: mean length times mean direction |

The vectors are those of :class:`Layout`: trained parameters. Running statistics of BatchNorm are
buffers of the model and never in them: they are recomputed after a merge
(worker/finalize.py), never averaged. All sums are in float64, in the order given, so that equal
inputs in equal order give equal bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from swarmnode.tensor.layout import Layout

_EPSILON = 1e-6  # of the target: what the paper adds, 1e-4, is a percent of usual variances
_RELATED = 0.5  # the mean cosine from which on models are relatives, and the plain mean is right

Rule = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def mean(vectors: Sequence[torch.Tensor], weights: Sequence[float] = ()) -> torch.Tensor:
    """Return the mean of vectors [numel] by ``weights`` such as tokens; uniform without any."""
    return _weighted(torch.stack([v.double() for v in vectors]), _shares(vectors, weights)).to(
        vectors[0].dtype
    )


def variance_corrected(
    vectors: Sequence[torch.Tensor], layout: Layout, weights: Sequence[float] = ()
) -> torch.Tensor:
    """Return the mean with the variance of each tensor brought back to what it was.

    Source: Y. Tian, Z. Al-Ars, M. Kitsak, P. Hofstee, "Vanishing variance problem in fully
    decentralized neural-network systems", 2024. The mean of n unrelated tensors has 1/n of
    their variance, and every layer dims activations and gradients: training stands still. With
    the mean w̄ of a tensor, V its variance, and v the mean of the variances of those that went in::

        w = mean(w̄) + (w̄ − mean(w̄)) √((v + ε) / (V + ε))            ε = 1e-6 v

    Deviations: ε is relative, as the paper's 1e-4 is not small against the variance of a wide
    layer; and a tensor is left alone once the models are relatives (mean cosine of the centred
    tensors from 0.5 on), where correction would amplify noise. Scalars and constant tensors
    are only averaged. Not for moments of an optimizer.
    """
    return _by_tensor(_corrected, vectors, layout, weights)


def rda(
    vectors: Sequence[torch.Tensor], layout: Layout, weights: Sequence[float] = ()
) -> torch.Tensor:
    """Return for each tensor the mean length along the direction of the mean of directions.

    Source: A. Douillard et al., "Decoupled DiLoCo", 2026. Unlike the mean it does not shrink
    where the vectors disagree, and one long vector does not drown the others.
    """
    return _by_tensor(_radial, vectors, layout, weights)


def _by_tensor(
    rule: Rule, vectors: Sequence[torch.Tensor], layout: Layout, weights: Sequence[float]
) -> torch.Tensor:
    shares = _shares(vectors, weights)
    merged = torch.empty_like(vectors[0])
    for _, begin, end in layout.spans():
        stacked = torch.stack([vector[begin:end].double() for vector in vectors])
        merged[begin:end] = rule(stacked, shares)
    return merged


def _corrected(stacked: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    merged = _weighted(stacked, shares)
    if stacked.shape[1] < 2:
        return merged
    centred = stacked - stacked.mean(1, keepdim=True)
    target = stacked.var(1).mean()
    if target == 0 or _mean_cosine(centred) >= _RELATED:
        return merged
    epsilon = _EPSILON * target
    centre = merged.mean()
    scale = ((target + epsilon) / (merged.var() + epsilon)).sqrt()
    return (merged - centre).mul_(scale).add_(centre)


def _mean_cosine(centred: torch.Tensor) -> float:
    """Return the mean of the cosines between two different rows of [n, numel]; 1 for one row."""
    n = centred.shape[0]
    if n < 2:
        return 1.0
    lengths = centred.norm(dim=1, keepdim=True)
    directions = centred / lengths.clamp_min(torch.finfo(centred.dtype).tiny)
    return float((directions.sum(0).square().sum() - n) / (n * (n - 1)))


def _radial(stacked: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    lengths = stacked.norm(dim=1)
    directions = stacked / lengths.clamp_min(torch.finfo(stacked.dtype).tiny)[:, None]
    mean_direction = _weighted(directions, shares)
    length = mean_direction.norm()
    if length == 0:  # they cancel out: there is no direction to go
        return mean_direction
    return mean_direction.mul_((lengths * shares).sum() / length)


def _weighted(stacked: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Return Σ shares_i stacked_i for [n, numel], summed in the order of the rows."""
    merged = torch.zeros_like(stacked[0])
    for row, share in zip(stacked, shares.tolist(), strict=True):
        merged.add_(row, alpha=share)
    return merged


def _shares(vectors: Sequence[torch.Tensor], weights: Sequence[float]) -> torch.Tensor:
    given = torch.tensor(list(weights) or [1.0] * len(vectors), dtype=torch.float64)
    assert len(given) == len(vectors), (len(given), len(vectors))
    return given / given.sum()
