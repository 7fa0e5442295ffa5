"""One training run of ``bench learning``, from a job to its losses, and what it trains."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import torch

from swarmnode.bench.learning.jobs import TASK, Evaluation, Job, Trained
from swarmnode.errors import ConfigError
from swarmnode.ipc.lr_schedule import shorten_warmup
from swarmnode.strategies.base import Exchange, Needs
from swarmnode.strategies.registry import build_strategy, check_strategy, find_strategy
from swarmnode.tasks.base import Task
from swarmnode.testing.lab.arena import Arena
from swarmnode.testing.lab.descent import Schedule, TaskOptimizer, by_recipe, cosine
from swarmnode.testing.lab.faults import Faults
from swarmnode.testing.lab.text import TextTask
from swarmnode.testing.lab.world import Node
from swarmnode.worker.model.state import build_state, build_task
from swarmnode.worker.snapshots import restore

# Windows of held-out text. The 32 of a training node are too few: between runs that differ in
# nothing but the seed their loss varies by a hundredth.
_PROBE_WINDOWS = 1024
# From the views of a mean to its merge, as four real nodes on two cores count it. Without it the
# laboratory keeps more of the gain than real nodes do; how much more depends on the text. Perl's
# modules, 1,200 steps, one seed: 1.8565 so, 1.8632 at 2.5, and 1.860 with real nodes.
_LATENCY_STEPS = 1.4
_EMA_SHARE = 0.05  # of the steps of a baseline, that the mean of its weights is over


class _Counted(Arena):
    """Counts what nodes have committed, each for itself, as daemons do."""

    committed = 0

    def deliver(self, node: Node, exchange: Exchange, not_before_step: int) -> None:
        self.committed += node.steps >= not_before_step
        super().deliver(node, exchange, not_before_step)


def train(job: Job) -> Trained:
    """Run a job to its end.

    Raises:
        ConfigError: the strategy is not for this, or the loss was no number.
    """
    text = _task(job.config, job.data)
    seeds = {"seed": job.seed, "model_seed": job.model_seed}
    if job.kind == "data-parallel":
        return _train_data_parallel(job, TextTask(text, job.nodes, **seeds))
    tokens = job.nodes * text.tokens_per_batch  # of all nodes, in a step of each
    target = msgspec.structs.replace(text.recipe(), target_tokens=tokens * job.steps)
    recipe = shorten_warmup(target)
    task = TextTask(text, job.nodes, clip_norm=recipe.clip_norm, **seeds)
    return _train_swarm(job, task, by_recipe(recipe, job.lr, tokens))


def _train_data_parallel(job: Job, task: TextTask) -> Trained:
    """Return what the better of the last weights and their mean over the last steps come to."""
    x = task.x[:1].clone()
    averaged = x.clone()
    optimizer = TaskOptimizer(task.text, x, cosine(job.lr, job.steps))
    for _ in range(job.steps):
        x -= optimizer.steps([0], task.mean_gradient(x[0])[None])
        averaged.lerp_(x, 1 / max(1.0, _EMA_SHARE * job.steps))
    losses = [task.evaluate(x[0]), task.evaluate(averaged[0])]
    # Not a number where the rate was too high.
    loss = min((loss for loss in losses if math.isfinite(loss)), default=math.inf)
    return Trained(mean_loss=loss, own_loss=loss, numel=x.shape[1])


def _train_swarm(job: Job, task: TextTask, schedule: Schedule) -> Trained:
    settings = task.text.suited(job.strategy, job.settings)
    check_strategy(job.strategy, settings, task.facts)
    if find_strategy(job.strategy).needs is Needs.GRADIENT:
        raise ConfigError(
            f"bench learning: {job.strategy} is for convex objectives, and this is a language"
            " model: choose another strategy"
        )
    arena = _Counted(
        task,
        lambda x: build_strategy(job.strategy, settings, x),
        optimizer=TaskOptimizer(task.text, task.x, schedule),
        seed=job.seed,
        codec=job.codec,
        guarded=True,  # as real nodes weigh what others send
        faults=Faults(latency=_LATENCY_STEPS),
    )
    arena.run(job.steps)
    found = task.measure(task.x.double().mean(0).float(), range(job.nodes))
    if not all(math.isfinite(loss) for loss in found.values()):
        raise ConfigError(
            f"bench learning: the loss of {job.strategy} was no number at the end: lower lr, gamma"
            " or momentum"
        )
    return Trained(
        mean_loss=found["loss"],
        own_loss=found["own_loss"],
        numel=task.x.shape[1],
        exchange_bytes=arena.tally.bytes / job.nodes,
        committed=arena.committed / job.nodes,
        aborted=arena.tally.aborted / job.nodes,
    )


def evaluate_snapshots(asked: Evaluation) -> Trained:
    """Measure the models of real nodes by the same text as everything else.

    Raises:
        SwarmNodeError: a folder has no snapshot, or one of another model.
    """
    state = build_state(_task(asked.config, asked.data), swarm_seed=0, device="cpu")
    vectors, losses = [], []
    for folder in asked.snapshots:
        path, tensors, about = restore.read_weights(Path(folder))
        restore.load_weights(state.model, state.arena.layout, tensors, about, path)
        vectors.append(state.arena.flat.clone())
        losses.append(state.evaluate())
    state.arena.flat.copy_(torch.stack(vectors).double().mean(0))
    return Trained(
        mean_loss=state.evaluate(),
        own_loss=sum(losses) / len(losses),
        numel=state.arena.numel,
    )


def _task(config: dict[str, Any], data: str) -> Task:
    return build_task(TASK, {**config, "probe_windows": _PROBE_WINDOWS}, data)
