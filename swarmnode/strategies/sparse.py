"""Sparse: all members see the few largest changes of each of them, and take the same outer step.

Source: A. Sarfi, B. Thérien, J. Lidin, E. Belilovsky, "Communication efficient LLM pre-training
with SparseLoCo", 2025, arXiv 2508.15706, and the authors' code. Node k has shared weights φ, equal
on all nodes, a residual e of what it learnt and did not send, and its own weights θ::

    θ ← φ − ρ e                      H local steps from there, which change θ by −Δ
    e ← β e + Δ                      m = Q(top k of each 4,096 of e)
    e ← e − m                        φ ← φ − α mean_j clip(m_j)          over all members present

β < 1 stands in for outer momentum. Q has two bits for each element (TK2, ``proto/codecs.md``), clip
brings a message down to the median norm. Local steps go on while messages are on their way and
count in the next round.

Members may send what they like. So the mean of clipped messages, the source's, is one of two
candidates: the other is a trimmed mean of neighbourhoods, and the public probe takes the better one
(``merging/best_of.py``). ``merge`` names another rule.

Every message is seen by every member, so what was sent can be taken off the residual exactly; with
partners drawn at random it could not. All apply the same set in the same order, and the hash over φ
is part of the lineage: a member that came to other bits meets the others no more, is told so, and
takes over the slow weights that most have. So does one that has missed a round; its residual is
cleared, as it is about steps from weights that are no more.

Deviations: in the source ρ is 0, so that all that a node could not send is gone from its own
weights until it is sent. With few bytes that is most of what it learns; to keep half of it there is
worth several times the bytes (docs/strategies.md). The residual belongs to the whole vector, not to
each matrix, and so do chunks of 4,096. A member whose message was late although it took part keeps
its change in the residual. The source has no catching up: there a server holds the weights. With
``momentum`` μ the outer step is Nesterov's, of g = −α mean_j clip(m_j), for tasks that gain by it
with β and ρ at 1 (docs/strategies.md)::

    b ← μ b + g                      φ ← φ + g + μ b
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from msgspec import Meta as Range

from swarmnode import limits
from swarmnode.ipc.settings import PositiveInt, Settings
from swarmnode.strategies.base import (
    Exchange,
    Intent,
    Kind,
    Meeting,
    Message,
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
from swarmnode.strategies.merging.rules import find_rule
from swarmnode.strategies.merging.slot import GatherMerge, aggregate
from swarmnode.strategies.outer import Momentum
from swarmnode.strategies.rounds import InRounds, Rounds, Turns
from swarmnode.tensor import coded
from swarmnode.tensor.codec import get_codec

_CATCH_UP = "catch-up"
_EXACT = "RAW32"
_FLOAT32_BYTES = 4


class Sparse(InRounds, Strategy):
    """SparseLoCo without a server."""

    name = "sparse"
    version = 2

    class Config(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """``every``: H. ``kept``: k of each 4,096. ``lr``: α. ``decay``: β. ``own_share``: ρ.

        ``momentum``: μ.
        ``merge``: the rule for the messages of a round, see strategies/merging.
        """

        every: PositiveInt = 18
        kept: Literal[32, 64, 128, 256, 512] = 64
        lr: Annotated[float, Range(gt=0.0, le=8.0)] = 2.0
        decay: Annotated[float, Range(ge=0.0, le=1.0)] = 0.95
        own_share: Annotated[float, Range(ge=0.0, le=1.0)] = 0.5
        momentum: Momentum = 0.0
        merge: GatherMerge = "best-of"

    config: Config

    def __init__(self, settings: dict[str, Any], x: torch.Tensor) -> None:
        super().__init__(settings, x)
        self.phi = x.clone()
        self.e = torch.zeros_like(x)
        self.b = torch.zeros_like(x) if self.config.momentum else None
        self.rounds = Rounds(self.config.every)
        self.lineage = torch.zeros(2, dtype=x.dtype)  # outer steps, hash over them and their φ
        self._sent: torch.Tensor | None = None  # θ as of the view
        self._catch_ups = CatchUps()
        self._turns = Turns()

    @classmethod
    def meeting(cls, config: Any) -> Meeting:
        return Meeting(Kind.GATHER, config.every, (Sent(_codec(config), is_difference=True),))

    def buffers(self) -> Mapping[str, torch.Tensor]:
        found = {**self._shared(), "e": self.e}
        return {**found, "lineage": self.lineage, "rounds": self.rounds.state}

    def join(self, received: Mapping[str, torch.Tensor]) -> None:
        super().join(received)
        self.x.copy_(self.phi)  # what came has the residual of its node in it

    def shipped(self) -> Sequence[str]:
        # A residual is about its own node's steps.
        return (*self._shared(), "lineage", "rounds")

    def _shared(self) -> dict[str, torch.Tensor]:
        """Return what all members hold the same bits of."""
        return {"phi": self.phi} if self.b is None else {"phi": self.phi, "b": self.b}

    def check_received(self, received: Mapping[str, torch.Tensor]) -> str | None:
        lineage = received.get("lineage")
        why = super().check_received(received)
        return why or (None if lineage is None else lineage_refusal(lineage))

    def metrics(self) -> dict[str, float]:
        return {
            "catch_ups_refused": float(self._catch_ups.refused),
            "residual_norm": float(self.e.norm()),
        }

    def answers(self) -> Sequence[Intent]:
        return (self._catch_up(),)

    def payload_numel(self) -> int:
        """Room for the messages of all members, if those of a small model are longer than it."""
        size_bytes = coded.coded_bytes(get_codec(_codec(self.config)), self.x.numel())
        messages = -(-limits.GATHER_MEMBERS_MAX * size_bytes // _FLOAT32_BYTES)
        return max(self._catch_up().numel, messages)

    # --- when, and what ------------------------------------------------------------------

    def after_step(self, info: StepInfo) -> Sequence[Intent]:
        intents = self._catch_ups.due(self._catch_up)
        if self._turns.is_next_due(self.rounds, info.step, int(self.lineage[0])):
            self._turns.post(self._version)
            intents.append(self._gather())
        return intents

    def on_call(self, lineage: int) -> None:
        self._turns.call(lineage)

    def _gather(self) -> Intent:
        return Intent(
            Kind.GATHER,
            self.rounds.number,
            (self.whole("message", _codec(self.config)),),
            tag="sparse",
            selector=Selector.ALL,
            base_version=self._version,
            lineage=int(self.lineage[0]),
        )

    def view(self, intent: Intent, name: str, out: torch.Tensor) -> None:
        if intent.tag == _CATCH_UP:
            place = torch.tensor([*self.lineage.tolist(), self.rounds.number])
            out.copy_({**self._shared(), "place": place}[name])
            return
        self._sent = self.x.clone()
        out.copy_(self._fed_back(self._sent))

    def _fed_back(self, x_sent: torch.Tensor) -> torch.Tensor:
        """Return β e + Δ, where Δ = φ − ρ e − θ."""
        return (self.e * (self.config.decay - self.config.own_share)).add_(self.phi).sub_(x_sent)

    def _begin(self) -> torch.Tensor:
        """Return φ − ρ e, where local steps begin."""
        return torch.sub(self.phi, self.e, alpha=self.config.own_share)

    # --- the outer step ------------------------------------------------------------------

    def apply(self, exchange: Exchange) -> None:
        if exchange.intent.tag == _CATCH_UP:
            self._take_over(exchange)
            return
        self._turns.end(exchange.intent.base_version)
        if self._sent is None or exchange.intent.base_version != self._version:
            return  # a round of slow weights that it left
        x_sent, self._sent = self._sent, None
        self.e.copy_(self._fed_back(x_sent))
        if self.ctx.self_id in exchange.present:
            self.e.sub_(exchange.sent["message"].to(self.x.device))
        # On the CPU, and each operation rounded by itself: all members get the same bits.
        g = self._aggregate(exchange.messages).mul_(-self.config.lr)
        self._step(g.to(self.x.device, self.x.dtype))
        self.x.add_(self._begin().sub_(x_sent))
        extend_lineage(self.lineage, (*exchange.present, self._digest()))

    def _step(self, g: torch.Tensor) -> None:
        if self.b is not None:
            self.b.mul_(self.config.momentum).add_(g)
            g.add_(self.b * self.config.momentum)
        self.phi.add_(g)

    def _aggregate(self, messages: Sequence[Message]) -> torch.Tensor:
        loss_at = self.ctx.probe

        def loss_of(aggregate: torch.Tensor) -> float:
            assert loss_at is not None, "it is asked for only where there is a probe"
            step = aggregate.to(self.x.device, self.x.dtype)
            return loss_at(self.phi.sub(step, alpha=self.config.lr))

        rule = find_rule(self.config.merge if self.ctx.weighs else "clipped-mean")
        return aggregate(rule, messages, None if loss_at is None else loss_of)

    def _digest(self) -> bytes:
        return hashlib.sha256(self.phi.cpu().view(torch.uint8).numpy().data).digest()

    # --- rounds that others had, and this node had not ---------------------------------------

    @property
    def _version(self) -> bytes:
        return lineage_version(self.lineage)

    def on_abort(self, intent: Intent, why: str) -> None:
        del why
        if intent.tag == _CATCH_UP:
            self._catch_ups.note_unanswered()
        elif self._turns.end(intent.base_version):
            self._sent = None
            self._catch_ups.note_missed()

    def on_stray(self) -> None:
        self._catch_ups.is_stray = True

    def on_resume(self) -> None:
        self._catch_ups.note_missed()

    def _catch_up(self) -> Intent:
        return Intent(
            Kind.PULL,
            int(self.lineage[0]),
            (
                *(self.whole(name, _EXACT) for name in self._shared()),
                View("place", _EXACT, 0, PLACE_NUMEL, is_scaled=False),
            ),
            tag=_CATCH_UP,
            selector=Selector.NEIGHBOUR,
            base_version=self._version,
        )

    def accept(self, offer: Offer) -> str | None:
        if offer.intent.tag == _CATCH_UP and self._version <= offer.intent.base_version:
            return "round: its slow weights are as far as the ones here"
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
        before = self._begin()
        for name, held in self._shared().items():
            held.copy_(exchange.partner.views[name])
        self.e.zero_()
        self.x.add_(self.phi - before)
        self._sent = None
        self._turns.leave()
        self.lineage.copy_(torch.tensor([place.count, place.hashed]))


def _codec(config: Any) -> str:
    return "TK2" if config.kept == 64 else f"TK2K{config.kept}"
