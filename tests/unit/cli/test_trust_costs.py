"""Whose word counts for what a step takes, and what a trial of a task shows."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from swarmnode.cli.trust import costs as trust_costs
from swarmnode.cli.trust.costs import StepTime, measure, step_of_members
from swarmnode.config import NodeConfig, Paths
from swarmnode.errors import NotRunning
from swarmnode.protocol.swarm import sign_manifest
from tests.unit.cli.test_trust import NOW, SWARM, home, keep, manifest, paths, report, run

__all__ = ["home", "paths"]
SMALL_LM = {"dim": 16, "layers": 1, "heads": 2, "context": 16, "batch": 2, "probe_windows": 4}


class FakeNode:
    """The control socket of this home's node, in a swarm named demo."""

    step_time_s: float | None = None
    peers: tuple[dict[str, Any], ...] = ()

    def __init__(self, _paths: Paths) -> None:
        pass

    def get(self, path: str) -> Any:
        if path == "/status":
            return {"swarm": "demo", "step_time_s": self.step_time_s, "step": 4, "tokens": 400}
        return list(self.peers)


@pytest.fixture
def config(tmp_path: Path) -> NodeConfig:
    return NodeConfig(home=tmp_path / "home")


def test_the_median_of_what_members_say() -> None:
    said = [0.041, 0.03, 0.05, None, "0.1", math.inf, math.nan, -1.0, 0.0, 1e300, True and 0.04]
    assert step_of_members(said) == StepTime(0.0405, "measured at 4 members: 40.5 ms a step")
    assert step_of_members([0.041]) == StepTime(0.041, "measured at 1 member: 41 ms a step")
    assert step_of_members([1e-9, None]) is None


def test_members_that_the_node_of_this_home_knows(
    config: NodeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Keeper(FakeNode):
        peers = tuple({"step_time_s": s} for s in (0.040, 0.041, 0.5, None, 1e-300))

    monkeypatch.setattr(trust_costs, "ControlClient", Keeper)
    found = measure(manifest(task="nosuch"), config)
    assert found.step == StepTime(0.041, "measured at 3 members: 41 ms a step")
    assert (found.footprint, found.why_not) == (None, "the task is not installed here")


def test_a_node_that_trains_it_has_measured_it(
    config: NodeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Trainer(FakeNode):
        step_time_s = 0.25

    monkeypatch.setattr(trust_costs, "ControlClient", Trainer)
    found = measure(manifest(), config)
    assert found.step is not None
    assert found.step.seconds == 0.25
    assert "as measured here by this node: 250 ms a step" in found.step.how
    assert (found.here_s, found.tokens_per_step) == (0.25, 100)


def test_a_short_trial_measures_step_and_memory(
    config: NodeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real process, without a network and away from this one, which has no torch to import."""

    def none_runs(_paths: Paths) -> None:
        raise NotRunning("none")

    monkeypatch.setattr(trust_costs, "ControlClient", none_runs)
    before = "torch" in sys.modules
    found = measure(manifest(task_config=SMALL_LM, numel=8_000), config)
    assert ("torch" in sys.modules) == before
    assert found.why_not == ""
    assert found.step is not None
    assert found.footprint is not None
    assert found.step.seconds > 0
    assert found.step.how.startswith("measured here: ")
    assert 150e6 < found.footprint.main_bytes < 1e9
    assert found.footprint.is_measured
    assert found.footprint.sentence().startswith("needs 2") or found.footprint.main_bytes > 3e8


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"task": "nosuch"}, "the task is not installed here"),
        ({"task": "program"}, "a program of yours trains it"),
        ({"task_version": 9}, "another version of the task is installed here"),
        ({"numel": 10**15}, "memory would not do"),
    ],
)
def test_why_there_is_no_trial(config: NodeConfig, changes: dict[str, Any], why: str) -> None:
    found = measure(manifest(**changes), config)
    assert (found.step, found.footprint, found.why_not) == (None, None, why)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"", "the trial ended without an answer"),
        (b'{"failed": "data", "message": "add text"}\n', "add text"),
        (b'{"steps": "x"}\n[1]\nnonsense', "the trial ended without an answer"),
    ],
)
def test_what_a_trial_may_say(config: NodeConfig, said: bytes, why: str) -> None:
    assert trust_costs._read(said, config).why_not.startswith(why)


def test_batches_that_had_to_be_cut_are_named(config: NodeConfig) -> None:
    answer = {"steps": 12, "seconds": 0.6, "main_bytes": 5, "gpu_bytes": 0, "parts": 4}
    found = trust_costs._read(b"printed by a task\n" + json.dumps(answer).encode(), config)
    assert found.step is not None
    assert found.step.seconds == pytest.approx(0.05)
    assert found.step.how == "measured here: 12 steps in 0.6 s"
    assert found.footprint is not None
    assert found.footprint.how.endswith("with batches in 4 parts as memory is short")


def test_what_was_not_measured_is_a_range_with_its_assumption(
    capsys: pytest.CaptureFixture[str], home: Paths
) -> None:
    keep(home, sign_manifest(manifest(created_at=int(NOW) - 10**8, task="nosuch"), SWARM))
    code, out, err = run(capsys, "trust", "demo")
    assert (code, err) == (0, "")
    (traffic,) = (line for line in out.splitlines() if " a day each way" in line)
    assert "11.4 GB to 114.0 GB a day each way" in traffic
    assert "(assumed: a CPU, 1,000 tokens a step, not measured: the task is not" in traffic
    (memory,) = (line for line in out.splitlines() if line.startswith("  memory "))
    assert "needs at least" in memory
    assert "computed for 64,000 parameters" in memory


def test_what_was_measured_is_no_range(paths: Paths) -> None:
    shown = report(paths, step_time_s=0.041)
    assert shown.traffic is not None
    assert shown.traffic.is_measured
    assert shown.traffic.day_bytes_least is None
