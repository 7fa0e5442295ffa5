"""A task that is missing: its swarm says which package has it, and no stranger writes a command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from swarmnode import limits
from swarmnode.cli.swarm.manifest import write_swarm
from swarmnode.config import load_config
from swarmnode.ipc.control import Configure
from swarmnode.store.swarms import read_manifest
from swarmnode.tasks.installed import ENTRY_POINT_GROUP
from swarmnode.tasks.packages import how_to_get, package_of
from swarmnode.tasks.registry import UnknownTask
from swarmnode.worker.model.prepare import prepare_state

DESCRIBED: dict[str, Any] = {
    "version": 1,
    "config": {},
    "numel": 10,
    "layout_hash": "00" * 32,
    "data_hash": "",
    "strategy": "pair-average",
    "strategy_version": 1,
    "topology": "",
    "strategy_settings": {},
}


@pytest.fixture
def circle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package with the task ``circle``."""
    about = tmp_path / "site" / "circle_tasks-2.5.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: circle-tasks\nVersion: 2.5\n")
    (about / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\ncircle = circle:Circle\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(about.parent)])


def configure(package: str, version: str) -> Configure:
    return Configure(
        task="circle",
        task_config={},
        strategy="pair-average",
        strategy_settings={},
        swarm_seed=0,
        shard_seed=0,
        snapshot_dir="",
        task_package=package,
        task_package_version=version,
    )


@pytest.mark.usefixtures("circle")
def test_create_writes_down_which_package_has_the_task(tmp_path: Path) -> None:
    config = load_config({"home": str(tmp_path / "home"), "listen": "127.0.0.1:7999"}, {})
    for task, expected in (("circle", ("circle-tasks", "2.5")), ("digits", ("", ""))):
        described = DESCRIBED | {"task": task}
        write_swarm(task, config, "Q8B64", described, expires_days=None, is_closed=False)
        manifest = read_manifest(task, config.paths)
        assert (manifest.task_package or "", manifest.task_package_version or "") == expected
        assert package_of(task) == expected


def test_a_node_that_lacks_the_task_is_told_its_package_and_to_check_its_publisher() -> None:
    with pytest.raises(UnknownTask) as caught:
        prepare_state(configure("circle-tasks", "2.5"))
    text = str(caught.value)
    assert text.startswith("task 'circle' is not installed here; installed: bytes-lm")
    assert "the package circle-tasks 2.5" in text
    assert "check first who publishes that package" in text
    assert "pip install 'circle-tasks==2.5'" in text


def test_without_a_package_the_message_is_as_before() -> None:
    with pytest.raises(UnknownTask, match="install the package that has it") as caught:
        prepare_state(configure("", ""))
    assert "pip install" not in str(caught.value)


@pytest.mark.parametrize("name", ["swarmnode", "SwarmNode", "swarmnode-train", "Swarmnode_Train"])
def test_our_own_name_is_never_installed_from_the_index(name: str) -> None:
    said = how_to_get(name, "0.2.0")
    assert "git pull in the clone" in said
    assert f"pip install '{name}" not in said
    assert "==" not in said


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("circle-tasks", "1.2.3"),
        ("a", "1"),
        ("Circle.Tasks_2", "1!2.0rc1.post3.dev4+cu.12"),
        ("zope.interface", "7.0a1"),
    ],
)
def test_what_is_a_package_is_named(name: str, version: str) -> None:
    assert f"pip install '{name}=={version}'" in how_to_get(name, version)


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("", ""),
        ("circle-tasks", ""),
        ("", "1.0"),
        ("--index-url=https://example.org/simple", "1.0"),
        ("-r", "1.0"),
        ("circle tasks", "1.0"),
        ("circle'; rm -rf ~; '", "1.0"),
        ("circle\n", "1.0"),
        ("circle-", "1.0"),
        ("https://example.org/circle.whl", "1.0"),
        ("git+ssh", "1.0"),
        ("./circle", "1.0"),
        ("circlé", "1.0"),
        ("c" * (limits.PACKAGE_NAME_CHARACTERS_MAX + 1), "1.0"),
        ("circle", "1.0 --pre"),
        ("circle", "1.0'; true"),
        ("circle", "1.0\n"),
        ("circle", "latest"),
        ("circle", "*"),
        ("circle", "١.0"),  # a digit, but none of ours
        ("circle", "1." * limits.PACKAGE_VERSION_CHARACTERS_MAX + "0"),
    ],
)
def test_what_is_none_is_never_printed(name: str, version: str) -> None:
    assert how_to_get(name, version) == ""
