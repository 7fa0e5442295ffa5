"""What is installed as a task is seen without importing it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from swarmnode import DISTRIBUTION, __version__
from swarmnode.tasks.installed import BUILT_IN, ENTRY_POINT_GROUP, look_at_task
from swarmnode.tasks.registry import load_task


def install(folder: Path, target: str, files: dict[str, str]) -> None:
    """Put a package with the task ``mine`` where an installation would."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    about = folder / "strange_tasks-2.5.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: strange-tasks\nVersion: 2.5\n")
    (about / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\nmine = {target}\n")


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_built_in_ones(name: str) -> None:
    found = look_at_task(name)
    assert found is not None
    assert found.package == f"{DISTRIBUTION} {__version__}"
    assert found.version == load_task(name).version


def test_what_is_not_installed() -> None:
    assert look_at_task("nosuch") is None


BOMB = "raise SystemExit('imported')\n"


@pytest.mark.parametrize(
    ("target", "files", "version"),
    [
        ("strange:Mine", {"strange.py": BOMB + "class Mine:\n    version = 7\n"}, 7),
        (
            "strange.deep.tasks:Mine",
            {
                "strange/__init__.py": BOMB,
                "strange/deep/__init__.py": BOMB,
                "strange/deep/tasks.py": "class Mine:\n    version: int = 3\n",
            },
            3,
        ),
        ("strange:Mine", {"strange.py": "class Mine:\n    version = 1 + 1\n"}, None),
        ("strange:Mine", {"strange.py": "class Other:\n    version = 1\n"}, None),
        ("strange:Mine", {"strange.py": "this is no Python"}, None),
        ("strange.tasks:Mine", {"strange.py": ""}, None),
        ("strange:Mine", {}, None),
    ],
)
def test_packages_of_others(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    files: dict[str, str],
    version: int | None,
) -> None:
    install(tmp_path, target, files)
    monkeypatch.syspath_prepend(tmp_path)
    found = look_at_task("mine")
    assert found is not None
    assert (found.package, found.target, found.version) == ("strange-tasks 2.5", target, version)
    assert "strange" not in sys.modules
