"""From what the daemon wants trained to a state and a strategy that are ready to train."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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
# Measured on an H200 with a GPT of 85 M parameters in bfloat16, 8,192 tokens a step: forward and
# backward pass 18.4 ms as they are and 15.2 ms compiled, after half a minute of compiling.
_COMPILED_NUMEL_MIN = 10_000_000
_COMPILED_GAIN_MIN = 1.05
_TRIALS = 3
_log = logging.getLogger("swarmnode.worker.prepare")

Loss = Callable[[torch.nn.Module, Any], torch.Tensor]


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


# --- compiled --------------------------------------------------------------------------------


def is_large_on_gpu(state: TrainState) -> bool:
    """Return whether compiling may pay: it takes half a minute."""
    return state.device.torch_device.type == "cuda" and state.arena.numel >= _COMPILED_NUMEL_MIN


def compiled_loss(loss: Loss) -> Loss:
    """Return ``loss``, which is compiled when it is called."""
    # One thread: the machine is its owner's, and processes of the compiler would outlive a kill.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    import torch._dynamo

    # What cannot be compiled, now or for a batch of another size, is computed as it is.
    torch._dynamo.config.suppress_errors = True
    return torch.compile(loss)


def time_of_a_pass_s(state: TrainState, loss: Loss, part: Any) -> float:
    """Return the shortest of a few forward and backward passes; the first one compiles."""
    times_s = []
    for _ in range(1 + _TRIALS):
        _finish(state)
        began_s = time.perf_counter()
        with state.device.autocast():
            value = loss(state.model, state.device.move(part))
        value.backward()  # type: ignore[no-untyped-call]
        _finish(state)
        times_s.append(time.perf_counter() - began_s)
        state.optimizer.zero_grad(set_to_none=True)
    return min(times_s)


def _finish(state: TrainState) -> None:
    if state.device.torch_device.type == "cuda":
        torch.cuda.synchronize(state.device.torch_device)


def compile_where_it_pays(
    state: TrainState,
    may_pay: Callable[[TrainState], bool] = is_large_on_gpu,
    compiled: Callable[[Loss], Loss] = compiled_loss,
    pass_time_s: Callable[[TrainState, Loss, Any], float] = time_of_a_pass_s,
) -> None:
    """Let steps take the compiled loss if it is faster here. Leaves no gradient behind.

    A machine that cannot compile (no Triton, no C compiler) goes on as it is.
    """
    if not state.task.compiles or not may_pay(state):
        return
    faster = compiled(state.task.loss)
    batch = next(state.task.batches(0))

    def pass_times_s() -> list[float]:
        part, _ = state.micro.cut(batch)[0]
        return [pass_time_s(state, loss, part) for loss in (state.task.loss, faster)]

    plain_s, compiled_s = state.micro.run(pass_times_s)
    is_taken = plain_s > _COMPILED_GAIN_MIN * compiled_s
    if is_taken:
        state.training_loss = faster
    words = "taken" if is_taken else "not taken: it is hardly faster, or cannot be had"
    _log.info("a pass takes %.2f ms, compiled %.2f: %s", 1e3 * plain_s, 1e3 * compiled_s, words)
