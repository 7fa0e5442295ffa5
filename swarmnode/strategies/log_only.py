"""Strategies whose nodes send records of the log, and never a vector."""

from __future__ import annotations

from typing import Any

import torch

from swarmnode.errors import InvariantViolation
from swarmnode.strategies.base import Exchange, Intent, Kind, Meeting, Strategy


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
