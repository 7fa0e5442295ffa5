"""Pairs of random neighbours at random times, for strategies that send one vector so.

Each node has a Poisson clock. Partners' clocks ring as well, so that a node starts half of the
exchanges that it takes part in; a node that is called answers with its state as of now.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch

from swarmnode.strategies.base import Intent, Kind, Selector, Strategy


class RandomPairs(Strategy):
    """Meet neighbours as a clock rings; see :meth:`node_rate`.

    Attributes:
        sends: the name of the vector.
        base_version: what it is a difference to, as in an intent.
    """

    sends: ClassVar[str] = "x"
    base_version: bytes = b""

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
                0,
                (self.whole(self.sends),),
                selector=Selector.NEIGHBOUR,
                base_version=self.base_version,
            ),
        )

    def view(self, intent: Intent, name: str, out: torch.Tensor) -> None:
        del intent, name  # there is one vector
        out.copy_(self.x)
