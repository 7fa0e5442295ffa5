"""What the nodes of the laboratory make of each other, as daemons do: see ``protocol/trust.py``.

A unit of time counts as a second. What each node has measured it says to all others now and then;
impostors say of every honest node the worst that can be said.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from swarmnode.ids import PeerId
from swarmnode.ipc.names import HONEST_REFUSALS, UNSEEN_REFUSALS
from swarmnode.protocol.trust import NEUTRAL, Seen, Trust
from swarmnode.strategies.base import Intent, Kind
from swarmnode.testing.lab.world import Node, World

_SAID_EVERY = 60.0  # as daemons do
_WORST_SAID = 0.0
_SALT_BYTES = 16


class Standings:
    """The trust of each node in the others.

    Attributes:
        is_on: whether anything is noted and asked; papers know none of it.
    """

    def __init__(self, world: World, *, is_on: bool) -> None:
        self.is_on = is_on
        self._world = world
        self._books: dict[int, Trust] = {}
        if is_on:
            world.at(world.now + _SAID_EVERY, self._spread)

    def book(self, number: int) -> Trust:
        """Return what a node has measured and heard; a crash loses none of it."""
        if number not in self._books:
            salt = hashlib.sha256(f"{self._world.seed}/trust/{number}".encode()).digest()
            self._books[number] = Trust(salt[:_SALT_BYTES])
        return self._books[number]

    # --- what is asked -------------------------------------------------------------------

    def admits(self, node: Node, peer: Node, intent: Intent) -> bool:
        """Return whether a node meets a peer in the round of this intent of its own."""
        world = self._world
        if not self.is_on or world.is_impostor(node.number) or len(world.up) <= 2:
            return True  # where there is no other, it is met all the same
        return self.book(node.number).admits(peer.peer_id, intent.round, world.now)

    def admitted(self, node: Node, intent: Intent, candidates: Sequence[int]) -> list[int]:
        """Return those of the candidates that it meets."""
        nodes = self._world.nodes
        return [number for number in candidates if self.admits(node, nodes[number], intent)]

    # --- what is noted -------------------------------------------------------------------

    def note_refused(self, node: Node, peer: Node, why: str) -> None:
        """A node has refused what a peer sent, for this reason."""
        if why not in UNSEEN_REFUSALS:
            self._note(node, peer, Seen.REFUSED if why in HONEST_REFUSALS else Seen.FAULTY)

    def note_taken(self, node: Node, peer: Node, intent: Intent, share: float) -> None:
        """What a peer sent has counted, so much of it."""
        context = node.strategy.ctx
        if share > 0 and context.weighs and context.probe is not None and intent.kind is Kind.PAIR:
            self._note(node, peer, Seen.USEFUL)

    def _note(self, node: Node, peer: Node, seen: Seen) -> None:
        if self.is_on and not self._world.is_impostor(node.number):
            self.book(node.number).note(peer.peer_id, seen, self._world.now)

    # --- what is said --------------------------------------------------------------------

    def _spread(self) -> None:
        world = self._world
        for author in world.up:
            said = self._words(author)
            for reader in world.up:
                if reader is not author:
                    self.book(reader.number).told(author.peer_id, said)
        world.at(world.now + _SAID_EVERY, self._spread)

    def _words(self, author: Node) -> dict[PeerId, float]:
        world = self._world
        if world.is_impostor(author.number):
            honest = (node for node in world.up if not world.is_impostor(node.number))
            return {node.peer_id: _WORST_SAID for node in honest}
        tenths = self.book(author.number).verdicts(world.now)
        return {peer: NEUTRAL * each / 5 for peer, each in tenths.items()}
