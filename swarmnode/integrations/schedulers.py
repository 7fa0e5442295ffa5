"""Learning rates of a swarm with a recipe: a program's own scheduler makes way, or is refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.optim.lr_scheduler import LambdaLR

from swarmnode.errors import ConfigError


def take_over(schedulers: Iterable[Any]) -> None:
    """Let schedulers of a Trainer keep the learning rate that was asked for, whatever the step.

    The swarm's recipe multiplies that; two schedules at once would be neither.

    Raises:
        ConfigError: one of them goes by something else than a function of the step.
    """
    for wrapped in schedulers:
        scheduler = getattr(wrapped, "scheduler", wrapped)  # accelerate wraps it
        if scheduler is None:
            continue
        if not isinstance(scheduler, LambdaLR):
            raise ConfigError(
                f"expected no scheduler of the learning rate but that of the swarm's recipe, got"
                f" {type(scheduler).__name__}: train without it, or in a swarm without a recipe"
            )
        scheduler.lr_lambdas = [_constant] * len(scheduler.lr_lambdas)


def _constant(step: int) -> float:
    del step
    return 1.0
