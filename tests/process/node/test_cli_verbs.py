"""The verbs that need torch but no daemon, in a process each, used rightly and wrongly."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from swarmnode.config import Paths
from swarmnode.ipc.spawn import worker_command
from swarmnode.tasks.bytes_lm import BytesLM
from tests.kits.daemon_kit import (
    environment,
    is_alive,
    make_home,
    new_swarm,
    swarmnode,
    wait_until,
    without_torch,
)

SMALL_LM = ("dim=16", "layers=1", "heads=2", "context=16", "batch=2", "probe_windows=4")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home that created a swarm and trained it for a few steps."""
    home = tmp_path_factory.mktemp("trained") / "ein schöner Ort"
    settings = [part for setting in SMALL_LM for part in ("--set", setting)]
    created = swarmnode(
        home, "create", "demo", "--task", "bytes-lm", *settings, "--json", "--advertise", "h:1"
    )
    assert created.code == 0, created.err
    assert created.json["strategy_settings"]["every"] == BytesLM.group_settings["every"]
    assert (created.json["strategy"], created.json["codecs"]) == ("streaming", ["T3B320"])
    assert created.json["link"].endswith("@h:1")
    snapshots = Paths(home).swarm("demo").snapshots
    script = (
        "import sys; from pathlib import Path\n"
        "from swarmnode.worker.model.state import build_state, build_task\n"
        "from swarmnode.worker.snapshots.snapshot import SnapshotStore\n"
        "from swarmnode.strategies.registry import build_strategy\n"
        "import json\n"
        "task = build_task('bytes-lm', json.loads(sys.argv[2]))\n"
        "state = build_state(task, swarm_seed=0, device='cpu')\n"
        "batches = state.batches(0)\n"
        "for _ in range(3): state.take_step(next(batches))\n"
        "strategy = build_strategy('pair-average', {}, state.arena.flat)\n"
        "SnapshotStore(Path(sys.argv[1])).save(state, strategy)\n"
    )
    command = [worker_command("x")[0], "-c", script, str(snapshots)]
    subprocess.run(
        [*command, json.dumps(created.json["config"])], env=environment(home), check=True
    )
    return home


def test_an_export_writes_over_nothing_that_is_not_its_own(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = swarmnode(home, "export", str(out), "--json")
    assert first.code == 0, first.err
    assert first.json["step"] == 3
    assert sorted(path.name for path in out.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]
    assert swarmnode(home, "export", str(out)).code == 0  # its own earlier export

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "README.md").write_text("mine")
    for folder in ("mine", "."):
        answer = swarmnode(home, "export", folder, cwd=tmp_path)
        assert answer.code == 2
        assert "holds other files: choose another" in answer.line
    assert (tmp_path / "mine" / "README.md").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "out"]

    answer = swarmnode(home, "export", "/proc/nowhere")
    assert answer.code == 1
    assert "cannot write to the folder /proc/nowhere" in answer.line


def test_an_export_without_a_snapshot_says_what_to_do(tmp_path: Path) -> None:
    make_home(tmp_path / "home", new_swarm())
    answer = swarmnode(tmp_path / "home", "export", str(tmp_path / "out"))
    assert answer.code == 2
    assert "has no snapshot" in answer.line
    assert "train first with `swarmnode join demo`" in answer.line


def test_generate_reads_exports_and_refuses_the_rest(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert swarmnode(home, "export", str(out)).code == 0
    flags = ("--bytes", "8", "--prompt", "--ü", "--temperature", "1e-300", "--json")
    answer = swarmnode(home, "generate", str(out), *flags)
    assert answer.code == 0, answer.err
    assert answer.json["text"].startswith("--ü")
    assert len(answer.out.splitlines()) == 1

    answer = swarmnode(home, "generate", str(tmp_path))
    assert answer.code == 2
    assert "expected an export, a snapshot or a folder with one" in answer.line
    model = out / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-100])
    answer = swarmnode(home, "generate", str(out), "--json")
    assert answer.code == answer.json["exit_code"] == 1
    assert f"{model} is damaged" in answer.json["error"]


PAIRS = ("--set", "strategy.meet=pair")


