"""Members whose models are of different rounds, or logs: those that cannot go on begin anew."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kits.daemon_kit import Daemon, wait_until
from tests.process.life_kit import Party, interrupt, offer

pytestmark = pytest.mark.slow

ROUNDS = 20
AGAIN_S = 300.0  # a snapshot of where the furthest stands, and two more starts of a worker


@pytest.fixture
def party(tmp_path: Path) -> Iterator[Party]:
    # A zeroth-order step is noisy in proportion to the parameters: few learn.
    party = Party(
        tmp_path,
        dim=64,
        task_config={"batch": 64, "lr": 0.0005, "dim": 64},
        strategy="one-byte",
        strategy_settings={"lr": 0.005},
    )
    try:
        yield party
    finally:
        party.close()


def closed(node: Daemon) -> int:
    status = node.wait(lambda s: "rounds_closed" in s.get("strategy", {}), "a worker with a log")
    return int(status["strategy"]["rounds_closed"])


def wait_rounds(*nodes: Daemon) -> None:
    """Wait until each has closed some more."""
    for node in nodes:
        target = closed(node) + ROUNDS
        node.wait(lambda s, n=target: s["strategy"].get("rounds_closed", 0) >= n, "more rounds")


def send(number: signal.Signals, *nodes: Daemon) -> None:
    for node in nodes:
        os.kill(node.pid, number)


def bits(nodes: list[Daemon]) -> set[tuple[float, float]]:
    found = (node.status().get("strategy", {}) for node in nodes)
    return {(each.get("rounds_closed"), each.get("state_digest")) for each in found}


def check_same_bits(nodes: list[Daemon]) -> None:
    for node in nodes:
        node.ask("/pause")
    for node in nodes:
        node.wait(lambda s: s["state"] == "paused" and s["alarm"] == "", "paused, no alarm")
    wait_until(lambda: len(bits(nodes)) == 1, "equal bits after equal rounds")


@pytest.mark.parametrize("is_restarted", [False, True], ids=["while it runs", "by its snapshot"])
def test_who_began_a_log_alone_takes_the_model_of_the_others(
    party: Party, is_restarted: bool
) -> None:
    first = party.join("creator")
    others = [first, party.join("second", via=first)]
    third = party.join("third", via=first)
    wait_rounds(*others, third)
    third.kill()
    wait_rounds(*others)
    offer(first)

    send(signal.SIGSTOP, *others)  # as if there were no way to them
    third.start()
    wait_rounds(third)
    alone = closed(third)
    if is_restarted:
        interrupt(third)
    send(signal.SIGCONT, *others)
    if is_restarted:
        wait_rounds(*others)
        third.start()

    third.wait(lambda s: s["peers_connected"] == 2, "both others")
    wait_until(lambda: "the log is halted here" in third.log, "that it notices")
    nodes = [*others, third]
    wait_rounds(*nodes)
    check_same_bits(nodes)
    assert third.status()["worker_restarts"] == 0
    print(f"{alone} rounds when it was alone, {closed(third)} with the others")


def test_all_that_come_back_with_models_of_different_rounds_go_on_together(party: Party) -> None:
    first = party.join("creator")
    nodes = [first, party.join("second", via=first), party.join("third", via=first)]
    wait_rounds(*nodes)
    interrupt(nodes[2])
    wait_rounds(*nodes[:2])
    before = closed(first)
    interrupt(*nodes[:2])
    for node in nodes:
        node.start()
    for node in nodes:
        node.wait(
            lambda s: s.get("strategy", {}).get("rounds_closed", 0) >= before + ROUNDS,
            "rounds beyond those from before",
            AGAIN_S,
        )
    check_same_bits(nodes)
