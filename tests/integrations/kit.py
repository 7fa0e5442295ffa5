"""A small model and two nodes whose programs train it; models as the hub has them, exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from swarmnode.config import Paths
from swarmnode.processes.audit import audit_histories
from swarmnode.tasks.llama_lm import LlamaLM
from swarmnode.worker import offline
from swarmnode.worker.failures import answer
from swarmnode.worker.model.state import TrainState, build_state
from swarmnode.worker.snapshots.atoms import MODEL, about, weights
from swarmnode.worker.snapshots.restore import export_weights
from swarmnode.worker.tools.gguf import convert
from tests.kits.daemon_kit import free_port
from tests.kits.hub_kit import CONTEXT

QUIET = {"metrics": "off", "dashboard": "off", "lan": False}
SETTINGS = {"every": 4, "fragments": 2, "overlap": 1}
WIDTH = 16


def build_model(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))


def target(x: torch.Tensor) -> torch.Tensor:
    return (x[:, :4].sum(dim=1, keepdim=True)).sin()


def address() -> dict[str, Any]:
    return at(f"127.0.0.1:{free_port()}")


def at(here: str) -> dict[str, Any]:
    return {"listen": here, "advertise": (here,), **QUIET}


def history(home: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Paths(home).history.read_text().splitlines()]


def committed_on_both(nodes: dict[str, Path]) -> int:
    """Return how many exchanges two nodes committed; none may be half applied, or lost."""
    found = audit_histories({peer: history(home) for peer, home in nodes.items()})
    assert not found.half_applied
    assert found.lost_in_kill == 0
    return found.committed


def small_llama(data: Path | str = "", **settings: Any) -> TrainState:
    sizes = {"dim": 32, "layers": 2, "heads": 2, "head_dim": 16, "hidden": 48, "context": CONTEXT}
    task = LlamaLM(sizes | {"lr": 1e-2} | settings, data_dir=str(data))
    return after_steps(build_state(task, swarm_seed=3, device="cpu"))


def after_steps(state: TrainState) -> TrainState:
    batch = next(state.batches(1))
    for _ in range(3):
        state.take_step(batch)
    return state


def exported(state: TrainState, folder: Path, kind: str, *where: str) -> Path:
    """Export what a snapshot of ``state`` has, in a process's way."""
    tensors = {MODEL + name: tensor for name, tensor in weights(state.model).items()}
    export_weights(tensors, about(state), folder / "snapshot")
    arguments = [f"--format={kind}", *where, "--", str(folder / "snapshot"), str(folder / "out")]
    assert offline.main(["export", *arguments]) == 0
    return folder / "out"


def converted(out: Path) -> int:
    """Write the file for llama.cpp beside a model; return the exit status."""
    return answer(convert(out, out / "model.gguf"))
