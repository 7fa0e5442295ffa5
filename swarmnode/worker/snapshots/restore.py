"""From a file into a model, or into a whole training state; and from a snapshot to an export.

A snapshot says names and values, and nothing of how the node kept them that wrote it: it loads
under another dtype, on another device, under other settings of the optimizer or another division
into fragments. The weights must fit; anything else that does not fit here begins anew, and the
log says so.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch

from swarmnode.errors import ConfigError, CorruptRecord, SpecMismatch
from swarmnode.strategies.parts import StatePart
from swarmnode.tensor.layout import Layout
from swarmnode.tensor.snapshot_format import FETCHED_NAME, About, find_snapshots
from swarmnode.worker.model.state import LOSSES_MAX, TrainState
from swarmnode.worker.snapshots.atoms import (
    EMA,
    MODEL,
    OPTIMIZER,
    STRATEGY,
    Found,
    mean_weights,
    refusal,
    weights,
)
from swarmnode.worker.snapshots.tensorfile import Tensors, read_tensors, write_tensors

_log = logging.getLogger(__name__)
_MISSING = object()


def load_snapshot(path: Path, state: TrainState, strategy: StatePart) -> None:
    """Bring ``state`` and ``strategy`` to a snapshot.

    One that was fetched from a peer is a place to begin: what it holds of the strategy is that
    peer's, and its steps are none of ours.

    Raises:
        CorruptRecord: it is not what was written, or no numbers to train on. Nothing changed.
        SpecMismatch: it is of another model. Nothing changed.
        StorageError: it cannot be read.
    """
    tensors, about = read_tensors(path)
    matching = _matching_weights(state.model, state.arena.layout, tensors, about, path)
    buffers = _fitting_buffers(strategy, tensors)
    is_fetched = path.name == FETCHED_NAME
    if is_fetched:
        shipped = strategy.shipped()
        buffers = {name: tensor for name, tensor in buffers.items() if name in shipped}
    means = _fitting_means(state, tensors)
    found = Found(matching, tensors, about.optimizer_values, buffers, means, is_a_peers=is_fetched)
    why = refusal(state, strategy, found)
    if why:
        raise CorruptRecord(f"{path} is damaged: {why}", path=str(path))
    _restore_optimizer(state, tensors, about.optimizer_values)
    _copy_weights(state, matching)
    state.log_head = bytes.fromhex(about.log_head or "")
    with torch.no_grad():
        for name, mean in mean_weights(state).items():
            mean.copy_(means.get(name, matching[name]))
        if is_fetched:
            strategy.join(buffers)
        else:
            for name, tensor in buffers.items():
                strategy.buffers()[name].copy_(tensor)
            state.step, state.tokens = about.step, about.tokens
            state.losses = list(about.losses or ())[-LOSSES_MAX:]


def read_weights(place: Path) -> tuple[Path, Tensors, About]:
    """Return (file, tensors, what it says): of a file, or of the best one in a folder.

    That is the export, or else the newest snapshot that is as it was written.

    Raises:
        ConfigError: there is none.
        CorruptRecord, StorageError: there is none that can be read.
    """
    candidates = [place]
    if place.is_dir():
        candidates = [place / "model.safetensors", *(path for _, path in find_snapshots(place))]
    candidates = [path for path in candidates if path.is_file()]
    if not candidates:
        raise ConfigError(f"expected an export, a snapshot or a folder with one, got {place}")
    for path in candidates[:-1]:
        try:
            return path, *read_tensors(path)
        except CorruptRecord as error:
            _log.warning("%s; trying the one before it", error)
    return candidates[-1], *read_tensors(candidates[-1])


def load_weights(
    model: torch.nn.Module, layout: Layout, tensors: Tensors, about: About, path: Path
) -> None:
    """Copy the weights of an export, or what one of a snapshot has, into ``model``.

    Raises:
        SpecMismatch: they are of another layout. Nothing changed.
    """
    matching = _matching_weights(model, layout, trained_weights(tensors), about, path)
    with torch.no_grad():
        for name, own in weights(model).items():
            own.copy_(matching[name])


def trained_weights(tensors: Tensors) -> Tensors:
    """Return the model among the tensors of a snapshot, by its own names."""
    kept = {name.removeprefix(MODEL): t for name, t in tensors.items() if _is_weight(name)}
    # Where the recipe has a mean over the last steps, that is the model.
    return kept | {n.removeprefix(EMA): t for n, t in tensors.items() if n.startswith(EMA)}


def export_weights(tensors: Tensors, about: About, folder: Path) -> Path:
    """Write the weights among ``tensors`` to ``folder``; return the file. Raises StorageError."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.safetensors"
    kept = trained_weights(tensors)
    write_tensors(path, kept, msgspec.structs.replace(about, optimizer_values={}))
    return path


