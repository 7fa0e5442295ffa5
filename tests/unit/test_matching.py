"""Matching: the order is part of the protocol, so it is pinned."""

from __future__ import annotations

import hashlib

from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.matching import candidates, order

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


def test_alone_there_is_nobody() -> None:
    assert candidates(MEMBERS[0], SWARM, 7, []) == ()
    assert candidates(MEMBERS[0], SWARM, 7, MEMBERS[:1]) == ()
