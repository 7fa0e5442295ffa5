"""One node's part of an exchange: what it sends, through the codec, and whether others take it."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch

from swarmnode.strategies.base import SWARM_CODEC, Exchange, Intent, Kind, Meta, Received
from swarmnode.strategies.ranges import magnitude_of, not_finite, scale_of
from swarmnode.strategies.weighing import WeighsPairs
from swarmnode.tensor import magnitude
from swarmnode.tensor.magnitude import Magnitude, own_scale
from swarmnode.testing.lab.codecs import through
from swarmnode.testing.lab.world import Node, Payload, World

MOST_OTHERS = -1  # who refuses a share of a group


@dataclass
class Side:
    """One node's part of an exchange: what it sent, as it arrives.

    ``forged_from``: of an impostor, what it would have sent if it were honest.
    ``share``: of what comes, by the verdict of this node's guard.
    """

    node: Node
    life: int
    intent: Intent
    meta: Meta
    sent: Payload
    bytes: int
    forged_from: Payload | None = None
    share: float = 1.0

    @property
    def counted(self) -> Payload:
        """What the node itself goes on from: an impostor's own model stays as good as any."""
        return self.sent if self.forged_from is None else self.forged_from

    @property
    def is_there(self) -> bool:
        """Whether the node has not crashed since."""
        return self.node.life == self.life

    def received(self) -> Received:
        """Return it for a partner, in memory of its own."""
        return Received({name: sent.clone() for name, sent in self.sent.items()}, self.meta)


def meta_of(node: Node, intent: Intent) -> Meta:
    """Return what a node says of itself with a payload."""
    return Meta(node.steps, node.steps, node.t, intent.base_version, intent.weight)


def take_view(world: World, node: Node, intent: Intent) -> Side:
    """Return what a node sends, after the codec. Raises WorkerError: it is not finite."""
    world.flow(node)
    sent, size = {}, 0
    for view in intent.views:
        out = torch.empty(view.numel, dtype=world.task.x.dtype)
        node.strategy.view(intent, view.name, out)
        codec = world.codec if view.codec == SWARM_CODEC else view.codec
        sent[view.name], payload_bytes = through(codec, out)
        size += payload_bytes
    meta = meta_of(node, intent)
    if intent.kind is Kind.GROUP:
        meta = replace(meta, weight=node.strategy.weight(intent))
    return Side(node, node.life, intent, meta, sent, size)


def exchange_of(side: Side, partner: Side) -> Exchange:
    """Return what a pair, or a pull, is for one of the two."""
    return Exchange(
        intent=side.intent,
        meta=side.meta,
        sent=side.counted,
        got={partner.node.peer_id: partner.received()},
        steps_since=0,  # known when it is applied
    )


def let_forge(world: World, sides: list[Side]) -> None:
    """Put what impostors among the members of an exchange send in the place of what they have."""
    if world.impostors is None:
        return
    by_number = {side.node.number: side for side in sides}
    sent = {number: (side.intent, side.sent) for number, side in by_number.items()}
    for number, forged in world.impostors.forge(sent).items():
        side = by_number[number]
        side.forged_from, side.sent = side.sent, forged


def refusal(world: World, side: Side, partner: Side) -> str:
    """Return why a node refuses a partner's payload, as daemons do; empty: it does not."""
    if world.is_impostor(side.node.number):
        return ""
    if why := not_finite(partner.sent):  # what no codec carries
        return why
    return _too_large(side, partner) if world.checks_ranges else ""


def _too_large(side: Side, partner: Side) -> str:
    weights = scale_of(side.node.strategy.x)
    is_pull = side.intent.kind is Kind.PULL  # a node that pulls sends nothing
    for view in side.intent.views:
        own = Magnitude() if is_pull else magnitude_of(side.sent[view.name])
        theirs = magnitude_of(partner.sent[view.name])
        why = magnitude.refusal(theirs, own_scale(own, weights, view.numel), view.name)
        if why and view.is_scaled:
            return why
    return ""


def has_banned(node: Node, peer: bytes) -> bool:
    """Return whether the guard of a node refuses a peer unseen for now."""
    strategy = node.strategy
    if not isinstance(strategy, WeighsPairs) or strategy.guard is None:
        return False
    return strategy.guard.is_banned(peer, strategy.own_round())


def would_take(
    world: World, node: Node, peer: Node, intent: Intent, own: Payload, theirs: Payload
) -> bool:
    """Return whether ``node``, which sends ``own``, would take ``theirs`` from ``peer`` now.

    It takes no note of having been asked. What is accepted of which nothing is taken is not.
    """
    sides = [
        Side(each, each.life, intent, meta_of(each, intent), sent, 0)
        for each, sent in ((node, own), (peer, theirs))
    ]
    if refusal(world, *sides):
        return False
    strategy = node.strategy
    if not isinstance(strategy, WeighsPairs) or strategy.guard is None:
        return True
    guard, strategy.guard = strategy.guard, copy.deepcopy(strategy.guard)
    try:
        verdict = strategy.weigh(exchange_of(*sides))
    finally:
        strategy.guard = guard
    return verdict.refusal is None and verdict.share > 0
