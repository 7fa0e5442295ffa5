"""Pairs that are weighed: what a strategy shows its guard of an exchange, and asks it.

The guard is a pair rule (merging/safe_merge.py). It sees vectors as if they were models: what of a
payload has an effect, the own side of it, and what the public probe says in between. It is on
where the engine says so, see ``Context.weighs``, but for models that began apart.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch

from swarmnode.strategies.base import Context, Exchange, Intent, Kind, Offer, Strategy
from swarmnode.strategies.merging.slot import ACCEPTED, LossAlong, Pair, Verdict
from swarmnode.strategies.outer import learnt
from swarmnode.strategies.rounds import Fragment, Rounds

if TYPE_CHECKING:
    from swarmnode.strategies.merging.safe_merge import SafeMerge


@dataclass(frozen=True)
class Contact:
    """One exchange as a pair rule sees it.

    Attributes:
        own, theirs: [numel] on the CPU, as both were sent.
        moved: the norm of the own movement over the last round, in those elements; 0: not known.
        shifted: returns parameters [x.numel] that are those of this node now, plus so much of
            ``theirs - own``.
    """

    own: torch.Tensor
    theirs: torch.Tensor
    moved: float
    shifted: Callable[[float], torch.Tensor]


class WeighsPairs(Strategy):
    """A strategy whose pairs are weighed before they count.

    Attributes:
        guard: None: the engine wants nothing weighed, or there are no pairs.
    """

    guard: SafeMerge | None = None

    def start(self, ctx: Context) -> None:
        super().start(ctx)
        is_of_pairs = self.meeting(self.config).kind is Kind.PAIR
        if ctx.weighs and self.guard is None and is_of_pairs and not self.began_apart:
            # Groups are the default, and their workers do without it.
            from swarmnode.strategies.merging.safe_merge import SafeMerge

            self.guard = SafeMerge()

    @property
    def began_apart(self) -> bool:
        """Whether the swarm's rule is for models that have nothing in common.

        The mean of two such models is far from both and worse than either, so a guard would take
        nothing of any: eight real nodes that had exchanged 90 times each were as far apart as ever.
        """
        return getattr(self.config, "merge", "mean") == "variance-corrected"

    @abstractmethod
    def contact(self, exchange: Exchange) -> Contact:
        """Return a PAIR as the guard sees it."""

    @abstractmethod
    def own_round(self) -> int:
        """Return how many rounds this node has begun."""

    def accept(self, offer: Offer) -> str | None:
        guard = self.guard
        if guard is not None and guard.is_banned(offer.peer, self.own_round()):
            return "other: banned for a while, after what came of this peer was refused"
        return super().accept(offer)

    def weigh(self, exchange: Exchange) -> Verdict:
        if self.guard is None or exchange.intent.kind is not Kind.PAIR:
            return ACCEPTED
        ((peer, received),) = exchange.got.items()
        contact = self.contact(exchange)
        return self.guard.weigh(
            Pair(
                peer=peer,
                topic=_topic(exchange.intent),
                round=self.own_round(),
                their_round=received.meta.steps // max(1, int(self.config.every)),
                own=contact.own,
                theirs=contact.theirs,
                moved=contact.moved,
                loss_along=self._loss_along(contact),
                loss_trivial=self.ctx.loss_trivial,
            )
        )

    def on_abort(self, intent: Intent, why: str) -> None:
        if self.guard is not None:
            self.guard.aborted(_topic(intent))
        super().on_abort(intent, why)

    def _loss_along(self, contact: Contact) -> LossAlong | None:
        probe = self.ctx.probe
        if probe is None:
            return None
        # One evaluation for each a: the stages of a rule ask for the same ones.
        return cache(lambda a: probe(contact.shifted(a) if a else self.x))


class WeighsRounds(WeighsPairs):
    """A strategy of outer steps, the pairs of which are weighed by what of them has an effect.

    It has ``rounds``, and ``fragments`` where a pair is about a part of the vector.
    """

    rounds: Rounds
    fragments: tuple[Fragment, ...] = ()

    def own_round(self) -> int:
        return self.rounds.number

    def contact(self, exchange: Exchange) -> Contact:
        c = self.config
        own = learnt(exchange.sent, c.beta, c.gamma)
        theirs = learnt(exchange.partner.views, c.beta, c.gamma)

        def shifted(a: float) -> torch.Tensor:
            x, difference = self.x.clone(), (theirs - own).to(self.x.device)
            if self.fragments:
                self.fragments[exchange.intent.fragment].add(x, difference, alpha=a)
            else:
                x.add_(difference, alpha=a)
            return x

        return Contact(own, theirs, float(exchange.sent["delta"].norm()), shifted)


def _topic(intent: Intent) -> str:
    return f"{intent.tag}/{intent.fragment}"
