import itertools
import json
import math

import pytest
import torch

from swarmnode.strategies.pair_average import PairAverage
from swarmnode.tasks.bytes_lm import BytesLM
from swarmnode.wire.recipe import Recipe
from swarmnode.worker import offline
from swarmnode.worker.model.state import build_state
from swarmnode.worker.snapshots.snapshot import SnapshotStore

SMALL_LM = {"dim": 16, "layers": 1, "heads": 2, "context": 8, "batch": 2, "probe_windows": 4}


@pytest.fixture
def run(capsys, monkeypatch):
    """Run a verb in this process: (exit status, what it printed)."""
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)

    def run(*arguments, status=0):
        assert offline.main([*map(str, arguments), "--device", "cpu"]) == status
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


@pytest.fixture
def snapshots(tmp_path):
    """Two folders with a snapshot each, after 3 and 4 steps of two nodes of one swarm."""
    folders = []
    for steps in (3, 4):
        state = build_state(BytesLM(SMALL_LM), swarm_seed=0, device="cpu")
        batches = state.batches(steps)
        for _ in range(steps):
            state.take_step(next(batches))
        folders.append(tmp_path / f"node{steps}")
        with SnapshotStore(folders[-1]) as store:
            store.save(state, PairAverage({}, state.arena.flat))
    return folders


def test_a_snapshot_is_evaluated_as_it_is_exported(run, tmp_path):
    """By the mean of its weights, where the recipe has one."""
    state = build_state(
        BytesLM(SMALL_LM), swarm_seed=0, device="cpu", recipe=Recipe(ema_share=0.05)
    )
    good = state.evaluate()
    state.arena.flat.mul_(5.0)
    with SnapshotStore(tmp_path / "node") as store:
        store.save(state, PairAverage({}, state.arena.flat))
    (found,) = run("evaluate", tmp_path / "node")
    assert found["models"][0]["loss"] == pytest.approx(good)
    assert found["mean_loss"] == pytest.approx(good)
    run("export", tmp_path / "node", tmp_path / "out")
    assert run("evaluate", tmp_path / "out")[0]["mean_loss"] == pytest.approx(good)


def test_describe_says_what_a_manifest_needs(run):
    config = json.dumps(SMALL_LM)
    (facts,) = run("describe", "--task", "bytes-lm", "--config", config)
    assert facts["parameters"] == facts["numel"] > 0
    assert len(facts["layout_hash"]) == len(facts["data_hash"]) == 64
    assert facts["config"] == SMALL_LM | {"lr": 0.02}
    assert (facts["strategy"], facts["strategy_version"]) == ("streaming", 2)
    assert facts["strategy_settings"]["every"] == 7
    assert (facts["topology"], facts["codecs"]) == ("", ["T3B320"])
    assert facts["exchange_every_steps"] == 16
    assert run("describe", "--task", "bytes-lm", "--config", config) == [facts]


def test_members_with_data_of_their_own_meet_more_often_and_as_a_whole(run):
    kept = ("every", "fragments", "momentum", "beta")
    for name, meets in [("digits", [16, 1, 0.5, 0.6]), ("bytes-lm", [7, 1, 0.6, 0.6])]:
        config = json.dumps(SMALL_LM if name == "bytes-lm" else {})
        task = ("--task", name, "--config", config, "--own-data")
        (facts,) = run("describe", *task, "--strategy-settings", '{"beta": 0.6}')
        assert [facts["strategy_settings"][key] for key in kept] == meets
        (facts,) = run("describe", *task, "--strategy-settings", '{"meet": "pair"}')
        assert [facts["strategy_settings"][key] for key in kept] == [32, 4, 0.5, 0.7]
    (facts,) = run("describe", *task, "--strategy", "pair-average")
    assert facts["strategy_settings"]["every"] == 16


def test_each_task_knows_how_often_whole_models_meet(run):
    task = ("--task", "bytes-lm", "--config", json.dumps(SMALL_LM), "--strategy", "pair-average")
    (facts,) = run("describe", *task)
    assert (facts["strategy_settings"]["every"], facts["codecs"]) == (16, ["Q8B64"])
    (facts,) = run("describe", *task, "--strategy-settings", '{"every": 5}', "--topology", "ring")
    assert (facts["strategy_settings"]["every"], facts["topology"]) == (5, "ring")


def test_a_new_swarm_bounds_what_one_record_of_the_log_does(run):
    task = ("--task", "synthetic", "--strategy", "one-byte")
    (facts,) = run("describe", *task)
    assert facts["strategy_settings"]["bound"] == 1.5
    (facts,) = run("describe", *task, "--strategy-settings", '{"bound": 0, "lr": 0.5}')
    assert facts["strategy_settings"] == {"bound": 0.0, "lr": 0.5, "epsilon": 1e-3}


