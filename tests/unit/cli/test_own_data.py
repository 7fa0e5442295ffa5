"""`--data` counts from then on, and an owner with other data than the creator's is told so."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from swarmnode.cli.main import main
from swarmnode.cli.node.control import status_lines
from swarmnode.cli.swarm import create as create_module
from swarmnode.config import Paths
from swarmnode.daemon.app import start as app
from swarmnode.daemon.app.node import TrainingChoice
from swarmnode.store.swarms import read_manifest
from swarmnode.store.training_data import TrainingData, load_training_data, save_training_data
from swarmnode.testing.fake_worker import FakeWorker
from swarmnode.testing.swarm import SimNode, give_manifest, make_manifest, sim_swarm
from tests.sim.checks import until

DESCRIBED: dict[str, Any] = {
    "task": "bytes-lm",
    "version": 1,
    "config": {},
    "numel": 10,
    "layout_hash": "00" * 32,
    "data_hash": "cd" * 32,
    "strategy": "pair-average",
    "strategy_version": 1,
    "topology": "",
    "strategy_settings": {},
    "codecs": ["Q8B64"],
    "members_max": 0,
    "recipe": {},
}
OTHER_DATA = "trains on other data than its creator"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWARMNODE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("text")
    return tmp_path / "docs"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[TrainingChoice]:
    """What nodes would be started with."""
    choices: list[TrainingChoice] = []
    monkeypatch.setattr(
        app, "run_daemon", lambda _config, _link, training, on_event: choices.append(training)
    )
    return choices


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    captured = capsys.readouterr()
    code = ended.value.code
    assert isinstance(code, int)
    return code, captured.out, captured.err


def create_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *options: str
) -> str:
    monkeypatch.setattr(create_module, "stream_offline", lambda *_: iter([DESCRIBED]))
    code, out, err = run(
        capsys, "create", "own", "--task", "bytes-lm", "--listen", "127.0.0.1:7399", *options
    )
    assert code == 0, err
    return out


@pytest.mark.usefixtures("home")
def test_the_printed_command_trains_on_the_creators_folder(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    docs: Path,
    started: list[TrainingChoice],
) -> None:
    monkeypatch.chdir(docs.parent)
    out = create_own(capsys, monkeypatch, "--data", "docs")
    (line,) = [line for line in out.splitlines() if line.startswith("this machine: ")]
    words = shlex.split(line.removeprefix("this machine: swarmnode "))
    assert words == ["join", "own", "--listen", "127.0.0.1:7399", "--data", str(docs)]
    assert "others need a copy of that folder" in out
    assert run(capsys, *words)[0] == 0
    assert [choice.data_dir for choice in started] == [str(docs)]


@pytest.mark.usefixtures("home")
def test_a_plain_join_uses_the_folder_that_create_was_given(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    docs: Path,
    started: list[TrainingChoice],
) -> None:
    create_own(capsys, monkeypatch, "--data", str(docs))
    assert run(capsys, "join", "own")[0] == 0
    assert run(capsys, "join", "own", "--own-data")[0] == 0
    assert run(capsys, "join", "own", "--no-data")[0] == 0
    assert [(choice.data_dir, choice.own_data) for choice in started] == [
        (str(docs), False),
        (str(docs), True),
        ("", False),
    ]


def test_a_folder_that_is_gone_is_no_silent_change_of_data(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    home: Path,
    docs: Path,
    started: list[TrainingChoice],
) -> None:
    create_own(capsys, monkeypatch)
    save_training_data("own", Paths(home), TrainingData(str(docs / "gone")))
    code, _, err = run(capsys, "join", "own")
    assert code == 2
    assert f"the folder {docs / 'gone'}, which is not there" in err
    assert run(capsys, "join", "own", "--role", "keeper")[0] == 0  # it trains nothing
    assert run(capsys, "join", "own", "--data", str(docs), "--no-data")[0] == 2
    assert len(started) == 1


def test_a_damaged_note_is_named(home: Path) -> None:
    paths = Paths(home)
    save_training_data("own", paths, TrainingData("/somewhere", is_own=True))
    assert load_training_data("own", paths) == TrainingData("/somewhere", is_own=True)
    (paths.swarm("own").directory / "data.json").write_text("{")
    with pytest.raises(Exception, match=r"data\.json is damaged .*--data FOLDER or --no-data"):
        load_training_data("own", paths)
    save_training_data("own", paths, TrainingData())
    assert load_training_data("own", paths) == TrainingData()


def test_that_each_is_to_bring_its_own_is_in_the_manifest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, home: Path, docs: Path
) -> None:
    out = create_own(capsys, monkeypatch, "--data", str(docs), "--own-data")
    assert read_manifest("own", Paths(home)).own_data is True
    assert "others name their own folder" in out


# --- what a running node says ----------------------------------------------------------------


async def one_node(
    swarm: Any, training: TrainingChoice, *, own_data: bool = False, data: str = "ab"
) -> SimNode:
    """Start a node of a swarm whose creator's data has the hash cd…."""
    worker = FakeWorker(np.zeros(640), data_hash=data * 32)
    node: SimNode = swarm.add(worker, training=training)
    changes: dict[str, Any] = {"own_data": True} if own_data else {}
    give_manifest(node, replace(make_manifest(), data_hash=bytes.fromhex("cd" * 32), **changes))
    await swarm.start(node.index)
    await until(lambda: node.status.state == "training", 30)
    return node


def rows(node: SimNode) -> dict[str, str]:
    return dict(status_lines(msgspec.to_builtins(node.status)))


@pytest.mark.parametrize(
    ("training", "why"),
    [
        (TrainingChoice(), "no --data was given, so it is the task's own"),
        (TrainingChoice(data_dir="/docs"), "the folder of --data has other files"),
    ],
)
async def test_other_data_shows_in_status_and_alarm(
    tmp_path: Path, autojump_clock: Any, training: TrainingChoice, why: str
) -> None:
    async with sim_swarm(tmp_path, 0) as swarm:
        node = await one_node(swarm, training)
        assert f"{OTHER_DATA}: {why}" in node.status.alarm
        shown = rows(node)
        assert OTHER_DATA in shown["ALARM"]
        assert OTHER_DATA in shown["data"]
        assert shown["data"].startswith(training.data_dir or "the task's own")
        # The page shows the alarm, and no path of a file.
        assert "/docs" not in node.status.alarm
        await swarm.leave_all()


@pytest.mark.parametrize(
    ("training", "own_data", "data"),
    [
        (TrainingChoice(data_dir="/docs", own_data=True), False, "ab"),
        (TrainingChoice(data_dir="/docs"), True, "ab"),
        (TrainingChoice(data_dir="/docs"), False, "cd"),
        (TrainingChoice(), False, ""),
    ],
)
async def test_no_alarm_where_it_is_meant_or_the_same(
    tmp_path: Path, autojump_clock: Any, training: TrainingChoice, own_data: bool, data: str
) -> None:
    async with sim_swarm(tmp_path, 0) as swarm:
        node = await one_node(swarm, training, own_data=own_data, data=data)
        assert node.status.alarm == ""
        assert (OTHER_DATA in rows(node)["data"]) == (data == "ab")
        await swarm.leave_all()


async def test_the_folder_counts_after_a_restart(tmp_path: Path, autojump_clock: Any) -> None:
    async with sim_swarm(tmp_path, 0) as swarm:
        node = await one_node(swarm, TrainingChoice(data_dir="/docs", own_data=True))
        remembered = load_training_data("sim", node.paths)
        assert remembered == TrainingData("/docs", is_own=True)
        await swarm.leave_all()
