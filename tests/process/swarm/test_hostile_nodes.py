"""Five honest nodes and one that is hostile, all of them processes that talk over TCP.

Each attack is held against the same swarm with a sixth node that behaves. How much a node may lose
is said in exchanges a step, loss, memory and CPU: never in time, which depends on the machine. All
of them in one table, with runs in peace between them:

    python -m tests.process.swarm.hostile_table
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest

from tests.process.swarm.hostile_party import Outcome, Setting, run
from tests.process.swarm.hostile_table import CASES, Beside

pytestmark = pytest.mark.slow

EACH = [(setting, attack) for setting, attacks in CASES.items() for attack in attacks]


@functools.cache
def peace(setting: Setting) -> Outcome:
    """Return what the swarm comes to if all six behave."""
    with tempfile.TemporaryDirectory(prefix="swarmnode-peace-") as folder:
        return run(Path(folder), "none", setting)


@pytest.mark.parametrize(
    ("setting", "attack"), EACH, ids=[f"{setting.strategy}-{attack}" for setting, attack in EACH]
)
def test_one_hostile_node_of_six_changes_little(
    tmp_path: Path, setting: Setting, attack: str
) -> None:
    beside = Beside.of(run(tmp_path, attack, setting), [peace(setting)])
    assert not beside.short(), beside
