"""The atoms of a training state: every tensor that a snapshot has, and what of them is refused.

Names go by the model's own ones, never by the position or the storage of a tensor on this node;
``tensor/snapshot_format.py`` lists them.

The hashes in a file prove that it is as it was written, and nothing about who wrote it. A peer's
may hold NaN in the moments of the optimizer, a round number that overflows, or weights of 1e30;
each would end a newcomer again after every restart. So each number is checked that a node would
take over, before any of it is used:

==================  ========================================================================
all tensors         finite where the model's own are (a mask of minus infinities stays one)
weights, vectors    of a peer: not implausibly large beside what the swarm's seed gives, and
                    where there is a public probe no worse on it
BatchNorm           variances and counts not negative
optimizer           second moments not negative, counts of steps whole and in range, and the
                    step that Adam would take no longer than ADAM_STEP_MAX learning rates
strategy            what its ``check_received`` says of counts
==================  ========================================================================
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from swarmnode import limits
from swarmnode.strategies.catch_up import harm_at
from swarmnode.strategies.parts import StatePart
from swarmnode.strategies.ranges import not_finite, outside, too_large
from swarmnode.tensor.snapshot_format import About
from swarmnode.worker.model.state import TrainState
from swarmnode.worker.snapshots.tensorfile import Tensors

MODEL, OPTIMIZER, STRATEGY, EMA = "model/", "optimizer/", "strategy/", "ema/"

_WEIGHTS = ("phi",)  # slow weights, under the name that all strategies have for them
# |m| / sqrt(v), which the betas bound: 7.3 for .9 and .999, 32 for .9 and .99999.
ADAM_STEP_MAX = 1e4
_ADAM_EPSILON = 1e-8  # as torch has it: what divides m where there is no v yet
_COUNTS = ("step", "num_batches_tracked")
_NOT_NEGATIVE = frozenset(
    {
        "exp_avg_sq",
        "max_exp_avg_sq",
        "exp_inf",
        "square_avg",
        "acc_delta",
        "sum",
        "mu_product",
        "running_var",
    }
)


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
        losses=list(state.losses) or msgspec.UNSET,
        log_head=state.log_head.hex() or msgspec.UNSET,
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


@dataclass(frozen=True)
class Found:
    """What of a snapshot a node would take over.

    Attributes:
        weights: parameters and buffers of the model, by their names there.
        tensors, values: all of the file, the optimizer's among them by their atoms' names.
        buffers: of the strategy.
        means: of the weights over the last steps, by their names in the model.
        is_a_peers: it was fetched; one's own was in range when it was written, unless the
            disk or a user of it has changed it.
    """

    weights: Tensors
    tensors: Tensors
    values: Mapping[str, Any]
    buffers: Tensors
    means: Tensors
    is_a_peers: bool


def refusal(state: TrainState, strategy: StatePart, found: Found) -> str:
    """Return why a snapshot is not fit to be trained on, in one line; empty: it is."""
    return next(filter(None, _reasons(state, strategy, found)), "")


def _reasons(state: TrainState, strategy: StatePart, found: Found) -> Iterator[str | None]:
    """Give one verdict after the other; the cheap ones of counts do not wait for the vectors."""
    buffers = {STRATEGY + name: tensor for name, tensor in found.buffers.items()}
    yield not_finite(buffers)
    yield not_finite({EMA + name: tensor for name, tensor in found.means.items()})
    yield strategy.check_received(found.buffers)
    yield from _weight_reasons(state, found.weights)
    yield from _optimizer_reasons(state, found)
    if found.is_a_peers:
        own = state.arena.flat
        yield too_large({name: found.weights[name] for name in state.arena.names}, own)
        yield too_large({EMA + name: tensor for name, tensor in found.means.items()}, own)
        yield too_large({n: t for n, t in buffers.items() if t.numel() >= own.numel()}, own)
        yield _probe_reason(state, found)


def _probe_reason(state: TrainState, found: Found) -> str | None:
    """Refuse a peer's model that is worse than this node's, which has learnt nothing yet."""
    if not state.has_public_probe:
        return None
    own = state.arena.flat
    theirs = torch.empty_like(own)
    for name, part in state.arena.views_of(theirs).items():
        part.copy_(found.weights[name])
    slow = [t for name, t in found.buffers.items() if name in _WEIGHTS and t.shape == own.shape]
    return harm_at(state.probe_loss_at, own, [theirs, *slow])


def _weight_reasons(state: TrainState, matching: Tensors) -> Iterator[str | None]:
    trained = set(state.arena.names)
    own = weights(state.model)
    for name, tensor in matching.items():
        if name in trained:
            yield not_finite({name: tensor})
            continue
        if tensor.is_floating_point():
            spoilt = torch.isfinite(own[name]).to(tensor.device) & ~torch.isfinite(tensor)
            if bool(spoilt.any()):
                yield f"tensor {name} is not finite"
        yield _sign_reason(name, name.rpartition(".")[2], tensor)


def _optimizer_reasons(state: TrainState, found: Found) -> Iterator[str | None]:
    named = {name for name, _ in state.model.named_parameters()}
    by_name: dict[str, dict[str, Any]] = {}
    for atom, value in (*found.tensors.items(), *found.values.items()):
        name, _, key = atom.removeprefix(OPTIMIZER).rpartition("/")
        if atom.startswith(OPTIMIZER) and name in named:
            by_name.setdefault(name, {})[key] = value
    for name, state_of in by_name.items():
        prefix = f"{OPTIMIZER}{name}/"
        for key, value in state_of.items():
            yield _value_reason(prefix + key, key, value)
        yield _adam_reason(prefix, state_of)


def _value_reason(atom: str, key: str, value: Any) -> str | None:
    if isinstance(value, torch.Tensor):
        return not_finite({atom: value}) or _sign_reason(atom, key, value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not math.isfinite(value):
        return f"{atom} is not finite"
    if key in _COUNTS:
        return outside(atom, value, 0, limits.TRAINED_STEPS_MAX)
    return f"{atom} is negative" if key in _NOT_NEGATIVE and value < 0 else None


def _sign_reason(name: str, key: str, tensor: torch.Tensor) -> str | None:
    if not tensor.numel():
        return None
    if key in _COUNTS:
        return outside(name, float(tensor.min()), 0, limits.TRAINED_STEPS_MAX) or outside(
            name, float(tensor.max()), 0, limits.TRAINED_STEPS_MAX
        )
    if key in _NOT_NEGATIVE and bool((tensor < 0).any()):
        return f"tensor {name}: expected no negative values, got {float(tensor.min()):g}"
    return None


def _adam_reason(prefix: str, state_of: Mapping[str, Any]) -> str | None:
    """Refuse moments with which the next step would be no step, but a leap."""
    m, v = state_of.get("exp_avg"), state_of.get("exp_avg_sq")
    if not isinstance(m, torch.Tensor) or not isinstance(v, torch.Tensor) or m.shape != v.shape:
        return None
    if not m.numel() or not v.is_floating_point():
        return None
    vanished = math.sqrt(torch.finfo(v.dtype).tiny)  # v is a square: it goes before m does
    steps = m.float().abs() / (v.float().sqrt() + max(vanished, _ADAM_EPSILON))
    longest = float(steps.max())
    if longest > ADAM_STEP_MAX:
        return (
            f"{prefix}: expected moments of a step up to {ADAM_STEP_MAX:g} learning rates, "
            f"got {longest:.3g}"
        )
    return None
