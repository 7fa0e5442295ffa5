"""One training run of ``bench learning``, from a job to its losses, and what it trains."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from swarmnode.bench.learning.jobs import TASK, Evaluation, Job, Trained
from swarmnode.errors import ConfigError
from swarmnode.ipc.lr_schedule import shorten_warmup
from swarmnode.strategies.base import Exchange, Needs, TaskFacts
from swarmnode.strategies.context import LossAt
from swarmnode.strategies.registry import build_strategy, check_strategy, find_strategy
from swarmnode.tasks.base import Task
from swarmnode.tensor.layout import Layout
from swarmnode.testing.lab.arena import Arena
from swarmnode.testing.lab.tasks import LabTask
from swarmnode.testing.lab.world import Node
from swarmnode.testing.learning.descent import AdamW, Schedule, by_recipe, cosine
from swarmnode.worker.model.arena import Arena as ModelArena
from swarmnode.worker.model.state import build_state, build_task
from swarmnode.worker.snapshots import restore

# Windows of held-out text. The 32 of a training node are too few: between runs that differ in
# nothing but the seed their loss varies by a hundredth.
_PROBE_WINDOWS = 1024


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
    x = task.x[:1].clone()
    optimizer = AdamW.like(task.optimizer, x, cosine(job.lr, job.steps))
    for _ in range(job.steps):
        x -= optimizer.steps([0], task.mean_gradient(x[0])[None])
    loss = task.evaluate(x[0])  # not a number where the rate was too high
    loss = loss if math.isfinite(loss) else math.inf
    return Trained(mean_loss=loss, own_loss=loss, numel=x.shape[1])


def _train_swarm(job: Job, task: TextTask, schedule: Schedule) -> Trained:
    check_strategy(job.strategy, job.settings, task.facts)
    if find_strategy(job.strategy).needs is Needs.GRADIENT:
        raise ConfigError(
            f"bench learning: {job.strategy} is for convex objectives, and this is a language"
            " model: choose another strategy"
        )
    arena = _Counted(
        task,
        lambda x: build_strategy(job.strategy, job.settings, x),
        optimizer=AdamW.like(task.optimizer, task.x, schedule),
        seed=job.seed,
        codec=job.codec,
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
        restore.load_weights(state, tensors, about, path)
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


class TextTask(LabTask):
    """A language model of the built-in tasks in the laboratory: ``n`` nodes train it on real text.

    Each has batches of its own.

    One model is in memory: a node's row of ``x`` is copied into it before it is its turn. The
    optimizer is asked for once, for its settings; each node of a real swarm has one of its own.

    Attributes:
        optimizer: the task's, for its settings alone.
    """

    def __init__(
        self, task: Task, n: int, *, seed: int, model_seed: int, clip_norm: float = 0.0
    ) -> None:
        """Build the model once.

        ``seed``: of the batches; ``model_seed``: of the first weights, as in a manifest;
        ``clip_norm``: the largest norm of a node's own gradient, 0: any.
        """
        self._clip_norm = clip_norm
        torch.manual_seed(model_seed)
        self._task, self._model = task, task.build_model(model_seed)
        self._arena = ModelArena(self._model)
        self.optimizer = task.build_optimizer(self._model)
        self.facts = TaskFacts(task.name)
        self.x = self._arena.flat.repeat(n, 1)
        self._batches: list[Iterator[Any]] = [task.batches(1000 * seed + i) for i in range(n)]

    @property
    def layout(self) -> Layout:
        """That of the model."""
        return self._arena.layout

    def gradients(self, nodes: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        losses, gradients = [], []
        for node in nodes:
            loss, gradient = self._gradient(self.x[node], next(self._batches[node]))
            losses.append(loss)
            if self._clip_norm:
                gradient.mul_((self._clip_norm / gradient.norm()).clamp(max=1.0))
            gradients.append(gradient)
        return torch.tensor(losses), torch.stack(gradients)

    def mean_gradient(self, x: torch.Tensor) -> torch.Tensor:
        """Return the gradient of one model [numel] on a batch of every node: [numel]."""
        return self._gradient(x, torch.cat([next(batches) for batches in self._batches]))[1]

    def public_probe(self) -> LossAt | None:
        return self.evaluate

    def probe(self, node: int) -> Callable[[], float]:
        batch = next(self._batches[node])

        def loss() -> float:
            self._arena.flat.copy_(self.x[node])
            with torch.no_grad():
                return float(self._task.loss(self._model, batch))

        return loss

    def measure(self, mean: torch.Tensor, alive: Sequence[int]) -> dict[str, float]:
        own = [self.evaluate(self.x[node]) for node in alive]
        return {"loss": self.evaluate(mean), "own_loss": sum(own) / len(own)}

    def evaluate(self, x: torch.Tensor) -> float:
        """Return the held-out loss of a model [numel]."""
        self._arena.flat.copy_(x)
        self._model.eval()
        try:
            with torch.no_grad():
                return float(self._task.evaluate(self._model))
        finally:
            self._model.train()

    def _gradient(self, x: torch.Tensor, batch: Any) -> tuple[float, torch.Tensor]:
        self._arena.flat.copy_(x)
        loss = self._task.loss(self._model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        gradient = self._arena.gradient()
        self._model.zero_grad(set_to_none=True)
        return loss.item(), gradient