@pytest.mark.parametrize(
    ("given", "every", "momentum", "codec"),
    [
        ({}, 7, 0.6, "T3B320"),
        ({"every": 30}, 30, 0.6, "T3B320"),
        ({"meet": "pair"}, 32, 0.5, "E3M0"),
        ({"momentum": 0.0, "delta_codec": "E3M0"}, 7, 0.0, "E3M0"),
    ],
)
def test_a_task_says_what_suits_it_in_groups_where_nothing_is_said(
    run, given, every, momentum, codec
):
    task = ("--task", "bytes-lm", "--config", json.dumps(SMALL_LM))
    (facts,) = run("describe", *task, "--strategy-settings", json.dumps(given))
    found = facts["strategy_settings"]
    assert (found["every"], found["momentum"], found["delta_codec"]) == (every, momentum, codec)
    (facts,) = run("describe", "--task", "digits", "--strategy-settings", json.dumps(given))
    plain = {} if given.get("meet") == "pair" else {"every": 20, "momentum": 0.0} | given
    assert facts["strategy_settings"].items() >= plain.items()


def test_alone_is_deterministic_and_learns(run):
    arguments = ("alone", "--task", "synthetic", "--steps", "50", "--shard-seed", "3")
    lines = run(*arguments)
    assert [line["step"] for line in lines] == [20, 40, 50]
    losses = [line["eval_loss"] for line in lines]
    assert all(later < earlier for earlier, later in itertools.pairwise(losses))
    assert run(*arguments) == lines


def test_evaluate_compares_nodes_with_their_mean(run, snapshots):
    (compared,) = run("evaluate", *snapshots)
    assert [model["step"] for model in compared["models"]] == [3, 4]
    assert compared["models"][0]["loss"] != compared["models"][1]["loss"]
    assert compared["mean_loss"] < math.log(256)

    flats = []
    for folder, steps in zip(snapshots, (3, 4), strict=True):
        state = build_state(BytesLM(SMALL_LM), swarm_seed=0, device="cpu")
        with SnapshotStore(folder) as store:
            assert store.restore(state, PairAverage({}, state.arena.flat))
        assert state.step == steps
        flats.append(state.arena.flat.double())
    # Of two nodes each is half of their difference away from the mean.
    expected = float((flats[0] - flats[1]).square().sum()) / 4
    assert compared["consensus_distance"] == pytest.approx(expected, rel=1e-9)


def test_an_export_is_the_same_model(run, snapshots, tmp_path):
    (exported,) = run("export", snapshots[0], tmp_path / "export")
    assert (exported["task"], exported["step"], exported["tokens"]) == ("bytes-lm", 3, 3 * 16)
    (compared,) = run("evaluate", tmp_path / "export", snapshots[0])
    assert compared["consensus_distance"] == 0
    texts = {
        run("generate", model, "--prompt", "The", "--length", 9)[0]["text"]
        for model in (tmp_path / "export", snapshots[0])
    }
    assert len(texts) == 1
    assert texts.pop().startswith("The")


@pytest.mark.parametrize(
    ("arguments", "status", "kind", "message"),
    [
        (["describe", "--task", "nope"], 11, "task-unknown", "is not installed"),
        (["describe", "--task", "synthetic", "--config", "{"], 12, "config", "as JSON"),
        (["describe", "--task", "synthetic", "--config", "[]"], 12, "config", "JSON object"),
        (
            ["describe", "--task", "synthetic", "--strategy-settings", '{"every": 0}'],
            12,
            "config",
            "setting every",
        ),
        (
            ["describe", "--task", "synthetic", "--strategy", "dadao"],
            12,
            "config",
            "strongly convex",
        ),
        (["describe", "--task", "synthetic", "--strategy", "nope"], 12, "config", "among a2cid2"),
        (
            [
                "describe",
                "--task",
                "synthetic",
                "--strategy-settings",
                '{"meet": "pair", "gamma": 1.6}',
            ],
            12,
            "config",
            "expected gamma below 1.5, where outer steps with momentum 0.5",
        ),
        (
            ["describe", "--task", "synthetic", "--strategy", "pair-average", "--codec", "E3M0"],
            12,
            "config",
            "--codec E3M0: its error is too large for whole weights",
        ),
        (
            ["describe", "--task", "synthetic", "--strategy", "diloco", "--topology", "ring"],
            12,
            "config",
            "in diloco all who are present meet at once",
        ),
        (
            ["describe", "--task", "synthetic", "--topology", "round"],
            12,
            "config",
            "--topology: expected one of ring, torus",
        ),
        (["evaluate", "/nowhere"], 12, "config", "expected an export, a snapshot or a folder"),
        (
            ["alone", "--task", "synthetic", "--steps", "99", "--config", '{"lr": 1e30}'],
            12,
            "config",
            "lower the lr",
        ),
    ],
)
def test_a_failure_is_one_line_and_a_status(run, arguments, status, kind, message):
    (line,) = run(*arguments, status=status)[-1:]
    assert line["failed"] == kind
    assert message in line["message"]


def test_weights_of_another_version_of_the_task_are_refused(run, snapshots, monkeypatch):
    monkeypatch.setattr(BytesLM, "version", 2)
    (line,) = run("evaluate", snapshots[0], status=13)
    assert "weights are of version 1, version 2 is installed" in line["message"]
