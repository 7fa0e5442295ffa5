"""The recipe of a new swarm: the task's, and what its creator says on top; recipes in words.

What `--set KEY=VALUE` says is taken apart here, and what of it is of the recipe.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import msgspec

from swarmnode.config import Paths
from swarmnode.daemon.membership.progress import TargetKeeper
from swarmnode.errors import ConfigError
from swarmnode.ipc.lr_schedule import Horizon, shorten_warmup
from swarmnode.ipc.settings import check_settings
from swarmnode.wire.recipe import Recipe
from swarmnode.wire.swarm import Manifest

_LORA: dict[str, tuple[str, Callable[[str], Any]]] = {
    "r": ("lora_rank", int),
    "alpha": ("lora_alpha", int),
    "dropout": ("lora_dropout", float),
    "targets": ("lora_targets", lambda names: names.replace("+", ",")),
}


# Ten times that of a whole model, where nothing else is said, as J. Schulman et al., "LoRA without
# regret", 2025, have it. Measured with one seed each, on small pretrained Llamas. Of 119,000
# parameters, on four nodes for 60 steps: whole, its loss fell by .072, .118 and .167 at .0005,
# .0015 and .004; adapters of rank 4 by .029, .044, .064 and .064 at .002, .006, .02 and .05. Of
# 127,000, one node for 300 steps (tests/integrations/lora_loss.py): whole 1.576 at .003, adapters
# of rank 4 1.714 and 1.708 at .01 and .03, so the rate is not what they lack; with adapters of
# the output layer and the embedding, too, 1.659.
_LORA_LR = 5e-4


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


def lora_settings(text: str | None) -> dict[str, Any]:
    """Return what ``--lora r=16,alpha=32`` says as settings of the task. Raises ConfigError."""
    found: dict[str, Any] = {}
    for part in text.split(",") if text else ():
        key, equals, value = part.partition("=")
        if not equals or key not in _LORA:
            raise ConfigError(
                f"--lora: expected r=16 and, with commas between, any of {', '.join(_LORA)};"
                f" got {part!r}"
            )
        name, kind = _LORA[key]
        try:
            found[name] = kind(value)
        except ValueError as error:
            raise ConfigError(f"--lora: {key}: expected a number, got {value!r}") from error
    if text and "lora_rank" not in found:
        raise ConfigError(f"--lora: expected a rank, such as r=16, got {text!r}")
    return found


def with_lora_rate(config: dict[str, Any]) -> dict[str, Any]:
    """Return settings of a task, with the learning rate of adapters if it trains some."""
    return {"lr": _LORA_LR} | config if config.get("lora_rank") else config


def make_recipe(
    task_recipe: dict[str, Any], settings: dict[str, Any], tokens: int, schedule: str | None
) -> Recipe:
    """Return the recipe of a new swarm.

    Args:
        settings: by the names of its fields.
        tokens: where it ends; 0: nowhere yet.
        schedule: None: as the settings or the task say.

    Raises:
        ConfigError: a field is unknown or out of range.
    """
    check_settings(settings, Recipe, owner="recipe")
    chosen = task_recipe | settings
    if tokens:
        chosen["target_tokens"] = tokens
    if schedule:
        chosen["schedule"] = schedule
    falls = chosen.get("target_tokens") and chosen.get("schedule") != "constant"
    if falls and "ema_share" not in settings:
        chosen["ema_share"] = 0.0  # what it averages out falls with the learning rate
    try:
        recipe = msgspec.convert(chosen, Recipe)
    except msgspec.ValidationError as error:
        raise ConfigError(f"recipe: {str(error)[0].lower()}{str(error)[1:]}") from error
    return recipe if "warmup_tokens" in settings else shorten_warmup(recipe)


def horizon_of(manifest: Manifest, paths: Paths) -> Horizon:
    """Return where a swarm's training ends, as far as this home knows."""
    keeper = TargetKeeper(manifest, paths.swarm(manifest.name).extension)
    keeper.load()
    return keeper.horizon


def recipe_words(recipe: Recipe | None, horizon: Horizon | None = None) -> str:
    """Return a recipe in one line, for people; ``horizon``: if another target is known."""
    if recipe is None:
        return "none: each member's optimizer is as the task made it"
    target = horizon.target_tokens if horizon is not None else recipe.target_tokens
    words = [f"{target:,} tokens of the whole swarm" if target else "no end yet"]
    words.append(_schedule_words(recipe))
    if recipe.members_max > 1 and recipe.members_exponent:
        words.append(
            f"× members^{recipe.members_exponent:g} up to {recipe.members_max} of them, once there"
            " is an end"
        )
    if recipe.clip_norm:
        words.append(f"gradients clipped at {recipe.clip_norm:g}")
    if recipe.batches_per_step > 1:
        words.append(f"{recipe.batches_per_step} batches a step")
    if recipe.weight_decay is not msgspec.UNSET:
        words.append(f"weight decay {recipe.weight_decay:g}")
    if recipe.ema_share:
        words.append(f"exported as a mean over the last {recipe.ema_share:.0%}")
    return "; ".join(words)


def _schedule_words(recipe: Recipe) -> str:
    warm = f"warm-up {recipe.warmup_tokens:,} tokens, then " if recipe.warmup_tokens else ""
    if recipe.schedule == "constant":
        return f"learning rate: {warm}constant"
    if recipe.schedule == "cosine":
        return f"learning rate: {warm}cosine down to {recipe.lr_final:.0%}"
    return (
        f"learning rate: {warm}constant, over the last {recipe.decay_share:.0%} down to"
        f" {recipe.lr_final:.0%}"
    )
