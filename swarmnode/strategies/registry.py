"""Strategies by name. They are part of swarmnode: a swarm's algorithm is not pluggable code."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from swarmnode.strategies.base import Strategy, TaskFacts
from swarmnode.strategies.installed import look_at_strategy


def find_strategy(name: str) -> type[Strategy]:
    """Return the class of strategy ``name``. Raises ConfigError: there is none."""
    module_name, _, class_name = look_at_strategy(name).target.partition(":")
    found: type[Strategy] = getattr(import_module(module_name), class_name)
    return found


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
