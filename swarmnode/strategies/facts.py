"""What a task says of itself to an algorithm."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TaskFacts:
    """What of a task decides whether an algorithm is fit for it.

    ``strong_convexity`` (mu) and ``smoothness`` (L) are bounds over all nodes' objectives, None
    where nobody knows them, as for every neural network.
    """

    name: str
    strong_convexity: float | None = None
    smoothness: float | None = None
