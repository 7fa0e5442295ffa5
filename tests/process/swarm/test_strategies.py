"""Every strategy in a swarm of real nodes: all commit, none by halves, and all agree at the end."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from swarmnode.config import Paths
from swarmnode.processes.audit import Audit, audit_histories
from tests.kits.daemon_kit import Daemon, swarmnode, wait_until
from tests.process.life_kit import Party, peer_of

Status = dict[str, Any]
SETTLE_STEPS = 20
# Three rounds of a group, each of which waits for the slowest of three nodes that have a third of a
# busy machine between them.
ROUNDS_DEADLINE_S = 420.0
# What a member of a group logs of a mean that it applied: the round, and a hash of the result.
GROUP_MEAN = re.compile(r"group mean tag=outer round=(\d+) members=\d result=(\w+) is_applied=True")


@dataclass(frozen=True)
class Case:
    """One strategy on `synthetic`, and when a node has done enough with it."""

    strategy: str
    settings: dict[str, Any]
    has_done_enough: Callable[[Status], bool]
    dim: int = 2048
    task: dict[str, Any] = field(default_factory=dict)


def exchanged(times: int) -> Callable[[Status], bool]:
    """So many exchanges or group means committed here, and some of them are in the model."""
    return lambda s: s["exchanges_committed"] >= times and s["exchanges_applied"] > 0


def rounds_closed(times: int) -> Callable[[Status], bool]:
    return lambda s: s["strategy"].get("rounds_closed", 0) >= times


CASES = (
    Case("streaming", {"every": 64, "meet": "pair"}, exchanged(8)),
    Case("streaming", {"every": 64, "meet": "group"}, exchanged(8)),
    Case("noloco", {"every": 64}, exchanged(4)),
    Case("pair-average", {"every": 64, "merge": "variance-corrected"}, exchanged(8)),
    Case("a2cid2", {"rate": 0.05}, exchanged(8)),
    Case("diloco", {"every": 250}, exchanged(3), task={"batch": 256, "lr": 0.002}),
    Case("sparse", {"every": 250, "kept": 256}, exchanged(3), task={"batch": 256, "lr": 0.002}),
    # A zeroth-order step is noisy in proportion to the parameters.
    Case("one-byte", {"lr": 0.005}, rounds_closed(40), dim=64, task={"batch": 64}),
)
# Members of a group mean come out of phase on a machine with more to do than cores, and three means
# take minutes instead of seconds.
pytestmark = pytest.mark.slow


@pytest.fixture(
    params=CASES,
    ids=lambda case: f"{case.strategy}-{case.settings.get('meet', 'all')}",
)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


@pytest.fixture
def party(tmp_path: Path, case: Case) -> Iterator[Party]:
    config = {"batch": 8, "lr": 0.0005, "dim": case.dim, **case.task}
    party = Party(
        tmp_path,
        dim=case.dim,
        task_config=config,
        strategy=case.strategy,
        strategy_settings=case.settings,
    )
    try:
        yield party
    finally:
        party.close()


def history(node: Daemon) -> list[dict[str, Any]]:
    path = Paths(node.home).history
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_three_nodes_learn_together_and_agree_in_the_end(party: Party, case: Case) -> None:
    nodes = [party.join("creator")]
    nodes += [party.join(name, via=nodes[0]) for name in ("second", "third")]
    for node in nodes:
        node.wait(lambda s: s["peers_connected"] == 2, "two peers")
    for node in nodes:
        node.wait(case.has_done_enough, f"its share of {case.strategy}", ROUNDS_DEADLINE_S)
        node.wait(
            lambda s: s["eval_loss"] and s["eval_loss"] < 0.99 * case.dim**0.5,
            "learning",
            ROUNDS_DEADLINE_S,
        )

    for node in nodes:
        node.ask("/pause")
    for node in nodes:
        node.wait(lambda s: s["state"] == "paused", "paused")
    check_nothing_is_half_applied(nodes)
    if case.strategy == "one-byte":
        check_same_bits(nodes)

    for node in nodes:
        node.ask("/resume")
    for node in nodes:
        node.wait_training(node.status()["step"] + SETTLE_STEPS)
    wait_until(
        lambda: all(peer["state"] == "training" for peer in nodes[0].peers()), "peers that train"
    )
    found = swarmnode(nodes[0].home, "finalize", "--json").json
    assert (found["agreed"], found["members"], found["contributors"]) == (3, 3, 3)
    assert len(bytes.fromhex(found["digest"])) == 32
    for node in nodes:
        assert node.status()["worker_restarts"] == 0
        # Those that paused last met no other meanwhile and said so: a round that succeeds ends it.
        node.wait(lambda s: s["alarm"] == "", "no alarm", ROUNDS_DEADLINE_S)


def check_nothing_is_half_applied(nodes: list[Daemon]) -> None:
    """Neither by what each counts, nor by comparing what all have written down."""
    for node in nodes:
        status = node.status()
        assert status["exchanges_half_applied"] == status["exchanges_in_doubt"] == 0
    # Both sides have written down an exchange a moment after the first of them has.
    audit = wait_until(lambda: _settled_audit(nodes), "histories that agree")
    print(f"distinct exchanges of pairs: {audit}")
    means: dict[str, set[str]] = {}
    for node in nodes:
        for number, result in GROUP_MEAN.findall(node.log):
            means.setdefault(number, set()).add(result)
    print(f"group means: {len(means)}")
    assert all(len(results) == 1 for results in means.values()), means


def _settled_audit(nodes: list[Daemon]) -> Audit | None:
    audit = audit_histories({str(peer_of(node)): history(node) for node in nodes})
    return None if audit.half_applied else audit


def check_same_bits(nodes: list[Daemon]) -> None:
    """All nodes that have closed the same rounds of the log hold the same parameters."""

    def figures() -> set[tuple[float, float]]:
        found = (node.status()["strategy"] for node in nodes)
        return {(each["rounds_closed"], each["state_digest"]) for each in found}

    wait_until(lambda: len(figures()) == 1, "equal digests after equal rounds")
