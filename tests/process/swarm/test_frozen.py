"""Five real nodes, one of which is stopped (SIGSTOP, a lid that closes): the others go on.

How long they are without a commit is held against the same nodes in the seconds before, so that a
busy machine slows both alike.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from swarmnode.config import Paths
from swarmnode.store.files import read_history
from tests.kits.daemon_kit import Daemon, wait_until
from tests.process.life_kit import Party

pytestmark = pytest.mark.slow

# Steps of `synthetic` take a few milliseconds where five nodes share two cores.
TASK = {"dim": 2048, "batch": 8, "lr": 2e-5}
STRATEGIES: dict[str, Mapping[str, Any]] = {
    "pair-average": {"every": 100},
    "streaming": {"every": 100, "fragments": 1},
}
N, WATCHED_S = 5, 20.0
GAP_S = 1.0
# Of a busy machine, where a second is often too little without a frozen member, too.
GAP_RATIO = 1.5


def commits_s(node: Daemon) -> list[float]:
    """Return when what counts was committed."""
    return [
        entry["unix_s"]
        for entry in read_history(Paths(node.home).history)
        if entry.get("outcome") == "committed"
    ]


def gap_p95_s(nodes: list[Daemon], since_s: float, until_s: float) -> float:
    """Return what 95 % of the gaps between two commits of a node are shorter than."""
    gaps_s = sorted(
        later - earlier
        for node in nodes
        for earlier, later in itertools.pairwise(
            [since_s, *(s for s in commits_s(node) if since_s < s < until_s), until_s]
        )
    )
    shown = (round(gaps_s[int(share * len(gaps_s))], 2) for share in (0.5, 0.95, 0.999))
    print(f"{len(gaps_s)} gaps: median, 95 %, longest", *shown)
    return gaps_s[int(0.95 * len(gaps_s))]


def let_pass(seconds: float) -> None:
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= until, "the time to pass", 10 * seconds)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_stopped_node_of_five_stalls_no_other(tmp_path: Path, strategy: str) -> None:
    settings = STRATEGIES[strategy]
    party = Party(tmp_path, task_config=TASK, strategy=strategy, strategy_settings=settings)
    try:
        first = party.join("creator")
        nodes = [first, *(party.join(f"n{n}", via=first) for n in range(1, N))]
        for node in nodes:
            node.wait(lambda s: s["peers_connected"] >= N - 1, "all others")
            wait_until(lambda node=node: len(commits_s(node)) > 5, "a few commits")
        before_s = time.time()
        let_pass(WATCHED_S)
        frozen, others = nodes[-1], nodes[:-1]
        stopped_s = time.time()
        os.kill(frozen.pid, signal.SIGSTOP)
        let_pass(WATCHED_S)
        usual_s = gap_p95_s(others, before_s, stopped_s)
        stalled_s = gap_p95_s(others, stopped_s, time.time())
        assert stalled_s <= max(GAP_S, GAP_RATIO * usual_s)
    finally:
        party.close()
