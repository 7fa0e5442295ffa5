"""The Strategy: what an algorithm decides, and the vector math it does.

The worker's loop calls a strategy only between two optimizer steps, so nothing here needs
a lock. The engine around it owns matching, atomic exchange, codecs and pacing.

::

    after_step(step) --Intent--> view(intent, out=slot) ... engine exchanges ... apply(delta)
                                                                             or  on_abort(intent)

``delta`` is m = x̂_partner − x̂_own: both as they were when sent, both after the codec. A
strategy adds to the parameters, it never overwrites them: the steps that were taken while
the exchange was under way survive.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from swarmnode.ipc.settings import Settings, parse_settings


@dataclass(frozen=True)
class Intent:
    """A wish to exchange ``view`` with a peer.

    ``round`` orders one node's intents; peers need not agree on it for pairs.
    """

    round: int
    view: str = "x"


class Strategy(ABC):
    """One training algorithm over the flat parameters ``x``: float32 [numel].

    Borrows: ``x`` is the storage of the model itself, changed in place.
    """

    name: ClassVar[str]
    Config: ClassVar[type[Settings]] = Settings
    config: Any  # narrowed to its own Config by each strategy

    def __init__(self, settings: dict[str, Any], x: torch.Tensor) -> None:
        """Raises ConfigError: a setting is unknown or out of range."""
        self.config = parse_settings(settings, self.Config, owner=f"strategy {self.name}")
        self.x = x

    def buffers(self) -> Mapping[str, torch.Tensor]:
        """Return the tensors beside ``x`` that a snapshot must hold, by name."""
        return {}

    def shipped(self) -> Collection[str]:
        """Return the names of those buffers that a joiner takes from a peer's snapshot.

        One that is about this node alone, such as the residual of a codec's error feedback,
        would be wrong anywhere else.
        """
        return self.buffers().keys()

    def join(self, received: Mapping[str, torch.Tensor]) -> None:
        """Set the buffers of a node that begins with a peer's snapshot, ``x`` being set already.

        Args:
            received: of the :meth:`shipped` buffers those that the snapshot has in this shape.
        """
        buffers = self.buffers()
        for name, tensor in received.items():
            buffers[name].copy_(tensor)

    @abstractmethod
    def after_step(self, step: int) -> Intent | None:
        """Return an intent if ``step`` (the number of steps done) makes one due."""

    @abstractmethod
    def view(self, intent: Intent, out: torch.Tensor) -> None:
        """Copy what is to be sent into ``out``: float32 [numel], on the CPU."""

    @abstractmethod
    def apply(self, intent: Intent, delta: torch.Tensor) -> None:
        """Merge a committed exchange. ``delta``: float32 [numel] on the CPU, may be overwritten."""

    def on_abort(self, intent: Intent) -> None:  # noqa: B027  doing nothing is right for most
        """Take note that nothing came of ``intent``; training simply goes on."""
