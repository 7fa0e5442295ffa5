"""Strategies by name. They are part of swarmnode: a swarm's algorithm is not pluggable code."""

from __future__ import annotations

from typing import Any

import torch

from swarmnode.errors import ConfigError
from swarmnode.strategies.a2cid2 import A2CiD2
from swarmnode.strategies.base import Strategy, TaskFacts
from swarmnode.strategies.dadao import Dadao
from swarmnode.strategies.diloco import DiLoCo
from swarmnode.strategies.noloco import NoLoCo
from swarmnode.strategies.one_byte import OneByte
from swarmnode.strategies.pair_average import PairAverage
from swarmnode.strategies.streaming import Streaming

_STRATEGIES: dict[str, type[Strategy]] = {
    strategy.name: strategy
    for strategy in (A2CiD2, Dadao, DiLoCo, NoLoCo, OneByte, PairAverage, Streaming)
}


def find_strategy(name: str) -> type[Strategy]:
    """Return the class of strategy ``name``. Raises ConfigError: there is none."""
    if name not in _STRATEGIES:
        raise ConfigError(
            f"expected a strategy among {', '.join(sorted(_STRATEGIES))}, got {name!r}; "
            "a newer swarmnode may have it"
        )
    return _STRATEGIES[name]


def check_strategy(name: str, settings: dict[str, Any], facts: TaskFacts) -> None:
    """Refuse a strategy, or settings of it, that cannot work for a task.

    Raises:
        ConfigError: no such strategy, a setting is wrong or outside its stability region (with
            the bound), or the algorithm is not for such a task (with the reason).
    """
    found = find_strategy(name)
    found.check(found.parse(settings), facts)


def build_strategy(name: str, settings: dict[str, Any], x: torch.Tensor) -> Strategy:
    """Return strategy ``name`` over the flat parameters ``x``: [numel].

    Raises:
        ConfigError: no such strategy, or a setting is wrong.
    """
    return find_strategy(name)(settings, x)
