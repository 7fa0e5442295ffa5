"""Failure detection in the simulator: one part per member of a swarm."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from swarmnode.ids import PeerId
from swarmnode.protocol.dht.records import Signer, Verify
from swarmnode.protocol.membership import swim_events as events
from swarmnode.protocol.membership.claims import claim_body
from swarmnode.protocol.membership.swim import SwimCore
from swarmnode.testing.world import Node, Part
from swarmnode.wire import swim as wire

_DOMAIN = "swim/1"


@dataclass(frozen=True)
class SimNotary:
    """Signs and checks claims with whatever keys the simulation has."""

    signer: Signer
    verify: Verify

    @property
    def public_key(self) -> bytes:
        """Our raw public key."""
        return self.signer.public_key

    def sign(self, epoch: int, incarnation: int, left: str | None) -> bytes:
        """Return our signature."""
        return self.signer.sign(_DOMAIN, claim_body(epoch, incarnation, left))

    def check(self, claim: wire.Claim) -> None:
        """Raise AuthenticationFailed if the member did not sign this."""
        body = claim_body(claim.epoch, claim.incarnation, claim.left)
        self.verify(claim.key, _DOMAIN, body, claim.signature, what="claim")


class SwimPart(Part):
    """A failure detector; its messages reach peers behind NATs too, by way of a relay."""

    service = "swim"
    core: SwimCore

    def __init__(self, node: Node, verify: Verify, seeds: tuple[PeerId, ...]) -> None:
        super().__init__(node)
        self.core = SwimCore(SimNotary(node.signer, verify), 1, node.rng)
        self._seeds = seeds
        self._versions: dict[PeerId, int] = {}  # the highest epoch heard of each member

    def start(self, now: float) -> None:
        for peer in self._seeds:
            self.core.handle(events.Contact(peer), now)

    def receive(self, source: PeerId, message: Any, observed: str, now: float) -> None:  # noqa: ARG002
        self.core.handle(events.Received(source, message), now)

    def carry_out(self, effect: events.Effect, now: float) -> None:  # noqa: ARG002
        world = self.node.world
        match effect:
            case events.Send(peer, message):
                self.node.send(self, peer, message, by_relay=True)
            case events.Changed(peer, _, state, epoch):
                if epoch < self._versions.get(peer, 0):
                    world.violated("I9", self.node, f"the epoch of {peer.short} fell")
                self._versions[peer] = epoch
                world.report(self.node, "member", peer.short, state.value)
            case events.KeyConflict():
                world.violated("I9", self.node, "somebody else has our key")


def is_agreed(nodes: Iterable[Node]) -> bool:
    """Whether every member that is up holds exactly those that are up for live."""
    parts = {node.peer_id: node.parts["swim"] for node in nodes if "swim" in node.parts}
    everybody = sorted(parts)
    for peer, part in parts.items():
        assert isinstance(part, SwimPart)
        live = part.core.live_members()
        if len(live) != len(everybody) - 1 or sorted([*live, peer]) != everybody:
            return False
    return True
