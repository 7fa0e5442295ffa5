"""What CI makes of tests that fail first and pass then: `.ci/flaky.sh`, run as `.ci/run` does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

CI = ROOT / ".ci"
# As in `.ci/run`: stages one after the other, and work after the tests.
SCRIPT = """
set -euo pipefail
source {flaky}
{before}
.venv/bin/pytest first || once_more first
.venv/bin/pytest second || once_more second
echo "+ style, types, layers"
"""
# The first time there is no marker, and it fails.
FLAKY = """
import pathlib
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_flaky(number):
    marker = pathlib.Path(f"{name}-marker-{{number}}")
    seen = marker.exists()
    marker.touch()
    assert seen

def test_sound():
    marker = pathlib.Path("{name}-sound")
    assert not marker.exists(), "what has passed is not run again"
    marker.touch()
"""
BROKEN = "def test_broken():\n    assert False\n"


def run_ci(folder: Path, before: str = "", **stages: str) -> tuple[int, list[str]]:
    """Run CI on these tests; return its exit status and what it printed."""
    programs = folder / ".venv/bin"
    programs.mkdir(parents=True)
    for name, module in (("pytest", "-m pytest"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        (programs / name).chmod(0o755)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -q -p xdist.plugin\n")
    for stage, text in stages.items():
        (folder / stage).mkdir()
        (folder / stage / f"test_{stage}.py").write_text(text)
    done = subprocess.run(
        ["bash", "-c", SCRIPT.format(flaky=CI / "flaky.sh", before=before)],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # they take most of the time
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


def command_of(pid: str) -> bytes:
    """Return how a process was called; nothing of one that has ended."""
    try:
        return Path("/proc", pid, "cmdline").read_bytes()
    except FileNotFoundError:
        return b""


def flaky(name: str, count: int) -> str:
    return FLAKY.format(name=name, count=count)


def names(stage: str, count: int) -> list[str]:
    return [f"FLAKY: {stage}/test_{stage}.py::test_flaky[{number}]" for number in range(count)]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_up_to_two_are_named_in_the_last_lines(count: int, tmp_path: Path) -> None:
    status, lines = run_ci(tmp_path, first=flaky("first", count), second=flaky("second", 0))
    assert status == 0
    assert [line for line in lines if "FLAKY" in line] == names("first", count)
    assert lines[len(lines) - count - 1 :] == ["+ style, types, layers", *names("first", count)]


def test_three_fail_ci_and_are_still_the_last_lines(tmp_path: Path) -> None:
    """Whatever stages they are of."""
    status, lines = run_ci(tmp_path, first=flaky("first", 2), second=flaky("second", 1))
    assert status == 1
    assert lines[-3:] == names("first", 2) + names("second", 1)
    assert "expected at most 2 tests that fail first and pass then, got 3: mend them" in lines


def test_what_fails_twice_fails_ci_at_once(tmp_path: Path) -> None:
    status, lines = run_ci(tmp_path, first=flaky("first", 1), second=BROKEN)
    assert status == 1
    assert "+ style, types, layers" not in lines
    assert lines[-1:] == names("first", 1)  # the broken one is none of them


def test_tests_that_could_not_be_run_are_not_passed_over(tmp_path: Path) -> None:
    """`--last-failed` would run everything, since nothing has failed."""
    status, lines = run_ci(tmp_path, first=flaky("first", 0), second="import sys; sys.exit(3)\n")
    assert status == 1
    assert "+ style, types, layers" not in lines


@pytest.mark.parametrize("stage", [BROKEN, "def test_sound():\n    pass\n"])
def test_nothing_that_ran_beside_is_left_behind(stage: str, tmp_path: Path) -> None:
    """Whether all is well or CI ends at a stage that failed."""
    beside = "sleep 60 >build.log 2>&1 & echo $!"
    _, lines = run_ci(tmp_path, before=beside, first=stage, second=flaky("second", 0))
    assert command_of(lines[0]) != b"sleep\x0060\x00"


def test_ci_uses_it() -> None:
    text = (CI / "run").read_text()
    assert "source .ci/flaky.sh" in text
    assert "once_more()" not in text
