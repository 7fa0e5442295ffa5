"""Pair averaging: every H steps, or as a Poisson clock rings, a node meets one peer halfway.

Source: X. Lian, W. Zhang, C. Zhang, J. Liu, "Asynchronous Decentralized Parallel Stochastic
Gradient Descent", ICML 2018 (AD-PSGD)::

    m = x̂_partner − x̂_own          both as they were when sent, after the codec
    x ← x + m/2                    or the merge rule's mean of the two, minus x̂_own

In IEEE arithmetic (a − b)/2 and (b − a)/2 are exact negatives, so the swarm's sum is kept to the
rounding of two additions, whatever steps were taken in flight, and other exchanges with them.
Deviation from the paper: partners exchange atomically, one exchange at a time per node, where the
paper lets the passive side average with stale parameters. Among strangers each pair is weighed
before it counts, and m may be clipped on either side (merging/safe_merge.py): then the two
additions are not exact negatives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    Sent,
    StepInfo,
    Strategy,
)
from swarmnode.strategies.kinds import RandomPairs
from swarmnode.strategies.merging.pieces import InPieces, copying, pieces_of
from swarmnode.strategies.merging.slot import PairMerge
from swarmnode.strategies.merging.variance_corrected import pair_pull
from swarmnode.strategies.weighing import Contact, WeighsPairs

_SAMPLE_ELEMS = 2**16  # of one's own vector, which no peer chooses: a norm within a percent


class Movement:
    """How far a node moves by itself in a round, over a sample of its parameters."""

    def __init__(self) -> None:
        self._began: torch.Tensor | None = None
        self.norm = 0.0  # of the last round; 0: there was none

    def begin_round(self, x: torch.Tensor) -> None:
        """A round is over, the next one begins: measure it."""
        now = _sample(x)
        if self._began is not None:
            scale = (x.numel() / now.numel()) ** 0.5
            self.norm = scale * float((now - self._began).norm())
        self._began = now

    def merge(self, x: torch.Tensor, at: slice, pulled: torch.Tensor) -> None:
        """Add to a piece of ``x``: what came from others is no movement of one's own.

        What was there before any round has begun is not looked at.
        """
        if self._began is None:
            x[at].add_(pulled)
            return
        stride = _stride(x)
        first = -(-at.start // stride)  # of the sample, in this piece
        sampled = x[first * stride : at.stop : stride]
        before = sampled.cpu().clone()
        x[at].add_(pulled)
        self._began[first : first + len(before)].add_(sampled.cpu() - before)


def _stride(x: torch.Tensor) -> int:
    return max(1, x.numel() // _SAMPLE_ELEMS)


def _sample(x: torch.Tensor) -> torch.Tensor:
    """Return some of the parameters, evenly spread: a copy on the CPU."""
    return x.detach()[:: _stride(x)].cpu().clone()


class PairAverage(WeighsPairs, RandomPairs, InPieces, Strategy):
    """Average with one peer at a time."""

    name = "pair-average"
    reads_in_passing = True
    adds_up = True

    class Config(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """``every``: the number H of local steps between two exchanges.

        ``rate``: exchanges per step that a node takes part in, at random times with random
        neighbours; 0: every H steps, by the matching of the round.
        ``merge``: the rule that makes one model of two, see strategies/merging.
        """

        every: PositiveInt = 8
        rate: Annotated[float, Range(ge=0.0, le=64.0)] = 0.0
        merge: PairMerge = "mean"

    config: Config

    def __init__(self, settings: dict[str, Any], x: torch.Tensor) -> None:
        super().__init__(settings, x)
        self._round = 0
        self._movement = Movement()

    def start(self, ctx: Context) -> None:
        had_guard = self.guard is not None  # on a graph: a round is not over as members change
        super().start(ctx)
        if self.guard is not None and not had_guard:
            self._movement.begin_round(self.x)  # the first who comes is weighed by it, too

    @classmethod
    def meeting(cls, config: Any) -> Meeting:
        return Meeting(Kind.PAIR, 1 / config.rate if config.rate else config.every, (Sent(),))

    def after_step(self, info: StepInfo) -> Sequence[Intent]:
        if info.step % self.config.every:
            return ()
        self._round = info.step // self.config.every
        if self.guard is not None:
            self._movement.begin_round(self.x)
        if self.config.rate:
            return ()
        return (Intent(Kind.PAIR, self._round, (self.whole("x"),)),)

    def node_rate(self) -> float:
        return float(self.config.rate)

    def answers(self) -> Sequence[Intent]:
        return super().answers() if self.config.rate else ()

    def viewing(self, intent: Intent, name: str, out: torch.Tensor) -> Iterator[int]:
        del intent, name  # there is one vector
        return copying(self.x, out)

    def applying(self, exchange: Exchange) -> Iterator[None]:
        own, theirs = exchange.sent["x"], exchange.partner.views["x"]
        if self.config.merge != "mean":  # by whole tensors, at once
            pulled = pair_pull(self.config.merge, own, theirs, self.ctx.layout)
            self._movement.merge(self.x, slice(0, self.x.numel()), pulled.to(self.x.device))
            return
        for at in pieces_of(self.x):
            pulled = pair_pull("mean", own[at], theirs[at], self.ctx.layout)
            self._movement.merge(self.x, at, pulled.to(self.x.device))
            yield

    # --- what the guard sees -------------------------------------------------------------

    def own_round(self) -> int:
        return self._round

    def contact(self, exchange: Exchange) -> Contact:
        own, theirs = exchange.sent["x"], exchange.partner.views["x"]

        def shifted(a: float) -> torch.Tensor:
            return self.x + a * (theirs - own).to(self.x.device)

        return Contact(own, theirs, self._movement.norm, shifted)
