"""The outer step: what pulls slow weights, how their momentum moves them, which settings hold.

With slow weights φ, fast ones θ and Δ = φ − θ, over a pair or a group and after the codec::

    g = −β mean(Δ̂) + γ (mean(φ̂) − φ̂_own)
    m ← μ m + g                    φ ← φ + m            Nesterov: φ + g + μ m
"""

from __future__ import annotations

from typing import Annotated

import torch
from msgspec import Meta as Range

from swarmnode.errors import ConfigError
from swarmnode.strategies.exchanges import Exchange, Kind
from swarmnode.strategies.stability import gamma_bound

Momentum = Annotated[float, Range(ge=0.0, lt=1.0)]
Rate = Annotated[float, Range(ge=0.0, le=4.0)]

PAIR = 2  # nodes in a group that is one


def pull(exchange: Exchange, beta: float, gamma: float) -> torch.Tensor:
    """Return g of the views ``delta`` and, where it was sent, ``phi``; in memory of the former."""
    has_phi = "phi" in exchange.sent
    if exchange.intent.kind is Kind.PAIR:
        g = exchange.partner.views["delta"].add_(exchange.sent["delta"]).mul_(-beta / 2)
        return g.add_(exchange.difference("phi"), alpha=gamma / 2) if has_phi else g
    g = exchange.mean["delta"] * -beta
    return g.add_(exchange.mean["phi"] - exchange.sent["phi"], alpha=gamma) if has_phi else g


def momentum_step(
    m: torch.Tensor, g: torch.Tensor, momentum: float, *, nesterov: bool
) -> torch.Tensor:
    """Change ``m`` by ``g``, which may be overwritten; return by what the slow weights move."""
    m.mul_(momentum).add_(g)
    return g.add_(m, alpha=momentum) if nesterov else m


def refuse_unstable(
    name: str, momentum: float, gamma: float, group_size: int, *, nesterov: bool = False
) -> None:
    """Refuse a γ that makes slow weights diverge; see stability.py. Raises ConfigError."""
    bound = gamma_bound(momentum, group_size, nesterov=nesterov)
    if gamma >= bound:
        where = "pairs" if group_size == PAIR else "groups"
        raise ConfigError(
            f"strategy {name}: expected gamma below {bound:.4g}, where outer steps with momentum "
            f"{momentum:g} over random {where} are stable, got {gamma:g}; lower gamma or momentum"
        )
