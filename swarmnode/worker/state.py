"""What is being trained: task, model, arena, optimizer, and how far it has come."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from swarmnode.ipc.control import TakeShard
from swarmnode.tasks.base import Task, seed_of
from swarmnode.tasks.registry import load_task
from swarmnode.worker.arena import Arena
from swarmnode.worker.device import Device, choose_device, with_fastest_precision


@dataclass
class TrainState:
    """Everything that a step changes, on one device."""

    task: Task
    model: torch.nn.Module
    arena: Arena
    optimizer: torch.optim.Optimizer
    device: Device
    swarm_seed: int = 0
    step: int = 0
    tokens: int = 0

    def batches(self, shard_seed: int) -> Iterator[Any]:
        """Return this node's stream of batches from here on.

        A resumed run does not replay a stream from its beginning: it draws a new one, fixed
        by the seed and the step at which it resumes.
        """
        seed = seed_of(f"{shard_seed}/{self.step}")
        torch.manual_seed(seed)  # dropout and the like: different on every node
        return self.task.batches(seed)

    def shard_batches(self, order: TakeShard) -> Iterator[Any]:
        """Return the batches of one shard: the same ones on every node of the swarm."""
        epoch_seed = seed_of(f"{self.swarm_seed}/epoch/{order.epoch}")
        return self.task.shard_batches(epoch_seed, order.index, order.n_shards)

    def take_step(self, batch: Any) -> float:
        """Take one step of local training; return its loss.

        A batch whose loss is NaN or infinite is left out: it is no step.
        """
        value = self.backward(batch)
        if math.isfinite(value):
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.count_step()
        return value

    def backward(self, batch: Any) -> float:
        """Return the loss; the parameters have its gradients, unless it is NaN or infinite."""
        with self.device.autocast():
            loss = self.task.loss(self.model, self.device.move(batch))
        value = loss.item()  # waits for a GPU: the price of never spreading a NaN
        if math.isfinite(value):
            loss.backward()  # type: ignore[no-untyped-call]
        return value

    def count_step(self) -> None:
        """A step was taken."""
        self.step += 1
        self.tokens += self.task.tokens_per_batch

    def evaluate(self) -> float:
        """Return the loss on the task's held-out probe."""
        self.model.eval()
        try:
            with torch.no_grad(), self.device.autocast():
                return self.task.evaluate(self.model)
        finally:
            self.model.train()


def build_task(name: str, config: dict[str, Any], data_dir: str = "", *, source: str = "") -> Task:
    """Return an instance of task ``name``; see ``load_task``. Raises ConfigError."""
    return load_task(name, source=source)(config, data_dir=data_dir)


def build_state(task: Task, *, swarm_seed: int, device: str) -> TrainState:
    """Build model and optimizer; the same ``swarm_seed`` gives the same parameters anywhere.

    Raises:
        ConfigError: the device is not there, or the model cannot be trained together.
    """
    chosen = choose_device(device)
    torch.manual_seed(swarm_seed)
    model = task.build_model(swarm_seed).to(chosen.torch_device)
    arena = Arena(model)
    model.train()
    chosen = with_fastest_precision(chosen, task, model)
    return TrainState(task, model, arena, task.build_optimizer(model), chosen, swarm_seed)
