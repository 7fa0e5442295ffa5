"""Processes that save snapshots until they are killed, and say what was acknowledged.

``python -m tests.crash.checkpoint_writer FOLDER``

Importing torch takes longer than all that is tested, so one process does it once. For each line
on its standard input it forks one that goes on from the newest snapshot. That one says its
process id, then ``saved N`` for each step that is on disk. When it is dead, the first one says
``killed``, or with what status it ended.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import torch

from swarmnode.ipc.control import SnapshotSaved
from swarmnode.strategies.base import Exchange, Intent, Strategy
from swarmnode.tasks.synthetic import Synthetic
from swarmnode.worker.model.state import TrainState, build_state
from swarmnode.worker.snapshots.saver import Saver
from swarmnode.worker.snapshots.snapshot import SnapshotStore

DIM = 60_000  # 1 MB: most of the time goes into writing


class Keeping(Strategy):
    """A strategy with a vector of its own."""

    name = "keeping"

    def __init__(self, x: torch.Tensor) -> None:
        super().__init__({}, x)
        self.kept = torch.zeros_like(x)

    def buffers(self) -> dict[str, torch.Tensor]:
        return {"kept": self.kept}

    def view(self, intent: Intent, name: str, out: torch.Tensor) -> None: ...

    def apply(self, exchange: Exchange) -> None: ...


def new_node() -> tuple[TrainState, Keeping]:
    state = build_state(Synthetic({"dim": DIM}), swarm_seed=0, device="cpu")
    state.optimizer = torch.optim.AdamW(state.model.parameters())
    return state, Keeping(state.arena.flat)


def set_to(state: TrainState, strategy: Keeping, step: int) -> None:
    """Let everything follow from the step."""
    state.step, state.tokens = step, 3 * step
    state.arena.flat.fill_(step)
    strategy.kept.fill_(2 * step)
    (parameter,) = state.model.parameters()
    moments = {"exp_avg": torch.full_like(parameter, 4 * step), "step": torch.tensor(float(step))}
    state.optimizer.state[parameter] = moments | {"exp_avg_sq": torch.full_like(parameter, 1.0)}


def check(state: TrainState, strategy: Keeping) -> int:
    """Return the step of a restored node. Raises AssertionError if it is not all of that step."""
    step = state.step
    (moments,) = state.optimizer.state.values()
    assert state.tokens == 3 * step
    assert state.arena.flat.eq(step).all()
    assert strategy.kept.eq(2 * step).all()
    assert moments["exp_avg"].eq(4 * step).all()
    assert moments["step"] == step
    return step


def say(line: str) -> None:
    os.write(1, line.encode() + b"\n")


def save_for_ever(folder: Path) -> None:
    say(str(os.getpid()))
    state, strategy = new_node()

    def report(message: Any) -> None:
        assert isinstance(message, SnapshotSaved), message
        say(f"saved {message.step}")

    # What is read in passing is written in the same way as a copy, and in more parts.
    with SnapshotStore(folder, live_bytes_min=0) as store, Saver(store, report) as saver:
        step = check(state, strategy) if store.restore(state, strategy) else 0
        while True:
            step += 1
            set_to(state, strategy, step)
            saver.ask(step)
            saver.save_when_due(state, strategy, last=False, in_passing=True)
            assert saver._save is not None
            wait([saver._save.written])
            saver.save_when_due(state, strategy, last=False)


def main(folder: Path) -> None:
    torch.set_num_threads(1)  # a fork would not have the others
    new_node()  # torch imports half of itself when it is first used
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                save_for_ever(folder)
            finally:
                os._exit(70)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        say("killed" if status == -9 else f"ended with {status}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
