"""What `--set KEY=VALUE` says, and of what."""

from __future__ import annotations

import json
import math
from typing import Any

from swarmnode.errors import ConfigError


def parse_settings(
    settings: tuple[str, ...],
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Split ``KEY=VALUE`` into those of the task, of the strategy and of the recipe.

    Raises:
        ConfigError: one of them is nothing of the kind.
    """
    task: dict[str, Any] = {}
    strategy: dict[str, Any] = {}
    recipe: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set: expected KEY=VALUE, got {setting!r}")
        try:
            value = json.loads(text, parse_constant=str)
        except (ValueError, RecursionError):
            value = text
        if isinstance(value, float) and not math.isfinite(value):  # 1e999
            value = text
        if key.startswith("strategy."):
            strategy[key.removeprefix("strategy.")] = value
        elif key.startswith("recipe."):
            recipe[key.removeprefix("recipe.")] = value
        else:
            task[key] = value
    return task, strategy, recipe
