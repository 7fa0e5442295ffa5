"""One local step as the strategy wants it: by the optimizer, the gradient or by losses alone."""

from __future__ import annotations

import math
from typing import Any

import torch

from swarmnode.strategies.base import Needs, Probe
from swarmnode.strategies.parts import StepPart
from swarmnode.worker.model.state import TrainState


def local_step(state: TrainState, strategy: StepPart, *batches: Any) -> float:
    """Take one local step on the mean loss of ``batches``; return that.

    Where it is NaN or infinite, they are left out: it is no step.
    """
    probe = strategy.gradient_point()
    if probe is not None:
        return _by_losses(state, probe, *batches)
    if strategy.needs is Needs.GRADIENT:
        return _by_gradient(state, strategy, *batches)
    if strategy.needs is Needs.NOTHING:
        return state.take_step(*batches)
    loss = state.backward(*batches)
    if math.isfinite(loss):
        strategy.before_update(state.arena.flat)
        state.update(len(batches))
        strategy.after_update(state.arena.flat)
    return loss


def _by_gradient(state: TrainState, strategy: StepPart, *batches: Any) -> float:
    loss = state.backward(*batches)
    if math.isfinite(loss):
        gradient = state.arena.gradient()
        state.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            strategy.local_update(gradient)
        state.count_step(len(batches))
    return loss


def _by_losses(state: TrainState, probe: Probe, *batches: Any) -> float:
    """Let the strategy look at the loss where it likes, each time with the same randomness."""
    seed = int(torch.randint(2**62, ()))

    def loss_here() -> float:
        torch.manual_seed(seed)  # other dropout would be a difference of its own
        return state.loss_of(*batches)  # which never fails for memory halfway through a probe

    loss = probe(loss_here)
    if math.isfinite(loss):
        state.count_step(len(batches))
    return loss