def _is_weight(name: str) -> bool:
    return name.startswith(MODEL) or "/" not in name


def _matching_weights(
    model: torch.nn.Module, layout: Layout, tensors: Tensors, about: About, path: Path
) -> Tensors:
    """Return what the file has for each weight of the model, by its name. Raises SpecMismatch."""
    expected = layout.layout_hash.hex()
    if about.layout_hash != expected:
        raise SpecMismatch(
            f"{path}: expected weights of layout {expected[:12]}, got {about.layout_hash[:12]} "
            f"(task {about.task}); it belongs to another model, move it away"
        )
    matching: Tensors = {}
    for name, own in weights(model).items():
        found = tensors.get(MODEL + name, tensors.get(name))
        if found is None or found.shape != own.shape:
            raise SpecMismatch(
                f"{path}: expected a tensor {name} of shape {tuple(own.shape)}, got "
                f"{'none' if found is None else tuple(found.shape)}; it belongs to another "
                "model, move it away"
            )
        matching[name] = found
    return matching


def _copy_weights(state: TrainState, matching: Tensors) -> None:
    """Copy, to the dtype and the device that the model has here."""
    with torch.no_grad():
        for name, own in weights(state.model).items():
            state.put(MODEL + name, own, matching[name])


def _restore_optimizer(state: TrainState, tensors: Tensors, values: Mapping[str, Any]) -> None:
    """Give the optimizer the state that it had for each parameter, where it is of use to it.

    Settings such as the learning rate are those of the task, and stay. Changes the weights.
    """
    state.fill_optimizer()
    n_anew = 0
    for name, parameter in state.model.named_parameters():
        own = state.optimizer.state.get(parameter, {})
        found = {}
        for key in own:
            atom = f"{OPTIMIZER}{name}/{key}"
            found[key] = tensors.get(atom, values.get(atom, _MISSING))
        if all(_is_alike(found[key], value) for key, value in own.items()):
            _copy_into(state, name, own, found)
        else:
            state.optimizer.state.pop(parameter)  # its first step makes another
            n_anew += 1
    state.restored()
    if n_anew:
        _log.warning(
            "the snapshot has no state for the optimizer as it is set here: that begins anew, "
            "for %d parameters",
            n_anew,
        )


def _is_alike(found: Any, own: Any) -> bool:
    if isinstance(own, torch.Tensor):
        return isinstance(found, torch.Tensor) and found.shape == own.shape
    return type(found) is type(own)


def _copy_into(state: TrainState, name: str, own: dict[str, Any], found: Mapping[str, Any]) -> None:
    for key, value in own.items():
        if isinstance(value, torch.Tensor):
            state.put(f"{OPTIMIZER}{name}/{key}", value, found[key])
        else:
            own[key] = found[key]


def _fitting_means(state: TrainState, tensors: Tensors) -> Tensors:
    """Return what the file has of the mean over the last steps; what it lacks begins anew."""
    wanted = mean_weights(state)
    found = {name: tensors.get(EMA + name) for name in wanted}
    return {
        name: mean
        for name, mean in found.items()
        if mean is not None and mean.shape == wanted[name].shape
    }


def _fitting_buffers(strategy: StatePart, tensors: Tensors) -> Tensors:
    fitting: Tensors = {}
    for name, own in strategy.buffers().items():
        found = tensors.get(STRATEGY + name)
        if found is not None and found.shape == own.shape:
            fitting[name] = found
        else:
            _log.warning(
                "the snapshot has no %s of shape %s for the strategy: that begins anew",
                name,
                tuple(own.shape),
            )
    return fitting
