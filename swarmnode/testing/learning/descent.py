"""How nodes of the laboratory descend: AdamW as a task sets it up, and a rate that decays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from swarmnode.ipc.lr_schedule import Horizon, lr_factor
from swarmnode.testing.lab.tasks import Adam
from swarmnode.wire.recipe import Recipe

_WARM_UP = 0.05  # of all steps

Schedule = Callable[[int], float]


def cosine(lr: float, steps: int) -> Schedule:
    """Return the rate at step k, from 0 on: a warm-up to ``lr``, then half a cosine down to 0."""
    warm_up = max(1, round(_WARM_UP * steps))

    def rate(k: int) -> float:
        if k < warm_up:
            return lr * (k + 1) / warm_up
        return lr * (1 + math.cos(math.pi * min(1.0, (k - warm_up) / (steps - warm_up)))) / 2

    return rate


def by_recipe(recipe: Recipe, lr: float, tokens_per_step: int) -> Schedule:
    """Return the rate at step k as members of a real swarm have it, which goes by its progress.

    ``lr``: the highest; ``tokens_per_step``: of all members, each of which takes a step.
    """
    horizon = Horizon(recipe.target_tokens)
    return lambda k: lr * lr_factor(recipe, float(k * tokens_per_step), horizon)


class AdamW(Adam):
    """Adam with decoupled weight decay, for all nodes at once.

    Source: I. Loshchilov, F. Hutter, "Decoupled weight decay regularization", 2019. The decay is
    part of what is returned, so that ``x − v`` is the whole step.
    """

    def __init__(
        self,
        x: torch.Tensor,
        schedule: Schedule,
        betas: tuple[float, float],
        weight_decay: float,
    ) -> None:
        """``x``: [n, numel], the parameters that it moves."""
        super().__init__(x, 1.0, betas)
        self._x, self._schedule, self._weight_decay = x, schedule, weight_decay
        self._taken = [0] * x.shape[0]

    @classmethod
    def like(cls, made: torch.optim.Optimizer, x: torch.Tensor, schedule: Schedule) -> AdamW:
        """Return one with the settings of a task's own, but for its learning rate."""
        return cls(x, schedule, made.defaults["betas"], made.defaults["weight_decay"])

    def steps(self, nodes: Sequence[int], gradients: torch.Tensor) -> torch.Tensor:
        chosen = list(nodes)
        moved = super().steps(chosen, gradients)
        if self._weight_decay:
            moved.add_(self._x[chosen], alpha=self._weight_decay)
        rates = [self._schedule(self._taken[node]) for node in chosen]
        for node in chosen:
            self._taken[node] += 1
        return moved.mul_(torch.tensor(rates)[:, None])
