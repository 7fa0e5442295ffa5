"""Swarms in the simulator: members that detect failures and share a state, over sessions.

One swarm of thousands costs more than a machine has: each member holds a record of all others.
So the nodes of a simulation, which share one DHT, are spread over swarms of equal size.

Sessions are as a daemon keeps them and its cores are told. Each member dials a random one that its
own failure detector holds for live, now and then, and closes its longest held session when it has
more than ``SESSIONS_MAX``. A session that the network broke is noticed after ``SILENCE_S`` by
either end. Nodes behind a NAT only dial.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from swarmnode.ids import PeerId
from swarmnode.protocol.identity import Verify
from swarmnode.testing.world import Node, Part, World
from swarmnode.testing.world_state import StatePart, StateWatch, have_same_state
from swarmnode.testing.world_swim import SimNotary, SwimPart, SwimWatch, is_agreed

# A daemon keeps up to 64; the state only ever goes to six at a time.
SESSIONS_MAX = 12
SESSIONS_WANTED = 4  # below, the next is dialled at once
HURRY_S = 1.0
ROTATE_S = 10.0
SILENCE_S = 15.0

Candidates = Callable[[Node], tuple[PeerId, ...]]
Tell = Callable[[Node, PeerId, bool], None]

_SEEDS = 3  # members that a link names
LAST_WORDS_S = 1.0
_POLL_S = 1.0


@dataclass(eq=False)
class Link:
    """An open session."""

    one: Node
    other: Node
    is_open: bool = True


@dataclass
class Mesh:
    """Which nodes have a session with each other.

    Args:
        candidates: the peers that a node may dial.
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
        """A node is gone: the peers that had a session with it will notice."""
        for link in self._links.pop(node).values():
            self._break(link)

    def cut(self) -> None:
        """The network is in two halves: sessions between them are dead."""
        for node, links in self._links.items():
            for peer, link in links.items():
                if node is link.one and node.place.side != peer.place.side:
                    self._break(link)

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


@dataclass
class Swarm:
    """One swarm: its members that are up, and the sessions between them."""

    swarm_id: bytes
    mesh: Mesh
    members: dict[Node, None] = field(default_factory=dict)

    @property
    def swim_parts(self) -> list[SwimPart]:
        """The members' failure detectors."""
        return [swim_of(node) for node in self.members]

    @property
    def state_parts(self) -> list[StatePart]:
        """The members' shared states."""
        return [state_of(node) for node in self.members]


class Swarms:
    """All swarms of a simulation.

    Args:
        n_nodes: how many nodes there are to be at a time.
        members_max: the size of a swarm, at most.
        as_bytes: encode and decode every message.
    """

    def __init__(
        self, world: World, n_nodes: int, members_max: int, verify: Verify, *, as_bytes: bool
    ) -> None:
        self.swim_watch = SwimWatch()
        self.state_watch = StateWatch()
        self._verify = verify
        self._as_bytes = as_bytes
        self._rng = random.Random(f"swarms/{world.seed}")
        self._swarm_of: dict[Node, Swarm] = {}
        self.all = [
            Swarm(hashlib.sha256(b"swarm %d" % number).digest(), Mesh(world, _live, _tell))
            for number in range(-(-n_nodes // members_max))
        ]

    def make_parts(self, node: Node) -> list[Part]:
        """Make the parts of a node, a member of the smallest swarm; :meth:`join` comes next."""
        swarm = min(self.all, key=lambda swarm: len(swarm.members))
        self._swarm_of[node] = swarm
        members = list(swarm.members)
        seeds = self._rng.sample(members, min(_SEEDS, len(members)))
        notary = SimNotary(node.signer, self._verify, swarm.swarm_id)
        return [
            SwimPart(
                node,
                notary,
                self.swim_watch,
                tuple(seed.peer_id for seed in seeds),
                as_bytes=self._as_bytes,
            ),
            StatePart(
                node, swarm.swarm_id, self._verify, self.state_watch, as_bytes=self._as_bytes
            ),
        ]

    def join(self, node: Node) -> None:
        """A node has booted."""
        swarm = self._swarm_of[node]
        swarm.members[node] = None
        swarm.mesh.join(node)

    def lose(self, node: Node) -> None:
        """A node was killed."""
        swarm = self._swarm_of.pop(node)
        del swarm.members[node]
        swarm.mesh.lose(node)

    def cut(self) -> None:
        """The network was split."""
        for swarm in self.all:
            swarm.mesh.cut()

    def say_last_words(self) -> None:
        """Let every member say something within a second; then they are silent for longer than
        any state may take to become equal everywhere.
        """
        for swarm in self.all:
            for part in swarm.state_parts:
                delay_s = LAST_WORDS_S * self._rng.random()
                part.say_after(delay_s)

    def members_agree(self) -> bool:
        """Whether every member holds exactly the members of its swarm for live."""
        return all(is_agreed(swarm.swim_parts) for swarm in self.all)

    def states_are_equal(self) -> bool:
        """Whether all members of each swarm have equal version vectors and equal bytes."""
        return all(have_same_state(swarm.state_parts) for swarm in self.all)

    def check_states(self) -> None:
        """Check what is promised of states at any time."""
        for swarm in self.all:
            self.state_watch.check_states(swarm.state_parts)

    def false_death_share(self) -> float:
        """Return live members declared dead for each probe."""
        parts = [part for swarm in self.all for part in swarm.swim_parts]
        probes = sum(part.core.statistics().probes_total for part in parts)
        return self.swim_watch.false_deaths / max(1, probes)


@dataclass
class Stopwatch:
    """Measures the time until something is so, and stays silent about what happens after.

    Attributes:
        took_s: the answer, to a second; None: it was not so within ``limit_s``.
    """

    world: World
    is_so: Callable[[], bool]
    limit_s: float
    took_s: float | None = None

    def start(self, since: float) -> None:
        """Look from now on, and count from ``since``."""
        now = self.world.now
        if self.is_so():
            self.took_s = round(now - since, 3)
        elif now - since < self.limit_s:
            self.world.at(now + _POLL_S, lambda: self.start(since))


def swim_of(node: Node) -> SwimPart:
    """Return a node's failure detector."""
    part = node.parts["swim"]
    assert isinstance(part, SwimPart)
    return part


def state_of(node: Node) -> StatePart:
    """Return a node's shared state."""
    part = node.parts["state"]
    assert isinstance(part, StatePart)
    return part


def _live(node: Node) -> tuple[PeerId, ...]:
    return swim_of(node).core.live_members()


def _tell(node: Node, peer: PeerId, is_open: bool) -> None:
    state_of(node).session(peer, is_open=is_open)
