"""Who exchanges with whom in a round, without asking anybody.

Every node sorts the members by SHA-256(swarm, round, id) and pairs neighbours
in that order. Nodes with the same view find the same perfect matching; nodes
whose views differ a little find most of it, and the rest is settled by BUSY.
Averaging along uniform random matchings contracts the variance between n nodes
by (n-2) / 2(n-1) a round, and keeps the mean.

Source: Boyd, Ghosh, Prabhakar and Shah, "Randomized gossip algorithms", 2006;
the hash order as in de Vos et al., "Decentralized learning made easy with
DecentralizePy / MoDeST", 2023.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from swarmnode import limits
from swarmnode.ids import PeerId

_DOMAIN = b"swarmnode/matching\0"


def order(swarm_id: bytes, round_number: int, members: Iterable[PeerId]) -> list[PeerId]:
    """Return the distinct members in the order of this round.

    Cost: one hash per member and a sort.
    """
    prefix = hashlib.sha256(
        _DOMAIN + len(swarm_id).to_bytes(2, "big") + swarm_id + round_number.to_bytes(8, "big")
    )

    def place(member: PeerId) -> bytes:
        digest = prefix.copy()
        digest.update(member)
        return digest.digest()

    return sorted(set(members), key=place)


def candidates(
    self_id: PeerId,
    swarm_id: bytes,
    round_number: int,
    members: Iterable[PeerId],
    limit: int = limits.EXCHANGE_CANDIDATES_MAX,
) -> tuple[PeerId, ...]:
    """Return whom ``self_id`` should offer to: its partner, then the next in order.

    ``members`` may or may not contain ``self_id``. With an odd number of members the
    last in order has no partner and gets the next ones, which start from the front.
    """
    ordered = order(swarm_id, round_number, {*members, self_id})
    place = ordered.index(self_id)
    partner = place ^ 1
    ranked = ordered[place + 1 :] + ordered[:place]
    if partner < len(ordered):
        ranked.remove(ordered[partner])
        ranked.insert(0, ordered[partner])
    return tuple(ranked[:limit])
