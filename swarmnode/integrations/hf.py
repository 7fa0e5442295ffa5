"""A Trainer of ``transformers`` takes part in a swarm::

    trainer = Trainer(..., callbacks=[SwarmCallback(LINK, home="node")])
    trainer.train()

A step is an optimizer step, and counts for the tokens of its batches. The Trainer's own
checkpoints go on as ever; the node keeps snapshots of its own, and a run that begins again goes on
from the newest of those. When the node is told to leave, training ends as if all steps were done.

In a swarm with a recipe, that takes the place of ``lr_scheduler_type``; ``learning_rate`` is what
it multiplies, and clipping and accumulation stay the Trainer's.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from swarmnode.api.node import Node
from swarmnode.integrations.agent import SwarmAgent
from swarmnode.integrations.schedulers import take_over
from swarmnode.integrations.taps import LossTap, TokenTap


class SwarmCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]  # without the package it is Any
    """Joins the swarm ``link`` when training begins, and leaves it at the end.

    Args:
        link, settings: as of :meth:`swarmnode.Node.join`.
        tokens_per_step: what one step counts for; 0: the tokens that the model was given in it, or
            the examples where a batch has no tokens.
    """

    def __init__(self, link: str, *, tokens_per_step: int = 0, **settings: Any) -> None:
        self._joining = Node.join(link, **settings)
        self._tokens_per_step = tokens_per_step
        self._stack = ExitStack()
        self.node: Node | None = None
        self.agent: SwarmAgent | None = None
        self._losses = LossTap()
        self._tokens = TokenTap()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start the node, and be its worker."""
        del state, control
        model: torch.nn.Module = kwargs["model"]
        optimizer = kwargs["optimizer"]
        with ExitStack() as stack:
            self.node = stack.enter_context(self._joining)
            inner = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
            self.agent = stack.enter_context(SwarmAgent(self.node, model, inner))
            if self.agent.has_recipe:
                take_over([kwargs.get("lr_scheduler")])
            if args.gradient_accumulation_steps == 1:  # else only the Trainer knows what they are
                stack.enter_context(self._losses.of(model))
            stack.enter_context(self._tokens.of(model))
            self._stack = stack.pop_all()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Merge and exchange; end when the node leaves."""
        del state, kwargs
        assert self.agent is not None, "training has begun"
        if not self.agent.step(self._losses.take(), tokens=self._step_tokens(args)):
            control.should_training_stop = True

    def _step_tokens(self, args: TrainingArguments) -> int:
        counted = self._tokens.take() * args.world_size  # each process is given its own part
        examples: int = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        return self._tokens_per_step or counted or examples  # a loss may never call the model

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Tell the swarm the losses that the Trainer logs."""
        del args, state, control
        logs = kwargs.get("logs") or {}
        if self.agent is not None and self.agent.is_taking_part:
            if isinstance(logs.get("loss"), float):
                self.agent.note_loss(logs["loss"])
            if isinstance(logs.get("eval_loss"), float):
                self.agent.note_evaluation(logs["eval_loss"])

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave the swarm."""
        del args, state, control, kwargs
        self._stack.close()
