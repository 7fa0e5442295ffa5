"""NoLoCo: outer steps with momentum over random pairs; no node waits for all others.

Source: J. Kolehmainen, N. Blagoev, J. Donaghy, O. Ersoy, C. Nies, "NoLoCo: No-all-reduce low
communication training method for large models", 2025, and the authors' code. Each node has fast
weights θ (the model, ``x``), slow ones φ and a momentum m. After H local steps it meets one peer::

    Δ = φ − θ                                            of each of the two, as sent
    m ← μ m − β (w_i Δ̂_i + w_j Δ̂_j) + γ ½ (φ̂_j − φ̂_i)
    φ ← φ + m,   θ ← φ

The shares w are by the tokens behind each Δ, ½ where they are equal (contributions.py).
Two vectors go each way. The γ term is all that holds the swarm together: without it consensus
is that of nodes that never meet. With μ = ½, β = γ = 0.7 the slow weights of a drift-free random
walk vary by 1.3125 lr² H σ² (tests/algorithms/test_noloco.py).

Deviations. Paper and code block while they exchange; here training goes on, and θ ← φ is added as φ
− (φ_before − Δ̂), so that steps taken meanwhile survive, and what the codec left out of Δ. A node
without a partner keeps training, θ and φ as they are, and Δ grows, its weight with it: of all that
can be done without a partner that is best, and repeating the momentum alone explodes. In the paper
w is ½. **The stable region** on pairs is 0 < γ < 2 (1 − μ²) (outer.py); the paper's bound grows
with μ instead, and admits settings that diverge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from swarmnode.ipc.settings import PositiveInt, Settings
from swarmnode.strategies.base import (
    Exchange,
    Intent,
    Kind,
    Meeting,
    Sent,
    StepInfo,
    Strategy,
    TaskFacts,
)
from swarmnode.strategies.contributions import Contributions
from swarmnode.strategies.merging.pieces import InPieces, copying, pieces_of
from swarmnode.strategies.merging.slot import PairMerge
from swarmnode.strategies.outer import (
    PAIR,
    Momentum,
    Rate,
    momentum_step,
    pull,
    refuse_unstable,
)
from swarmnode.strategies.rounds import InRounds, Rounds
from swarmnode.strategies.weighing import WeighsRounds

_ALL = 0  # the one fragment that the model is


class NoLoCo(WeighsRounds, InRounds, InPieces, Strategy):
    """Pairs average pseudo-gradients and pull their slow weights together."""

    name = "noloco"
    reads_in_passing = True

    class Config(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """``every``: H, local steps of a round; ``momentum``: μ; ``beta``, ``gamma``: as above.

        ``merge``: the rule for the mean of the slow weights, to which γ pulls; see
        strategies/merging.
        """

        every: PositiveInt = 50
        momentum: Momentum = 0.5
        beta: Rate = 0.7
        gamma: Rate = 0.7
        merge: PairMerge = "mean"

    config: Config

    def __init__(self, settings: dict[str, Any], x: torch.Tensor) -> None:
        super().__init__(settings, x)
        self.phi = x.clone()
        self.m = torch.zeros_like(x)
        self.rounds = Rounds(self.config.every)
        self.contributions = Contributions()

    @classmethod
    def check(cls, config: Any, facts: TaskFacts) -> None:
        del facts
        refuse_unstable(cls.name, config.momentum, config.gamma, PAIR)

    @classmethod
    def meeting(cls, config: Any) -> Meeting:
        return Meeting(Kind.PAIR, config.every, (Sent(is_difference=True), Sent()))

    def buffers(self) -> Mapping[str, torch.Tensor]:
        return {"phi": self.phi, "m": self.m, "rounds": self.rounds.state}

    def payload_numel(self) -> int:
        return 2 * self.x.numel()

    def after_step(self, info: StepInfo) -> Sequence[Intent]:
        self.contributions.note_step(info.tokens)
        views = self.whole("delta"), self.whole("phi")
        weight = self.contributions.weight(_ALL)
        return [
            Intent(Kind.PAIR, number, views, tag="outer", weight=weight)
            for _, number in self.rounds.due(info.step)
        ]

    def viewing(self, intent: Intent, name: str, out: torch.Tensor) -> Iterator[int]:
        del intent
        if name == "phi":
            yield from copying(self.phi, out)
            return
        for at in pieces_of(self.x):
            out[at].copy_(self.phi[at] - self.x[at])
            yield at.stop
        self.contributions.begin(_ALL)

    def applying(self, exchange: Exchange) -> Iterator[None]:
        delta = exchange.sent["delta"]
        if self.config.merge == "variance-corrected":  # by whole tensors, at once
            g = pull(exchange, self.config.beta, self.config.gamma, self.ctx.layout)
            self._step(slice(0, self.x.numel()), g, delta)
        else:
            for at in pieces_of(self.x):
                g = pull(exchange.part(at), self.config.beta, self.config.gamma)
                self._step(at, g, delta[at])
                yield
        self.contributions.merged(_ALL)

    def _step(self, at: slice, g: torch.Tensor, delta: torch.Tensor) -> None:
        """Take the outer step of a piece, of which ``delta`` was sent."""
        g = g.to(self.x.device)
        x, phi, m = self.x[at], self.phi[at], self.m[at]
        begun = phi - delta.to(x.device)  # what the codec left out stays in the fast weights
        phi.add_(momentum_step(m, g, self.config.momentum, nesterov=False))
        x.add_(phi - begun)

    def on_abort(self, intent: Intent, why: str) -> None:
        super().on_abort(intent, why)
        self.contributions.note_missed(1)

    def metrics(self) -> dict[str, float]:
        return {"momentum_norm": float(self.m.norm())}
