"""Matching: the order is part of the protocol, so it is pinned."""

from __future__ import annotations

import hashlib

from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.matching import candidates, candidates_on_graph, order, salt

MEMBERS = [PeerId(bytes([number]) * 32) for number in range(5)]
SWARM = b"s" * 32


def test_order_is_the_hash_of_swarm_round_and_id() -> None:
    def place(member: PeerId) -> bytes:
        text = b"swarmnode/matching\0" + b"\x00\x20" + SWARM + (7).to_bytes(8, "big") + member
        return hashlib.sha256(text).digest()

    assert order(SWARM, 7, MEMBERS) == sorted(MEMBERS, key=place)
    assert order(SWARM, 8, MEMBERS) != order(SWARM, 7, MEMBERS)
    assert order(b"t" * 32, 7, MEMBERS) != order(SWARM, 7, MEMBERS)


def test_partner_first_then_next_in_order() -> None:
    first, second, third, fourth, last = order(SWARM, 7, MEMBERS)
    assert candidates(first, SWARM, 7, MEMBERS) == (second, third, fourth)
    assert candidates(second, SWARM, 7, MEMBERS) == (first, third, fourth)
    assert candidates(third, SWARM, 7, MEMBERS) == (fourth, last, first)
    assert candidates(last, SWARM, 7, MEMBERS) == (first, second, third)
    assert candidates(last, SWARM, 7, MEMBERS, limit=1) == (first,)


def test_alone_there_is_no_partner() -> None:
    assert candidates(MEMBERS[0], SWARM, 7, []) == ()
    assert candidates(MEMBERS[0], SWARM, 7, MEMBERS[:1]) == ()


def test_each_tag_and_fragment_has_matchings_of_its_own() -> None:
    assert salt(SWARM, "outer", 258) == SWARM + b"outer\0" + b"\0\0\0\0\0\0\x01\x02"
    orders = {tuple(order(salt(SWARM, "outer", p), 7, MEMBERS)) for p in range(4)}
    assert len(orders) == 4


def ring(n: int) -> list[tuple[PeerId, PeerId]]:
    ids = [PeerId(bytes([number]) * 32) for number in range(n)]
    return [(ids[i], ids[i + 1]) for i in range(n - 1)] + [(ids[0], ids[-1])]


def test_on_a_graph_the_edges_are_ordered_and_matched() -> None:
    edges = ring(6)

    def place(edge: tuple[PeerId, PeerId]) -> bytes:
        text = b"swarmnode/matching\0" + b"\x00\x20" + SWARM + (7).to_bytes(8, "big")
        return hashlib.sha256(text + edge[0] + edge[1]).digest()

    partners: dict[PeerId, PeerId] = {}
    for one, other in sorted(edges, key=place):
        if one not in partners and other not in partners:
            partners |= {one: other, other: one}
    for member in sorted({end for edge in edges for end in edge}):
        found = candidates_on_graph(member, SWARM, 7, reversed(edges))
        assert len(found) == 2
        assert {found[0]} == {partners.get(member, found[0])}
        neighbours = {end for edge in edges if member in edge for end in edge} - {member}
        assert set(found) == neighbours
    assert len(partners) in (4, 6)


def test_every_edge_of_a_graph_has_its_turn() -> None:
    edges = ring(7)
    first = {
        frozenset((member, candidates_on_graph(member, SWARM, r, edges)[0]))
        for r in range(20)
        for member in {end for edge in edges for end in edge}
    }
    assert first == {frozenset(edge) for edge in edges}
    assert candidates_on_graph(PeerId(b"?" * 32), SWARM, 7, edges) == ()
