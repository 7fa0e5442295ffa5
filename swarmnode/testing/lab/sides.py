"""One node's part of an exchange: what it sends, through the codec, and whether others take it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from swarmnode.strategies.base import SWARM_CODEC, Intent, Kind, Meta, Received
from swarmnode.strategies.ranges import magnitude_of, scale_of
from swarmnode.tensor import magnitude
from swarmnode.tensor.magnitude import Magnitude, own_scale
from swarmnode.testing.lab.codecs import through
from swarmnode.testing.lab.world import Node, World


@dataclass
class Side:
    """One node's part of an exchange: what it sent, as it arrives."""

    node: Node
    life: int
    intent: Intent
    meta: Meta
    sent: dict[str, torch.Tensor]
    bytes: int

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


def refusal(side: Side, partner: Side) -> str:
    """Return why a node refuses a partner's payload, as daemons do; empty: it does not."""
    weights = scale_of(side.node.strategy.x)
    is_pull = side.intent.kind is Kind.PULL  # a node that pulls sends nothing
    for view in side.intent.views:
        own = Magnitude() if is_pull else magnitude_of(side.sent[view.name])
        theirs = magnitude_of(partner.sent[view.name])
        why = magnitude.refusal(theirs, own_scale(own, weights, view.numel), view.name)
        if why and view.is_scaled:
            return why
    return ""
