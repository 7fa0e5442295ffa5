"""The rules by the names that settings have for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np

from swarmnode.strategies.merging.best_of import best_of
from swarmnode.strategies.merging.bristle import bristle
from swarmnode.strategies.merging.clipped_mean import clipped_mean
from swarmnode.strategies.merging.flag import flag
from swarmnode.strategies.merging.mixing import Measured, Mix, MixRule, Round, Rows, mean_of
from swarmnode.strategies.merging.monna import monna
from swarmnode.strategies.merging.nnm import nnm, nnm_trimmed
from swarmnode.strategies.merging.trimmed_mean import trimmed_mean

# Rules that serve sparse messages, too, and give all members the same of the same messages.
GatherMerge = Literal["mean", "clipped-mean", "nnm", "nnm-trimmed", "flag", "best-of"]
GroupMerge = GatherMerge | Literal["trimmed-mean", "monna", "bristle"]


def plain_mean(about: Round) -> tuple[Mix, ...]:
    """Return the mean by weight: one member may make of it what it likes."""
    return (mean_of(about.weights),)


RULES: dict[str, MixRule] = {
    "mean": plain_mean,
    "clipped-mean": clipped_mean,
    "nnm": nnm,
    "nnm-trimmed": nnm_trimmed,
    "trimmed-mean": trimmed_mean,
    "monna": monna,
    "flag": flag,
    "bristle": bristle,
    "best-of": best_of,
}

Parts = Callable[[], Iterator[Rows]]


def candidates(
    rule: MixRule, parts: Parts, weights: Sequence[float], *, own: int = 0, seed: str = ""
) -> tuple[Rows, ...]:
    """Return what a rule makes of vectors: one or two, [numel] in the type of the parts.

    Args:
        parts: yields the vectors part by part, [n, m] each, and anew each time.
        weights: of each vector in a mean, above 0.
        own: the number of the vector that is this node's.
        seed: the same for all who make the same.

    Cost: the parts are gone through twice. Memory: a part, and what comes out.
    """
    measured = Measured(len(weights))
    for part in parts():
        measured.add(part)
    mixes = rule(Round(measured.gram(), tuple(weights), own, seed))
    mixed = [[mix.of(part) for mix in mixes] for part in parts()]
    return tuple(np.concatenate(each) for each in zip(*mixed, strict=True))
