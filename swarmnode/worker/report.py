"""What the worker tells the daemon about itself: heartbeats with losses."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from itertools import islice

from swarmnode import limits
from swarmnode.ipc.control import Progress
from swarmnode.worker.channel import Channel
from swarmnode.worker.model.state import TrainState

# Of a worker's time spent on them: some are norms of whole models.
_STRATEGY_FIGURES_TIME_SHARE_MAX = 0.01

_SMOOTHING = 0.05  # weight of the newest step in the exponential means
_WARM_UP_STEPS = 3  # in which memory is touched and code is compiled: no measure of a step
_NAME_CHARACTERS_MAX = 64


class Reporter:
    """Sends a heartbeat every second, also while nothing is trained.

    Args:
        figures: those of the strategy; they may be some time old if they are dear.
        pauses: returns how long views and merges held up steps, since it was asked last.
    """

    def __init__(
        self,
        channel: Channel,
        figures: Callable[[], dict[str, float]] = dict,
        pauses: Callable[[], list[float]] = list,
    ) -> None:
        self._channel = channel
        self._pauses = pauses
        self._figures = figures
        self._last_figures: dict[str, float] = {}
        self._next_s = self._next_figures_s = 0.0
        self.loss = self.step_time_s = self.eval_loss = math.nan
        self._steps = 0

    def note_step(self, loss: float, step_time_s: float) -> None:
        """Take one step into the means."""
        self.loss = smooth(self.loss, loss)
        self._steps += 1
        if self._steps <= _WARM_UP_STEPS + 1:
            self.step_time_s = step_time_s
        else:
            self.step_time_s = smooth(self.step_time_s, step_time_s)

    def report_when_due(
        self, state: TrainState, *, paused: bool, finished: bool, at_target: bool = False
    ) -> None:
        """Send a heartbeat if the last one is a second old. Raises DaemonGone."""
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + limits.WORKER_PROGRESS_S
        progress = Progress(
            step=state.step,
            tokens=state.tokens,
            loss=self.loss,
            eval_loss=self.eval_loss,
            step_time_s=self.step_time_s if math.isfinite(self.step_time_s) else 0.0,
            strategy=self._strategy_figures(),
            paused=paused,
            finished=finished,
            at_target=at_target,
            pauses_s=tuple(self._pauses()[-limits.STEP_PAUSES_KEPT :]),
        )
        self._channel.send(progress)

    def _strategy_figures(self) -> dict[str, float]:
        began_s = time.monotonic()
        if began_s >= self._next_figures_s:
            self._last_figures = finite_figures(self._figures())
            took_s = time.monotonic() - began_s
            self._next_figures_s = began_s + took_s / _STRATEGY_FIGURES_TIME_SHARE_MAX
        return self._last_figures

    def report_soon(self) -> None:
        """Let the next chance to report count as due."""
        self._next_s = 0.0


def finite_figures(figures: dict[str, float]) -> dict[str, float]:
    """Return the first few that a metric can show."""
    shown = (
        (name[:_NAME_CHARACTERS_MAX], float(value))
        for name, value in figures.items()
        if math.isfinite(value)
    )
    return dict(islice(shown, limits.STRATEGY_FIGURES_MAX))


def smooth(mean: float, value: float) -> float:
    """Return the exponential mean with one more value; a NaN mean has had none yet."""
    return value if math.isnan(mean) else mean + _SMOOTHING * (value - mean)
