"""A rule over the messages of a gathering: all members apply what it returns, the same bits.

All see the same messages in the same order, and a rule over them computes in a fixed order. Where
the public probe chooses between two candidates, losses differ in their last bits between machines.
What lies within the tie of ``best_of.py`` is not chosen by them; a member that still comes to the
other candidate than most has other slow weights, which are part of its lineage: it meets the others
no more, is told so, and takes over theirs. So a split vote ends with the choice of most members,
and no member has to be believed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from swarmnode.strategies.exchanges import Message
from swarmnode.strategies.merging.best_of import better
from swarmnode.strategies.merging.mixing import MixRule, Rows
from swarmnode.strategies.merging.rules import candidates


def aggregate(
    rule: MixRule,
    messages: Sequence[Message],
    loss_of: Callable[[torch.Tensor], float] | None = None,
) -> torch.Tensor:
    """Return what a rule makes of messages, one or more: float32 [numel] on the CPU.

    Args:
        loss_of: the loss on the public probe of the model that would come of an aggregate; None:
            there is no probe.

    Cost: each message is decoded twice, and two evaluations where there are two candidates.
    """

    def parts() -> Iterator[Rows]:
        for part in zip(*(message.parts() for message in messages), strict=True):
            yield np.stack([values.numpy() for values in part])

    found = candidates(rule, parts, [1.0] * len(messages))
    if len(found) == 1 or loss_of is None:
        return torch.from_numpy(found[-1])
    first, second = (torch.from_numpy(each) for each in found)
    return (first, second)[better(loss_of(first), loss_of(second))]
