"""The records of an exchange: what a strategy wants of others, what it is offered, what came of it.

:class:`Intent` and :class:`View` go from the strategy to the engine, :class:`Offer`,
:class:`Exchange` and :class:`Record` back. :class:`Meeting` says the same of whole settings, before
there is a swarm. Strategies find all of it in :mod:`swarmnode.strategies.base`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch

SWARM_CODEC = ""  # of a view: the codec that the swarm's manifest names


class Kind(enum.StrEnum):
    """What an exchange is."""

    PAIR = "pair"  # symmetric and atomic: both sides apply, or neither
    PULL = "pull"  # one side reads what the other published; the mean is not kept
    GROUP = "group"  # the mean over all members present, the same bits for each of them
    LOG = "log"  # tiny records, which all members see in the same rounds and order
    GATHER = "gather"  # the messages of all members present, the same ones for each of them


class Selector(enum.StrEnum):
    """Which members take part."""

    MATCHING = "matching"  # PAIR: the partner that the round's seeded matching gives, on the graph
    NEIGHBOUR = "neighbour"  # PAIR, PULL: any live one, with a graph weighted by its rates
    ALL = "all"  # GROUP, LOG, GATHER: every member that is alive


@dataclass(frozen=True)
class View:
    """One vector of a payload: elements ``begin`` to ``end`` (exclusive) of what ``name`` means.

    ``name`` is a word between the strategy and itself; ``codec`` one of the codecs' names.
    ``is_scaled``: its values are of the size of weights or less, and refused where they are not.
    """

    name: str
    codec: str
    begin: int
    end: int
    is_scaled: bool = True

    @property
    def numel(self) -> int:
        """Elements of the view."""
        return self.end - self.begin


@dataclass(frozen=True)
class Intent:
    """What a node wants to exchange; partners must agree in ``(tag, round, fragment)``.

    Attributes:
        round: counts this node's exchanges of ``tag``; with MATCHING it decides the partner.
        fragment: which part of the vector, from 0.
        views: what is sent, and what is expected in return; the same on both sides. A GATHER has
            one, which names its codec.
        apply_after_steps: tau, local steps from the view to ``apply`` at the least.
        group_size_max: GROUP: how many meet at once; 0 for all.
        round_skew_max: partners whose rounds are further apart do not exchange; None: any.
        base_version: what the views are differences to, by content hash; must be equal.
        lineage: GROUP, GATHER: how many means are behind ``base_version``, which then ends with the
            hash of a lineage: nodes on different ones do not meet, and the engine brings them
            together again, see :meth:`Strategy.on_stray`. None: it stands for no lineage.
        sketch: with a lineage, of the slow weights there, see strategies/catch_up.py: all members
            have the same, or the engine says so, see :meth:`Strategy.on_doubt`. None: not known.
        weight: of this node in a weighted mean, such as its tokens; above 0. In a GROUP what
            :meth:`Strategy.weight` says when the views are taken, and it counts up to
            GROUP_WEIGHT_MEDIANS_MAX times the median of those that are there.
        record: LOG: what is published, at most 64 bytes.
        merge: GROUP: the rule by which each part of the mean is made, see strategies/merging.
    """

    kind: Kind
    round: int
    views: tuple[View, ...] = ()
    tag: str = "gossip"
    fragment: int = 0
    selector: Selector = Selector.MATCHING
    apply_after_steps: int = 0
    group_size_max: int = 0
    round_skew_max: int | None = None
    base_version: bytes = b""
    lineage: int | None = None
    sketch: tuple[float, float] | None = None
    weight: float = 1.0
    record: bytes = b""
    merge: str = "mean"

    @property
    def numel(self) -> int:
        """Elements of all views together."""
        return sum(view.numel for view in self.views)


@dataclass(frozen=True)
class Meta:
    """What a node says about itself with a payload, at the moment of the view."""

    steps: int
    tokens: int
    t: float
    base_version: bytes = b""
    weight: float = 1.0


@dataclass(frozen=True)
class Offer:
    """A peer's intent, before anything was sent. ``meta`` is the peer's."""

    peer: bytes
    intent: Intent
    meta: Meta


@dataclass(frozen=True)
class Received:
    """A peer's payload after the codec: tensors [view.numel] by the name of the view."""

    views: Mapping[str, torch.Tensor]
    meta: Meta


