"""What a swarm's recipe does to a step of this node's optimizer, and to the mean of its weights."""

from __future__ import annotations

import math

import torch
from msgspec import UNSET

from swarmnode.ipc.lr_schedule import Horizon, ema_weight, lr_factor
from swarmnode.wire.recipe import Recipe
from swarmnode.worker.model.arena import Arena

_LR_ERROR = 1e-5  # of float32, in which some optimizers keep it


class AppliedRecipe:
    """Borrows: the optimizer, whose learning rates it sets, and the arena.

    Attributes:
        recipe: of the swarm; None: it has none, and nothing here does anything.
        factor: of the learning rate, as it was set last.
        ema: mean of the parameters over the last steps, float32 [numel]; None: none is wanted.
    """

    def __init__(
        self, recipe: Recipe | None, optimizer: torch.optim.Optimizer, arena: Arena
    ) -> None:
        self.recipe = recipe
        self.factor = 1.0
        self.ema: torch.Tensor | None = None
        self._groups = optimizer.param_groups
        self._arena = arena
        # A scheduler has lowered "lr" already for its own warm-up, and keeps what was asked for.
        self._lr = [float(group.get("initial_lr", group["lr"])) for group in self._groups]
        self._lr_set = self._lr
        self._ema_tokens: float | None = None  # at the last update; what a snapshot has goes on
        if recipe is None:
            return
        if recipe.ema_share:
            self.ema = arena.flat.clone()
        if recipe.weight_decay is not UNSET:
            for group in self._groups:
                if "weight_decay" in group:
                    group["weight_decay"] = recipe.weight_decay

    @property
    def batches_per_step(self) -> int:
        """How many batches a step takes."""
        return self.recipe.batches_per_step if self.recipe is not None else 1

    @property
    def is_fought(self) -> bool:
        """Whether something else has changed a learning rate, but back to what was asked for."""
        if self.recipe is None:
            return False
        return any(
            not math.isclose(float(group["lr"]), wanted, rel_tol=_LR_ERROR)
            and not math.isclose(float(group["lr"]), lr, rel_tol=_LR_ERROR)
            for group, lr, wanted in zip(self._groups, self._lr, self._lr_set, strict=True)
        )

    def set_lr(self, swarm_tokens: float, horizon: Horizon, members: float) -> None:
        """Give the optimizer the learning rate of all members at this point of the training."""
        if self.recipe is None:
            return
        self.factor = lr_factor(self.recipe, swarm_tokens, horizon, members)
        self._lr_set = [lr * self.factor for lr in self._lr]
        for group, lr in zip(self._groups, self._lr_set, strict=True):
            if isinstance(group["lr"], torch.Tensor):  # so that a captured step sees it
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr

    def clip(self) -> None:
        """Scale the gradients of all parameters down to the norm that is allowed together."""
        if self.recipe is not None and self.recipe.clip_norm:
            torch.nn.utils.clip_grad_norm_(self._arena.trained, self.recipe.clip_norm)

    def average(self, swarm_tokens: float) -> None:
        """Take the parameters, as they are after a step and its merges, into the mean."""
        if self.ema is None or self.recipe is None:
            return
        before, self._ema_tokens = self._ema_tokens, swarm_tokens
        if before is not None:
            with torch.no_grad():
                self.ema.lerp_(self._arena.flat, ema_weight(self.recipe, before, swarm_tokens))

    @property
    def exported(self) -> torch.Tensor:
        """The parameters that an export has: the mean where the recipe wants one: [numel]."""
        return self._arena.flat if self.ema is None else self.ema
