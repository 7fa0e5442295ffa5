"""Snapshots: everything a worker needs to go on, and exports: the weights for everybody else.

Both are safetensors files that describe themselves (:class:`About`, JSON in the metadata),
so weights can be read without torch. Names of tensors in a snapshot::

    model/NAME      parameter or buffer, as in state_dict()
    optimizer/I/KEY state of the I-th parameter
    strategy/NAME   what the strategy keeps beside the parameters

An export has the first kind only, without the prefix: ``load_state_dict`` takes it. No state
of a random generator is kept: a resumed run seeds itself from its shard and its step.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch

from swarmnode import limits
from swarmnode.errors import ConfigError, CorruptRecord, SpecMismatch, StorageError
from swarmnode.strategies.base import Strategy
from swarmnode.worker.state import TrainState
from swarmnode.worker.tensorfile import Tensors, read_tensors, write_tensors

_log = logging.getLogger(__name__)
_NAME = re.compile(r"snapshot-\d{12}\.safetensors")
FETCHED_NAME = "snapshot-000000000000.safetensors"  # fetched from a peer by the daemon
_MODEL, _OPTIMIZER, _STRATEGY = "model/", "optimizer/", "strategy/"


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What a file of weights says about itself."""

    task: str
    task_version: int
    task_config: dict[str, Any]
    layout_hash: str
    step: Annotated[int, msgspec.Meta(ge=0, lt=10**12)]  # twelve digits in the name of the file
    tokens: Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
    # Optimizer state that is no tensor, by the name that a tensor would have had.
    optimizer_values: dict[str, Any] = {}


class SnapshotStore:
    """The snapshots of one node in one directory; the newest few are kept."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def save(self, state: TrainState, strategy: Strategy) -> Path:
        """Write a snapshot, durable on return, and forget the oldest.

        Raises:
            StorageFull, StorageError: it was not written, those before it are kept.
        """
        if not state.arena.is_finite():
            raise StorageError(f"the parameters at step {state.step} are not all finite")
        path = self._directory / f"snapshot-{state.step:012d}.safetensors"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot make {self._directory}: {error.strerror}") from error
        tensors, values = _optimizer_state(state.optimizer)
        tensors |= _weights(state.model, prefix=_MODEL)
        tensors |= {_STRATEGY + name: tensor for name, tensor in strategy.buffers().items()}
        about = msgspec.structs.replace(_about(state), optimizer_values=values)
        write_tensors(path, tensors, msgspec.json.encode(about).decode())
        for old in self.paths()[limits.SNAPSHOTS_KEPT :]:
            old.unlink(missing_ok=True)
        return path

    def restore(self, state: TrainState, strategy: Strategy) -> bool:
        """Bring ``state`` to the newest snapshot that can be read; False if there is none.

        Raises:
            SpecMismatch: the snapshot is of another model.
        """
        for path in self.paths():
            try:
                tensors, about = read_weights_file(path)
            except CorruptRecord as error:
                _log.warning("%s; trying the one before it", error)
                continue
            _restore(state, strategy, tensors, about, path)
            return True
        return False

    def paths(self) -> list[Path]:
        """Return the snapshots that are there, newest first."""
        if not self._directory.is_dir():
            return []
        found = [path for path in self._directory.iterdir() if _NAME.fullmatch(path.name)]
        return sorted(found, reverse=True)


def read_weights_file(path: Path) -> tuple[Tensors, About]:
    """Read a snapshot or an export. Raises CorruptRecord, StorageError."""
    tensors, text = read_tensors(path)
    try:
        return tensors, msgspec.json.decode(text, type=About)
    except msgspec.DecodeError as error:
        raise CorruptRecord(
            f"{path} is no snapshot or export of swarmnode: {error}", path=str(path)
        ) from error


def find_weights_file(path: Path) -> Path:
    """Return ``path``, or the export or the newest snapshot in it. Raises ConfigError."""
    if path.is_dir():
        candidates = [path / "model.safetensors", *SnapshotStore(path).paths()]
        for candidate in candidates:
            if candidate.is_file():
                return candidate
    if path.is_file():
        return path
    raise ConfigError(f"expected an export, a snapshot or a folder with one, got {path}")


def load_weights(state: TrainState, tensors: Tensors, about: About, path: Path) -> None:
    """Copy the weights of a snapshot or an export into the model of ``state``.

    Raises:
        SpecMismatch: they are of another model.
    """
    expected = state.arena.layout.layout_hash.hex()
    if about.layout_hash != expected:
        raise SpecMismatch(
            f"{path}: expected weights of layout {expected[:12]}, got {about.layout_hash[:12]} "
            f"(task {about.task}); it belongs to another model, move it away"
        )
    with torch.no_grad():
        for name, tensor in _weights(state.model, prefix="").items():
            tensor.copy_(tensors[_MODEL + name] if _MODEL + name in tensors else tensors[name])


def export_weights(tensors: Tensors, about: About, folder: Path) -> Path:
    """Write the weights among ``tensors`` to ``folder``; return the file. Raises StorageError."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.safetensors"
    weights = {name.removeprefix(_MODEL): t for name, t in tensors.items() if _is_weight(name)}
    lean = msgspec.structs.replace(about, optimizer_values={})
    write_tensors(path, weights, msgspec.json.encode(lean).decode())
    return path


def _is_weight(name: str) -> bool:
    return name.startswith(_MODEL) or "/" not in name


def _about(state: TrainState) -> About:
    return About(
        task=state.task.name,
        task_version=state.task.version,
        task_config=msgspec.to_builtins(state.task.config),
        layout_hash=state.arena.layout.layout_hash.hex(),
        step=state.step,
        tokens=state.tokens,
    )


def _weights(model: torch.nn.Module, *, prefix: str) -> Tensors:
    """Return trained parameters (tied ones once) and buffers, by the names of state_dict()."""
    in_state_dict = model.state_dict().keys()
    named = [(n, p.data) for n, p in model.named_parameters() if p.requires_grad]
    named += [(n, b) for n, b in model.named_buffers() if n in in_state_dict]
    return {prefix + name: tensor for name, tensor in named}


def _optimizer_state(optimizer: torch.optim.Optimizer) -> tuple[Tensors, dict[str, Any]]:
    tensors: Tensors = {}
    values: dict[str, Any] = {}
    for name, value in _flatten(optimizer.state_dict()["state"]):
        if isinstance(value, torch.Tensor):
            tensors[name] = value
        else:
            values[name] = value
    return tensors, values


def _flatten(state: Mapping[int, Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    for index, entries in state.items():
        for key, value in entries.items():
            yield f"{_OPTIMIZER}{index}/{key}", value


def _restore(
    state: TrainState, strategy: Strategy, tensors: Tensors, about: About, path: Path
) -> None:
    load_weights(state, tensors, about, path)
    for name, buffer in strategy.buffers().items():
        buffer.copy_(tensors[_STRATEGY + name])
    _restore_optimizer(state.optimizer, tensors, about)
    if path.name != FETCHED_NAME:
        # A snapshot of another node is a place to begin, and none of our own work.
        state.step, state.tokens = about.step, about.tokens


def _restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Tensors, about: About) -> None:
    """Load the state only: learning rates and the like come from the task's settings."""
    state: dict[int, dict[str, Any]] = {}
    for name, value in [*tensors.items(), *about.optimizer_values.items()]:
        if name.startswith(_OPTIMIZER):
            _, index, key = name.split("/", 2)
            state.setdefault(int(index), {})[key] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
