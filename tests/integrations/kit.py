"""A small model and two nodes whose programs train it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from swarmnode.config import Paths
from swarmnode.processes.audit import audit_histories
from tests.kits.daemon_kit import free_port

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