def test_a_failed_create_leaves_the_name_free(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for settings, code, message in (
        (("--task", "nosuch"), 2, "task 'nosuch' is not installed here; installed: bytes-lm"),
        (("--task", "synthetic", "--set", "strategy.foo=1"), 2, "unknown setting 'foo'"),
        (
            ("--task", "synthetic", *PAIRS, "--set", "strategy.gamma=1.5"),
            2,
            "expected gamma below 1.5",
        ),
        (("--task", "synthetic", "--strategy", "dadao"), 2, "a strongly convex task"),
        (
            ("--task", "synthetic", "--strategy", "a2cid2", "--codec", "Q4B64"),
            2,
            "--codec Q4B64: its error is too large for whole weights, which a2cid2 sends",
        ),
        (
            ("--task", "synthetic", "--strategy", "diloco", "--topology", "ring"),
            2,
            "in diloco all who are present meet at once",
        ),
        (
            ("--task", "synthetic", "--strategy", "one-byte", "--members", "17"),
            2,
            "--members: expected at most 16 for one-byte",
        ),
        (("--task", "synthetic", "--set", "lr=NaN"), 2, "setting lr: expected `float`"),
        (("--task", "bytes-lm", "--set", "dim=2000000000"), 1, "out of memory"),
    ):
        answer = swarmnode(home, "create", "demo", *settings)
        assert answer.code == code
        assert message in answer.line
    assert not Paths(home).swarm("demo").directory.exists()


def test_torch_is_asked_for_by_the_verbs_that_need_it(home: Path, tmp_path: Path) -> None:
    env = without_torch(tmp_path / "site")
    advice = "swarmnode: this task needs torch: pip install '.[torch]' in the clone of swarmnode"
    snapshots = str(Paths(home).swarm("demo").snapshots)
    verbs: list[tuple[str, ...]] = [
        ("create", "other", "--task", "synthetic"),
        ("generate", snapshots),
        ("export", str(tmp_path / "out")),
    ]
    for verb in verbs:
        answer = swarmnode(home, *verb, env=env)
        assert answer.code == 2
        assert answer.line == advice
    verbs = [("status",), ("version",), ("paths",), ("join", "nosuch")]
    for verb in verbs:
        assert "torch" not in swarmnode(home, *verb, env=env).err


def test_files_where_the_user_stands_are_not_imported(home: Path, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('not that one')")
    (tmp_path / "out").mkdir()
    answer = swarmnode(home, "export", "out", "--json", cwd=tmp_path)
    assert answer.code == 0, answer.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [("version",), ("version", "--json"), ("status", "--json")])
def test_an_output_without_room_is_no_traceback(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            worker_command("swarmnode", *arguments),
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(tmp_path / "home"),
            encoding="utf-8",
            check=False,
        )
    assert done.returncode == (3 if arguments[0] == "status" else 1)
    assert done.stderr.startswith("swarmnode: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_long_home_works_like_any_other(tmp_path: Path) -> None:
    """The path of a Unix socket is short; a home's need not be."""
    home = tmp_path / ("h" * 120)
    answer = swarmnode(home, "paths", "--json")
    assert answer.code == 0
    assert len(os.fsencode(answer.json["control_socket"])) <= 103
    assert swarmnode(home, "status").code == 3


def test_a_killed_create_leaves_nothing_running(tmp_path: Path) -> None:
    """Building a model may take minutes and gigabytes: no caller wants it any more."""
    (tmp_path / "sitecustomize.py").write_text(
        f"import signal, sys\nHANGS = {str(tmp_path / 'hangs')!r}\n"
        "class Hang:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch':\n"
        "            open(HANGS, 'w').close()\n"
        "            signal.pause()\n"
        "sys.meta_path.insert(0, Hang())\n"
    )
    create = subprocess.Popen(
        worker_command("swarmnode", "create", "demo", "--task", "synthetic"),
        env=environment(tmp_path / "home", {"PYTHONPATH": str(tmp_path)}),
    )
    try:
        wait_until((tmp_path / "hangs").exists, "the import of torch")
        (child,) = (
            int(n)
            for n in Path(f"/proc/{create.pid}/task/{create.pid}/children").read_text().split()
        )
        assert is_alive(child)
    finally:
        create.kill()
        create.wait()
    wait_until(lambda: not is_alive(child), "the end of the process")
