"""The name swarmnode belongs to another owner on the public package index.

So nothing that people read or run may have them install it from there: they would get
another program, which runs with their own rights. A clone or a wheel's file is right.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

PLACES = ("README.md", "docs", "deploy", "proto", "swarmnode", ".ci", "pyproject.toml")

# A line may go on in the next literal, or behind a backslash.
CONTINUED = re.compile(r"""["']\s*\n\s*[rf]*["']|\\\n\s*""")
# Written apart so that this file does not hold what it forbids.
NAME = "swarm" + "node"
FORBIDDEN = (
    # pip install -U NAME, pipx install NAME, uv add 'NAME>=1'
    re.compile(
        rf"""\b(?:pipx?3?|uv|poetry|pdm|conda|mamba)\s+(?:pip\s+|tool\s+)?(?:install|add|download)"""
        rf"""(?:\s+-[\w-]+(?:[= ][\w./:-]+\.(?:txt|cfg))?)*\s+["']?{NAME}(?![\w/.-])"""
    ),
    # NAME[torch], in whatever command
    re.compile(rf"""(?<![\w./]){NAME}\\?\[[a-z]"""),
    # dependencies = ["numpy", "NAME>=0.1"], requires = ...
    re.compile(rf"""(?:dependencies|requires)\s*=\s*\[[^\]]*["']{NAME}\s*["'\[<>=~!;@]"""),
    # the same as a line of requirements
    re.compile(rf"""^\s*(?:-\s+)?{NAME}\s*(?:==|>=|~=)\s*[0-9]""", re.MULTILINE),
)


def index_installs(text: str) -> list[str]:
    """Return what in ``text`` would install the foreign package."""
    joined = CONTINUED.sub("", text)
    return [found[0] for pattern in FORBIDDEN for found in pattern.finditer(joined)]


def tracked_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", *PLACES], cwd=ROOT, capture_output=True, check=True
    )
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name]


def test_nothing_here_installs_the_package_of_another_project() -> None:
    found = []
    for path in tracked_files():
        text = path.read_bytes().decode("utf-8", "replace") if path.exists() else ""
        found += [f"{path.relative_to(ROOT)}: {wrong}" for wrong in index_installs(text)]
    assert found == []


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
    ],
)
def test_an_install_from_the_index_is_noticed(text: str) -> None:
    assert index_installs(text.replace("NAME", NAME))


@pytest.mark.parametrize(
    "text",
    [
        "pip install '.[torch]' in the clone of NAME",
        "pip install build/wheel/NAME-0.1.0-py3-none-any.whl",
        "pip install ./NAME",
        'dependencies = ["msgspec", "trio"]',
        'packages = ["NAME"]',
        "python3 -m venv .venv && .venv/bin/pip install '.[torch]' && .venv/bin/NAME demo",
        "it wants NAME >= 0.2",
    ],
)
def test_a_clone_and_a_wheel_are_right(text: str) -> None:
    assert not index_installs(text.replace("NAME", NAME))
