"""Slow weights that a whole group averages: one lineage, and how a node catches up with it.

The means of a lineage come one after the other, and members that stand behind the same one make the
next together, whatever their steps and rounds are. A node has one mean on its way at a time::

    due after H steps -> posted -> (waits for the others) -> apply -> the next, at once if due
                               +-> abort -> asks a peer for its slow weights, if they are further;
                                            again when the next is due

A node that is due calls the others. Once half of all call, the others hand in what they have by
then, be it that a straggler has taken an eighth of the steps: none waits for it, and it counts by
its tokens (contributions.py).

Rounds may grow (``lengthen``): with c means behind a lineage, more than n, a round has
(1 + 1/n)^(c − n) times as many steps, which is an n-th of all that were taken, and ROUND_LONGER_MAX
times as many at most. What a swarm sends in a long training is that much less. Such rounds fit the
number of members too: a mean of N costs each 2 (N − 1) / N models, so a few may make more of them
for the same bytes, and begin to grow at about the same step.

A node that a mean was made without has other slow weights than the rest. So these have a version, a
count of means and a hash over the members that took part in them: only equal ones average. A node
of which nothing came asks a peer, and takes over what is further: φ, the momentum, the lineage, and
the number of the round. The steps that it took itself are kept, unless they do harm there: see
:meth:`InLineage._harm`. The engine tells a node that most are on another lineage
(protocol/gossip/lineages.py): then it takes over that one, be it that it has fewer means.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import torch

from swarmnode import limits
from swarmnode.strategies.base import (
    Context,
    Exchange,
    Intent,
    Kind,
    Offer,
    Selector,
    StepInfo,
    View,
)
from swarmnode.strategies.catch_up import (
    ANY_LINEAGE,
    PLACE_NUMEL,
    CatchUps,
    extend_lineage,
    harm_at,
    lineage_refusal,
    lineage_version,
    sketch,
)
from swarmnode.strategies.context import LossAt
from swarmnode.strategies.contributions import Contributions
from swarmnode.strategies.merging.pieces import InPieces, copying, pieces_of
from swarmnode.strategies.outer import momentum_step
from swarmnode.strategies.rounds import Fragment, InRounds, Turns

if TYPE_CHECKING:
    from swarmnode.strategies.merging.best_of import Trials

CATCH_UP = "catch-up"
_EXACT = "RAW32"


class InLineage(InRounds, InPieces):
    """A strategy whose slow weights ``phi``, and their momentum, a group averages.

    It makes the intent of a mean in :meth:`_meet`, and has :meth:`lineage_buffers` among its own.

    Class attributes:
        momentum_buffer: the name of the momentum among the attributes, and as it is sent.
    """

    momentum_buffer: ClassVar[str] = "b"

    phi: torch.Tensor
    fragments: tuple[Fragment, ...] = ()  # () where a mean is of the whole vector
    _keeps_learnt: bool  # of the answer that was weighed last

    def begin_lineage(self, outer_rate: float, lengthen: int = 0) -> None:
        """Begin with no mean behind the slow weights, which take so much of each.

        ``lengthen``: after so many means rounds grow; 0: they do not.
        """
        self.outer_rate, self._lengthen_after = outer_rate, lengthen
        self.lineage = torch.zeros(2, dtype=self.x.dtype)  # means, hash over their members
        self._catch_ups = CatchUps()
        self._turns = Turns()
        self.contributions = Contributions()
        self.merge_rule = "mean"  # by which means are made
        self._harm_probe: LossAt | None = None  # by which catch-ups are weighed
        self._paced_steps = self.round_steps()
        self._n_present = 0  # at the last mean; 0: this process has seen none
        self._is_common = True  # slow weights are those of all who are behind the same mean
        self._is_doubted = False  # they are not: a peer gave something else
        self._local_step = 0
        self._trials: Trials | None = None  # until there is something to try

    def start(self, ctx: Context) -> None:
        super().start(ctx)
        self._lengthen()  # of a node that goes on
        if ctx.weighs:
            self.merge_rule, self._harm_probe = self.config.merge, ctx.probe

    def set_round_steps(self, steps: int) -> None:
        self._paced_steps = steps
        self._lengthen()

    def _lengthen(self) -> None:
        """Let the next round be as long as the lineage has it."""
        n_means, after = int(self.lineage[0]), self._lengthen_after
        self.rounds.set_steps(lengthened(self._paced_steps, n_means, after, self._n_present))

    def lineage_buffers(self) -> Mapping[str, torch.Tensor]:
        """Return what a snapshot holds of it."""
        momentum = self.momentum_buffer
        return {"phi": self.phi, momentum: getattr(self, momentum), "lineage": self.lineage}

    def check_received(self, received: Mapping[str, torch.Tensor]) -> str | None:
        lineage = received.get("lineage")
        why = super().check_received(received)
        return why or (None if lineage is None else lineage_refusal(lineage))

    def metrics(self) -> dict[str, float]:
        return {"catch_ups_refused": float(self._catch_ups.refused)}

    def answers(self) -> Sequence[Intent]:
        return (self._catch_up(),)

    def payload_numel(self) -> int:
        return self._catch_up().numel

    # --- when ----------------------------------------------------------------------------

    def on_call(self, lineage: int) -> None:
        self._turns.call(lineage)

    def means_due(self, info: StepInfo) -> list[Intent]:
        """Return what this step makes due: a mean, unless one is on its way, or a question."""
        self._local_step = info.step
        self.contributions.note_step(info.tokens)
        intents = self._catch_ups.due(self._catch_up)
        if self._turns.is_next_due(self.rounds, info.step, int(self.lineage[0])):
            intent = replace(self._meet(self.rounds.number), sketch=self._sketch())
            self._turns.post(intent.base_version)
            intents.append(intent)
        return intents

    @abstractmethod
    def _meet(self, round_number: int) -> Intent:
        """Return the intent of the next mean, which begins now."""

    def _sketch(self) -> tuple[float, float] | None:
        """Return the sketch of the slow weights, where all behind the same mean have the same."""
        return sketch(self.phi, self._version) if self._is_common else None

    def weight(self, intent: Intent) -> float:
        return self.contributions.weight(intent.fragment, self.rounds.n_fragments)

    @property
    def _version(self) -> bytes:
        return lineage_version(self.lineage)

    @property
    def _base(self) -> bytes:
        """What a mean stands on: it ends with the version of the lineage."""
        return self._version

    def is_ours(self, exchange: Exchange) -> bool:
        """Whether a mean that has come is of the lineage as it is now."""
        return exchange.intent.base_version == self._base

    def note_ended(self, exchange: Exchange) -> None:
        """Take note that a mean is merged, or left out: the next one may follow."""
        self._turns.end(exchange.intent.base_version)

    def prefer(self, intent: Intent, begin: int, candidates: Sequence[torch.Tensor]) -> int:
        loss_at = self.ctx.probe
        if loss_at is None:
            return len(candidates) - 1
        if self._trials is None:
            # A swarm with the plain mean has no second candidate, and never comes here.
            from swarmnode.strategies.merging.best_of import Trials

            self._trials = Trials(self.ctx.rng)

        def loss_of(values: torch.Tensor) -> float:
            return loss_at(self._tried(intent.fragment, begin, values))

        return self._trials.prefer(self._local_step, candidates, loss_of)

    def _tried(self, fragment: int, begin: int, values: torch.Tensor) -> torch.Tensor:
        """Return the slow weights that would come of a part of a mean, alone: a copy.

        ``begin``: of the part, in the fragment; ``values``: on the CPU.
        """
        x = self.phi.clone()
        elements = self.fragments[fragment] if self.fragments else Fragment(((0, x.numel()),))
        step = x.new_zeros(elements.numel)
        step[begin : begin + values.numel()] = values
        elements.add(x, step, alpha=-self.outer_rate)
        return x

    def extend(self, exchange: Exchange) -> None:
        """Count a mean that was merged."""
        extend_lineage(self.lineage, exchange.present)
        self._n_present = len(exchange.present)
        self._lengthen()
        self.contributions.merged(exchange.intent.fragment)

    # --- means that others had, and this node had not ---------------------------------------

    def on_abort(self, intent: Intent, why: str) -> None:
        del why
        if intent.tag == CATCH_UP:
            self._catch_ups.note_unanswered()
        elif self._turns.end(intent.base_version):
            self._catch_ups.note_missed()

    def on_stray(self) -> None:
        self._catch_ups.is_stray = True

    def on_doubt(self) -> None:
        self._catch_ups.is_stray = self._is_doubted = True

    def on_resume(self) -> None:
        self._catch_ups.note_missed()

    def _catch_up(self) -> Intent:
        names = ("phi", self.momentum_buffer)
        views = (
            *(self.whole(name, _EXACT) for name in names),
            View("place", _EXACT, 0, PLACE_NUMEL, is_scaled=False),
        )
        return Intent(
            Kind.PULL,
            int(self.lineage[0]),
            views,
            tag=CATCH_UP,
            selector=Selector.NEIGHBOUR,
            base_version=self._version,
        )

    def accept(self, offer: Offer) -> str | None:
        if offer.intent.tag == CATCH_UP and self._version <= offer.intent.base_version:
            return "round: its slow weights are as far as the ones here"
        return None

    def giving(self, name: str, out: torch.Tensor) -> Iterator[int]:
        """Copy a view of the catch-up into ``out`` in pieces; none of it changes with a step."""
        place = torch.tensor([*self.lineage.tolist(), self.rounds.number])
        return copying(place if name == "place" else getattr(self, name), out)

    def coasted(self, phi: torch.Tensor, momentum: torch.Tensor) -> torch.Tensor:
        """Return slow weights after an outer step to which no node has anything to add."""
        c, still = self.config, torch.zeros_like(phi)
        return phi + momentum_step(momentum.clone(), still, c.momentum, nesterov=c.nesterov)

    def _harm(self, vectors: Mapping[str, torch.Tensor]) -> str | None:
        """Return why a peer's slow weights are refused, and see what is kept beside them.

        Steps that a node took alone and those that all others took meanwhile do not add up: beyond
        a round or two their sum is worse than either. If the node refused that, it would be
        out for good, and worse each time. So where its own steps do harm, they are left.

        What a node that has been in no mean has learnt alone may well be better than the first
        means of the others. It would stay apart, and they wait for it. So what it refuses is what
        is worse than the weights that all have begun with.
        """
        probe, self._keeps_learnt = self._harm_probe, True
        if probe is None:
            return None
        learnt = self.x - self.phi
        phi, momentum = (vectors[name].to(self.x.device) for name in ("phi", self.momentum_buffer))
        models = phi, self.coasted(phi, momentum)
        if harm_at(probe, self.x, (model + learnt for model in models)) is None:
            return None
        self._keeps_learnt = False
        return harm_at(probe, self.x if int(self.lineage[0]) else self.phi, models)

    def taking_over(self, exchange: Exchange) -> Generator[None, None, bool]:
        """Put a peer's slow weights under the steps that this node took since its own, in pieces.

        Returns: whether it did.
        """
        place = self._catch_ups.place_of(exchange, self.rounds.number, self.x, self._harm)
        if place is None:
            return False
        is_elsewhere, is_doubted = place.version != self._version, self._is_doubted
        self._is_doubted = False
        if exchange.intent.base_version == ANY_LINEAGE and is_elsewhere:
            self.rounds.go_to(place.round)
        else:
            self.rounds.catch_up(place.round)
            if place.version < self._version or not (is_elsewhere or is_doubted):
                return False
        keeps_learnt = self._keeps_learnt  # as of this answer, whatever comes meanwhile
        self._is_common = False  # until the last piece is there
        self.contributions.note_missed(place.count - int(self.lineage[0]))
        if not keeps_learnt:
            self.contributions.drop(self.rounds.n_fragments)
        theirs, momentum = exchange.partner.views, self.momentum_buffer
        for at in pieces_of(self.x):
            phi = theirs["phi"][at].to(self.x.device)
            if keeps_learnt:
                self.x[at].add_(phi - self.phi[at])
            else:
                self.x[at].copy_(phi)
            self.phi[at].copy_(phi)
            getattr(self, momentum)[at].copy_(theirs[momentum][at])
            yield
        self.lineage.copy_(torch.tensor([place.count, place.hashed]))
        self._is_common = True
        self._lengthen()
        if is_elsewhere:
            self._turns.leave()
        return True


def lengthened(steps: int, n_means: int, after: int, n_members: int = 0) -> int:
    """Return the steps of a round after so many means, of ``steps`` at first in a large swarm.

    ``after``: so many means, there; 0: never, and rounds are the same for any number of members.
    ``n_members``: that make a mean; 0: not known, as many as in a large swarm.
    """
    if not after:
        return steps
    if n_members > 1:
        first = math.ceil(steps * (n_members - 1) / n_members)
        after = after * steps // first
    else:
        first = steps
    # The exponent is bounded: a lineage of a million means must not overflow.
    grown = min(max(0, n_means - after), after * limits.ROUND_LONGER_MAX)
    growth = grown * math.log1p(1 / after)
    return int(first * min(math.exp(growth), limits.ROUND_LONGER_MAX))
