"""From what the daemon wants trained to a state and a strategy that are ready to train."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from swarmnode.errors import SpecMismatch
from swarmnode.ipc.control import Configure, Members
from swarmnode.strategies.base import Context, Strategy, TaskFacts
from swarmnode.strategies.registry import build_strategy, check_strategy
from swarmnode.tasks.base import Task, probe_hash
from swarmnode.tasks.packages import how_to_get
from swarmnode.worker.model.state import TrainState, build_state, build_task

if TYPE_CHECKING:
    from swarmnode.strategies.topology import Graph

_MS_PER_S = 1000


def prepare_state(
    configure: Configure, build: Callable[..., TrainState] = build_state
) -> TrainState:
    """Build task and model; ``build`` is told what ``build_state`` is.

    Raises:
        ConfigError: a setting, the device or the model.
        SpecMismatch: they are not those of the swarm.
    """
    source = how_to_get(configure.task_package, configure.task_package_version)
    task = build_task(
        configure.task,
        configure.task_config,
        configure.data_dir,
        model_dir=configure.model_dir,
        source=source,
    )
    if configure.task_version not in (0, task.version):
        source = source or "install the package that has the former"
        raise SpecMismatch(
            f"task {task.name}: the swarm uses version {configure.task_version}, version "
            f"{task.version} is installed here; {source}"
        )
    state = build(
        task,
        swarm_seed=configure.swarm_seed,
        device=configure.device,
        batch_parts=configure.batch_parts,
        recipe=configure.recipe,
    )
    layout = state.arena.layout
    if configure.layout_hash not in (b"", layout.layout_hash):
        raise SpecMismatch(
            f"task {task.name}: the swarm's model has layout {configure.layout_hash.hex()[:12]}, "
            f"here it is {layout.layout_hash.hex()[:12]}; install the version of the task that "
            "the swarm uses"
        )
    state.has_public_probe = _has_public_probe(configure, task)
    return state


def _has_public_probe(configure: Configure, task: Task) -> bool:
    """Return whether the task's probe is that of the whole swarm.

    The manifest has its hash. One of an earlier version has only that of the data, of which
    the probe is a part.
    """
    if configure.probe_hash:
        return probe_hash(task) == configure.probe_hash
    return task.data_hash() == configure.data_hash and bool(probe_hash(task))


def prepare_strategy(configure: Configure, state: TrainState) -> Strategy:
    """Build the strategy, before a snapshot is restored.

    Raises:
        ConfigError: it is unknown, a setting is wrong or unstable, or it is not for this task.
    """
    name, settings = configure.strategy, configure.strategy_settings
    check_strategy(name, settings, facts_of(state.task))
    strategy = build_strategy(name, settings, state.arena.flat)
    if strategy.x.dtype != torch.float32:
        from swarmnode.strategies.fit import check_width  # such models are rare

        check_width(name, strategy.meeting(strategy.config), strategy.x.element_size())
    return strategy


def facts_of(task: Task) -> TaskFacts:
    """Return what a strategy is told of a task."""
    return TaskFacts(task.name, task.strong_convexity, task.smoothness)


class Surroundings:
    """The other members, as the strategy knows them.

    Borrows: the strategy, which it starts: alone, until the daemon names the others.
    """

    def __init__(self, configure: Configure, state: TrainState, strategy: Strategy) -> None:
        """Raises ConfigError: the strategy is not for this task."""
        self._strategy = strategy
        self._topology = configure.topology
        self._seed = configure.swarm_seed
        self._self_id = configure.self_id
        self._rng = random.Random(f"{configure.shard_seed}/{state.step}/strategy")
        self._layout = state.arena.layout
        self._task = state.task
        self._facts = facts_of(state.task)
        self._life = int(_MS_PER_S * time.time())
        has_probe = state.has_public_probe
        self._probe = state.probe_loss_at if has_probe else None
        self._loss_trivial = state.task.trivial_loss() if has_probe else None
        self._members: tuple[bytes, ...] = (self._self_id,)
        self._task.placed(0, 1)
        strategy.start(self._context())

    def take(self, message: Members) -> None:
        """Tell the strategy that the members have changed. Raises ConfigError: as above."""
        if message.members == self._members:
            return
        self._members = message.members
        self._task.placed(self._members.index(self._self_id), len(self._members))
        if self._topology:
            self._strategy.start(self._context())
        else:
            self._strategy.on_membership(self._members)

    def _context(self) -> Context:
        return Context(
            self_id=self._self_id,
            seed=self._seed,
            rng=self._rng,
            layout=self._layout,
            members=self._members,
            facts=self._facts,
            topology=self._graph(),
            probe=self._probe,
            # Convex tasks are there to compare with theory, which needs the averages exact.
            weighs=not self._facts.is_convex,
            loss_trivial=self._loss_trivial,
            life=self._life,
        )

    def _graph(self) -> Graph | None:
        if not self._topology:
            return None
        from swarmnode.strategies.topology import graph_over  # of few strategies only

        return graph_over(self._topology, len(self._members))
