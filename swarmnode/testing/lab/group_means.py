"""The mean of a group in the laboratory: cut into parts, made and coded as daemons do.

Each part is made by one of those who are present, in the order of their ids, and where two
candidates come of a rule, it is that node's strategy and probe that decide.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from swarmnode.daemon.collective.pieces import Part, by_view, count_grains, cut_chunks, cut_pieces
from swarmnode.protocol.gossip.groups import fair_weights
from swarmnode.strategies.merging.mixing import Rows
from swarmnode.strategies.merging.rules import RULES, candidates
from swarmnode.testing.lab.codecs import RAW, through
from swarmnode.testing.lab.sides import Side
from swarmnode.testing.lab.world import World


def coded_mean(world: World, sides: list[Side]) -> dict[str, torch.Tensor]:
    """Return what the rule of their intent makes of what each sent, as it arrives."""
    intent = sides[0].intent
    codecs = {view.name: view.codec or world.codec for view in intent.views}
    made = weighted_mean(sides) if intent.merge == "mean" else _robust_mean(world, sides)
    return {name: through(codecs[name], mean)[0] for name, mean in made.items()}


def weighted_mean(sides: list[Side]) -> dict[str, torch.Tensor]:
    """Return the mean of what each sent, by weight, summed in float64 in the order given.

    One product, one sum and one division each, as ``tensor/mean.py`` has it for daemons: means of
    three often lie in the middle of two float32, and any other order rounds some of them apart.
    """
    weights = fair_weights([side.meta.weight for side in sides])
    means = {}
    for name, first in sides[0].sent.items():
        summed = torch.zeros_like(first, dtype=torch.float64)
        for side, weight in zip(sides, weights, strict=True):
            summed += side.sent[name].double() * weight
        means[name] = (summed / sum(weights)).to(first.dtype)
    return means


def _robust_mean(world: World, sides: list[Side]) -> dict[str, torch.Tensor]:
    sides = sorted(sides, key=lambda side: side.node.peer_id)
    intent, weights = sides[0].intent, fair_weights([side.meta.weight for side in sides])
    chunks = cut_chunks(intent.views, world.codec if world.codec != RAW else "RAW32")
    means = {name: torch.empty_like(first) for name, first in sides[0].sent.items()}
    rule = RULES[intent.merge]
    for piece, whole in enumerate(cut_pieces(chunks, min(count_grains(chunks), len(sides)))):
        for number, parts in by_view(whole).items():
            name, begin = intent.views[number].name, parts[0].begin_in_view
            rows = partial(_rows, parts, sides, name)
            found = [*map(torch.from_numpy, candidates(rule, rows, weights, own=piece))]
            best = len(found) - 1
            if best and number == 0:
                best = sides[piece].node.strategy.prefer(intent, begin, found)
            end = begin + sum(part.numel for part in parts)
            means[name][begin:end] = found[best]
    return means


def _rows(parts: Sequence[Part], sides: list[Side], name: str) -> Iterator[Rows]:
    for part in parts:
        begin, end = part.begin_in_view, part.begin_in_view + part.numel
        yield torch.stack([side.sent[name][begin:end] for side in sides]).numpy()
