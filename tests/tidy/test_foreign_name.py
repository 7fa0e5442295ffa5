"""The name swarmnode belongs to another owner on the public package index.

So nothing that people read or run may have them install it from there: they would get
another program, which runs with their own rights. A clone or a wheel's file is right. What is
installed has a name of its own, the same everywhere. Until its first release is on the index
that name is free for all there, so nothing takes it from there either.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from swarmnode import DISTRIBUTION
from tests.conftest import ROOT

PLACES = ("README.md", "docs", "deploy", "proto", "swarmnode", ".ci", "pyproject.toml", "tests")

# A line may go on in the next literal, or behind a backslash.
CONTINUED = re.compile(r"""["']\s*\n\s*[rf]*["']|\\\n\s*""")
# Written apart so that this file does not hold what it forbids.
NAME = "swarm" + "node"
NAMES = rf"{NAME}(?:[-_.]train)?"
FORBIDDEN = (
    # pip install -U NAME, pipx install NAME, uv add 'NAME>=1'
    re.compile(
        rf"""\b(?:pipx?3?|uv|poetry|pdm|conda|mamba)\s+(?:pip\s+|tool\s+)?(?:install|add|download)"""
        rf"""(?:\s+-[\w-]+(?:[= ][\w./:-]+\.(?:txt|cfg))?)*\s+["']?{NAMES}(?![\w/.-])"""
    ),
    # NAME[torch], in whatever command
    re.compile(rf"""(?<![\w./]){NAMES}\\?\[[a-z]"""),
    # dependencies = ["numpy", "NAME>=0.1"], requires = ...
    re.compile(rf"""(?:dependencies|requires)\s*=\s*\[[^\]]*["']{NAMES}\s*["'\[<>=~!;@]"""),
    # the same as a line of requirements
    re.compile(rf"""^\s*(?:-\s+)?{NAMES}\s*(?:==|>=|~=)\s*[0-9]""", re.MULTILINE),
)
# Files of a release: NAME_train-0.1.0-py3-none-any.whl, NAME_train-*.tar.gz
RELEASED = re.compile(rf"({NAME}[\w.]*)-[\d*][\w.*+-]*\.(?:whl|tar\.gz)")


def index_installs(text: str) -> list[str]:
    """Return what in ``text`` would install the foreign package."""
    joined = CONTINUED.sub("", text)
    return [found[0] for pattern in FORBIDDEN for found in pattern.finditer(joined)]


def misnamed(text: str) -> list[str]:
    """Return the files of a release in ``text`` that would have another name."""
    right = DISTRIBUTION.replace("-", "_")
    return [found[0] for found in RELEASED.finditer(text) if found[1] != right]


def tracked_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", *PLACES], cwd=ROOT, capture_output=True, check=True
    )
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name]


def test_nothing_here_installs_the_package_of_another_project() -> None:
    found = []
    for path in tracked_files():
        text = path.read_bytes().decode("utf-8", "replace") if path.exists() else ""
        wrong = index_installs(text) + misnamed(text)
        found += [f"{path.relative_to(ROOT)}: {each}" for each in wrong]
    assert found == []


def test_what_is_installed_has_one_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == DISTRIBUTION != NAME
    assert list(project["scripts"]) == [NAME]


@pytest.mark.parametrize("ending", ["-0.1.0-py3-none-any.whl", "-*.tar.gz", "-*-abi3-*.whl"])
def test_a_file_of_a_release_has_that_name(ending: str) -> None:
    assert not misnamed(f"dist/{NAME}_train{ending}")
    assert misnamed(f"dist/{NAME}{ending}")


@pytest.mark.parametrize(
    "text",
    [
        "pip install -U NAME",
        "`.venv/bin/pip install NAME`",
        "pip install 'NAME[torch]'",
        "uv pip install NAME",
        "uv add NAME",
        "pipx install NAME",
        "pip install -q -c constraints.txt NAME",
        'f"this is {version}: pip install"\n            " -U NAME"',
        'dependencies = ["NAME"]',
        'dependencies = ["numpy", "NAME>=0.1"]',
        "or 'NAME[lightning]'",
        "NAME==0.1.0",
        "pip install NAME-train",
        "pip install 'NAME_train[torch]'",
        "NAME-train>=0.1",
    ],
)
def test_an_install_from_the_index_is_noticed(text: str) -> None:
    assert index_installs(text.replace("NAME", NAME))


@pytest.mark.parametrize(
    "text",
    [
        "pip install '.[torch]' in the clone of NAME",
        "pip install build/wheel/NAME_train-0.1.0-py3-none-any.whl",
        "pip install ./NAME",
        'dependencies = ["msgspec", "trio"]',
        'packages = ["NAME"]',
        "python3 -m venv .venv && .venv/bin/pip install '.[torch]' && .venv/bin/NAME demo",
        "it wants NAME >= 0.2",
    ],
)
def test_a_clone_and_a_wheel_are_right(text: str) -> None:
    assert not index_installs(text.replace("NAME", NAME))