@dataclass(frozen=True)
class Message:
    """GATHER: what ``author`` sent, as all members have it.

    ``parts`` decodes it anew each time, in parts of as many elements as those of all others:
    float32 on the CPU, the caller's own. So a merge rule may look at all of them twice without
    holding more than a part of each.
    """

    author: bytes
    parts: Callable[[], Iterator[torch.Tensor]]

    def read(self) -> torch.Tensor:
        """Return the whole: float32 [view.numel], the caller's own."""
        return torch.cat([*self.parts()])


@dataclass(frozen=True)
class Exchange:
    """What came of an intent.

    Attributes:
        intent: as it was posted; of an answer, with the round and base version of the peer's.
        meta: this node's own, at the moment of the view.
        sent: this node's own payload after the codec, by the name of the view.
        got: PAIR, PULL: the partner's payload, by its 32-byte id.
        mean: GROUP: the mean over ``present`` by weight, own payload included.
        present: GROUP, GATHER: whose payloads are in ``mean``, or ``messages``.
        steps_since: local steps taken since the view.
        messages: GATHER: of all in ``present``, in that order, the own one among them if it
            counts; valid during the call.
    """

    intent: Intent
    meta: Meta
    sent: Mapping[str, torch.Tensor]
    got: Mapping[bytes, Received]
    steps_since: int
    mean: Mapping[str, torch.Tensor] = field(default_factory=dict)
    present: tuple[bytes, ...] = ()
    messages: tuple[Message, ...] = ()

    @property
    def partner(self) -> Received:
        """PAIR, PULL: what the one other node sent."""
        (received,) = self.got.values()
        return received

    def part(self, at: slice) -> Exchange:
        """Return these elements of all views, in the same memory; they are of equal length."""
        return replace(
            self,
            sent=_part(self.sent, at),
            got={peer: replace(r, views=_part(r.views, at)) for peer, r in self.got.items()},
            mean=_part(self.mean, at),
        )

    def mapped(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Exchange:
        """Return this with ``change`` of each view that was sent or came; messages stay."""

        def mapped(views: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return {name: change(view) for name, view in views.items()}

        got = {peer: replace(each, views=mapped(each.views)) for peer, each in self.got.items()}
        return replace(self, sent=mapped(self.sent), got=got, mean=mapped(self.mean))

    def clip(self, share: float) -> None:
        """Bring what the partner sent as near to the own views as ``share`` says, 0 to 1.

        In the memory of the partner's; 1 changes no bit.
        """
        for name, theirs in self.partner.views.items() if share < 1 else ():
            if share > 0:
                theirs.sub_(self.sent[name]).mul_(share).add_(self.sent[name])
            else:
                theirs.copy_(self.sent[name])

    def difference(self, name: str) -> torch.Tensor:
        """Return m = partner's - own of a view, in the memory of the partner's.

        The two sides of a pair get exact negatives. Call it once for each view.
        """
        return self.partner.views[name].sub_(self.sent[name])


def _part(views: Mapping[str, torch.Tensor], at: slice) -> Mapping[str, torch.Tensor]:
    return {name: view[at] for name, view in views.items()}


@dataclass(frozen=True)
class Record:
    """LOG: what ``author`` published. Rounds hold them sorted by author.

    ``round`` is that of the author's intent: a record that comes late is in a later round.
    """

    author: bytes
    payload: bytes
    round: int


@dataclass(frozen=True)
class Sent:
    """One vector of the model's length that a node sends at a meeting.

    ``is_difference``: to what all have, or to where a round began: so small that a coarse codec
    serves. Whole weights would be drowned by its error.
    """

    codec: str = SWARM_CODEC
    is_difference: bool = False


@dataclass(frozen=True)
class Meeting:
    """How nodes meet under given settings, for the creator of a swarm, who chooses a codec.

    ``every_steps``: local steps between two meetings at which all of ``sent`` goes once; 0: it
    depends on more than the settings.
    """

    kind: Kind
    every_steps: float
    sent: tuple[Sent, ...]
