"""What the nodes of the laboratory live in: their time, the network between them, its faults."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch

from swarmnode.ids import PEER_ID_BYTES, PeerId
from swarmnode.strategies.base import Exchange, Intent, Strategy
from swarmnode.strategies.topology import Edge, Graph
from swarmnode.testing.lab.faults import Commit, Faults
from swarmnode.testing.lab.tasks import LabTask

Payload = dict[str, torch.Tensor]  # as it arrives, by the name of the view


class Impostors(Protocol):
    """Members that send what they like, and take whatever comes; see :mod:`..attacks`.

    ``numbers``: which of the nodes they are.
    """

    numbers: frozenset[int]

    def forge(self, sent: Mapping[int, tuple[Intent, Payload]]) -> Mapping[int, Payload]:
        """Return what those of them send that are among the members of one exchange.

        ``sent``: by number, what each member would send if it were honest.
        """
        ...  # pragma: no cover


@dataclass
class Node:
    """One node. ``life`` counts its crashes: what was meant for an earlier one is dropped."""

    number: int
    peer_id: PeerId
    strategy: Strategy
    rng: random.Random
    speed: float
    is_up: bool = True
    life: int = 0
    steps: int = 0
    t: float = 0.0  # own normalised time, as of ``at``
    at: float = 0.0
    pace: float = 1.0
    held: list[tuple[int, Exchange]] = field(default_factory=list)  # (not before step, what)


@dataclass
class Tally:
    """What happened so far, over all nodes.

    ``bytes`` are those that were sent; ``refused`` exchanges that came to nothing because a member
    did not take what another sent: ``refusals`` has which two, or of a group the member that was
    left out with -1. ``edges`` are pairs that met, ``means`` the groups and gatherings that counted
    for a node; ``bans`` which node began to refuse which other one unseen.
    """

    gradients: int = 0
    exchanges: int = 0
    aborted: int = 0
    refused: int = 0
    bytes: int = 0
    edges: Counter[Edge] = field(default_factory=Counter)
    means: Counter[int] = field(default_factory=Counter)
    refusals: Counter[tuple[int, int]] = field(default_factory=Counter)
    bans: Counter[tuple[int, int]] = field(default_factory=Counter)

    def note_refusal(self, one: int, two: int) -> None:
        """Count an exchange of two that was refused."""
        self.refused += 1
        self.refusals[min(one, two), max(one, two)] += 1


class World:
    """The nodes and the time; see :class:`~swarmnode.testing.lab.arena.Arena` for what happens.

    Attributes:
        graph: of nodes that can meet; None: each node every other.
        codec: of views that leave it to the swarm.
        nodes: by number; a node that comes back is another one.
        ids: of the nodes, by number.
        impostors: members that are not honest; None: all are.
        checks_ranges: whether nodes refuse what is implausibly large; that it is finite they look
            at in any case, as codecs do.
    """

    def __init__(
        self,
        task: LabTask,
        graph: Graph | None,
        seed: int,
        faults: Faults,
        commit: Commit,
        codec: str,
    ) -> None:
        self.task, self.graph, self.seed = task, graph, seed
        self.faults, self.commit, self.codec = faults, commit, codec
        self.now = 0.0
        self.tally = Tally()
        self.rng = random.Random(f"{seed}/arena")
        self.ids = tuple(PeerId(i.to_bytes(PEER_ID_BYTES, "big")) for i in range(task.n))
        self.nodes: list[Node] = []
        self.impostors: Impostors | None = None
        self.checks_ranges = True
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Let ``what`` happen then."""
        heapq.heappush(self._events, (when, next(self._order), what))

    def flow(self, node: Node) -> float:
        """Bring a node to the present; return its time t."""
        node.t += (self.now - node.at) * node.speed * node.pace
        node.at = self.now
        node.strategy.flow(node.t)
        return node.t

    def flow_all(self) -> None:
        """Bring every node to the present: only then are sums over nodes what is conserved."""
        for node in self.up:
            self.flow(node)

    @property
    def up(self) -> list[Node]:
        """The nodes that are alive."""
        return [node for node in self.nodes if node.is_up]

    def reachable(self, one: int, two: int) -> bool:
        """Return whether two nodes are alive, and there is a network between them."""
        if not (self.nodes[one].is_up and self.nodes[two].is_up):
            return False
        cut, half = self.faults.cut, self.task.n // 2
        is_cut = cut is not None and cut.begin <= self.now < cut.end
        return not is_cut or (one < half) == (two < half)

    def deliver(self, node: Node, exchange: Exchange, not_before_step: int) -> None:
        """Hand a committed exchange to a strategy, now or at the step it is due at."""
        if node.steps < not_before_step:
            node.held.append((not_before_step, exchange))
            return
        self.flow(node)
        node.strategy.apply(replace(exchange, steps_since=node.steps - exchange.meta.steps))

    def is_impostor(self, number: int) -> bool:
        """Return whether a node is not honest."""
        return self.impostors is not None and number in self.impostors.numbers

    def draw_latency(self) -> float:
        """Return how long an exchange takes from its views to its commit."""
        return self.faults.latency * self.rng.uniform(0.5, 1.5) if self.faults.latency else 0.0

    def draw_loss(self) -> bool:
        """Return whether a message of this exchange is lost."""
        return self.faults.loss > 0 and self.rng.random() < self.faults.loss
