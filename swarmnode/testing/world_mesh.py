"""Sessions between the members of a swarm, as a daemon keeps them and its cores are told.

Each member dials a random one that its own failure detector holds for live, now and then, and
closes its longest held session when it has more than ``SESSIONS_MAX``. A session that the
network broke is noticed after ``SILENCE_S`` by either end. Nodes behind a NAT only dial.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from swarmnode.ids import PeerId
from swarmnode.testing.world import Node, World

# A daemon keeps up to 64; the state only ever goes to six at a time.
SESSIONS_MAX = 12
SESSIONS_WANTED = 4  # below, the next is dialled at once
HURRY_S = 1.0
ROTATE_S = 10.0
SILENCE_S = 15.0

Candidates = Callable[[Node], tuple[PeerId, ...]]
Tell = Callable[[Node, PeerId, bool], None]


@dataclass(eq=False)
class Link:
    """An open session."""

    one: Node
    other: Node
    is_open: bool = True


@dataclass
class Mesh:
    """Who has a session with whom.

    Args:
        candidates: whom a node may dial.
        tell: a node's session with a peer is open (True) or gone.
    """

    world: World
    candidates: Candidates
    tell: Tell
    _links: dict[Node, dict[Node, Link]] = field(default_factory=dict)  # the longest held first

    def join(self, node: Node) -> None:
        """Let a node dial from now on."""
        self._links[node] = {}
        self._dial_after(node, HURRY_S)

    def lose(self, node: Node) -> None:
        """A node is gone: whoever had a session with it will notice."""
        for link in self._links.pop(node).values():
            self._break(link)

    def cut(self) -> None:
        """The network is in two halves: sessions between them are dead."""
        for node, links in self._links.items():
            for peer, link in links.items():
                if node is link.one and node.place.side != peer.place.side:
                    self._break(link)

    def sessions_of(self, node: Node) -> int:
        """Return how many sessions a node has."""
        return len(self._links[node])

    # --- inside -------------------------------------------------------------------------

    def _dial_after(self, node: Node, delay_s: float) -> None:
        self.world.at(
            self.world.now + delay_s * node.rng.uniform(0.8, 1.2), lambda: self._dial(node)
        )

    def _dial(self, node: Node) -> None:
        links = self._links.get(node)
        if links is None:
            return  # it died
        self._dial_after(node, ROTATE_S if len(links) >= SESSIONS_WANTED else HURRY_S)
        peers = self.candidates(node)
        if not peers:
            return
        target = self.world.node_of(peers[node.rng.randrange(len(peers))])
        if target in links or target not in self._links:
            return
        world = self.world
        delay_s = world.network.delay_s(node.number, target.number, world.now, anew=True)
        if delay_s is not None:
            world.at(world.now + delay_s, lambda: self._open(node, target))

    def _open(self, node: Node, target: Node) -> None:
        if not (node.is_up and target.is_up) or target in self._links[node]:
            return  # one died meanwhile, or both dialled
        if node.place.side != target.place.side:
            return
        link = Link(node, target)
        for here, there in ((node, target), (target, node)):
            self._links[here][there] = link
            self.tell(here, there.peer_id, True)
        for here in (node, target):
            if len(self._links[here]) > SESSIONS_MAX:
                self._close(next(iter(self._links[here].values())))

    def _break(self, link: Link) -> None:
        self.world.at(self.world.now + SILENCE_S, lambda: self._close(link))

    def _close(self, link: Link) -> None:
        if not link.is_open:
            return
        link.is_open = False
        for here, there in ((link.one, link.other), (link.other, link.one)):
            if here.is_up:
                del self._links[here][there]
                self.tell(here, there.peer_id, False)
