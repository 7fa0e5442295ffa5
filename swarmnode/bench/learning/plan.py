"""What ``swarmnode bench learning`` is asked, and what an engine answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from swarmnode.bench.learning.jobs import CONFIG, Trained


@dataclass(frozen=True)
class Plan:
    """What is to be measured.

    Attributes:
        strategy: empty: the default of ``create``.
        data: folder of text; empty: what comes with the task.
        config: of the task.
    """

    nodes: int
    steps: int
    strategy: str
    settings: dict[str, Any] = field(default_factory=dict)
    data: str = ""
    config: dict[str, Any] = field(default_factory=CONFIG.copy)

    @property
    def target_tokens(self) -> int:
        """Where a swarm that is to take all these steps ends: one batch beyond the last of them.

        At its target a swarm merges its models, and here each node's own is measured.
        """
        tokens_per_batch: int = self.config["batch"] * self.config["context"]
        return (self.steps * self.nodes + 1) * tokens_per_batch


@dataclass(frozen=True)
class Swarm:
    """A swarm that was trained, whichever engine did; ``sent_bytes``: all that a node sent."""

    trained: Trained
    sent_bytes: float
    model_seed: int
