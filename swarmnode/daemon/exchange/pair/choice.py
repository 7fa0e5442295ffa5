"""Whom a wish to meet in a pair is offered to.

MATCHING: the partner whom the round's matching gives, then the next in its order. NEIGHBOUR:
anybody, at random. On a graph only neighbours, at random by the rates of their edges.

Partners on expensive ways, through a relay or WebRTC, are drawn as much more rarely, and come last
where the matching's own partner has no time. Both sides know the way, so the graph of all meetings
stays symmetric; and who has no other way still meets everybody.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from swarmnode import limits
from swarmnode.env import Env
from swarmnode.ids import PeerId
from swarmnode.ipc.control import Wish
from swarmnode.protocol.gossip import matching

if TYPE_CHECKING:
    from swarmnode.strategies.topology import Graph

_EVERYBODY = ("matching", "complete")  # graphs without which the same partners are found


class PartnerChoice:
    """Chooses among those whom a session leads to, the quick ones first.

    Args:
        topology: the graph over the members that the manifest names; empty: everybody.
    """

    def __init__(self, self_id: PeerId, swarm_id: bytes, topology: str, env: Env) -> None:
        self._self_id = self_id
        self._swarm_id = swarm_id
        self._topology = "" if topology in _EVERYBODY else topology
        self._env = env
        self._slow_until: dict[PeerId, float] = {}  # pruned: each takes a timeout
        self._graph: Graph | None = None
        self._graph_of = 0  # how many members it was made for

    def candidates(
        self, wish: Wish, members: Sequence[PeerId], reachable: Mapping[PeerId, float]
    ) -> tuple[PeerId, ...]:
        """Return whom to offer to, the best first.

        Args:
            members: who trains now, ourselves included, in ascending order.
            reachable: with whom there is a session, and what its way costs.
        """
        graph = self._graph_over(len(members))
        if wish.selector == "neighbour":
            found = self._by_rate(graph, members, reachable)
        else:
            found = [peer for peer in self._by_round(wish, graph, members) if peer in reachable]
            found[1:] = sorted(found[1:], key=lambda peer: reachable[peer])
        # While a slow one is asked, for seconds, others that offer find us busy.
        quick = [peer for peer in found if not self._is_slow(peer)]
        return tuple((quick or found)[: limits.EXCHANGE_CANDIDATES_MAX])

    def note_timeout(self, peer: PeerId) -> None:
        """Ask others first for a while."""
        now = self._env.monotonic()
        self._slow_until = {p: until for p, until in self._slow_until.items() if until > now}
        self._slow_until[peer] = now + limits.PARTNER_SLOW_S

    def note_commit(self, peer: PeerId) -> None:
        """It is quick enough again."""
        self._slow_until.pop(peer, None)

    def _is_slow(self, peer: PeerId) -> bool:
        return self._env.monotonic() < self._slow_until.get(peer, 0.0)

    def _graph_over(self, n_members: int) -> Graph | None:
        if self._topology and self._graph_of != n_members:
            # numpy comes with it, which no node needs that meets everybody.
            from swarmnode.strategies.topology import graph_over

            self._graph, self._graph_of = graph_over(self._topology, n_members), n_members
        return self._graph

    def _by_round(
        self, wish: Wish, graph: Graph | None, members: Sequence[PeerId]
    ) -> tuple[PeerId, ...]:
        salt = matching.salt(self._swarm_id, wish.tag, wish.fragment)
        if graph is None:
            return matching.candidates(self._self_id, salt, wish.round, members, limit=len(members))
        edges = ((members[i], members[j]) for i, j in graph.edges)
        return matching.candidates_on_graph(self._self_id, salt, wish.round, edges)

    def _by_rate(
        self, graph: Graph | None, members: Sequence[PeerId], reachable: Mapping[PeerId, float]
    ) -> list[PeerId]:
        if graph is None:
            rates = dict.fromkeys(members, 1.0)
        else:
            neighbours = graph.neighbours(members.index(self._self_id))
            rates = {members[rank]: rate for rank, rate in neighbours.items()}
        rates = {
            peer: rate / reachable[peer]
            for peer, rate in rates.items()
            if peer != self._self_id and peer in reachable
        }
        return _draw(self._env.rng, rates, limits.EXCHANGE_CANDIDATES_MAX)


def _draw(rng: random.Random, rates: Mapping[PeerId, float], count: int) -> list[PeerId]:
    """Draw ``count`` of them one after the other, each by its share of what is left."""
    left = dict(rates)
    drawn: list[PeerId] = []
    while left and len(drawn) < count:
        (peer,) = rng.choices(list(left), list(left.values()))
        drawn.append(peer)
        del left[peer]
    return drawn
