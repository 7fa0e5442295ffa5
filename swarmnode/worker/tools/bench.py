"""What holds up steps: snapshots, and the views and merges of exchanges.

Snapshots: windows of one period each take turns, of the same training in one process. At the
beginning of one a snapshot is asked for, in the next none is. The loop around them is the
worker's, as far as steps and saves go.

Views and merges: those of pairs, piece by piece as between two steps; there are no steps.
"""

from __future__ import annotations

import mmap
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from swarmnode import limits
from swarmnode.errors import StorageError
from swarmnode.ipc.control import Apply, PostedIntent, SlotReady, SnapshotFailed, TakeView
from swarmnode.ipc.records import Partner
from swarmnode.ipc.segment import Owner, Segment
from swarmnode.strategies.base import Intent, Kind, Meta
from swarmnode.strategies.context import Context, TaskFacts
from swarmnode.strategies.pair_average import PairAverage
from swarmnode.tasks.bytes_lm import BytesLM
from swarmnode.tasks.language import adamw
from swarmnode.tensor.layout import Layout, TensorSpec
from swarmnode.worker.exchange.handoff import Handoff, Told
from swarmnode.worker.exchange.intents import PendingIntents
from swarmnode.worker.model.state import TrainState, build_state
from swarmnode.worker.snapshots.saver import Report, Saver
from swarmnode.worker.snapshots.saver import period_s as regular_period_s
from swarmnode.worker.snapshots.snapshot import SnapshotStore
from swarmnode.worker.training.clocks import Pauses

_DIM = 512  # of the GPT, 3.1 M parameters in each of its layers; or, for fewer:
_SMALL_DIM = 64
_FLOAT32_BYTES = 4
_ME, _PEER = bytes(32), bytes([1]) * 32
_XID = bytes(16)
# From one's own view to what came: more than a processor keeps, so no piece is there already.
_SLOT_GAP_BYTES = 64 * limits.MIB


def bench_snapshots(
    n_params: int, optimizer: str, *, rounds: int, period_s: float
) -> dict[str, Any]:
    """Return step times of a GPT of about ``n_params``, trained with ``sgd`` or ``adamw``.

    Args:
        rounds: pairs of windows.
        period_s: the length of a window.

    Raises:
        StorageError: a snapshot could not be written.
    """
    state = _state(n_params, optimizer)
    home = Path(tempfile.mkdtemp(prefix="swarmnode-bench-"))
    reports: list[Report] = []
    try:
        with SnapshotStore(home / "snapshots") as store, Saver(store, reports.append) as saver:
            figures = _Turns(state, saver).measure(rounds, period_s)
            saved_bytes = _size_of(reports)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    about = {"optimizer": optimizer, "params": state.arena.numel, "snapshot_bytes": saved_bytes}
    return about | figures


def _size_of(reports: list[Report]) -> int:
    for report in reports:
        if isinstance(report, SnapshotFailed):
            raise StorageError(report.message)
        saved = Path(report.path)
    return saved.stat().st_size


def _state(n_params: int, optimizer: str) -> TrainState:
    dim = _DIM if n_params >= 12 * _DIM**2 else _SMALL_DIM
    layers = max(1, round(n_params / (12 * dim**2)))
    config = {"dim": dim, "layers": layers, "heads": 8, "batch": 1, "lr": 1e-4}
    state = build_state(BytesLM(config), swarm_seed=0, device="cpu")
    # Not the task's own, which keeps less than twice the model: what is measured is what is said.
    if optimizer == "sgd":
        state.optimizer = torch.optim.SGD(state.model.parameters(), lr=1e-3)
    else:
        state.optimizer = adamw(state.model, lr=1e-4, weight_decay=0.01)
    return state


