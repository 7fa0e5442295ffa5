"""Train a few steps as the rank 0 that this process is, and print what came of it as JSON.

Run as a process of its own: what torch knows of ranks stays in the process for good.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from swarmnode.ipc.control import Configure
from swarmnode.worker.model.prepare import prepare_state
from swarmnode.worker.model.state import TrainState
from swarmnode.worker.ranks.build import lead_state
from swarmnode.worker.ranks.state import LeaderState
from swarmnode.worker.ranks.team import Team


def main() -> None:
    """Train as the configuration in the first argument says, with the steps in the second."""
    wanted, n_steps = json.loads(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    results = []
    for parallel in wanted.pop("parallel").split():
        snapshots = str(Path(wanted["folder"]) / parallel / "snapshots")
        settings = {key: wanted[key] for key in wanted if key != "folder"}
        nproc = 1 if parallel == "alone" else 2
        mode = "ddp" if parallel == "alone" else parallel
        configure = Configure(
            **settings, snapshot_dir=snapshots, nproc=nproc, parallel=mode, device="cpu"
        )
        if nproc == 1:
            results.append(trained(prepare_state(configure), n_steps))
            continue
        with Team(configure, 1) as team:
            results.append(trained(lead_state(configure, team), n_steps))
        torch.distributed.destroy_process_group()
    print(json.dumps(results))


def trained(state: TrainState, n_steps: int) -> dict[str, Any]:
    """Return the losses of the steps, and of the probe behind them."""
    batches = state.batches(7)
    losses = [state.take_step(next(batches)) for _ in range(n_steps)]
    return {
        "losses": losses,
        "probe": state.evaluate(),
        "x": float(state.arena.flat.norm()),
        "held": state.held_shares() if isinstance(state, LeaderState) else [1.0],
    }


if __name__ == "__main__":
    main()
