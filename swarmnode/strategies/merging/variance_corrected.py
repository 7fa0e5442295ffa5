"""The mean of two models, each tensor widened to the variance that the two have.

Source: Y. Tian, Z. Al-Ars, M. Kitsak, P. Hofstee, "Vanishing variance problem in fully
decentralized neural-network systems", 2024 (their "FollowOthers" target, with oneself among the
others). With w̄ a tensor's mean over those that meet, V its variance and v the mean of theirs::

    w = mean(w̄) + (w̄ − mean(w̄)) √((v + ε) / (V + ε))

In the paper every averaging of gossip does so, and so does every pair here that was set to: both
sides come to the same tensors, from nothing but what they sent each other. Scalars and constant
tensors are averaged only. Running statistics of BatchNorm and moments of an optimizer are in no
payload.

Deviations, as in :func:`swarmnode.strategies.merge.variance_corrected`, which does the arithmetic:
ε is relative, and tensors whose mean cosine is 0.5 or more are averaged only. So it is safe to
leave on: nodes that began alike, or have come together, average as always. What is added is the
merged model minus one's own as sent, so that steps taken in flight survive, as everywhere. Unlike
plain averaging it moves the mean of the swarm: that is its purpose.

In groups it has nothing to do: all that reaches a member is the mean, whose parts' variances are
lost, and members of a group share a lineage, so they are relatives.
"""

from __future__ import annotations

from typing import Any, get_args

import torch

from swarmnode.errors import ConfigError
from swarmnode.strategies.merging.slot import PairMerge
from swarmnode.tensor.layout import Layout


def pair_pull(
    rule: PairMerge, own: torch.Tensor, theirs: torch.Tensor, layout: Layout
) -> torch.Tensor:
    """Return the merge of two vectors minus ``own``, all [numel] on the CPU.

    Args:
        own, theirs: as both were sent; ``theirs`` may be overwritten.
        layout: which tensor lies where in them.

    Cost: three passes in float64 for ``variance-corrected``, one for ``mean``.
    """
    if rule == "mean":  # exact negatives on the two sides
        return theirs.sub_(own).mul_(0.5)
    from swarmnode.strategies.merge import variance_corrected  # of few swarms only

    return variance_corrected([own, theirs], layout).sub_(own)


def refuse_relatives(config: Any) -> None:
    """Refuse settings of ``streaming`` with a rule that has nothing to do there.

    Raises:
        ConfigError: with what it is for.
    """
    is_of_pairs = config.merge in get_args(PairMerge)
    if config.meet == "pair" and not is_of_pairs:
        raise ConfigError(
            f"strategy streaming: expected merge {' or '.join(get_args(PairMerge))} with meet "
            f"pair, got {config.merge}, which is for many at once; choose meet group"
        )
    if config.merge == "variance-corrected" and (config.reference or config.meet == "group"):
        raise ConfigError(
            f"strategy streaming: expected reference false and meet pair with merge {config.merge},"
            " which is for models that began apart: those that have a common reference or are in"
            " one group are relatives, and the mean is right"
        )
