"""``swarmnode bench learning`` from the command line: both engines, in runs of a few steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kits.daemon_kit import swarmnode


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["lab", "daemons"])
def test_a_swarm_is_put_between_its_baselines(tmp_path: Path, engine: str) -> None:
    done = swarmnode(
        tmp_path, "bench", "learning", "--nodes", "2", "--steps", "60", "--seeds", "1",
        "--engine", engine, "--settings", '{"every": 8}', "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    found = done.json
    assert (found["engine"], found["nodes"], found["steps"]) == (engine, 2, 60)
    assert found["seeds"] == [1]
    for loss in ("alone", "data_parallel", "swarm_own", "swarm_mean"):
        assert 2.0 < found[loss] < 4.5  # it has learnt something: ln 256 is 5.5
    assert found["committed"] > 0
    assert 0 < found["exchange_bytes_ratio"] <= found["bytes_ratio"]


def test_settings_that_are_none_are_refused(tmp_path: Path) -> None:
    done = swarmnode(tmp_path, "bench", "learning", "--settings", "[1]")
    assert done.code == 2
    assert "--settings: expected a JSON object" in done.err
