"""Whom a wish is offered to, by the matching, by chance, and on a graph."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from swarmnode import limits
from swarmnode.daemon.choice import PartnerChoice
from swarmnode.env import Env
from swarmnode.ids import PeerId
from swarmnode.ipc.control import Wish
from swarmnode.protocol.gossip import matching

SWARM = b"s" * 32
MEMBERS = tuple(PeerId(bytes([number]) * 32) for number in range(6))
SELF = MEMBERS[2]


class Clock:
    now = 100.0


def choice_of(topology: str = "", clock: Clock | None = None) -> PartnerChoice:
    env = Env(lambda: (clock or Clock).now, lambda: 0.0, random.Random(1))
    return PartnerChoice(SELF, SWARM, topology, env)


def wish_of(selector: Any, fragment: int = 0, round_number: int = 7) -> Wish:
    return Wish(1, "pair", "outer", fragment, round_number, selector)


def test_the_matching_is_that_of_the_fragment_over_all_members_then_who_is_reachable() -> None:
    for fragment in range(3):
        salt = matching.salt(SWARM, "outer", fragment)
        ranked = matching.candidates(SELF, salt, 7, MEMBERS, limit=5)
        wish = wish_of("matching", fragment)
        assert choice_of().candidates(wish, MEMBERS, MEMBERS) == ranked[:3]
        assert choice_of().candidates(wish, MEMBERS, ranked[3:]) == ranked[3:]
        assert choice_of().candidates(wish, MEMBERS, ()) == ()


def test_a_slow_partner_is_asked_only_when_there_is_nobody_else() -> None:
    clock = Clock()
    choice, wish = choice_of(clock=clock), wish_of("matching")
    first, second, third = choice.candidates(wish, MEMBERS, MEMBERS)
    choice.note_timeout(first)
    assert choice.candidates(wish, MEMBERS, MEMBERS)[:2] == (second, third)
    assert choice.candidates(wish, MEMBERS, [first]) == (first,)
    choice.note_commit(first)
    assert choice.candidates(wish, MEMBERS, MEMBERS)[0] == first
    choice.note_timeout(first)
    clock.now += limits.PARTNER_SLOW_S
    assert choice.candidates(wish, MEMBERS, MEMBERS)[0] == first


@pytest.mark.parametrize("topology", ["", "complete", "matching"])
def test_any_neighbour_is_anybody_at_random(topology: str) -> None:
    choice = choice_of(topology)
    drawn = [choice.candidates(wish_of("neighbour"), MEMBERS, MEMBERS) for _ in range(400)]
    assert all(len(set(peers)) == len(peers) == 3 for peers in drawn)
    firsts = Counter(peers[0] for peers in drawn)
    assert firsts.keys() == set(MEMBERS) - {SELF}
    assert min(firsts.values()) > 400 / 5 / 2


def test_on_a_graph_only_neighbours_are_asked() -> None:
    neighbours = {MEMBERS[1], MEMBERS[3]}
    for selector in ("matching", "neighbour"):
        choice = choice_of("ring")
        firsts = set()
        for round_number in range(20):
            wish = wish_of(selector, round_number=round_number)
            found = choice.candidates(wish, MEMBERS, MEMBERS)
            assert set(found) == neighbours
            firsts.add(found[0])
        assert firsts == neighbours
        assert choice.candidates(wish, MEMBERS, [MEMBERS[3], MEMBERS[5]]) == (MEMBERS[3],)


def test_a_graph_follows_its_members() -> None:
    choice, wish = choice_of("0-1 1-2 2-3 2-5"), wish_of("neighbour")
    assert set(choice.candidates(wish, MEMBERS, MEMBERS)) == {MEMBERS[n] for n in (1, 3, 5)}
    fewer = MEMBERS[1:4]  # we are number 1 of them
    assert set(choice.candidates(wish, fewer, MEMBERS)) == {MEMBERS[1], MEMBERS[3]}
    assert choice.candidates(wish, (SELF,), MEMBERS) == ()


def test_without_a_graph_no_numpy_is_imported() -> None:
    code = "import sys, swarmnode.daemon.exchange; sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
