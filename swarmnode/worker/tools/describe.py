"""What a manifest says about a model and a strategy, once they fit together."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from torch.overrides import TorchFunctionMode

from swarmnode.errors import StorageError
from swarmnode.strategies.fit import check_fit, codecs_sent, members_max, read_topology
from swarmnode.strategies.one_byte import BOUNDED, OneByte
from swarmnode.strategies.registry import build_strategy, check_strategy
from swarmnode.strategies.streaming import OWN_DATA, Streaming
from swarmnode.tasks.base import Task, probe_hash
from swarmnode.worker.model.arena import Arena
from swarmnode.worker.model.prepare import facts_of
from swarmnode.worker.model.state import TrainState

_FILLING = frozenset({"normal_", "uniform_", "fill_", "zero_", "copy_", "random_"})


class Untrained(NamedTuple):
    """A model that is looked at only.

    Without an optimizer, for which torch imports its compiler (80 MB), and without the trial of
    precisions: six steps with a whole batch, which are minutes and gigabytes for a large model.
    """

    task: Task
    model: torch.nn.Module
    arena: Arena

    def save_pretrained(self, folder: Path, *, adapter: bool) -> None:
        """Write the model as transformers has models. Raises ConfigError, StorageError."""
        for parameter in self.model.parameters():
            # The arena is one storage, and writers of files take shared ones for tied weights.
            parameter.data = parameter.data.clone()
        try:
            self.task.save_pretrained(self.model.eval(), str(folder), adapter=adapter)
        except OSError as error:
            raise StorageError(f"cannot write to {folder}: {error.strerror}") from error


def build_untrained(task: Task) -> Untrained:
    """Build the task's model, as it would be trained on a CPU. Raises ConfigError."""
    torch.manual_seed(0)
    model = task.build_model(0)
    return Untrained(task, model, Arena(model))


def describe_state(
    state: TrainState | Untrained,
    *,
    strategy: str,
    settings: dict[str, Any],
    codec: str,
    topology: str,
    members: int = 0,
    has_own_data: bool = False,
) -> dict[str, Any]:
    """Return layout, size and resolved settings of a swarm that would train ``state``.

    Args:
        settings: of the strategy; those that are not given are filled in.
        topology: a name, or a file of edges.
        members: how many are to train at most; 0: it is not said.
        has_own_data: each member is meant to train on data of its own.

    Raises:
        ConfigError: they do not fit together.
    """
    task = state.task
    graph = read_topology(topology)
    settings = task.suited(strategy, dict(settings))
    if has_own_data and strategy == Streaming.name and settings.get("meet") != "pair":
        settings = OWN_DATA | settings
    if strategy == OneByte.name:
        settings = BOUNDED | settings  # a swarm of before does not say it, and has no bound
    check_strategy(strategy, settings, facts_of(task))
    # Of the strategy's vectors, each as large as the model, nothing is computed here.
    shape_only = torch.empty_like(state.arena.flat, device="meta")
    built = build_strategy(strategy, settings, shape_only)
    check_fit(type(built), built.config, codec, graph, members, shape_only.element_size())
    return {
        "task": task.name,
        "version": task.version,
        "config": msgspec.to_builtins(task.config),
        "layout_hash": state.arena.layout.layout_hash.hex(),
        "numel": state.arena.numel,
        "parameters": sum(p.numel() for p in state.model.parameters()),
        "tokens_per_batch": task.tokens_per_batch,
        "eval_every_steps": task.eval_every_steps,
        "exchange_every_steps": task.exchange_every_steps,
        "strategy": built.name,
        "strategy_version": built.version,
        "strategy_settings": msgspec.to_builtins(built.config),
        "topology": graph,
        "members_max": members_max(built.meeting(built.config)),
        "codecs": codecs_sent(built.meeting(built.config), codec),
        "data_hash": task.data_hash(),
        "probe_hash": probe_hash(task),
        "recipe": msgspec.to_builtins(task.recipe()),
    }


class _NoFilling(TorchFunctionMode):
    """Leave out what gives parameters their first values.

    On tensors without values torch imports its compiler for that: 80 MB and two seconds.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if (
            getattr(func, "__name__", "") in _FILLING
            or getattr(func, "__module__", "") == "torch.nn.init"
        ):
            return args[0] if args else kwargs.get("tensor")
        return func(*args, **kwargs)


def model_numel(task: Task) -> int | None:
    """Return the size of the task's model without building it; None if only that can tell."""
    try:
        with torch.device("meta"), _NoFilling():
            model = task.build_model(0)
    except Exception:  # noqa: BLE001 -- a task of any author, whose tensors have no values here
        # What is really wrong with it, building the model says.
        return None
    return sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
