"""The changes that docs/integrations.md shows make its programs members of one swarm."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from swarmnode.config import Paths
from tests.conftest import ROOT
from tests.kits.daemon_kit import environment, free_port, swarmnode, wait_until

PAGE = ROOT / "docs" / "integrations.md"
PROGRAMS = ROOT / "docs" / "train"
CHANGED_LINES_MAX = 6
STEPS = 10_000_000  # a node that is told to leave ends its program
DEADLINE_S = 240.0  # both import their library on a busy machine
LIBRARIES = {
    "plain.py": ("torch", "torch"),
    "accelerated.py": ("accelerate", "hf"),
    "trainer.py": ("transformers", "hf"),
    "lightning_fit.py": ("lightning", "lightning"),
}


def diffs() -> dict[str, str]:
    """Return the changes of the page by the program that they are of."""
    shown = re.findall(r"^```diff\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    found = {}
    for text in shown:
        named = re.match(r"--- train/(\S+)\n\+\+\+ train/\1\n", text)
        assert named, text
        found[named[1]] = text
    return found


def applied(name: str, folder: Path) -> Path:
    """Return the program with its changes. A change that does not fit fails."""
    (folder / "train").mkdir()
    program = folder / "train" / name
    program.write_text((PROGRAMS / name).read_text())
    command = ["git", "apply", "-p0", "--unidiff-zero", "-"]
    done = subprocess.run(command, cwd=folder, input=diffs()[name], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return program


def test_each_program_has_its_changes() -> None:
    assert set(diffs()) == {path.name for path in PROGRAMS.glob("*.py")} == set(LIBRARIES)


@pytest.mark.parametrize("name", LIBRARIES)
def test_few_lines_change(name: str, tmp_path: Path) -> None:
    lines = diffs()[name].splitlines()[2:]
    changed = [line for line in lines if line.startswith(("+", "-"))]
    assert 0 < len(changed) <= CHANGED_LINES_MAX
    compile(applied(name, tmp_path).read_text(), name, "exec")


def test_a_change_that_does_not_fit_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "plain.py").write_text("print()\n")
    command = ["git", "apply", "-p0", "--unidiff-zero", "-"]
    text = diffs()["plain.py"]
    assert subprocess.run(
        command, cwd=tmp_path, input=text, text=True, capture_output=True
    ).returncode


@pytest.mark.slow  # up to a minute, most of it for importing the libraries
@pytest.mark.parametrize("name", LIBRARIES)
def test_two_programs_of_the_page_train_together(name: str, tmp_path: Path) -> None:
    package, extra = LIBRARIES[name]
    if find_spec(package) is None:
        pytest.skip(f"needs {package}: pip install '.[{extra}]' in the clone of swarmnode")
    program = applied(name, tmp_path)
    link = created(program.parent, program.stem)
    runs = [started(program, link, tmp_path / side) for side in "ab"]
    homes = [tmp_path / side / "node" for side in "ab"]
    try:
        wait_until(
            lambda: all(map(has_exchanged, homes)) or has_ended(runs), "an exchange", DEADLINE_S
        )
        for home in homes:
            assert swarmnode(home, "leave").code == 0
        said = [ended(run) for run in runs]
    finally:
        for run in runs:
            run.kill()
            run.wait()
    assert all(re.search(r"^(loss \d|steps \d)", text, re.MULTILINE) for text in said)
    assert all(map(has_exchanged, homes))


def has_exchanged(home: Path) -> bool:
    history = Paths(home).history
    lines = history.read_text().splitlines() if history.exists() else []
    return any(json.loads(line).get("event") == "applied" for line in lines if line.endswith("}"))


def has_ended(runs: list[subprocess.Popen[str]]) -> bool:
    return any(run.poll() is not None for run in runs)


def created(folder: Path, module: str) -> str:
    """Make the swarm as the page does, of the model of this program; return its link."""
    (code,) = re.findall(r"^```python\n(from plain.*?)^```$", PAGE.read_text(), re.M | re.S)
    code = code.replace("from plain ", f"from {module} ")
    port = free_port()
    run = start([sys.executable, "-c", code], folder.parent / "a", port, folder)
    return ended(run).split()[-1]


def started(program: Path, link: str, where: Path) -> Any:
    where.mkdir(exist_ok=True)
    port = free_port()
    kept = where / "port"
    if kept.exists():
        port = int(kept.read_text())
    return start([sys.executable, str(program), str(STEPS), link], where, port, program.parent)


def start(command: list[str], where: Path, port: int, path: Path) -> subprocess.Popen[str]:
    """Run a program in its own folder, as a node that listens on ``port``."""
    where.mkdir(exist_ok=True)
    (where / "port").write_text(str(port))
    at = f"127.0.0.1:{port}"
    settings = {
        "SWARMNODE_LISTEN": at,
        "SWARMNODE_ADVERTISE": at,
        "SWARMNODE_METRICS": "off",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{path}:{ROOT}",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    own = {key: value for key, value in environment(where).items() if key != "SWARMNODE_HOME"}
    return subprocess.Popen(
        command,
        cwd=where,
        env=own | settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


def ended(run: subprocess.Popen[str]) -> str:
    out, err = run.communicate(timeout=DEADLINE_S)
    assert run.returncode == 0, f"{out[-2000:]}\n{err[-4000:]}"
    return out
