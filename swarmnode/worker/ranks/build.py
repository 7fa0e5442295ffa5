"""From a task to the state of a rank: rank 0 builds first, and what fails there fails once."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import msgspec
import torch
import torch.distributed as dist

from swarmnode.errors import ConfigError
from swarmnode.ipc.control import Configure
from swarmnode.strategies.base import Needs
from swarmnode.strategies.registry import find_strategy
from swarmnode.tasks.base import Task, seed_of
from swarmnode.wire.recipe import Recipe
from swarmnode.worker.model.arena import Arena
from swarmnode.worker.model.device import Device, choose_device, with_fastest_precision
from swarmnode.worker.model.prepare import facts_of, prepare_state
from swarmnode.worker.model.state import TrainState
from swarmnode.worker.ranks.hands import Hands, Part, PartArena, Replica
from swarmnode.worker.ranks.state import LeaderState, RankState
from swarmnode.worker.ranks.team import Team

StateT = TypeVar("StateT", bound=RankState)

# A rank that is gone is noticed at once; this is for one that hangs, and for a slow first step.
_COLLECTIVE_S = 1800.0


def lead_state(configure: Configure, team: Team) -> TrainState:
    """Build the state of rank 0, and let the others build theirs; they are ready then.

    Raises:
        ConfigError: the task, the device or the strategy is not for several ranks.
    """
    return prepare_state(configure, partial(_build_leader, configure, team))


def follow_state(
    configure: Configure, rank: int, size: int, store: str, memory_fd: int, precision: Any
) -> RankState:
    """Build the state of another rank. Raises as rank 0 does."""
    if configure.recipe is not None:  # the mean over the last steps is kept by rank 0
        recipe = msgspec.structs.replace(configure.recipe, ema_share=0.0)
        configure = msgspec.structs.replace(configure, recipe=recipe)

    def build(task: Task, *, swarm_seed: int, device: str, **settings: Any) -> RankState:
        chosen = replace(_device_of(rank, size, device), autocast_dtype=precision)
        model = _model_of(task, swarm_seed)
        _join(rank, size, store, chosen)
        return _rank_state(
            RankState, task, model, chosen, configure.parallel, memory_fd, swarm_seed, **settings
        )

    state = prepare_state(configure, build)
    assert isinstance(state, RankState)
    torch.manual_seed(seed_of(f"{configure.shard_seed}/rank/{rank}"))  # its own dropout
    return state


def _build_leader(
    configure: Configure,
    team: Team,
    task: Task,
    *,
    swarm_seed: int,
    device: str,
    batch_parts: int,
    recipe: Recipe | None,
) -> LeaderState:
    _check_task(task)
    _check_strategy(configure)
    chosen = _device_of(0, team.size, device)
    model = _model_of(task, swarm_seed)
    chosen = with_fastest_precision(chosen, task, model, team.size * batch_parts)
    team.tell_all(configure, team.size, team.threads, chosen.autocast_dtype)
    _join(0, team.size, str(team.store), chosen)
    state = _rank_state(
        LeaderState,
        task,
        model,
        chosen,
        configure.parallel,
        team.fd,
        swarm_seed,
        batch_parts=batch_parts,
        recipe=recipe,
        team=team,
    )
    state.look_for_news()  # all ranks have what was built
    return state


def _rank_state(
    state_type: type[StateT],
    task: Task,
    model: torch.nn.Module,
    device: Device,
    parallel: str,
    memory_fd: int,
    swarm_seed: int,
    **settings: Any,
) -> StateT:
    """Share the model out, or give it to this rank, and build the optimizer over that."""
    hands: Hands
    states: list[LeaderState] = []
    if parallel == "ddp":
        model = model.to(device.torch_device)
        arena = Arena(model)
        hands = Replica(model, arena)
    else:
        hands = Part(model, memory_fd, device.torch_device)
        arena = PartArena(model, hands, lambda: states[0].pull() if states else None)
    model.train()
    optimizer = task.build_optimizer(model)
    state = state_type(task, model, arena, optimizer, device, swarm_seed, hands=hands, **settings)
    if isinstance(state, LeaderState):
        states.append(state)
    return state


def _model_of(task: Task, swarm_seed: int) -> torch.nn.Module:
    torch.manual_seed(swarm_seed)
    return task.build_model(swarm_seed)


def _join(rank: int, size: int, store: str, device: Device) -> None:
    """Meet the other ranks: over a file, as no port is then open to others of this machine."""
    on_gpu = device.torch_device.type == "cuda"
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        store=dist.FileStore(store, size),  # type: ignore[attr-defined]
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=_COLLECTIVE_S),
        device_id=device.torch_device if on_gpu else None,
    )


def _device_of(rank: int, size: int, setting: str) -> Device:
    """Return the device of a rank. Raises ConfigError: there are fewer than ranks."""
    chosen = choose_device(setting)
    if chosen.torch_device.type == "cpu":
        return chosen
    if chosen.torch_device.type != "cuda":
        raise ConfigError(
            f"nproc: expected 1 on {chosen}, where there is one device, got {size}; use device cpu"
        )
    n_gpus = torch.cuda.device_count()
    if size > n_gpus:
        raise ConfigError(
            f"nproc: expected at most {n_gpus}, as many GPUs as torch may use here, got {size}"
        )
    torch.cuda.set_device(rank)
    return choose_device(f"cuda:{rank}")


def _check_task(task: Task) -> None:
    """Raises ConfigError: its batches cannot be shared out, or its numbers must be exact."""
    if facts_of(task).is_convex:
        raise ConfigError(
            f"task {task.name}: expected --nproc 1 for a convex task, whose averages are to be"
            " exact"
        )
    if not task.loss_is_mean:
        raise ConfigError(
            f"task {task.name}: expected --nproc 1, as the loss of its batches is no mean over"
            " examples (loss_is_mean), so that ranks cannot share them out"
        )


def _check_strategy(configure: Configure) -> None:
    """Raises ConfigError: it takes the gradient of the whole model, which no rank has."""
    strategy = find_strategy(configure.strategy)
    if configure.parallel == "fsdp2" and strategy.needs is Needs.GRADIENT:
        raise ConfigError(
            f"strategy {strategy.name}: expected --parallel ddp, as it takes the local steps"
            " itself, by the gradient of the whole model, of which fsdp2 gives each process a part"
        )
