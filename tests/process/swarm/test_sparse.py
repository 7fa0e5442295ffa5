"""Four real nodes that gather: the same bits after the same round, also for one that was killed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kits.daemon_kit import Daemon, wait_until
from tests.process.life_kit import Party

pytestmark = pytest.mark.slow

# What a member logs of a round that it applied: the round, and the hash over all its messages.
GATHERED = re.compile(r"gathered tag=sparse round=(\d+) messages=(\d+) result=(\w+)")
SETTINGS = {"every": 200, "kept": 128}


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Daemon]]:
    party = Party(
        tmp_path,
        dim=2048,
        task_config={"batch": 8, "lr": 0.002, "dim": 2048},
        strategy="sparse",
        strategy_settings=SETTINGS,
    )
    try:
        first = party.join("creator")
        yield [first, *(party.join(f"n{number}", via=first) for number in (1, 2, 3))]
    finally:
        party.close()


def rounds(node: Daemon) -> dict[str, tuple[str, str]]:
    """Return what each round came to: how many messages, and the hash over them."""
    return {number: (n, result) for number, n, result in GATHERED.findall(node.log)}


def check_same_results(nodes: list[Daemon]) -> None:
    found: dict[str, set[tuple[str, str]]] = {}
    for node in nodes:
        for number, result in rounds(node).items():
            found.setdefault(number, set()).add(result)
    assert found
    assert all(len(results) == 1 for results in found.values()), found


def test_four_nodes_gather_learn_and_take_back_one_that_was_killed(nodes: list[Daemon]) -> None:
    for node in nodes:
        node.wait(lambda s: s["peers_connected"] == 3, "three peers")
        node.wait(lambda s: s["exchanges_committed"] >= 4, "its rounds")
        node.wait(lambda s: s["eval_loss"] and s["eval_loss"] < 0.99 * 2048**0.5, "learning")
    check_same_results(nodes)
    assert any(n == "4" for n, _ in rounds(nodes[0]).values())

    killed, *others = nodes
    killed.kill()
    before = others[0].status()["exchanges_committed"]
    others[0].wait(lambda s: s["exchanges_committed"] >= before + 3, "rounds of the others")
    killed.start()
    killed.wait(lambda s: s["exchanges_committed"] >= 2, "rounds with the others again")
    check_same_results(others)
    wait_until(lambda: all(node.status()["alarm"] == "" for node in nodes), "no alarm")
