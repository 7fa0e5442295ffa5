"""What rules make of given shares stays, as long as the strategies that have them are the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from swarmnode.strategies.installed import installed_strategies, look_at_strategy
from swarmnode.strategies.registry import find_strategy
from tests.golden.rule_vectors import CASES, PATH, RULES, STRATEGIES, add, made, vectors

GOLDEN = json.loads(PATH.read_text())


@pytest.mark.parametrize("name", CASES)
def test_the_shares_are_as_published(name: str) -> None:
    assert vectors()["shares"][name] == GOLDEN["shares"][name]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", CASES)
def test_a_rule_makes_what_is_published(rule: str, name: str) -> None:
    assert made(rule, name) == GOLDEN["made"][f"{rule} {name}"], (
        "members of two versions would refuse each other's parts of means: what changes a rule is"
        f" a new `version` of {', '.join(STRATEGIES)}, and rules-v2.json beside this one"
    )


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_results_are_of_the_versions_of_the_strategies(name: str) -> None:
    assert look_at_strategy(name).version == GOLDEN["strategies"][name]


def test_every_strategy_with_a_rule_of_groups_is_named() -> None:
    with_rules = [
        name
        for name in installed_strategies()
        if "merge" in find_strategy(name).Config.__annotations__
        and find_strategy(name).Config.__annotations__["merge"] != "PairMerge"
    ]
    assert with_rules == list(STRATEGIES)


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_makes_something_else_of_some_shares(rule: str) -> None:
    """What all rules make alike would not notice that one has become another."""
    own = [GOLDEN["made"][f"{rule} {name}"] for name in CASES]
    for other in RULES:
        assert other == rule or own != [GOLDEN["made"][f"{other} {name}"] for name in CASES]


def test_what_is_there_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / PATH.name
    assert len(add(path)) == len(STRATEGIES) + len(CASES) * (1 + len(RULES))
    assert json.loads(path.read_text()) == GOLDEN
    assert add(path) == []
    held = json.loads(path.read_text())
    held["made"]["mean three"] = ["00"]
    del held["made"]["nnm three"]
    path.write_text(json.dumps(held))
    assert add(path) == ["made: nnm three"]
    assert json.loads(path.read_text())["made"]["mean three"] == ["00"]
