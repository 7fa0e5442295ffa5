"""Nodes of the version before and of today in one swarm; a node is upgraded, and put back.

The version before is a commit of this repository, which `.ci/before` builds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swarmnode.cli.demo.report import audit_histories
from swarmnode.config import Paths
from tests.conftest import ROOT
from tests.kits.daemon_kit import Daemon, wait_until
from tests.process.life_kit import Party, ended, interrupt, peer_of

pytestmark = pytest.mark.slow

NOT_IN_THIS_CLONE = 3  # what `.ci/before` ends with
CASES = {
    "pairs": {"strategy": "pair-average", "strategy_settings": {"every": 16}},
    "groups": {"strategy": "streaming", "strategy_settings": {"every": 200, "meet": "group"}},
    "sparse": {"strategy": "sparse", "strategy_settings": {"every": 250, "kept": 256}},
}
BUILD_S = 300.0


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment in which a node is of the version before."""
    tree = tmp_path_factory.mktemp("before")
    build = ["bash", ROOT / ".ci" / "before", tree, sys.executable]
    built = subprocess.run(build, timeout=BUILD_S, stderr=subprocess.PIPE, text=True, check=False)
    if built.returncode == NOT_IN_THIS_CLONE:
        pytest.skip(built.stderr)
    assert built.returncode == 0, built.stderr
    return {"PYTHONPATH": str(tree)}


@pytest.fixture(params=CASES)
def party(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Party]:
    config = {"batch": 64, "lr": 0.002, "dim": 2048}
    party = Party(tmp_path, task_config=config, **CASES[request.param])
    try:
        yield party
    finally:
        party.close()


def _is_before(node: Daemon) -> bool:
    """Whether a node finds the other tree first, as its process says."""
    variables = Path(f"/proc/{node.pid}/environ").read_bytes().decode().split("\0")
    (path,) = (each for each in variables if each.startswith("PYTHONPATH="))
    return "/before" in path


def _both_met(nodes: list[Daemon], more: int) -> None:
    """Wait until each node has committed so many more, with nodes of the other version too."""
    begun = {node.home.name: node.wait_training()["exchanges_committed"] for node in nodes}

    def have() -> bool:
        counts = {node.home.name: node.status().get("exchanges_committed", 0) for node in nodes}
        return all(counts[name] >= begun[name] + more for name in counts)

    wait_until(have, f"{more} exchanges of each", 300.0)


def _history(node: Daemon) -> list[dict[str, Any]]:
    lines = Paths(node.home).history.read_text().splitlines()
    return [json.loads(line) for line in lines]


def _stay_together(nodes: list[Daemon]) -> None:
    """Every node sees all others alive, and their state becomes the same."""
    wait_until(
        lambda: all(node.status().get("peers_alive") == len(nodes) - 1 for node in nodes),
        "all to see all",
        120.0,
    )


def test_two_versions_train_together_and_a_node_is_upgraded(
    party: Party, before: dict[str, str]
) -> None:
    """Each gives state, snapshots and exchanges to both, and nothing is applied by halves."""
    old = party.join("creator", **before)
    old.wait_training()
    new = party.join("new", via=old)
    new.wait_training()
    old_by_new = party.join("old-by-new", via=new, **before)
    old_by_new.wait_training()
    nodes = [old, new, old_by_new]
    assert [_is_before(node) for node in nodes] == [True, False, True]
    _stay_together(nodes)
    _both_met(nodes, 6)

    # Upgraded: drained, replaced, resumed; then put back.
    for env in ({}, before):
        peer, step = peer_of(old), old.status()["step"]
        old.ask("/finish")
        code, _ = ended(old)
        assert code == 0
        old.env = party.env(**env)
        old.start()
        resumed = old.wait_training()
        assert peer_of(old) == peer
        assert resumed["step"] >= step, "it goes on where it was"
        _stay_together(nodes)
        _both_met(nodes, 3)

    interrupt(*nodes)
    audit = audit_histories({str(peer_of(node)): _history(node) for node in nodes})
    print(audit)
    assert not audit.half_applied
