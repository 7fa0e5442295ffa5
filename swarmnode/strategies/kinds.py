"""What strategies share that exchange in one way only: random pairs, or the log alone.

Random pairs are for strategies that send one vector so. Each node has a Poisson clock. Partners'
clocks ring as well, so that a node starts half of the exchanges that it takes part in; a node that
is called answers with its state as of now. With the log alone nodes send records, never a vector.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from swarmnode.errors import InvariantViolation
from swarmnode.strategies.base import (
    SWARM_CODEC,
    Exchange,
    Intent,
    Kind,
    Meeting,
    Selector,
    Strategy,
    View,
)


class RandomPairs(Strategy):
    """Meet neighbours as a clock rings; see :meth:`node_rate`.

    Attributes:
        sends: the name of the vector; ``codec``: its own, if it has one.
        is_scaled: whether its numbers are of the size of weights.
        base_version: what it is a difference to, as in an intent.
        epoch: the round of all intents.
    """

    sends: ClassVar[str] = "x"
    codec: ClassVar[str] = SWARM_CODEC
    is_scaled: ClassVar[bool] = True
    base_version: bytes = b""
    epoch: int = 0

    @abstractmethod
    def node_rate(self) -> float:
        """Return how many exchanges per unit of ``t`` this node takes part in."""

    def clock_rate(self) -> float:
        return self.node_rate() / 2

    def on_clock(self, t: float) -> Sequence[Intent]:
        del t
        return self.answers()

    def answers(self) -> Sequence[Intent]:
        return (
            Intent(
                Kind.PAIR,
                self.epoch,
                (View(self.sends, self.codec, 0, self.x.numel(), self.is_scaled),),
                selector=Selector.NEIGHBOUR,
                base_version=self.base_version,
            ),
        )

    def view(self, intent: Intent, name: str, out: torch.Tensor) -> None:
        del intent, name  # there is one vector
        out.copy_(self.x)


class LogOnly(Strategy):
    """Publish after a step, and apply what ``on_records`` brings; there is no other exchange."""

    @classmethod
    def meeting(cls, config: Any) -> Meeting:
        del config
        return Meeting(Kind.LOG, 1.0, ())

    def payload_numel(self) -> int:
        return 1  # no vector is ever sent

    def view(self, intent: Intent, name: str, out: torch.Tensor) -> None:
        del intent, name, out
        raise InvariantViolation(f"{self.name}: records of the log are all that is sent")

    def apply(self, exchange: Exchange) -> None:
        del exchange
        raise InvariantViolation(f"{self.name}: records of the log are all that comes")
