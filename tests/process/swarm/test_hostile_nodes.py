"""Five honest nodes and one that is hostile, all of them processes that talk over TCP.

Each attack is held against the same swarm with a sixth node that behaves. How much a node may lose
is said in exchanges a step, loss, memory and CPU: never in time, which depends on the machine.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest

from tests.process.swarm.hostile_party import Outcome, Setting, run

pytestmark = pytest.mark.slow

PAIRS = Setting("pair-average", (("every", 16),), steps=3000)
GROUPS = Setting("streaming", (("meet", "group"), ("every", 48), ("fragments", 2)), steps=3000)
GATHERINGS = Setting("sparse", (("every", 250),), steps=2500)
CASES = [
    *(
        (PAIRS, attack)
        for attack in (
            "sign-flip",
            "scaled",
            "huge",
            "stale",
            "pair-unanswered",
            "pair-accepted",
            "pair-offered",
            "pair-trickled",
            "pair-ready",
            "pair-pending",
            "pair-unready",
            "boasts",
            "addresses",
        )
    ),
    *((GROUPS, f"round-{stall}") for stall in ("enlist", "flush", "share", "sum", "prepared")),
    *((GATHERINGS, attack) for attack in ("round-flush", "round-share", "withheld", "huge")),
]
COMMITS_SHARE = 0.8
LOSS_RATIO = 1.03
MEMORY_RATIO = 1.25
CPU_RATIO = 2.0


@functools.cache
def peace(setting: Setting) -> Outcome:
    """Return what the swarm comes to if all six behave."""
    with tempfile.TemporaryDirectory(prefix="swarmnode-peace-") as folder:
        return run(Path(folder), "none", setting)


@pytest.mark.parametrize(
    ("setting", "attack"), CASES, ids=[f"{setting.strategy}-{attack}" for setting, attack in CASES]
)
def test_one_hostile_node_of_six_changes_little(
    tmp_path: Path, setting: Setting, attack: str
) -> None:
    clean, attacked = peace(setting), run(tmp_path, attack, setting)
    assert attacked.restarts == attacked.half_applied == 0
    assert attacked.commits_per_step >= COMMITS_SHARE * clean.commits_per_step
    assert attacked.loss <= LOSS_RATIO * clean.loss
    assert attacked.memory_bytes <= MEMORY_RATIO * clean.memory_bytes
    assert attacked.cpu_s / attacked.steps <= CPU_RATIO * clean.cpu_s / clean.steps
