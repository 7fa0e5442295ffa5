"""Strategies by name. They are part of swarmnode: a swarm's algorithm is not pluggable code."""

from __future__ import annotations

from typing import Any

import torch

from swarmnode.errors import ConfigError
from swarmnode.strategies.base import Strategy
from swarmnode.strategies.pair_average import PairAverage

_STRATEGIES: dict[str, type[Strategy]] = {strategy.name: strategy for strategy in (PairAverage,)}


def build_strategy(name: str, settings: dict[str, Any], x: torch.Tensor) -> Strategy:
    """Return strategy ``name`` over the flat parameters ``x``: float32 [numel].

    Raises:
        ConfigError: no such strategy, or a setting is wrong.
    """
    if name not in _STRATEGIES:
        raise ConfigError(
            f"expected a strategy among {', '.join(sorted(_STRATEGIES))}, got {name!r}; "
            "a newer swarmnode may have it"
        )
    return _STRATEGIES[name](settings, x)
