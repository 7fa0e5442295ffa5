"""Train as the rank 0 that this process is, and print what came of it as JSON.

Run as a process of its own: what torch knows of ranks stays in the process for good.
``python -m tests.process.worker.rank_losses CONFIGURE STEPS WAY…``, where a way is ``alone``,
``ddp`` or ``fsdp2``, or several with commas: each takes its share of the steps, and goes on from
the snapshot that the one before has left.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from swarmnode.ipc.control import Configure
from swarmnode.worker.model.prepare import prepare_state, prepare_strategy
from swarmnode.worker.model.state import TrainState
from swarmnode.worker.ranks.build import lead_state
from swarmnode.worker.ranks.state import LeaderState
from swarmnode.worker.ranks.team import Team
from swarmnode.worker.snapshots.snapshot import SnapshotStore
from swarmnode.worker.training.learn import local_step

MERGES = (10, 30)  # steps before which something else than the optimizer changes the vector


def main() -> None:
    """See the module."""
    wanted, n_steps = json.loads(sys.argv[1]), int(sys.argv[2])
    folder = Path(wanted.pop("folder"))
    torch.set_num_threads(1)
    print(json.dumps([run(wanted, folder / way, way.split(","), n_steps) for way in sys.argv[3:]]))


def run(wanted: dict[str, Any], folder: Path, ways: Sequence[str], n_steps: int) -> dict[str, Any]:
    """Train all steps in these ways, one after the other; return what came of it."""
    losses: list[float] = []
    result: dict[str, Any] = {}
    for way in ways:
        configure = Configure(
            **wanted,
            snapshot_dir=str(folder / "snapshots"),
            device="cpu",
            nproc=1 if way == "alone" else 2,
            parallel="fsdp2" if way == "fsdp2" else "ddp",
        )
        n = n_steps // len(ways)
        if way == "alone":
            result |= trained(prepare_state(configure), configure, losses, n)
            continue
        with Team(configure, 1) as team:
            result |= trained(lead_state(configure, team), configure, losses, n)
        torch.distributed.destroy_process_group()
    return result | {"losses": losses}


def trained(
    state: TrainState, configure: Configure, losses: list[float], n_steps: int
) -> dict[str, Any]:
    """Take steps, and save; return what is known of the state then, its losses put to others."""
    strategy = prepare_strategy(configure, state)
    with SnapshotStore(Path(configure.snapshot_dir)) as store:
        assert store.restore(state, strategy) == bool(losses)
        batches: Iterator[Any] = islice(state.task.batches(7), len(losses), len(losses) + n_steps)
        for batch in batches:
            if len(losses) in MERGES:
                with torch.no_grad():
                    state.arena.flat.mul_(0.9)
            losses.append(local_step(state, strategy, batch))
        store.save(state, strategy)
    x = float(state.arena.flat.norm())
    held = state.held_shares() if isinstance(state, LeaderState) else [1.0]
    return {"probe": state.evaluate(), "x": x, f"held {configure.parallel}": held}


if __name__ == "__main__":
    main()
