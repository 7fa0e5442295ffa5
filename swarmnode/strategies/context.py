"""What an engine tells a strategy of where it is and of each local step, and what it asks for."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from swarmnode.tensor.layout import Layout

if TYPE_CHECKING:
    from swarmnode.strategies.topology import Graph

# Takes a function that returns the loss of this step's batch at ``x`` as it is at that moment,
# without gradients; returns the loss of the step, with ``x`` as it was. For zeroth-order methods.
Probe = Callable[[Callable[[], float]], float]
# Takes parameters [numel] on any device; returns their loss on the public probe, which is the same
# on every node, and leaves the model as it was. An evaluation: seconds, for a large model.
LossAt = Callable[[torch.Tensor], float]


class Needs(enum.StrEnum):
    """What of a local step :meth:`Strategy.local_update` must be told."""

    NOTHING = "nothing"  # the optimizer changes x; local_update is not called
    STEP = "step"  # the optimizer changes x; then v = x_before - x_after
    GRADIENT = "gradient"  # no optimizer: v is the gradient at x, the strategy changes x


@dataclass(frozen=True)
class StepInfo:
    """A local step that was taken: ``step`` of them so far, the last took ``seconds``.

    ``tokens``: that it learnt from; 1: all steps are alike.
    """

    step: int
    t: float  # units of own steps, see base.py
    loss: float
    seconds: float
    tokens: int = 1


@dataclass(frozen=True)
class TaskFacts:
    """What of a task decides whether an algorithm is fit for it.

    ``strong_convexity`` (mu) and ``smoothness`` (L) are bounds over all nodes' objectives, None
    where they are not known, as for every neural network.
    """

    name: str
    strong_convexity: float | None = None
    smoothness: float | None = None

    @property
    def is_convex(self) -> bool:
        """Whether exact averages are what is wanted, as the theory of convex problems has it."""
        return self.strong_convexity is not None


@dataclass(frozen=True)
class Context:
    """Where a strategy finds itself.

    Attributes:
        self_id: this node, 32 bytes.
        seed: the swarm's, the same on every node.
        rng: this node's own.
        layout: which tensor lies where in ``x``.
        members: ids of all members, this node among them, in ascending order.
        facts: what is known of the task.
        topology: the graph over ``members`` in their order, maybe of several parts; None:
            all members meet all others.
        probe: what parameters are worth, for rules that weigh what others send; None: this engine
            has no public probe.
        life: of this node; greater than that of an earlier one, unless clocks are wrong.
    """

    self_id: bytes
    seed: int
    rng: random.Random
    layout: Layout
    members: tuple[bytes, ...]
    facts: TaskFacts
    topology: Graph | None = None
    probe: LossAt | None = None
    weighs: bool = False
    loss_trivial: float | None = None
    life: int = 0

    @property
    def index(self) -> int:
        """Where this node stands among the members."""
        return self.members.index(self.self_id)
