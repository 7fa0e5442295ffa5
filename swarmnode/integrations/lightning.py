"""A Trainer of ``lightning`` takes part in a swarm::

    trainer = Trainer(..., callbacks=[SwarmCallback(LINK, home="node")])
    trainer.fit(module, data)

A step is an optimizer step, of a module with one optimizer, and counts for the tokens of its
batches. Lightning's own checkpoints go on as ever; the node keeps snapshots of its own, and a run
that begins again goes on from the newest of those. When the node is told to leave, training ends
as if all steps were done.

In a swarm with a recipe, that takes the place of the module's own scheduler; the optimizer's
learning rate is what it multiplies, and clipping and accumulation stay the Trainer's.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from swarmnode.api.node import Node
from swarmnode.errors import ConfigError
from swarmnode.integrations.agent import SwarmAgent
from swarmnode.integrations.schedulers import take_over
from swarmnode.integrations.taps import tokens_in


class SwarmCallback(Callback):  # type: ignore[misc, unused-ignore]  # without the package it is Any
    """Joins the swarm ``link`` when training begins, and leaves it at the end.

    Args:
        link, settings: as of :meth:`swarmnode.Node.join`.
        tokens_per_step: what one step counts for in the swarm's progress; 0: the tokens of its
            batches, or the examples where a batch has no tokens.
        monitor: the logged figure that is the loss on held-out data.
    """

    def __init__(
        self, link: str, *, tokens_per_step: int = 0, monitor: str = "val_loss", **settings: Any
    ) -> None:
        self._joining = Node.join(link, **settings)
        self._tokens_per_step = tokens_per_step
        self._monitor = monitor
        self._stack = ExitStack()
        self._step = 0
        self._tokens = 0  # of batches since the last step: gradients add up
        self.node: Node | None = None
        self.agent: SwarmAgent | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the node, and be its worker."""
        if len(trainer.optimizers) != 1:
            raise ConfigError(
                f"expected a module with one optimizer, got {len(trainer.optimizers)}: put all"
                " parameters into groups of one"
            )
        self._step = trainer.global_step
        with ExitStack() as stack:
            self.node = stack.enter_context(self._joining)
            agent = SwarmAgent(self.node, pl_module, trainer.optimizers[0])
            self.agent = stack.enter_context(agent)
            if agent.has_recipe:
                take_over(config.scheduler for config in trainer.lr_scheduler_configs)
            self._stack = stack.pop_all()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *place: int
    ) -> None:
        """Merge and exchange if the optimizer has stepped; end when the node leaves."""
        del pl_module, place
        self._tokens += tokens_in(batch) * trainer.world_size  # each process has its own part
        if self.agent is None or trainer.global_step == self._step:
            return
        self._step, counted, self._tokens = trainer.global_step, self._tokens, 0
        tokens = self._tokens_per_step or max(1, counted)  # a batch may hold no tensor
        if not self.agent.step(_loss_in(outputs), tokens=tokens):
            trainer.should_stop = True

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell the swarm the loss on held-out data."""
        del pl_module
        found = trainer.callback_metrics.get(self._monitor)
        if found is not None and self.agent is not None and self.agent.is_taking_part:
            self.agent.note_evaluation(float(found))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the swarm."""
        del trainer, pl_module
        self._stack.close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Leave the swarm in order, whatever happened."""
        del trainer, pl_module, exception
        self._stack.close()


def _loss_in(outputs: Any) -> float | None:
    """Return the loss of the last batch, if the module says it."""
    loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
    return float(loss) if isinstance(loss, torch.Tensor) else None
