"""Which members exchange in a round, without asking any of them.

Every node sorts the members by SHA-256(salt, round, id) and pairs neighbours
in that order. Nodes with the same view find the same perfect matching; nodes
whose views differ a little find most of it, and the rest is settled by BUSY.
Averaging along uniform random matchings contracts the variance between n nodes
by (n-2) / 2(n-1) a round, and keeps the mean.

On a graph it is the edges that are sorted, and taken in that order as long as
neither end has a partner: a maximal matching, the same for all.

Source: Boyd, Ghosh, Prabhakar and Shah, "Randomized gossip algorithms", 2006;
the hash order as in de Vos et al., "Decentralized learning made easy with
DecentralizePy / MoDeST", 2023.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

from swarmnode import limits
from swarmnode.ids import PeerId

_DOMAIN = b"swarmnode/matching\0"


def salt(swarm_id: bytes, tag: str, fragment: int) -> bytes:
    """Return what gives each tag and fragment of a swarm matchings of its own."""
    return swarm_id + tag.encode() + b"\0" + fragment.to_bytes(8, "big")


def order(salt: bytes, round_number: int, members: Iterable[PeerId]) -> list[PeerId]:
    """Return the distinct members in the order of this round.

    Cost: one hash per member and a sort.
    """
    return sorted(set(members), key=_placed(salt, round_number))


def candidates(
    self_id: PeerId,
    salt: bytes,
    round_number: int,
    members: Iterable[PeerId],
    limit: int = limits.EXCHANGE_CANDIDATES_MAX,
) -> tuple[PeerId, ...]:
    """Return the peers that ``self_id`` should offer to: its partner, then the next in order.

    ``members`` may or may not contain ``self_id``. With an odd number of members the
    last in order has no partner and gets the next ones, which start from the front.
    """
    ordered = order(salt, round_number, {*members, self_id})
    place = ordered.index(self_id)
    partner = place ^ 1
    ranked = ordered[place + 1 :] + ordered[:place]
    if partner < len(ordered):
        ranked.remove(ordered[partner])
        ranked.insert(0, ordered[partner])
    return tuple(ranked[:limit])


def candidates_on_graph(
    self_id: PeerId, salt: bytes, round_number: int, edges: Iterable[tuple[PeerId, PeerId]]
) -> tuple[PeerId, ...]:
    """Return the neighbours of ``self_id``: its partner of the round first, if it has one.

    Args:
        edges: of the whole graph, each with the smaller id first.

    Cost: one hash per edge and a sort.
    """
    place = _placed(salt, round_number)
    matched: set[PeerId] = set()
    partners: list[PeerId] = []
    others: list[PeerId] = []
    for edge in sorted(edges, key=lambda edge: place(b"".join(edge))):
        is_match = matched.isdisjoint(edge)
        if is_match:
            matched.update(edge)
        if self_id in edge:
            one, other = edge
            (partners if is_match else others).append(other if one == self_id else one)
    return (*partners, *others)


def _placed(salt: bytes, round_number: int) -> Callable[[bytes], bytes]:
    """Return what gives a member or an edge its place in the order of a round."""
    prefix = hashlib.sha256(
        _DOMAIN + len(salt).to_bytes(2, "big") + salt + round_number.to_bytes(8, "big")
    )

    def place(what: bytes) -> bytes:
        digest = prefix.copy()
        digest.update(what)
        return digest.digest()

    return place
