"""The training loop turned inside out: a program of the user takes the steps, and says so.

Between two steps it does what the loop of a worker does: merges what was exchanged, lends views,
intents, saves, reports. It waits only while the node is paused, or is to rest.
"""

from __future__ import annotations

import contextlib
import math
import time
from typing import Any

import torch

from swarmnode.errors import ConfigError
from swarmnode.ipc.control import NoView, TakeView, ToWorker
from swarmnode.strategies.base import Needs
from swarmnode.worker.channel import DaemonGone
from swarmnode.worker.training.loop import Loop

_LEAVING = "busy: the program that trains here is leaving"
_LEAVE_POLL_S = 0.05


class OuterLoop(Loop):
    """A loop whose steps are taken elsewhere, on the model and the optimizer of its state.

    Attributes:
        is_leaving: nothing new is lent.
    """

    owns_steps = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Raises ConfigError: the strategy takes the steps itself."""
        super().__init__(*args, **kwargs)
        self.is_leaving = False
        self._is_updating = False
        self._began_s = 0.0
        needs = self.strategy.needs
        if needs is Needs.GRADIENT or self.strategy.gradient_point() is not None:
            raise ConfigError(
                f"strategy {self.strategy.name} takes the local steps itself, which a program does"
                " here: create the swarm with another one, such as streaming or diloco"
            )

    @property
    def is_resting(self) -> bool:
        """Whether no step may follow now; one that has taken all its steps is told to end."""
        return self.paused or self.stopping or self.is_leaving or self.is_waiting

    @property
    def is_over(self) -> bool:
        """Whether the program is to end: the node leaves, or all its steps are done."""
        return self.stopping or self.finished

    def begin(self) -> None:
        """The daemon knows that the program is ready; the first step follows. Raises DaemonGone."""
        self.intents.offer_answers(self.state)
        self._wait_turn()

    def took_step(self, loss: float | None, tokens: int) -> None:
        """The program has taken a step; return when it may take the next one.

        Args:
            loss: of the step; None: it is not known, and what was said before stands.

        Raises:
            Diverged: it was not finite for several steps.
            ConfigError: something else than the swarm's recipe sets the learning rate.
            DaemonGone: there is no node any more.
        """
        if self.state.applied.is_fought:
            raise ConfigError(
                "expected the learning rate that the swarm's recipe sets, something else has"
                " changed it: train without a scheduler of your own, or in a swarm without a recipe"
            )
        seconds = time.perf_counter() - self._began_s
        self._end_update()
        if loss is None or math.isfinite(loss):
            self.state.step += 1
            self.state.tokens += tokens
        known = self.reporter.loss
        stand_in = known if math.isfinite(known) else 0.0
        self.after_step(stand_in if loss is None else loss, seconds)
        if loss is None:
            self.reporter.loss = known
        self.ring_clock()
        self.keep_books()
        self.listen()
        self._wait_turn()

    def evaluate(self) -> None:
        """The program evaluates when it likes, and says what came of it."""

    def leave(self, deadline_s: float) -> None:
        """Lend nothing more, merge what has committed, and save."""
        self.is_leaving = True
        self._end_update()
        until = time.monotonic() + deadline_s
        with contextlib.suppress(DaemonGone):
            while self.handoff.is_lending and not self.stopping and time.monotonic() < until:
                for message in self.channel.poll(_LEAVE_POLL_S):
                    self.obey(message)
        self.end()

    def end(self) -> None:
        """See ``Loop``."""
        self._end_update()
        super().end()

    def _end_update(self) -> None:
        """Let the strategy take note of what the program has changed, if it has not yet."""
        if self._is_updating:
            self._is_updating = False
            with torch.no_grad():
                self.strategy.after_update(self.state.arena.flat)

    def obey(self, message: ToWorker) -> None:
        """See ``Loop``."""
        if self.is_leaving and isinstance(message, TakeView):
            self.intents.drop(message.number, _LEAVING)
            self.channel.send(NoView(message.ticket, _LEAVING))
        else:
            super().obey(message)

    def _wait_turn(self) -> None:
        """Serve the daemon until a step may be taken, or none will be."""
        while not self.stopping and (
            self.paused or self.is_waiting or self.clocks.rest_s() or self.share.rest_s()
        ):
            self.listen()
            self.settle()
            self.ring_clock()
            self.keep_books()
        self.pauses.begin_step()
        self.strategy.flow(self.clocks.begin_step())
        self.set_lr()
        if self.strategy.needs is Needs.STEP:
            self._is_updating = True
            with torch.no_grad():
                self.strategy.before_update(self.state.arena.flat)
        self._began_s = time.perf_counter()
