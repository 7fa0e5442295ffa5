"""A2CiD2: pair averaging with a momentum on the averaging itself, for sparse graphs.

Source: A. Nabli, E. Belilovsky, E. Oyallon, "A2CiD2: Accelerating Asynchronous Communication in
Decentralized Deep Learning", NeurIPS 2023, and the authors' code. On a graph with chi1, chi2 (see
topology.py, rates in exchanges per local step) each node keeps a second vector x̃, x̃(0) = x(0)::

    between events    x' = η (x̃ − x),  x̃' = η (x − x̃)            η = 1 / (2√(chi1 chi2))
    local step        x −= v,  x̃ −= v                              v as the optimizer has it
    exchange          m = x̂_j − x̂_i,  x += ½ m,  x̃ += α̃ m          α̃ = ½ √(chi1 / chi2)

The flow is applied lazily: with e = exp(−2ηΔt), (x, x̃) become ((1+e)x + (1−e)x̃)/2 and
((1−e)x + (1+e)x̃)/2. Bytes are those of pair averaging, memory is one model more, and what a
ring of n nodes gains in mixing is a factor of √(chi1/chi2), about n/4. On a complete graph it
gains nothing. η α̃ = 1/(4 chi2): neither may be raised alone.

Deviations. In the authors' code two processes race on the same vector; here every change comes
between two steps. Their time unit, the mean time of an own step, is the engine's t. **The cap** is
ours: between two exchanges the flow advances by at most ``cap`` nominal intervals between
exchanges, 1/rate. The flow alone is what makes x̃ overshoot when fewer exchanges complete than
``rate`` promises, and without the cap that diverges; with it a partition is plain local training.
What is lost by it at the full rate is in tests/algorithms/test_a2cid2.py.

Conserved: Σ (x + x̃), by flow and exchanges, for any clocks and any cap.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Annotated, Any

import torch
from msgspec import Meta as Range

from swarmnode.ipc.settings import Settings
from swarmnode.strategies.base import (
    Context,
    Exchange,
    Kind,
    Meeting,
    Needs,
    Sent,
    Strategy,
)
from swarmnode.strategies.kinds import RandomPairs
from swarmnode.strategies.topology import complete_mixing


class A2CiD2(RandomPairs, Strategy):
    """Average with random neighbours; x and x̃ flow into each other meanwhile."""

    name = "a2cid2"
    needs = Needs.STEP

    class Config(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """``rate``: exchanges per local step that a node takes part in.

        ``cap``: how many intervals of 1/rate the flow may advance by between two exchanges;
        0: no cap, which diverges where exchanges fail.
        """

        rate: Annotated[float, Range(gt=0.0, le=64.0)] = 1.0
        cap: Annotated[float, Range(ge=0.0, le=1e6)] = 2.0

    config: Config

    def __init__(self, settings: dict[str, object], x: torch.Tensor) -> None:
        super().__init__(settings, x)
        self.x_tilde = x.clone()
        self.eta, self.alpha_tilde = 0.0, 0.5  # pair averaging, until the graph is known
        self._t = 0.0
        self._flowed = 0.0  # since the last exchange
        self._exchanges = 0

    @classmethod
    def meeting(cls, config: Any) -> Meeting:
        return Meeting(Kind.PAIR, 1 / config.rate, (Sent(),))

    def buffers(self) -> Mapping[str, torch.Tensor]:
        return {"x_tilde": self.x_tilde}

    def shipped(self) -> Collection[str]:
        return ()  # a peer's x̃ − x is about what that peer has been through

    def join(self, received: Mapping[str, torch.Tensor]) -> None:
        del received
        self.x_tilde.copy_(self.x)

    def start(self, ctx: Context) -> None:
        super().start(ctx)
        self._tune(len(ctx.members))

    def on_membership(self, members: tuple[bytes, ...]) -> None:
        self._tune(len(members))

    def _tune(self, n_members: int) -> None:
        """Take eta and α̃ of the graph; pair averaging where it has several parts."""
        rate, graph = self.config.rate, self.ctx.topology
        if graph is None:
            mixing = complete_mixing(n_members, rate)
        else:
            mixing = graph.with_node_rate(rate).mixing()
        if 0 < mixing.lambda2 < math.inf:
            self.eta = 1 / (2 * mixing.acceleration)
            self.alpha_tilde = math.sqrt(mixing.chi1 / mixing.chi2) / 2
        else:
            self.eta, self.alpha_tilde = 0.0, 0.5

    def flow(self, t: float) -> None:
        elapsed, self._t = t - self._t, t
        if self.config.cap:
            elapsed = min(elapsed, self.config.cap / self.config.rate - self._flowed)
        self._flowed += elapsed
        if elapsed <= 0:
            return
        # Both move by the same amount towards each other, so x + x̃ keeps its value.
        moved = (self.x_tilde - self.x).mul_(-math.expm1(-2 * self.eta * elapsed) / 2)
        self.x.add_(moved)
        self.x_tilde.sub_(moved)

    def local_update(self, v: torch.Tensor) -> None:
        self.x_tilde.sub_(v)

    def before_update(self, x: torch.Tensor) -> None:
        self.x_tilde.sub_(x)  # x̃ − x, which a step leaves as it is: no copy of x is needed

    def after_update(self, x: torch.Tensor) -> None:
        self.x_tilde.add_(x)

    def node_rate(self) -> float:
        return float(self.config.rate)

    def apply(self, exchange: Exchange) -> None:
        m = exchange.difference("x").to(self.x.device)
        self.x.add_(m, alpha=0.5)
        self.x_tilde.add_(m, alpha=self.alpha_tilde)
        self._flowed = 0.0
        self._exchanges += 1

    def metrics(self) -> dict[str, float]:
        nominal = self.config.rate * self._t
        return {
            "eta": self.eta,
            "alpha_tilde": self.alpha_tilde,
            "exchange_rate_ratio": self._exchanges / nominal if nominal else 1.0,
        }
