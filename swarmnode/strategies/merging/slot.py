"""The slot of a merge rule: what a rule is given of what came, and what it answers.

Two kinds of rule fit into it, each a module beside its paper. A **pair rule** weighs what one peer
sent, before the exchange counts on either side: accept, with the share of the difference that is
to count, or refuse, with a reason of :class:`Reason`. A **group rule** makes one step of what
all who are present sent.

::

    bytes are here -> SafeMerge.weigh(Pair) -> Verdict -+-> accepted: LocalDone ... apply(share)
                                                       +-> refused: aborted on both sides
    messages are here -> GroupRule(messages, loss_of) -> the aggregate, applied by all members

Rules are pure but for the state that a pair rule keeps of peers: they see vectors on the CPU, and
what these do to the public probe, and know no model, no codec and no network.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from swarmnode.strategies.exchanges import Message

if TYPE_CHECKING:
    from swarmnode.strategies.merging.mixing import MixRule, Rows

# Rules that serve sparse messages, too, and give all members the same of the same messages.
GatherMerge = Literal["mean", "clipped-mean", "nnm", "nnm-trimmed", "flag", "best-of", "sybil-mean"]
GroupMerge = Literal[GatherMerge, "trimmed-mean", "monna", "bristle"]
PairMerge = Literal["mean", "variance-corrected"]
_MILD_RATIO, _MILD_SLACK = 1.1, 0.02  # honest peers do this too, near convergence

# Takes a; returns the loss on the public probe of this node's model as it is, plus a times the
# difference of the two that meet: 0 is the own model, 1 the peer's, in between the merged ones.
LossAlong = Callable[[float], float]
# Takes an aggregate [numel]; returns the loss on the public probe of the model that would come of
# it. The same on all members up to rounding.
LossOf = Callable[[torch.Tensor], float]


class Reason(enum.StrEnum):
    """Why what came is refused: a closed set, the label of a metric."""

    NOT_FINITE = "not-finite"  # a NaN or an infinity
    RANGE = "range"  # implausibly large beside one's own
    ROUND = "round"  # older than what this peer sent before
    REPLAY = "replay"  # the same vector has come before
    BANNED = "banned"  # this peer was refused too often of late
    DISTANCE = "distance"  # too far from one's own
    PROBE = "probe"  # it makes the loss on the public probe worse


@dataclass(frozen=True)
class Pair:
    """What a peer sent, beside what this node sent, both after the codec.

    Attributes:
        peer: its id, 32 bytes.
        topic: what the vectors are, such as a tag and a fragment: what is far is known by topic.
        round: of this node's exchanges, never going back; bans and relaxations count in it.
        their_round: of the peer's, by its own count, which is no other node's.
        own, theirs: [numel] on the CPU; not to be changed.
        moved: the norm of this node's own movement over its last round, in the same elements.
        loss_along: None: there is no public probe.
        loss_trivial: of a model that has learnt nothing, ln C for C classes; None: not known.
    """

    peer: bytes
    topic: str
    round: int
    their_round: int
    own: torch.Tensor
    theirs: torch.Tensor
    moved: float
    loss_along: LossAlong | None = None
    loss_trivial: float | None = None


@dataclass(frozen=True)
class Verdict:
    """What a pair rule answers. ``refusal``: None: it is accepted.

    ``share``: of the difference, 0 to 1: what came counts as one's own plus that much of it.
    """

    refusal: Reason | None = None
    share: float = 1.0


ACCEPTED = Verdict()  # of what is weighed by no rule


def is_mild(before: float, after: float) -> bool:
    """Return whether a loss has grown by no more than honest models of one swarm differ."""
    return after <= _MILD_RATIO * before + _MILD_SLACK


def aggregate(
    rule: MixRule,
    messages: Sequence[Message],
    loss_of: LossOf | None = None,
) -> torch.Tensor:
    """Return what a rule makes of messages, one or more: float32 [numel] on the CPU.

    Args:
        loss_of: the loss on the public probe of the model that would come of an aggregate; None:
            there is no probe.

    Cost: each message is decoded twice, and two evaluations where there are two candidates.
    """

    # Most swarms have pairs, or the plain mean: their workers load no rule of many vectors.
    from swarmnode.strategies.merging.best_of import better
    from swarmnode.strategies.merging.rules import candidates

    def parts() -> Iterator[Rows]:
        for part in zip(*(message.parts() for message in messages), strict=True):
            yield np.stack([values.numpy() for values in part])

    found = candidates(rule, parts, [1.0] * len(messages))
    if len(found) == 1 or loss_of is None:
        return torch.from_numpy(found[-1])
    first, second = (torch.from_numpy(each) for each in found)
    return (first, second)[better(loss_of(first), loss_of(second))]
