"""The search learns, stays within bounds, sees what is planted, and what it kept passes."""

from __future__ import annotations

import random
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.sim.search.canaries import CANARIES, planted
from tests.sim.search.play import Played, play
from tests.sim.search.run import load
from tests.sim.search.scenario import (
    FAULTS_MAX,
    KINDS,
    STRATEGIES,
    Fault,
    Scenario,
    as_line,
    changed,
    drawn,
    of_line,
    simpler,
)
from tests.sim.search.search import Search, shrunk, symptom

SMALL = Scenario(1, 2, "sums", 20, 0.5, 0.01, "", (Fault(6.0, "kill", 1, 0, 1.0),))


# --- what is tried ----------------------------------------------------------------------------


def test_what_is_drawn_and_changed_can_be_written_and_stays_small() -> None:
    rng = random.Random(1)
    scenario = drawn(rng)
    for _ in range(2000):
        scenario = changed(scenario, drawn(rng), rng)
        assert of_line(as_line(scenario)) == scenario  # which checks all ranges, too
        assert len(scenario.faults) <= FAULTS_MAX
        assert list(scenario.faults) == sorted(scenario.faults)
        assert all(fault.at_s <= scenario.seconds for fault in scenario.faults)


def test_all_faults_and_strategies_are_drawn() -> None:
    rng = random.Random(1)
    scenarios = [drawn(rng) for _ in range(300)]
    assert {each.strategy for each in scenarios} == set(STRATEGIES)
    assert {fault.kind for each in scenarios for fault in each.faults} == set(KINDS)
    assert any(each.attack for each in scenarios)


def test_what_is_simpler_has_less_in_it() -> None:
    rng = random.Random(2)
    for _ in range(200):
        scenario = drawn(rng)
        for less in simpler(scenario):
            sizes = [
                (len(each.faults), bool(each.attack), each.n_nodes, each.seconds, each.delay_s)
                for each in (less, scenario)
            ]
            assert all(one <= other for one, other in zip(*sizes, strict=True))
            assert sizes[0] != sizes[1]


# --- it learns --------------------------------------------------------------------------------

PLANTED = ("kill", "part", "slow", "pause")


def toy(scenario: Scenario) -> Played:
    """A swarm that breaks when its first faults are just these: each is a step on the way there."""
    depth = 0
    for fault, kind in zip(scenario.faults, PLANTED, strict=False):
        if fault.kind != kind:
            break
        depth += 1
    seen = {("toy", f"{n}") for n in range(depth + 1)}
    violation = "atomic: planted" if depth == len(PLANTED) else ""
    return Played(scenario, frozenset(seen), 60.0, violation, [])


def until_found(search: Search, at_most: int) -> int:
    while not search.found and search.n_played < at_most:
        search.step()
    return search.n_played


def test_it_finds_what_chance_does_not() -> None:
    searches = [Search(seed, run=toy) for seed in range(8)]
    blind = [Search(seed, is_blind=True, run=toy) for seed in range(8)]
    for search in (*searches, *blind):
        until_found(search, 2500)
    learnt, by_chance = (sum(bool(each.found) for each in some) for some in (searches, blind))
    assert learnt >= 2 * by_chance + 2
    (found,) = next(each for each in searches if each.found).found.values()
    smallest = shrunk(found, 200, toy).scenario
    assert tuple(fault.kind for fault in smallest.faults) == PLANTED
    assert smallest.n_nodes == 2


def test_the_same_seed_finds_the_same() -> None:
    searches = [Search(4, run=toy) for _ in range(2)]
    for search in searches:
        until_found(search, 500)
    one, other = searches
    assert [each.scenario for each in one.kept] == [each.scenario for each in other.kept]
    assert one.counts == other.counts


def test_the_smallest_corpus_shows_all_that_was_seen() -> None:
    search = Search(6, run=toy)
    for _ in range(60):
        search.step()
    assert not search.found, "what breaks a promise is not kept"
    again = Search(5, run=toy)
    again.replay(search.smallest())
    assert again.counts.keys() == search.counts.keys()
    assert len(again.kept) <= len(search.kept)


# --- whole daemons ----------------------------------------------------------------------------


def test_a_scenario_is_told_and_can_be_repeated() -> None:
    played = play(SMALL)
    assert played.violation == ""
    assert [line.partition(" s  ")[2] for line in played.story] == [
        "2 nodes have started, by sums",
        "n1 is killed, and is back after 1 s",
        "it is over, and lines are fast",
    ]
    assert {"pairs", "swim", "crdt", "contacts", "dht"} <= {core for core, _ in played.transitions}
    steps = {what for core, what in played.transitions if core == "pairs"}
    assert any("Received Accept > " in step for step in steps)
    assert play(SMALL).transitions == played.transitions


@pytest.mark.parametrize("name", [name for name, each in CANARIES.items() if each.scenario])
def test_a_bug_is_seen(name: str) -> None:
    canary = CANARIES[name]
    assert canary.scenario is not None
    with planted(name):
        played = play(canary.scenario)
    assert played.promise in canary.promises
    assert played.story[-1] == f"!! {played.violation}"


def test_every_promise_has_a_canary() -> None:
    text = (ROOT / "tests/sim/search/play.py").read_text(encoding="utf-8")
    promised = set(re.findall(r"^    ([a-z]+) {2,}\S", text.split('"""')[1], re.MULTILINE))
    assert len(promised) == 8
    assert promised <= {each for canary in CANARIES.values() for each in canary.promises}


def test_two_failures_of_one_kind_are_one() -> None:
    def broken(violation: str) -> str:
        return symptom(Played(SMALL, frozenset(), 0.0, violation, []))

    assert broken("atomic: 2 exchanges are half applied, 0123abcd first") == broken(
        "atomic: 11 exchanges are half applied, 89efabcd first"
    )
    assert broken("ended: n1: a") == broken("ended: n2: a")
    assert broken("ended: n1: a") != broken("moving: n1: a")


@pytest.mark.slow
@pytest.mark.parametrize("at", range(8))
def test_what_was_kept_passes(at: int) -> None:
    corpus = load()
    assert len(corpus) >= 8, "run python -m tests.sim.search.run --keep"
    for scenario in corpus[at::8]:
        assert play(scenario).violation == "", as_line(scenario)


def command(*words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.sim.search.run", *words],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_its_command_says_what_it_did() -> None:
    code, out, err = command("--blind", "--node-hours", "0.001")
    assert (code, err) == (0, ""), out
    *_, last = out.splitlines()
    assert re.match(r"\d+ scenarios, 0\.\d+ node-hours, \S+ a minute; \d+ transitions \(", last)
    code, out, err = command("--replay", "{}")
    assert (code, out) == (2, "")
    assert err.startswith("expected a scenario as the search prints it: ")
