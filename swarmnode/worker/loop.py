"""The training loop: what a node does all day.

Nothing in it waits for the network or the daemon. Between two steps it merges what was
exchanged meanwhile, hands a copy of the parameters out when the strategy wants to
exchange, and says how it is going.
"""

from __future__ import annotations

import contextlib
import math
import time
from typing import Any

from swarmnode import limits
from swarmnode.ipc.control import (
    Apply,
    DropShard,
    Pause,
    Release,
    Resume,
    SaveSnapshot,
    Stop,
    TakeShard,
    ToWorker,
)
from swarmnode.strategies.base import Intent, Strategy
from swarmnode.worker.channel import Channel, DaemonGone
from swarmnode.worker.failures import Diverged
from swarmnode.worker.feed import Feed
from swarmnode.worker.handoff import Handoff
from swarmnode.worker.report import Reporter
from swarmnode.worker.saver import Saver
from swarmnode.worker.state import TrainState


class Loop:
    """One run of training over ``state``; ``steps_max`` 0 means until told to stop."""

    def __init__(
        self,
        state: TrainState,
        strategy: Strategy,
        *,
        channel: Channel,
        handoff: Handoff,
        saver: Saver,
        steps_max: int = 0,
    ) -> None:
        self.state, self.strategy = state, strategy
        self.channel, self.handoff, self.saver = channel, handoff, saver
        self.reporter = Reporter(channel)
        self.feed = Feed(state.shard_batches, channel.send)
        self.steps_max = steps_max
        self.intent: Intent | None = None
        self.paused = self.stopping = False
        self.bad_steps = 0

    def run(self, shard_seed: int) -> None:
        """Train until told to stop or the daemon is gone, then save. Raises Diverged.

        ``shard_seed`` is of this node's own batches, for when it has no shard to train.
        """
        own = self.state.batches(shard_seed)
        with contextlib.suppress(DaemonGone):  # nobody to report to: save and leave
            while not self.stopping:
                idle = self.paused or self.finished
                for message in self.channel.poll(limits.WORKER_IDLE_POLL_S if idle else 0.0):
                    self.obey(message)
                if not idle and not self.stopping:
                    self.train_step(self.feed.next_batch(own))
                    self.offer_parameters()
                if not self.stopping:
                    self.saver.save_when_due(self.state, self.strategy, last=self.finished)
                self.reporter.report_when_due(
                    self.state, paused=self.paused, finished=self.finished
                )
        with contextlib.suppress(DaemonGone):
            self.saver.finish(self.state, self.strategy)

    @property
    def finished(self) -> bool:
        """Whether all steps are done; peers may still exchange with what was learnt."""
        return 0 < self.steps_max <= self.state.step

    def train_step(self, batch: Any) -> None:
        """Take one step of local training, and see what it makes due."""
        started = time.perf_counter()
        loss = self.state.take_step(batch)
        if not math.isfinite(loss):
            self.note_bad_step(loss)
            return
        self.bad_steps = 0
        self.reporter.note_step(loss, time.perf_counter() - started)
        self.intent = self.strategy.after_step(self.state.step) or self.intent
        if self.state.step % self.state.task.eval_every_steps == 0 or self.finished:
            self.reporter.eval_loss = self.state.evaluate()

    def note_bad_step(self, loss: float) -> None:
        """Count steps without a finite loss. Raises Diverged after several in a row."""
        self.bad_steps += 1
        if self.bad_steps >= limits.DIVERGED_STEPS:
            raise Diverged(
                f"the loss was {loss} in {self.bad_steps} steps in a row after step "
                f"{self.state.step}; lower the learning rate"
            )

    def offer_parameters(self) -> None:
        """Serve the strategy's wish to exchange, as soon as a slot is free."""
        if self.intent is None or not self.state.arena.is_finite():
            return
        ready = self.handoff.offer(self.intent, self.state)
        if ready is not None:
            self.intent = None
            self.channel.send(ready)

    def obey(self, message: ToWorker) -> None:
        """Do what the daemon asks, between two steps."""
        match message:
            case Apply():
                self.channel.send(self.handoff.apply(message, self.state))
            case Release():
                self.handoff.release(message)
            case SaveSnapshot():
                self.saver.ask(message.request)
            case TakeShard():
                self.feed.take(message)
            case DropShard():
                self.feed.drop(message)
            case Pause() | Resume():
                self.paused = isinstance(message, Pause)
                self.reporter.report_soon()
            case Stop():
                self.stopping = True
