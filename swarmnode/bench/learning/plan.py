"""What ``swarmnode bench learning`` is asked, and what an engine answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from swarmnode.bench.learning.jobs import Trained


@dataclass(frozen=True)
class Plan:
    """What is to be measured.

    Attributes:
        strategy: empty: the default of ``create``.
        data: folder of text; empty: what comes with the task.
    """

    nodes: int
    steps: int
    strategy: str
    settings: dict[str, Any] = field(default_factory=dict)
    data: str = ""


@dataclass(frozen=True)
class Swarm:
    """A swarm that was trained, whichever engine did; ``sent_bytes``: all that a node sent."""

    trained: Trained
    sent_bytes: float
    model_seed: int
