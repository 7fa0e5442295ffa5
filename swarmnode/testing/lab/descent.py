"""How nodes of the laboratory descend: by AdamW or as a task sets it up, and a rate that decays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from swarmnode.ipc.lr_schedule import Horizon, lr_factor
from swarmnode.tasks.base import Task
from swarmnode.testing.lab.tasks import Adam, Optimizer
from swarmnode.wire.recipe import Recipe
from swarmnode.worker.model.arena import Arena as ModelArena

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

    def steps(self, nodes: Sequence[int], gradients: torch.Tensor) -> torch.Tensor:
        chosen = list(nodes)
        moved = super().steps(chosen, gradients)
        if self._weight_decay:
            moved.add_(self._x[chosen], alpha=self._weight_decay)
        rates = [self._schedule(self._taken[node]) for node in chosen]
        for node in chosen:
            self._taken[node] += 1
        return moved.mul_(torch.tensor(rates)[:, None])


class TaskOptimizer(Optimizer):
    """The optimizer that a task gives its model, one for each node.

    A learning rate that the task gives a group of parameters stays in its proportion.
    """

    def __init__(self, task: Task, x: torch.Tensor, schedule: Schedule) -> None:
        """``x``: [n, numel], the parameters that it moves, in the order of the model's."""
        self._task, self._x, self._schedule = task, x, schedule
        self._own = [_Own(task) for _ in x]

    def steps(self, nodes: Sequence[int], gradients: torch.Tensor) -> torch.Tensor:
        chosen = list(nodes)
        moved = [
            self._own[node].step(self._x[node], gradient, self._schedule)
            for node, gradient in zip(chosen, gradients, strict=True)
        ]
        return torch.stack(moved)

    def forget(self, node: int) -> None:
        self._own[node] = _Own(self._task)


class _Own:
    """A node's optimizer, and the parameters that it moves."""

    def __init__(self, task: Task) -> None:
        model = task.build_model(0)
        self._arena = ModelArena(model)
        self._gradient = torch.zeros_like(self._arena.flat)
        for parameter, part in zip(
            self._arena.trained, self._arena.views_of(self._gradient).values(), strict=True
        ):
            parameter.grad = part
        self._optimizer = task.build_optimizer(model)
        self._groups = self._optimizer.param_groups
        self._lr = [group["lr"] for group in self._groups]
        self._taken = 0

    def step(self, x: torch.Tensor, gradient: torch.Tensor, schedule: Schedule) -> torch.Tensor:
        """Return by how much a step by ``gradient`` lowers ``x``; both [numel]."""
        self._arena.flat.copy_(x)
        self._gradient.copy_(gradient)
        for group, lr in zip(self._groups, self._lr, strict=True):
            group["lr"] = schedule(self._taken) * lr / self._lr[0]
        self._optimizer.step()
        self._taken += 1
        return x - self._arena.flat
