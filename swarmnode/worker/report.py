"""What the worker tells the daemon about itself: heartbeats with losses, and snapshots."""

from __future__ import annotations

import math
import time

from swarmnode import limits
from swarmnode.errors import StorageError
from swarmnode.ipc.control import Progress, SnapshotFailed, SnapshotSaved
from swarmnode.strategies.base import Strategy
from swarmnode.worker.channel import Channel
from swarmnode.worker.snapshot import SnapshotStore
from swarmnode.worker.state import TrainState

_SMOOTHING = 0.05  # weight of the newest step in the exponential means


class Reporter:
    """Sends a heartbeat every second, also while nothing is trained."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._next_s = 0.0
        self.loss = self.step_time_s = self.eval_loss = math.nan

    def note_step(self, loss: float, step_time_s: float) -> None:
        """Take one step into the means."""
        self.loss = smooth(self.loss, loss)
        self.step_time_s = smooth(self.step_time_s, step_time_s)

    def report_when_due(self, state: TrainState, *, paused: bool, finished: bool) -> None:
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
            paused=paused,
            finished=finished,
        )
        self._channel.send(progress)

    def report_soon(self) -> None:
        """Let the next chance to report count as due."""
        self._next_s = 0.0


class Saver:
    """Saves when asked and every so often: the rarer, the longer it takes."""

    def __init__(self, store: SnapshotStore, channel: Channel) -> None:
        self._store = store
        self._channel = channel
        self._next_s = time.monotonic() + limits.SNAPSHOT_PERIOD_S_MIN

    def save_when_due(self, state: TrainState, strategy: Strategy, *, last: bool) -> None:
        """Save after the last step, or if the snapshot is old enough. Raises DaemonGone."""
        if last or time.monotonic() >= self._next_s:
            self.save(state, strategy)

    def save(self, state: TrainState, strategy: Strategy, request: int = 0) -> None:
        """Save, and say so or why not; a full disk does not end training. Raises DaemonGone."""
        started = time.monotonic()
        message: SnapshotSaved | SnapshotFailed
        try:
            path = self._store.save(state, strategy)
            message = SnapshotSaved(request=request, step=state.step, path=str(path))
        except StorageError as error:
            message = SnapshotFailed(request=request, step=state.step, message=str(error))
        period_s = (time.monotonic() - started) / limits.SNAPSHOT_TIME_SHARE_MAX
        period_s = max(period_s, limits.SNAPSHOT_PERIOD_S_MIN)
        self._next_s = time.monotonic() + min(period_s, limits.SNAPSHOT_PERIOD_S_MAX)
        self._channel.send(message)


def smooth(mean: float, value: float) -> float:
    """Return the exponential mean with one more value; a NaN mean has had none yet."""
    return value if math.isnan(mean) else mean + _SMOOTHING * (value - mean)
