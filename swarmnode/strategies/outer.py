"""The outer step: what pulls slow weights, how their momentum moves them, which settings hold.

With slow weights φ, fast ones θ and Δ = φ − θ, over a pair or a group and after the codec, where
the mean of Δ is by weight (contributions.py) and that of φ over a pair is not::

    g = −β mean(Δ̂) + γ (mean(φ̂) − φ̂_own)
    m ← μ m + g                    φ ← φ + m            Nesterov: φ + g + μ m

Where that is stable over random groups is an exact condition on second moments. With γ alone, a
node's φ and m follow m' = μ m − γ (φ − φ̄_G), φ' = φ + m' where φ̄_G is the mean over a random group
G of n nodes, itself among them. In a large swarm V = Var φ, C = Cov(φ, m) and D = Var m then follow
a linear map, with k = (n − 1)/n::

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

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import torch
from msgspec import Meta as Range
from numpy.typing import NDArray

from swarmnode.errors import ConfigError
from swarmnode.strategies.contributions import pair_shares
from swarmnode.strategies.exchanges import Exchange, Kind
from swarmnode.tensor.formats import find_format
from swarmnode.tensor.layout import Layout

Momentum = Annotated[float, Range(ge=0.0, lt=1.0)]
Rate = Annotated[float, Range(ge=0.0, le=4.0)]

PAIR = 2  # nodes in a group that is one
_BISECTIONS = 40


def pull(
    exchange: Exchange,
    beta: float,
    gamma: float,
    layout: Layout | None = None,
) -> torch.Tensor:
    """Return g of the views ``delta`` and, where it was sent, ``phi``; in memory of the former.

    Args:
        layout: of ``phi``, where those of a pair are merged variance-corrected: they are weights.
    """
    has_phi = "phi" in exchange.sent
    if exchange.intent.kind is Kind.PAIR:
        own, theirs = pair_shares(exchange.meta.weight, exchange.partner.meta.weight)
        # Each product is rounded before the sum, so both sides come to the same bits.
        weighted = exchange.sent["delta"] * own
        g = exchange.partner.views["delta"].mul_(theirs).add_(weighted).mul_(-beta)
        if not has_phi:
            return g
        if layout is None:
            return g.add_(exchange.difference("phi"), alpha=gamma / 2)
        from swarmnode.strategies.merging.variance_corrected import pair_pull  # of few swarms only

        phi, others = exchange.sent["phi"], exchange.partner.views["phi"]
        return g.add_(pair_pull("variance-corrected", phi, others, layout), alpha=gamma)
    g = exchange.mean["delta"] * -beta
    return g.add_(exchange.mean["phi"] - exchange.sent["phi"], alpha=gamma) if has_phi else g


def learnt(views: Mapping[str, torch.Tensor], beta: float, gamma: float) -> torch.Tensor:
    """Return all that an outer step takes from one node's views, as if it were a model: [numel].

    That is (γ φ̂ − β Δ̂) / max(β, γ): the fast weights θ̂ where the two rates are equal, and −Δ̂ where
    nothing but Δ is sent. Whatever else a peer changes in its views has no effect.
    """
    if "phi" not in views:
        return -views["delta"]
    whole = max(beta, gamma) or 1.0  # with neither nothing counts
    return views["phi"] * (gamma / whole) - views["delta"] * (beta / whole)


def momentum_step(
    m: torch.Tensor, g: torch.Tensor, momentum: float, *, nesterov: bool
) -> torch.Tensor:
    """Change ``m`` by ``g``, which may be overwritten; return by what the slow weights move."""
    m.mul_(momentum).add_(g)
    return g.add_(m, alpha=momentum) if nesterov else m


def refuse_unstable(
    name: str, momentum: float, gamma: float, group_size: int, *, nesterov: bool = False
) -> None:
    """Refuse a γ that makes slow weights diverge; see above. Raises ConfigError."""
    bound = gamma_bound(momentum, group_size, nesterov=nesterov)
    if gamma >= bound:
        where = "pairs" if group_size == PAIR else "groups"
        raise ConfigError(
            f"strategy {name}: expected gamma below {bound:.4g}, where outer steps with momentum "
            f"{momentum:g} over random {where} are stable, got {gamma:g}; lower gamma or momentum"
        )


def gamma_bound(momentum: float, group_size: int, *, nesterov: bool = False) -> float:
    """Return the γ up to which (exclusive) outer steps over random groups are stable.

    ``group_size``: nodes in a group, at least 2; 0 for all nodes, whatever the number.
    """
    if group_size == 2 and not nesterov:
        return 2 * (1 - momentum**2)
    share = 1.0 if group_size == 0 else (group_size - 1) / group_size
    low, high = 0.0, 4.0  # above 2 (1 + momentum), what all nodes together stand
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


def spell_codecs(settings: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return the settings with codecs as manifests spell them; people may write small letters."""
    codecs = {name: settings[name] for name in names if isinstance(settings.get(name), str)}
    return settings | {name: codec.upper() for name, codec in codecs.items()}


def refuse_fed_back(strategy: str, *codecs: str) -> None:
    """Refuse codecs whose error has to be carried on, which outer steps of dense views do not.

    Raises:
        ConfigError: a name that is not empty is such a codec, or none.
    """
    for name in filter(None, codecs):
        found = find_format(name)
        if found is None or found.needs_error_feedback:
            raise ConfigError(
                f"strategy {strategy}: expected a codec that stands alone, such as E3M0 for "
                f"delta_codec and Q8B64 for weights_codec, got {name!r}"
            )
