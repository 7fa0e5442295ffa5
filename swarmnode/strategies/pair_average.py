"""Pair averaging: every H steps a node meets one peer halfway.

Source: X. Lian, W. Zhang, C. Zhang, J. Liu, "Asynchronous Decentralized Parallel Stochastic
Gradient Descent", ICML 2018 (AD-PSGD).

Each side adds half of the difference of the two snapshots, m = x̂_partner − x̂_own, to the
parameters as they are by then. In IEEE arithmetic (a − b)/2 and (b − a)/2 are exact
negatives, so the swarm's sum is kept to the rounding of two additions, whatever steps were
taken in flight. Deviation from the paper: partners are matched atomically, one exchange at
a time per node, where the paper lets the passive side average with stale parameters.
"""

from __future__ import annotations

import torch

from swarmnode.ipc.settings import PositiveInt, Settings
from swarmnode.strategies.base import Intent, Strategy


class PairAverage(Strategy):
    """Average with one random peer every ``every`` steps."""

    name = "pair-average"

    class Config(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """``every``: the number H of local steps between two exchanges."""

        every: PositiveInt = 8

    config: Config

    def after_step(self, step: int) -> Intent | None:
        if step % self.config.every:
            return None
        return Intent(round=step // self.config.every)

    def view(self, intent: Intent, out: torch.Tensor) -> None:
        del intent  # there is only x to send
        out.copy_(self.x)

    def apply(self, intent: Intent, delta: torch.Tensor) -> None:
        del intent
        self.x.add_(delta.to(self.x.device), alpha=0.5)