class _Turns:
    """Windows with and without snapshots; a step's time includes what saving adds to it."""

    def __init__(self, state: TrainState, saver: Saver) -> None:
        self._state, self._saver = state, saver
        self._strategy = PairAverage({}, state.arena.flat)
        self._batches = state.batches(0)

    def measure(self, rounds: int, period_s: float) -> dict[str, Any]:
        """Return the figures of ``rounds`` pairs of windows, after a short one to warm up."""
        self._saving_window(0.0)
        plain_s: list[float] = []
        saving_s: list[float] = []
        write_s: list[float] = []
        for _ in range(rounds):
            plain_s += self._plain_window(period_s)
            saving_s += self._saving_window(period_s)
            write_s.append(self._saver.write_s)
        mean_s = statistics.fmean(plain_s)
        excess_s = (sum(saving_s) - mean_s * len(saving_s)) / rounds
        regular_s = regular_period_s(statistics.median(write_s))
        return {
            "period_s": period_s,
            "rounds": rounds,
            "write_s": statistics.median(write_s),
            "step_ms_median": 1e3 * statistics.median(plain_s),
            "step_ms_median_saving": 1e3 * statistics.median(saving_s),
            "step_ms_mean": 1e3 * mean_s,
            "step_ms_mean_saving": 1e3 * statistics.fmean(saving_s),
            "step_ms_max": 1e3 * max(plain_s),
            "step_ms_max_saving": 1e3 * max(saving_s),
            "ratio_median": statistics.median(saving_s) / statistics.median(plain_s),
            "ratio_mean": statistics.fmean(saving_s) / mean_s,
            # What the worker chooses for a write of this length, and the ratio at that.
            "regular_period_s": regular_s,
            "ratio_regular": 1 + excess_s / regular_s,
        }

    def _plain_window(self, period_s: float) -> list[float]:
        until_s = time.perf_counter() + period_s
        times_s = []
        while time.perf_counter() < until_s:
            began_s = time.perf_counter()
            self._state.take_step(next(self._batches))
            times_s.append(time.perf_counter() - began_s)
        return times_s

    def _saving_window(self, period_s: float) -> list[float]:
        until_s = time.perf_counter() + period_s
        times_s: list[float] = []
        self._saver.ask(1)
        while self._saver.is_busy or time.perf_counter() < until_s:
            began_s = time.perf_counter()
            self._state.take_step(next(self._batches))
            self._saver.save_when_due(self._state, self._strategy, last=False, in_passing=True)
            times_s.append(time.perf_counter() - began_s)
        return times_s


def bench_pauses(n_params: int, exchanges: int) -> dict[str, Any]:
    """Return how long steps wait for the views and merges of pairs, and how many wait for one.

    Of a model of so many float32, by the hand-off of a worker; a first exchange is not counted.
    """
    strategy = PairAverage({}, torch.zeros(n_params))
    layout = Layout((TensorSpec("x", (n_params,), "float32"),))
    strategy.start(Context(_ME, 0, random.Random(0), layout, (_ME,), TaskFacts("bench")))
    posted: list[PostedIntent] = []
    intents = PendingIntents(strategy, posted.append)
    slots = _Slots(n_params)
    handoff = Handoff(slots, strategy, intents, lambda: Meta(0, 0, 0.0))
    pauses, state = Pauses(), _state(1, "sgd")
    for number in range(1 + exchanges):
        if number == 1:
            pauses.take()
        intents.post([Intent(Kind.PAIR, number, (strategy.whole("x"),))], state)
        handoff.lend(TakeView(number, posted[-1].number))
        (ready,) = _answers(handoff, pauses)
        assert isinstance(ready, SlotReady)
        slots.hand_over(ready.slot, ready.generation, Owner.WORKER)
        handoff.take(Apply(ready.slot, ready.generation, _XID, Partner(_PEER, 0, 0)))
        handoff.merge_due(0, at_once=True)
        _answers(handoff, pauses)
    waits_s = pauses.take()
    return {
        "params": n_params,
        "pause_ms_p50": 1e3 * statistics.median(waits_s),
        "pause_ms_max": 1e3 * max(waits_s),
        "steps_held_up": len(waits_s) / exchanges,
    }


def _answers(handoff: Handoff, pauses: Pauses) -> list[Told]:
    """Go on as a loop does between its steps, until all is done."""
    answers: list[Told] = []
    while handoff.is_working:
        with pauses.measured(is_training=True):
            answers += handoff.go_on(pauses.is_over)
        pauses.begin_step()
    return answers


class _Slots(Segment):
    """One slot, whose halves are the same memory, a little apart: so it takes half of it."""

    def __init__(self, numel: int) -> None:
        super().__init__(Segment.create().fd)
        self.format(2, 1)
        self._bytes = numel * _FLOAT32_BYTES
        self._memory = mmap.mmap(-1, self._bytes + _SLOT_GAP_BYTES)

    def halves(self, slot: int) -> tuple[memoryview, memoryview]:
        """Return (own views, what came)."""
        assert slot == 0, "there is one"
        view = memoryview(self._memory)
        return view[: self._bytes], view[_SLOT_GAP_BYTES:]
