"""A swarm of unequal nodes that learns a text in the laboratory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from swarmnode.strategies.registry import build_strategy
from swarmnode.tasks.text import load_corpus
from swarmnode.testing.lab.arena import Arena
from swarmnode.testing.lab.prose import Prose
from swarmnode.testing.learning.descent import AdamW, cosine

torch.set_num_threads(1)  # its vectors are small, and the tests run beside each other

Swarm = tuple[str, dict[str, Any]]
# Between two means the slowest node of these tests takes two steps.
GROUP: Swarm = (
    "streaming",
    {
        "meet": "group",
        "every": 40,
        "fragments": 2,
        "overlap": 0,
        "gamma": 0.0,
        "local_share": 0.0,
        "nesterov": True,
        "momentum": 0.5,
        "beta": 0.7,
    },
)

_LR = 0.016  # the best of those that were tried on such a model, for four nodes that average
_POINTS = 10_000  # into which a schedule is cut
_TURN = 5.0  # units of time between two looks at the tokens


def swarm_loss(
    swarm: Swarm,
    steps: int,
    speeds: Sequence[float] = (1.0,) * 4,
) -> float:
    """Return the mean loss of the nodes' own models after so many steps of all together.

    The learning rate decays by the steps of the swarm, as a recipe has it.
    """
    task = Prose(len(speeds), 1, (load_corpus(""),))
    arenas: list[Arena] = []
    rate = _schedule(_LR, lambda: arenas[0].tally.gradients / steps)
    arena = Arena(
        task,
        lambda x: build_strategy(*swarm, x),
        optimizer=AdamW(task.x, rate, (0.9, 0.95), 0.01),
        seed=1,
        speeds=speeds,
    )
    arenas.append(arena)
    while arena.tally.gradients < steps:
        left = steps - arena.tally.gradients
        arena.run(max(1.0, min(_TURN, left // sum(speeds))))
    return arena.measure()["own_loss"]


def _schedule(lr: float, progress: Callable[[], float]) -> Callable[[int], float]:
    rate = cosine(lr, _POINTS)
    return lambda _step: rate(int(_POINTS * min(1.0, progress())))
