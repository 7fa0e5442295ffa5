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
meanwhile, and θ ← φ is added as φ − θ_sent. Whoever a round closes without has another φ than
the others. So slow weights have a *lineage*, a count of outer steps and a hash over who took
part in them: only equal ones average, and a node whose round came to nothing asks a peer for its
φ and b, which it gets where that lineage is further, and the number of the round, for only those
who are in the same one meet. The steps that it took itself are kept.
After a partition the side with more rounds wins, by the larger hash if both have as many. Two
parts of which each still closes rounds do not notice; the engine does, which knows the lineages of
all (protocol/gossip/lineages.py), and tells those on the one with fewer members: they take over
the other, be it that it has fewer rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    Offer,
    Selector,
    Sent,
    StepInfo,
    Strategy,
    View,
)
from swarmnode.strategies.catch_up import (
    ANY_LINEAGE,
    PLACE_NUMEL,
    CatchUps,
    extend_lineage,
    lineage_refusal,
    lineage_version,
)
from swarmnode.strategies.outer import Momentum, momentum_step
from swarmnode.strategies.rounds import InRounds, Rounds

_CATCH_UP = "catch-up"
_EXACT = "RAW32"


class DiLoCo(InRounds, Strategy):
    """One outer step over all who are present, after it has come or eagerly."""

    name = "diloco"

    class Config(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """``every``: H. ``lr``, ``momentum``: of the outer step. ``eager``: do not wait for it."""

        every: PositiveInt = 100
        lr: Annotated[float, Range(gt=0.0, le=2.0)] = 0.7
        momentum: Momentum = 0.9
        eager: bool = False

    config: Config

    def __init__(self, settings: dict[str, Any], x: torch.Tensor) -> None:
        super().__init__(settings, x)
        self.phi = x.clone()
        self.b = torch.zeros_like(x)
        self.rounds = Rounds(self.config.every)
        self.lineage = torch.zeros(2, dtype=x.dtype)  # outer steps, hash over who took part
        self._n_members = 1
        self._sent: torch.Tensor | None = None  # θ as of the view, or Δ where eager
        self._others: torch.Tensor | None = None  # eager: Δ̄(t−1) − Δ_own(t−1)/M, on the CPU
        self._awaits_mean = self._has_stepped = False
        self._catch_ups = CatchUps()

    @classmethod
    def meeting(cls, config: Any) -> Meeting:
        return Meeting(Kind.GROUP, config.every, (Sent(is_difference=True),))

    def buffers(self) -> Mapping[str, torch.Tensor]:
        found = {"phi": self.phi, "b": self.b}
        return {**found, "lineage": self.lineage, "rounds": self.rounds.state}

    def check_received(self, received: Mapping[str, torch.Tensor]) -> str | None:
        lineage = received.get("lineage")
        why = super().check_received(received)
        return why or (None if lineage is None else lineage_refusal(lineage))

    def metrics(self) -> dict[str, float]:
        return {"catch_ups_refused": float(self._catch_ups.refused)}

    def start(self, ctx: Context) -> None:
        super().start(ctx)
        self._n_members = len(ctx.members)
        self._has_stepped = bool(self.lineage[0])

    def on_membership(self, members: tuple[bytes, ...]) -> None:
        self._n_members = len(members)

    def answers(self) -> Sequence[Intent]:
        return (self._catch_up(),)

    def payload_numel(self) -> int:
        return self._catch_up().numel

    # --- when, and what ------------------------------------------------------------------

    def after_step(self, info: StepInfo) -> Sequence[Intent]:
        intents = self._catch_ups.due(self._catch_up)
        for _, number in self.rounds.due(info.step):
            if not self.config.eager:
                intents.append(self._meet(number))
            elif not self._awaits_mean:
                self._begin_eagerly()
                intents.append(self._meet(number))
        return intents

    def _meet(self, round_number: int) -> Intent:
        return Intent(
            Kind.GROUP,
            round_number,
            (self.whole("delta"),),
            tag="outer",
            selector=Selector.ALL,
            base_version=self._version,
            lineage=int(self.lineage[0]),
        )

    def view(self, intent: Intent, name: str, out: torch.Tensor) -> None:
        if intent.tag == _CATCH_UP:
            place = torch.tensor([*self.lineage.tolist(), self.rounds.number])
            out.copy_({"phi": self.phi, "b": self.b, "place": place}[name])
        elif self.config.eager:
            assert self._sent is not None, "a round begins with the Δ that it sends"
            out.copy_(self._sent)
        else:
            self._sent = self.x.clone()
            out.copy_(self.phi - self.x)

    # --- the outer step ------------------------------------------------------------------

    def apply(self, exchange: Exchange) -> None:
        if exchange.intent.tag == _CATCH_UP:
            self._take_over(exchange)
            return
        if exchange.intent.base_version != self._version:
            self._sent, self._awaits_mean = None, False  # a mean of slow weights that it left
            return
        delta = exchange.mean["delta"]
        if self.config.eager:
            own = exchange.sent["delta"]
            self._others = delta.sub_(own, alpha=1 / len(exchange.present))
            self._awaits_mean = False
        else:
            self._step(delta.to(self.x.device))
            x_sent = self.x if self._sent is None else self._sent
            self.x.add_(self.phi - x_sent)
        self._sent = None
        extend_lineage(self.lineage, exchange.present)

    def _begin_eagerly(self) -> None:
        """Take the step that does not wait, where the round before has given its mean."""
        delta = self.phi - self.x
        self._sent, self._awaits_mean = delta, True
        if self._others is None and self._has_stepped:
            return  # the last round came to nothing: this one sends what both have learnt
        estimate = delta / self._n_members
        if self._others is not None:
            estimate.add_(self._others.to(self.x.device))
        self._step(estimate)
        self.x.add_(self.phi - self.x)
        self._others, self._has_stepped = None, True

    def _step(self, delta: torch.Tensor) -> None:
        moved = momentum_step(self.b, delta, self.config.momentum, nesterov=True)
        self.phi.sub_(moved, alpha=self.config.lr)

    # --- rounds that others had, and this node had not ---------------------------------------

    @property
    def _version(self) -> bytes:
        return lineage_version(self.lineage)

    def on_abort(self, intent: Intent, why: str) -> None:
        del why
        if intent.tag != _CATCH_UP:
            self._sent, self._awaits_mean = None, False
            self._catch_ups.note_missed()

    def on_stray(self) -> None:
        self._catch_ups.is_stray = True

    def _catch_up(self) -> Intent:
        views = (
            self.whole("phi", _EXACT),
            self.whole("b", _EXACT),
            View("place", _EXACT, 0, PLACE_NUMEL, is_scaled=False),
        )
        return Intent(
            Kind.PULL,
            int(self.lineage[0]),
            views,
            tag=_CATCH_UP,
            selector=Selector.NEIGHBOUR,
            base_version=self._version,
        )

    def accept(self, offer: Offer) -> str | None:
        if offer.intent.tag == _CATCH_UP and self._version < offer.intent.base_version:
            return "round: its slow weights are further than the ones here"
        return None

    def _take_over(self, exchange: Exchange) -> None:
        """Put a peer's slow weights under the steps that this node took since its own."""
        place = self._catch_ups.place_of(exchange, self.rounds.number, self.x)
        if place is None:
            return
        if exchange.intent.base_version == ANY_LINEAGE and place.version != self._version:
            self.rounds.go_to(place.round)
        else:
            self.rounds.catch_up(place.round)
            if place.version <= self._version:
                return
        theirs = exchange.partner.views
        phi = theirs["phi"].to(self.x.device)
        self.x.add_(phi - self.phi)
        self.phi.copy_(phi)
        self.b.copy_(theirs["b"])
        self.lineage.copy_(torch.tensor([place.count, place.hashed]))
        self._others = None
