"""The peers that an intent is offered to, by the matching, by chance, and on a graph."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Collection
from typing import Any

import pytest

from swarmnode import limits
from swarmnode.daemon.exchange.pair.intents import PartnerChoice
from swarmnode.env import Env
from swarmnode.ids import PeerId
from swarmnode.ipc.control import PostedIntent
from swarmnode.net.paths import cost_of
from swarmnode.protocol.gossip import matching
from swarmnode.protocol.gossip.conduct import ConductTable
from swarmnode.protocol.trust import Seen, Trust

SWARM = b"s" * 32
MEMBERS = tuple(PeerId(bytes([number]) * 32) for number in range(6))
SELF = MEMBERS[2]


class Clock:
    now = 100.0


def choice_of(
    topology: str = "", clock: Clock | None = None, conduct: ConductTable | None = None
) -> PartnerChoice:
    env = Env(lambda: (clock or Clock).now, lambda: 0.0, random.Random(1))
    return PartnerChoice(SELF, SWARM, topology, ConductTable() if conduct is None else conduct, env)


def at_cost(peers: Collection[PeerId], cost: float = 1.0) -> dict[PeerId, float]:
    return dict.fromkeys(peers, cost)


def intent_of(selector: Any, fragment: int = 0, round_number: int = 7) -> PostedIntent:
    return PostedIntent(1, "pair", "outer", fragment, round_number, selector)


def test_the_matching_is_that_of_the_fragment_over_all_members_then_the_reachable() -> None:
    for fragment in range(3):
        salt = matching.salt(SWARM, "outer", fragment)
        ranked = matching.candidates(SELF, salt, 7, MEMBERS, limit=5)
        intent = intent_of("matching", fragment)
        assert choice_of().candidates(intent, MEMBERS, at_cost(MEMBERS)) == ranked[:3]
        assert choice_of().candidates(intent, MEMBERS, at_cost(ranked[3:])) == ranked[3:]
        assert choice_of().candidates(intent, MEMBERS, at_cost(())) == ()


def test_who_does_not_answer_is_asked_only_when_there_is_no_other() -> None:
    clock, conduct = Clock(), ConductTable()
    choice, intent = choice_of(clock=clock, conduct=conduct), intent_of("matching")
    first, second, third = choice.candidates(intent, MEMBERS, at_cost(MEMBERS))
    conduct.note_no_answer(first, clock.now)
    assert choice.candidates(intent, MEMBERS, at_cost(MEMBERS))[:2] == (second, third)
    assert choice.candidates(intent, MEMBERS, at_cost([first])) == (first,)
    conduct.note_heard(first)
    assert choice.candidates(intent, MEMBERS, at_cost(MEMBERS))[0] == first
    conduct.note_no_answer(first, clock.now)
    clock.now += limits.PARTNER_SLOW_S
    assert choice.candidates(intent, MEMBERS, at_cost(MEMBERS))[0] == first


def test_who_is_trusted_less_is_asked_in_some_rounds_and_when_there_is_no_other() -> None:
    trust = Trust(b"\x07" * 16)
    choice = choice_of(conduct=ConductTable(trust))
    liar = MEMBERS[4]
    for _ in range(40):
        trust.note(liar, Seen.REFUSED, Clock.now)
    for selector in ("matching", "neighbour"):
        asked = [
            choice.candidates(intent_of(selector, round_number=n), MEMBERS, at_cost(MEMBERS))
            for n in range(400)
        ]
        met = sum(liar in candidates for candidates in asked)
        assert 0 < met < 40, "a 27th of the rounds"
        assert all(len(set(candidates)) == 3 for candidates in asked), "others take its place"
    assert choice.candidates(intent_of("matching"), MEMBERS, at_cost([liar])) == (liar,)


@pytest.mark.parametrize("topology", ["", "complete", "matching"])
def test_any_neighbour_is_a_member_at_random(topology: str) -> None:
    choice = choice_of(topology)
    drawn = [
        choice.candidates(intent_of("neighbour"), MEMBERS, at_cost(MEMBERS)) for _ in range(400)
    ]
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
            intent = intent_of(selector, round_number=round_number)
            found = choice.candidates(intent, MEMBERS, at_cost(MEMBERS))
            assert set(found) == neighbours
            firsts.add(found[0])
        assert firsts == neighbours
        assert choice.candidates(intent, MEMBERS, at_cost([MEMBERS[3], MEMBERS[5]])) == (
            MEMBERS[3],
        )


def test_a_graph_follows_its_members() -> None:
    choice, intent = choice_of("0-1 1-2 2-3 2-5"), intent_of("neighbour")
    assert set(choice.candidates(intent, MEMBERS, at_cost(MEMBERS))) == {
        MEMBERS[n] for n in (1, 3, 5)
    }
    fewer = MEMBERS[1:4]  # we are number 1 of them
    assert set(choice.candidates(intent, fewer, at_cost(MEMBERS))) == {MEMBERS[1], MEMBERS[3]}
    assert choice.candidates(intent, (SELF,), at_cost(MEMBERS)) == ()


def test_who_is_reached_through_a_relay_is_met_more_rarely_but_met() -> None:
    others = [peer for peer in MEMBERS if peer != SELF]
    dear = others[0]
    costs = at_cost(others) | at_cost([dear], cost_of("relay:sn1abc@192.0.2.1:443"))
    choice = choice_of()
    draws = [choice.candidates(intent_of("neighbour"), MEMBERS, costs)[0] for _ in range(1000)]
    expected = 1000 * 0.25 / (0.25 + len(others) - 1)
    assert 0.5 * expected < draws.count(dear) < 1.5 * expected
    for round_number in range(20):
        intent = intent_of("matching", round_number=round_number)
        salt = matching.salt(SWARM, "outer", 0)
        ranked = matching.candidates(SELF, salt, round_number, MEMBERS, limit=len(MEMBERS))
        found = choice.candidates(intent, MEMBERS, costs)
        assert found[0] == ranked[0]  # the round's own partner, whatever it costs
        assert dear not in found[1:]  # there are cheaper ones to fall back to


def test_a_way_costs_what_its_kind_does() -> None:
    assert cost_of("tcp 192.0.2.1:7337") == cost_of("punched-tcp 192.0.2.1:7337") == 1
    assert 1 < cost_of("rtc 192.0.2.1:7337") < cost_of("relay:sn1abc@192.0.2.1:443")


def test_without_a_graph_no_numpy_is_imported() -> None:
    code = "import sys, swarmnode.daemon.exchange; sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
