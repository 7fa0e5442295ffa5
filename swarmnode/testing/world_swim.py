"""Failure detection in the simulator: one part per member of a swarm, and what is checked."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from swarmnode.ids import PeerId
from swarmnode.protocol.identity import Signer, Verify
from swarmnode.protocol.membership import swim_events as events
from swarmnode.protocol.membership.claims import claim_body
from swarmnode.protocol.membership.swim import SwimCore
from swarmnode.testing.world import Node, Part
from swarmnode.wire import swim as wire

RETRY_S = 5.0
_DOMAIN = "swim/1"


@dataclass(frozen=True)
class SimNotary:
    """Signs and checks claims with whatever keys the simulation has."""

    signer: Signer
    verify: Verify
    swarm_id: bytes

    @property
    def public_key(self) -> bytes:
        """Our raw public key."""
        return self.signer.public_key

    def sign(self, epoch: int, incarnation: int, left: str | None) -> bytes:
        """Return our signature."""
        body = self.swarm_id + claim_body(epoch, incarnation, left)
        return self.signer.sign(_DOMAIN, body)

    def check(self, claim: wire.Claim) -> None:
        """Raise AuthenticationFailed if the member did not sign this."""
        body = self.swarm_id + claim_body(claim.epoch, claim.incarnation, claim.left)
        self.verify(claim.key, _DOMAIN, body, claim.signature, what="claim")


@dataclass
class SwimWatch:
    """What detectors got wrong; the parts of dead nodes are gone, so it counts along."""

    false_deaths: int = 0  # declared of a node that was up and could be reached

    def death(self, by: Node, peer: PeerId) -> None:
        """Note that a node declared a peer dead."""
        member = by.world.node_of(peer)
        self.false_deaths += member.is_up and member.place.side == by.place.side


class SwimPart(Part):
    """A failure detector; its messages reach peers behind NATs too, by way of a relay.

    Args:
        seeds: members that its link names, asked until one answers.
    """

    service = "swim"
    message_type = wire.Message
    core: SwimCore

    def __init__(
        self,
        node: Node,
        notary: SimNotary,
        watch: SwimWatch,
        seeds: tuple[PeerId, ...],
        *,
        as_bytes: bool,
    ) -> None:
        super().__init__(node, as_bytes=as_bytes)
        self.core = SwimCore(notary, 1, node.rng)
        self._watch = watch
        self._seeds = seeds
        self._versions: dict[PeerId, tuple[int, int]] = {}  # the highest heard of each member

    def start(self, now: float) -> None:
        for peer in self._seeds:
            self.core.handle(events.Contact(peer), now)
        if self._seeds:
            self.node.world.at(now + RETRY_S, self._retry)

    def receive(self, source: PeerId, message: Any, observed: str, now: float) -> None:  # noqa: ARG002
        self.core.handle(events.Received(source, message), now)

    def carry_out(self, effect: events.Effect, now: float) -> None:  # noqa: ARG002
        world = self.node.world
        match effect:
            case events.Send(peer, message):
                self.node.send(self, peer, message, by_relay=True)
            case events.Changed(peer, _, state):
                self._check_version(peer)
                if state is events.MemberState.DEAD:
                    self._watch.death(self.node, peer)
                world.report(self.node, "member", world.node_of(peer).number, state.value)
            case events.KeyConflict():
                world.violated("I9", self.node, "another node has our key")

    def _check_version(self, peer: PeerId) -> None:
        version = self.core.version_of(peer)
        before = self._versions.get(peer, (0, 0))
        if version is None or version < before:
            what = f"the incarnation of {peer.short} fell from {before} to {version}"
            self.node.world.violated("I9", self.node, what)
        elif version > before:
            self._versions[peer] = version

    def _retry(self) -> None:
        """A seed may have been gone, or its answer lost."""
        if not self.node.is_up or self.core.live_members():
            return
        now = self.node.world.now
        for peer in self._seeds:
            self.feed(events.Contact(peer), now)
        self.node.world.at(now + RETRY_S, self._retry)


def is_agreed(parts: Collection[SwimPart]) -> bool:
    """Whether each of these members holds exactly them for live, itself included."""
    all_ids = sorted(part.node.peer_id for part in parts)
    for part in parts:
        live = part.core.live_members()
        if len(live) != len(all_ids) - 1:
            return False
        if sorted([*live, part.node.peer_id]) != all_ids:
            return False
    return True
