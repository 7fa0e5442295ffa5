"""The atoms of a training state: every tensor that a snapshot has, by its name.

Names go by the model's own ones, never by the position or the storage of a tensor on this node;
``tensor/snapshot_format.py`` lists them.
"""

from __future__ import annotations

from typing import Any

import msgspec
import torch

from swarmnode.strategies.parts import StatePart
from swarmnode.tensor.snapshot_format import About
from swarmnode.worker.model.state import TrainState
from swarmnode.worker.snapshots.tensorfile import Tensors

MODEL, OPTIMIZER, STRATEGY, EMA = "model/", "optimizer/", "strategy/", "ema/"


def about(state: TrainState) -> About:
    """Return what a file says about itself that holds ``state``."""
    return About(
        task=state.task.name,
        task_version=state.task.version,
        task_config=msgspec.to_builtins(state.task.config),
        layout_hash=state.arena.layout.layout_hash.hex(),
        step=state.step,
        tokens=state.tokens,
        optimizer_values=optimizer_state(state)[1],
    )


def atoms(state: TrainState, strategy: StatePart) -> Tensors:
    """Return every tensor that a node needs to go on; they are those of the state itself."""
    tensors = optimizer_state(state)[0]
    for name, tensor in weights(state.model).items():
        tensors[MODEL + name] = tensor
    for name, tensor in strategy.buffers().items():
        tensors[STRATEGY + name] = tensor
    for name, tensor in mean_weights(state).items():
        tensors[EMA + name] = tensor
    return tensors


def mean_weights(state: TrainState) -> Tensors:
    """Return the mean of each trained parameter over the last steps, where the recipe has one."""
    ema = state.applied.ema
    return {} if ema is None else state.arena.views_of(ema)


def weights(model: torch.nn.Module) -> Tensors:
    """Return trained parameters (tied ones once) and buffers, by the names of ``state_dict()``."""
    in_state_dict = model.state_dict().keys()
    named = {name: p.data for name, p in model.named_parameters() if p.requires_grad}
    return named | {name: b for name, b in model.named_buffers() if name in in_state_dict}


def optimizer_state(state: TrainState) -> tuple[Tensors, dict[str, Any]]:
    """Return (tensors, plain values); what is neither is left out, and begins anew."""
    tensors: Tensors = {}
    values: dict[str, Any] = {}
    for name, parameter in state.model.named_parameters():
        for key, value in state.optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                tensors[f"{OPTIMIZER}{name}/{key}"] = value
            elif value is None or isinstance(value, bool | int | float | str):
                values[f"{OPTIMIZER}{name}/{key}"] = value
    return tensors, values
