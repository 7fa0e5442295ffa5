"""What is being trained: task, model, arena, optimizer, and how far it has come."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from msgspec import UNSET

from swarmnode.ipc.control import TakeShard
from swarmnode.ipc.lr_schedule import Horizon, ema_weight, lr_factor
from swarmnode.tasks.base import Task, seed_of
from swarmnode.tasks.registry import load_task
from swarmnode.wire.recipe import Recipe
from swarmnode.worker.model.arena import Arena
from swarmnode.worker.model.device import Device, choose_device, with_fastest_precision
from swarmnode.worker.model.microbatch import MicroBatches

_AVERAGED_EVERY_STEPS = 4  # a mean over many more steps is as good, for a quarter of the time
_LR_ERROR = 1e-5  # of float32, in which some optimizers keep it
LOSSES_MAX = 256  # more than a curve can show


class AppliedRecipe:
    """Borrows: the optimizer, whose learning rates it sets, and the arena.

    Attributes:
        recipe: of the swarm; None: it has none, and nothing here does anything.
        factor: of the learning rate, as it was set last.
        ema: mean of the parameters over the last steps, float32 [numel]; None: none is wanted.
    """

    def __init__(
        self, recipe: Recipe | None, optimizer: torch.optim.Optimizer, arena: Arena
    ) -> None:
        self.recipe = recipe
        self.factor = 1.0
        self.ema: torch.Tensor | None = None
        self._groups = optimizer.param_groups
        self._arena = arena
        # A scheduler has lowered "lr" already for its own warm-up, and keeps what was asked for.
        self._lr = [float(group.get("initial_lr", group["lr"])) for group in self._groups]
        self._lr_set = self._lr
        self._ema_tokens: float | None = None  # at the last update; what a snapshot has goes on
        if recipe is None:
            return
        if recipe.ema_share:
            self.ema = arena.flat.clone()
        if recipe.weight_decay is not UNSET:
            for group in self._groups:
                if "weight_decay" in group:
                    group["weight_decay"] = recipe.weight_decay

    @property
    def batches_per_step(self) -> int:
        """How many batches a step takes."""
        return self.recipe.batches_per_step if self.recipe is not None else 1

    @property
    def is_fought(self) -> bool:
        """Whether something else has changed a learning rate, but back to what was asked for."""
        if self.recipe is None:
            return False
        return any(
            not math.isclose(float(group["lr"]), wanted, rel_tol=_LR_ERROR)
            and not math.isclose(float(group["lr"]), lr, rel_tol=_LR_ERROR)
            for group, lr, wanted in zip(self._groups, self._lr, self._lr_set, strict=True)
        )

    def set_lr(self, swarm_tokens: float, horizon: Horizon, members: float) -> None:
        """Give the optimizer the learning rate of all members at this point of the training."""
        if self.recipe is None:
            return
        self.factor = lr_factor(self.recipe, swarm_tokens, horizon, members)
        self._lr_set = [lr * self.factor for lr in self._lr]
        for group, lr in zip(self._groups, self._lr_set, strict=True):
            if isinstance(group["lr"], torch.Tensor):  # so that a captured step sees it
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr

    def clip(self) -> None:
        """Scale the gradients of all parameters down to the norm that is allowed together."""
        if self.recipe is not None and self.recipe.clip_norm:
            torch.nn.utils.clip_grad_norm_(self._arena.trained, self.recipe.clip_norm)

    def average(self, step: int, swarm_tokens: float) -> None:
        """Take the parameters, as they are after ``step`` and its merges, into the mean."""
        if self.ema is None or self.recipe is None or step % _AVERAGED_EVERY_STEPS:
            return
        before, self._ema_tokens = self._ema_tokens, swarm_tokens
        if before is not None:
            with torch.no_grad():
                self.ema.lerp_(self._arena.flat, ema_weight(self.recipe, before, swarm_tokens))

    @property
    def exported(self) -> torch.Tensor:
        """The parameters that an export has: the mean where the recipe wants one: [numel]."""
        return self._arena.flat if self.ema is None else self.ema


@dataclass
class TrainState:
    """Everything that a step changes, on one device.

    ``has_public_probe``: the task's is that of the whole swarm, so that it may decide;
    ``training_loss``: what steps take, the task's loss or the same compiled.
    """

    task: Task
    model: torch.nn.Module
    arena: Arena
    optimizer: torch.optim.Optimizer
    device: Device
    swarm_seed: int = 0
    step: int = 0
    tokens: int = 0
    batch_parts: int = 1  # into which a batch is cut from the beginning
    recipe: Recipe | None = None  # of the swarm
    has_public_probe: bool = False
    losses: list[tuple[int, float]] = field(default_factory=list)  # (step, on the held-out probe)
    log_head: bytes = b""  # the digest of the last round of the log in the model, if one is known
    micro: MicroBatches = field(init=False)
    applied: AppliedRecipe = field(init=False)
    training_loss: Callable[[torch.nn.Module, Any], torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.micro = MicroBatches(self.task, self.batch_parts)
        self.applied = AppliedRecipe(self.recipe, self.optimizer, self.arena)
        self.training_loss = self.task.loss

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

    def take_step(self, *batches: Any) -> float:
        """Take one step of local training on the mean loss of ``batches``; return that.

        Where it is NaN or infinite, they are left out: it is no step.
        """
        value = self.backward(*batches)
        if math.isfinite(value):
            self.update(len(batches))
        return value

    def update(self, n_batches: int) -> None:
        """Let the optimizer change the parameters by the gradients that they have."""
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.count_step(n_batches)

    def backward(self, *batches: Any) -> float:
        """Return the mean loss; the parameters have its gradients, clipped as the recipe says,
        unless it is NaN or infinite."""
        value = self.micro.run(partial(self._accumulate, batches))
        if math.isfinite(value):
            self.applied.clip()
        return value

    def _accumulate(self, batches: Sequence[Any]) -> float:
        """Sum gradients up over the parts of all batches; none are left unless all went well."""
        parts = [part for batch in batches for part in self.micro.cut(batch)]
        n_examples = sum(n for _, n in parts)
        mean = 0.0
        is_whole = False
        try:
            for part, n in parts:
                with self.device.autocast():
                    loss = self.training_loss(self.model, self.device.move(part))
                value = loss.item()  # waits for a GPU: the price of never spreading a NaN
                if not math.isfinite(value):
                    return value
                if n < n_examples:
                    loss, value = loss * (n / n_examples), value * (n / n_examples)
                loss.backward()  # type: ignore[no-untyped-call]
                mean += value
            is_whole = True
            return mean
        finally:
            if not is_whole:
                self.optimizer.zero_grad(set_to_none=True)

    def loss_of(self, *batches: Any) -> float:
        """Return the mean loss of batches, without gradients."""
        return self.micro.run(partial(self._mean_loss, batches))

    def _mean_loss(self, batches: Sequence[Any]) -> float:
        parts = [part for batch in batches for part in self.micro.cut(batch)]
        n_examples = sum(n for _, n in parts)
        with torch.no_grad(), self.device.autocast():
            return math.fsum(
                float(self.task.loss(self.model, self.device.move(part))) * (n / n_examples)
                for part, n in parts
            )

    def count_step(self, n_batches: int = 1) -> None:
        """A step was taken, on so many batches."""
        self.step += 1
        self.tokens += n_batches * self.task.tokens_per_batch

    def note_loss(self, loss: float) -> None:
        """Remember a loss on the held-out probe; of a long training every other one, and so on."""
        if math.isfinite(loss):
            self.losses.append((self.step, loss))
        if len(self.losses) > LOSSES_MAX:
            del self.losses[1::2]

    def evaluate(self) -> float:
        """Return the loss on the task's held-out probe."""
        self.model.eval()
        try:
            with torch.no_grad(), self.device.autocast():
                return self.task.evaluate(self.model)
        finally:
            self.model.train()

    def evaluate_at(self, x: torch.Tensor) -> float:
        """Return that loss of the parameters ``x``: [numel]; the model stays as it is."""
        return self.evaluate() if x is self.arena.flat else self._at(x, self.evaluate)

    def probe_loss(self) -> float:
        """Return the loss on the task's public probe, which it has."""
        self.model.eval()
        try:
            with torch.no_grad(), self.device.autocast():
                return float(self.task.loss(self.model, self._probe))
        finally:
            self.model.train()

    def probe_loss_at(self, x: torch.Tensor) -> float:
        """Return that loss of the parameters ``x``, see :meth:`evaluate_at`."""
        return self.probe_loss() if x is self.arena.flat else self._at(x, self.probe_loss)

    def _at(self, x: torch.Tensor, measure: Callable[[], float]) -> float:
        flat = self.arena.flat
        with torch.no_grad():
            before = flat.clone()
            flat.copy_(x)
            try:
                return measure()
            finally:
                flat.copy_(before)

    def progressed(self, swarm_tokens: float, target_tokens: int) -> None:
        """Tell the task how far the swarm is."""
        self.task.progressed(swarm_tokens, target_tokens)

    # --- what is otherwise where several processes train as one, see worker/ranks --------------

    def put(self, atom: str, own: torch.Tensor, found: torch.Tensor) -> None:
        """Set ``own``, a tensor of the state with this name in snapshots, to ``found``."""
        del atom
        own.copy_(found)

    def fill_optimizer(self) -> None:
        """Let the optimizer make the state that it keeps with its present settings.

        Which that is only itself knows, and says in a step. With some of it missing, it would fail
        in its next one. Changes the weights.
        """
        groups = self.optimizer.param_groups
        settings = [{key: group[key] for key in group if key != "params"} for group in groups]
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        for group, before in zip(groups, settings, strict=True):
            group.update(before)  # some optimizers count their steps there

    def restored(self) -> None:
        """The optimizer is as it is to go on."""

    def gathered(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return tensors of the state, by their names in snapshots, as a reader finds them."""
        return tensors

    @cached_property
    def _probe(self) -> Any:
        return self.device.move(self.task.public_probe())


def build_task(
    name: str,
    config: dict[str, Any],
    data_dir: str = "",
    *,
    model_dir: str = "",
    source: str = "",
) -> Task:
    """Return an instance of task ``name``; see ``load_task``. Raises ConfigError."""
    task = load_task(name, source=source)(config, data_dir=data_dir)
    task.model_dir = model_dir
    return task


def build_state(
    task: Task,
    *,
    swarm_seed: int,
    device: str,
    batch_parts: int = 1,
    recipe: Recipe | None = None,
) -> TrainState:
    """Build model and optimizer; the same ``swarm_seed`` gives the same parameters anywhere.

    ``batch_parts``: into how many parts a batch is cut from the beginning; ``recipe``: the swarm's.

    Raises:
        ConfigError: the device is not there, or the model cannot be trained together.
    """
    chosen = choose_device(device)
    torch.manual_seed(swarm_seed)
    model = task.build_model(swarm_seed).to(chosen.torch_device)
    arena = Arena(model)
    model.train()
    if batch_parts > 1:
        chosen = with_fastest_precision(chosen, task, model, batch_parts)
    else:
        chosen = with_fastest_precision(chosen, task, model)
    optimizer = task.build_optimizer(model)
    return TrainState(
        task,
        model,
        arena,
        optimizer,
        chosen,
        swarm_seed,
        batch_parts=batch_parts,
        recipe=recipe,
    )
