"""DiLoCo: all members present average pseudo-gradients and take one Nesterov step.

Source: A. Douillard et al., "DiLoCo: Distributed low-communication training of language models",
2023; the eager form: S. Kale, A. Douillard, Y. Donchev, "Eager updates for overlapped communication
and computation in DiLoCo", 2025. Fast weights θ (the model, ``x``), slow ones φ, momentum b. After
H local steps, with Δ = φ − θ and its mean over the M nodes that are present::

    b ← μ b + Δ̄                φ ← φ − lr (Δ̄ + μ b)                θ ← φ

The eager form does not wait for Δ̄. It steps at once, with its own fresh share and the others'
share of the round before, which has arrived meanwhile::

    Δ_i(t)/M  +  ( Δ̄(t−1) − Δ_i(t−1)/M )      in place of Δ̄

Its replicas differ by their last own share. Lower lr or momentum than without it: with lr 0.4,
momentum 0.9 it costs a little, while waiting a whole round for Δ̄ is far worse
(tests/algorithms/test_diloco.py).

Deviations. The paper's barrier is a round that closes over the members that came; training goes on
meanwhile, and θ ← φ is added as φ − (φ_before − Δ̂): what the codec left out of Δ stays in θ, and
is in the next Δ. A node that a round closes without has another φ than the others, and catches up:
slow weights have a lineage (strategies/lineage.py). An outer step that is due while one is on its
way is taken after it, never beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import torch
from msgspec import Meta as Range

from swarmnode.ipc.settings import PositiveInt, Settings
from swarmnode.strategies.base import (
    Context,
    Exchange,
    Intent,
    Kind,
    Meeting,
    Selector,
    Sent,
    StepInfo,
    Strategy,
)
from swarmnode.strategies.lineage import CATCH_UP, InLineage
from swarmnode.strategies.merging.pieces import copying, pieces_of
from swarmnode.strategies.merging.slot import GroupMerge
from swarmnode.strategies.outer import Momentum, momentum_step
from swarmnode.strategies.rounds import Rounds

_WHOLE = slice(None)


class DiLoCo(InLineage, Strategy):
    """One outer step over all members present, after it has come or eagerly."""

    name = "diloco"
    version = 2

    class Config(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """``every``: H. ``lr``, ``momentum``: of the outer step. ``eager``: do not wait for it.

        ``merge``: the rule for Δ̄, see strategies/merging.
        """

        every: PositiveInt = 100
        lr: Annotated[float, Range(gt=0.0, le=2.0)] = 0.7
        momentum: Momentum = 0.9
        eager: bool = False
        merge: GroupMerge = "sybil-mean"

    config: Config

    def __init__(self, settings: dict[str, Any], x: torch.Tensor) -> None:
        super().__init__(settings, x)
        self.phi = x.clone()
        self.b = torch.zeros_like(x)
        self.rounds = Rounds(self.config.every)
        self.begin_lineage(self.config.lr)
        self._n_members = 1
        self._sent: torch.Tensor | None = None  # eager: Δ of the round that began
        self._others: torch.Tensor | None = None  # eager: Δ̄(t−1) − Δ_own(t−1)/M, on the CPU
        self._has_stepped = False
        self.reads_in_passing = not self.config.eager  # whose outer steps come after local ones

    @classmethod
    def meeting(cls, config: Any) -> Meeting:
        return Meeting(Kind.GROUP, config.every, (Sent(is_difference=True),))

    def buffers(self) -> Mapping[str, torch.Tensor]:
        return {**self.lineage_buffers(), "rounds": self.rounds.state}

    def start(self, ctx: Context) -> None:
        super().start(ctx)
        self._n_members = len(ctx.members)
        self._has_stepped = bool(self.lineage[0])

    def on_membership(self, members: tuple[bytes, ...]) -> None:
        self._n_members = len(members)

    # --- when, and what ------------------------------------------------------------------

    def after_step(self, info: StepInfo) -> Sequence[Intent]:
        return self.means_due(info)

    def _meet(self, round_number: int) -> Intent:
        if self.config.eager:
            self._begin_eagerly()
        return Intent(
            Kind.GROUP,
            round_number,
            (self.whole("delta"),),
            tag="outer",
            selector=Selector.ALL,
            base_version=self._base,
            lineage=int(self.lineage[0]),
            merge=self.merge_rule,
        )

    def weight(self, intent: Intent) -> float:
        # Eager steps count on a share of one among so many for all members.
        return 1.0 if self.config.eager else super().weight(intent)

    def viewing(self, intent: Intent, name: str, out: torch.Tensor) -> Iterator[int]:
        if intent.tag == CATCH_UP:
            yield from self.giving(name, out)
        elif self.config.eager:
            assert self._sent is not None, "a round begins with the Δ that it sends"
            yield from copying(self._sent, out)
        else:
            for at in pieces_of(self.x):
                out[at].copy_(self.phi[at] - self.x[at])
                yield at.stop
            self.contributions.begin(intent.fragment)

    # --- the outer step ------------------------------------------------------------------

    def applying(self, exchange: Exchange) -> Iterator[None]:
        if exchange.intent.tag == CATCH_UP:
            if (yield from self.taking_over(exchange)):
                self._others = None
            return
        if self.is_ours(exchange):  # else it is a mean of slow weights that it left
            self._sent = None
            if self.config.eager:
                own = exchange.sent["delta"]
                others = exchange.mean["delta"].sub_(own, alpha=1 / len(exchange.present))
                self._others = others.clone()
            else:
                yield from self._stepping(exchange.mean["delta"], exchange.sent["delta"])
            self.extend(exchange)
        self.note_ended(exchange)

    def _stepping(self, delta: torch.Tensor, sent: torch.Tensor) -> Iterator[None]:
        for at in pieces_of(self.x):
            begun = self.phi[at] - sent[at].to(self.x.device)  # what the codec left out stays in x
            self._step(delta[at].to(self.x.device), at)
            self.x[at].add_(self.phi[at] - begun)
            yield

    def _begin_eagerly(self) -> None:
        """Take the step that does not wait, where the round before has given its mean."""
        delta = self.phi - self.x
        self._sent = delta
        if self._others is None and self._has_stepped:
            return  # the last round came to nothing: this one sends what both have learnt
        estimate = delta / self._n_members
        if self._others is not None:
            estimate.add_(self._others.to(self.x.device))
        self._step(estimate)
        self.x.add_(self.phi - self.x)
        self._others, self._has_stepped = None, True

    def _step(self, delta: torch.Tensor, at: slice = _WHOLE) -> None:
        moved = momentum_step(self.b[at], delta, self.config.momentum, nesterov=True)
        self.phi[at].sub_(moved, alpha=self.config.lr)

    def coasted(self, phi: torch.Tensor, momentum: torch.Tensor) -> torch.Tensor:
        still = torch.zeros_like(phi)
        moved = momentum_step(momentum.clone(), still, self.config.momentum, nesterov=True)
        return phi.sub(moved, alpha=self.config.lr)

    def _sketch(self) -> tuple[float, float] | None:
        # Steps that did not wait are in the slow weights of this node alone.
        return None if self.config.eager else super()._sketch()

    def on_abort(self, intent: Intent, why: str) -> None:
        super().on_abort(intent, why)
        if intent.base_version == self._base and intent.tag != CATCH_UP:  # else it has left it
            self._sent = None
