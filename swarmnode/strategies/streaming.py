"""Streaming: fragments of pseudo-gradients to all members, or to a random one, in turn.

The production default, in groups. It joins two papers: A. Douillard et al., "Streaming DiLoCo with
overlapping communication", 2025 (fragments, overlap, mixing, 4-bit outer gradients) and
J. Kolehmainen et al., "NoLoCo", 2025 (an outer step that needs one partner). The model ``x`` holds
the fast weights θ; for each of P fragments there are slow weights φ_p and a momentum m_p. A round
is H local steps, and fragment p is due t_p = ⌊p H / P⌋ steps after it began::

    due        Δ_p = φ_p − θ_p                 sent as E3M0, with φ_p − reference at 8 bits
    τ later    g = −β mean(Δ̂) + γ (mean(φ̂) − φ̂_own),   over the two, or over a group; that of Δ
                                                       by the tokens behind each (contributions.py)
               m_p ← μ m_p + g
               φ_p ← φ_p + m_p                 Nesterov: φ_p + g + μ m_p
               θ_p ← a θ_p + (1 − a) φ_p       as an addition

Hats are payloads after the codec, the own one too, so that what two partners add for γ are exact
negatives. Without an overlap θ_p takes a step from φ_p − Δ̂_p, where the others take it to stand:
what the codec left out of Δ stays in θ, and is in the next Δ. So a coarse codec loses nothing of
what a node learnt, it is late. The reference is the model that all began from; its hash is the base
version, and peers with another one do not exchange. It keeps 8 bits a weight as good as 32.

By settings it is (tests/algorithms/test_streaming.py): NoLoCo: fragments 1, overlap 0,
local_share 0; DiLoCo: the same with meet group, gamma 0, nesterov; Streaming DiLoCo: meet group,
gamma 0, nesterov; pair averaging of every H steps: as NoLoCo with momentum 0, beta = gamma = 1.
With gamma 0 nothing but Δ is sent.

In groups all members present make one mean at a time, of the fragment whose turn it is by the
count of means before it. So slow weights have one lineage, and a node that missed a mean takes
over those of a peer (strategies/lineage.py): φ and m are the same bits for all that have not.

Deviations. An exchange that takes longer than τ steps counts as if it had come in time: what was
learnt since then survives whole, where the papers would keep the share a of it. A node without a
partner keeps training, with φ and m as they are. a is the share of the *local* weights. By default
τ and a are 0 in groups: what is learnt while a fragment is on its way survives, and counts for the
next mean, which is taken as it is: μ = 0, β = 1, so that a node's long time alone is not multiplied
when others come. A task that was measured may say otherwise (``Task.suited``): on bytes-lm outer
momentum loses more than it gains under AdamW, and gains under Muon. In pairs slow weights differ,
γ pulls them together, and other numbers are right.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

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
    TaskFacts,
    View,
)
from swarmnode.strategies.lineage import CATCH_UP, InLineage
from swarmnode.strategies.merging.slot import GroupMerge, PairMerge
from swarmnode.strategies.outer import (
    PAIR,
    Momentum,
    Rate,
    momentum_step,
    pull,
    refuse_fed_back,
    refuse_unstable,
    spell_codecs,
)
from swarmnode.strategies.rounds import Flights, Rounds, cut, layout_of, refuse_rounds
from swarmnode.strategies.weighing import WeighsRounds

Share = Annotated[float, Range(ge=0.0, le=1.0)]
CodecName = Annotated[str, Range(max_length=16)]

_FRAGMENTS_MAX = 64
# What is right where one peer is met at a time, and is not said: slow weights need a pull there,
# and less of the mean of two goes into the fast ones.
_IN_PAIRS = {
    "every": 32,
    "overlap": 2,
    "local_share": 0.5,
    "momentum": 0.5,
    "beta": 0.7,
    "gamma": 0.7,
    "nesterov": False,
    "merge": "mean",
}
# For a creator who says that each member has data of its own. Models then move apart within a
# round, so they meet more often, as a whole, and the outer step is longer. In the laboratory four
# nodes keep 96 % on four texts of the share that they reach on one, with the defaults 84 %
# (seed 1, tests/algorithms/test_uneven.py). A task that was measured says it better.
OWN_DATA = {"every": 16, "fragments": 1, "momentum": 0.5, "beta": 0.7}
_DIGEST_BYTES = 16  # of the reference, where a lineage has the other half of a base version


class Streaming(WeighsRounds, InLineage, Strategy):
    """Slow weights meet fragment by fragment; fast ones are mixed with them."""

    name = "streaming"
    version = 2
    reads_in_passing = True
    kinds = "pair group pull"
    momentum_buffer = "m"

    class Config(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """What the module's text names; the defaults are those of groups.

        ``every``: H. ``fragments``: P. ``overlap``: τ, local steps from sending to merging.
        ``local_share``: a. ``momentum``: μ. ``meet``: with one peer, or with all members present.
        ``delta_codec``, ``weights_codec``: of Δ and of φ; empty: the swarm's.
        ``reference``: whether φ is sent as its difference to the common one.
        ``merge``: the rule for mean(Δ̂) in groups, or for mean(φ̂) in pairs without a reference,
        see strategies/merging. ``lengthen``: after so many means of a group rounds grow, see
        strategies/lineage.py; 0: they do not.
        """

        every: PositiveInt = 20
        lengthen: Annotated[int, Range(ge=0, le=1_000_000)] = 0
        fragments: Annotated[int, Range(ge=1, le=_FRAGMENTS_MAX)] = 4
        overlap: Annotated[int, Range(ge=0, le=1000)] = 0
        local_share: Share = 0.0
        momentum: Momentum = 0.0
        beta: Rate = 1.0
        gamma: Rate = 0.0
        nesterov: bool = True
        meet: Literal["pair", "group"] = "group"
        delta_codec: CodecName = "E3M0"
        weights_codec: CodecName = "Q8B64"
        reference: bool = True
        merge: PairMerge | GroupMerge = "sybil-mean"

    config: Config

    def __init__(self, settings: dict[str, Any], x: torch.Tensor) -> None:
        super().__init__(settings, x)
        self.phi, self.m = x.clone(), torch.zeros_like(x)
        self.reference = x.clone() if self.config.reference and self.config.gamma else None
        self.rounds = Rounds(self.config.every, self.config.fragments, grow=True)
        self.begin_lineage(self.config.beta, self.config.lengthen)
        self._base_version = b""
        self._flights = Flights(self.config.overlap)

    @classmethod
    def parse(cls, settings: dict[str, Any]) -> Any:
        unsaid = _IN_PAIRS if settings.get("meet") == "pair" else {}
        return super().parse(unsaid | spell_codecs(settings, "delta_codec", "weights_codec"))

    @classmethod
    def check(cls, config: Any, facts: TaskFacts) -> None:
        del facts
        refuse_rounds(cls.name, config.every, config.fragments, config.overlap)
        if config.meet == "pair" or config.merge == "variance-corrected":  # the default is neither
            from swarmnode.strategies.merging.variance_corrected import refuse_relatives

            refuse_relatives(config)
        refuse_fed_back(cls.name, config.delta_codec, config.weights_codec)
        group_size = PAIR if config.meet == "pair" else 0
        refuse_unstable(
            cls.name, config.momentum, config.gamma, group_size, nesterov=config.nesterov
        )

    @classmethod
    def meeting(cls, config: Any) -> Meeting:
        delta = Sent(config.delta_codec, is_difference=True)
        phi = Sent(config.weights_codec, is_difference=config.reference)
        sent = (delta, phi) if config.gamma else (delta,)
        return Meeting(Kind.PAIR if config.meet == "pair" else Kind.GROUP, config.every, sent)

    def buffers(self) -> Mapping[str, torch.Tensor]:
        found = {"phi": self.phi, "m": self.m, "rounds": self.rounds.state}
        if self._in_groups:
            found["lineage"] = self.lineage
        return found if self.reference is None else {**found, "reference": self.reference}

    def start(self, ctx: Context) -> None:
        super().start(ctx)
        self.fragments = cut(ctx.layout, self.config.fragments)
        if self.reference is not None:
            self._base_version = hashlib.sha256(self.reference.cpu().numpy().data).digest()

    def payload_numel(self) -> int:
        largest = max(fragment.numel for fragment in self.fragments)
        return super().payload_numel() if self._in_groups else 2 * largest

    def answers(self) -> Sequence[Intent]:
        return super().answers() if self._in_groups else ()

    @property
    def _in_groups(self) -> bool:
        return bool(self.config.meet == "group")

    # --- when, and what ------------------------------------------------------------------

    def after_step(self, info: StepInfo) -> Sequence[Intent]:
        self._flights.note_step(info.step, self.x)
        if self._in_groups:
            return self.means_due(info)
        self.contributions.note_step(info.tokens)
        due = [each for each in self.rounds.due(info.step) if each[0] < len(self.fragments)]
        return [self._intent(fragment, number) for fragment, number in due]

    def _meet(self, round_number: int) -> Intent:
        # The first one's turn was before the first step.
        return self._intent((int(self.lineage[0]) + 1) % len(self.fragments), round_number)

    @property
    def _base(self) -> bytes:
        if not self._in_groups:
            return self._base_version
        return self._base_version[:_DIGEST_BYTES] + self._version

    def _intent(self, fragment: int, round_number: int) -> Intent:
        c, numel = self.config, self.fragments[fragment].numel
        delta = View("delta", c.delta_codec, 0, numel)
        phi = View("phi", c.weights_codec, 0, numel)
        return Intent(
            kind=Kind.GROUP if self._in_groups else Kind.PAIR,
            round=round_number,
            views=(delta, phi) if c.gamma else (delta,),
            tag="outer",
            fragment=fragment,
            selector=Selector.ALL if self._in_groups else Selector.MATCHING,
            apply_after_steps=c.overlap,
            base_version=self._base,
            lineage=int(self.lineage[0]) if self._in_groups else None,
            weight=self.contributions.weight(fragment, self.rounds.n_fragments),
            merge=self.merge_rule if self._in_groups else "mean",
        )

    def viewing(self, intent: Intent, name: str, out: torch.Tensor) -> Iterator[int]:
        if intent.tag == CATCH_UP:
            yield from self.giving(name, out)
            return
        fragment = self.fragments[intent.fragment]
        if name == "delta":
            self._flights.begin(intent.fragment, fragment, self.x)
        for at, part in fragment.pieces(out):
            stands = self.x if name == "delta" else self.reference
            phi = self.phi[part]
            out[at].copy_(phi if stands is None else phi - stands[part])
            yield at.stop
        self.contributions.begin(intent.fragment)

    # --- the outer step ------------------------------------------------------------------

    def applying(self, exchange: Exchange) -> Iterator[None]:
        if exchange.intent.tag == CATCH_UP:
            yield from self.taking_over(exchange)
            return
        x_due = self._flights.end(exchange.intent.fragment)
        if not self._in_groups or self.is_ours(exchange):  # else it is of slow weights that it left
            yield from self._stepping(exchange, x_due)
            if self._in_groups:
                self.extend(exchange)
            else:
                self.contributions.merged(exchange.intent.fragment)
        self.note_ended(exchange)

    def _stepping(self, exchange: Exchange, x_due: torch.Tensor) -> Iterator[None]:
        """Take the outer step of a fragment.

        ``x_due``: its fast weights as they were when due, of as many elements as were. Without an
        overlap it is what others make of the payload, φ − Δ̂, that counts: what the codec left out
        of it stays in the fast weights, and is in the next one.
        """
        c, fragment = self.config, self.fragments[exchange.intent.fragment]
        layout = layout_of(fragment, self.ctx.layout) if c.merge == "variance-corrected" else None
        whole = None if layout is None else pull(exchange, c.beta, c.gamma, layout)  # at once
        for at, part in fragment.pieces(self.x):
            g = pull(exchange.part(at), c.beta, c.gamma) if whole is None else whole[at]
            x, phi, m = self.x[part], self.phi[part], self.m[part]
            taken = x_due[at] if at.stop <= len(x_due) else x
            if not c.overlap:
                taken = phi - exchange.sent["delta"][at].to(x.device)
            phi.add_(momentum_step(m, g.to(x.device), c.momentum, nesterov=c.nesterov))
            x.add_(phi - taken, alpha=1 - c.local_share)
            yield

    def on_abort(self, intent: Intent, why: str) -> None:
        super().on_abort(intent, why)
        if intent.tag != CATCH_UP:
            self._flights.end(intent.fragment)
        if not self._in_groups:
            self.contributions.note_missed(1)

    def metrics(self) -> dict[str, float]:
        return {
            **(super().metrics() if self._in_groups else {}),
            "momentum_norm": float(self.m.norm()),
            "delta_norm": float((self.phi - self.x).norm()),
        }
