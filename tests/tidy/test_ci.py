"""Every test is in a tier: `.ci/run`, before each landing, or `.ci/nightly`."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from swarmnode.bench.chaos.run import STRATEGIES
from swarmnode.strategies.installed import installed_strategies
from tests.conftest import ROOT
from tests.tidy.test_tidy import TESTS, sources_in, text_of

RUN, NIGHTLY = ROOT / ".ci" / "run", ROOT / ".ci" / "nightly"


def paths_in(text: str) -> set[Path]:
    """Return what of ``tests`` it names."""
    return {ROOT / path for path in re.findall(r"\btests/[\w/]+(?:\.py)?", text)}


def steps_of_the_night() -> list[list[str]]:
    """Return the arguments of its steps: budget, then those of pytest."""
    text = text_of(NIGHTLY).replace("\\\n", " ")
    return [shlex.split(line)[1:] for line in re.findall(r"^within .*$", text, re.MULTILINE)]


def is_at_night(path: Path) -> bool:
    """Whether a step that asks for slow ones runs the tests of this file."""
    for arguments in steps_of_the_night():
        chosen = " ".join(arguments).partition(" --ignore")
        if "-m slow" in chosen[0] and not {path, *path.parents}.isdisjoint(paths_in(chosen[0])):
            return path not in paths_in(chosen[2])
    return False


def test_every_slow_test_is_run_before_a_landing_or_at_night() -> None:
    slow = [path for path in sources_in(TESTS) if re.search(r"\bmark\.slow\b", text_of(path))]
    slow = [path for path in slow if path.name.startswith("test_")]
    by_day = {path for each in paths_in(text_of(RUN)) for path in (each, *each.rglob("*.py"))}
    assert len(slow) > 20
    unseen = [str(path.relative_to(ROOT)) for path in slow if path not in by_day]
    unseen = [path for path in unseen if not is_at_night(ROOT / path)]
    assert not unseen, "neither .ci/run nor .ci/nightly asks for them"


def test_what_is_long_runs_at_night() -> None:
    assert [step for step in steps_of_the_night() if "long and not slow and not lab" in step]
    assert "-m 'lab and not soak' tests/lab" in text_of(RUN)
    assert [step for step in steps_of_the_night() if "lab and soak" in step]
    assert "bash .ci/release build/release ||" in text_of(NIGHTLY), "or it ends the night"


def test_the_night_has_faults_for_every_strategy_and_the_version_before() -> None:
    text = text_of(NIGHTLY)
    assert "chaos=(swarmnode chaos " in text
    assert "--strategy all" in text
    assert "bash .ci/before build/before ||" in text, "or it ends the night"
    assert '--other "$PWD/build/before/python"' in text
    assert set(STRATEGIES) == set(installed_strategies()), "what `all` leaves out is not tried"


def test_the_night_fuzzes_a_minute_each() -> None:
    text = text_of(NIGHTLY).replace("\\\n    ", "")
    assert ".venv/bin/python -m tests.fuzz.run --seconds 60 " in text
    assert '|| failed_steps+=("python -m tests.fuzz.run")' in text, "or it ends the night"
    assert 'make -C native "${targets[@]}" || failed_steps' in text


def test_the_night_searches_histories() -> None:
    text = text_of(NIGHTLY)
    assert "searched=(-m tests.sim.search.run --seconds 3600 " in text
    assert '|| failed_steps+=("python ${searched[*]}")' in text, "or it ends the night"


def test_the_night_switches_syncs_off_and_asks_for_advisories() -> None:
    text = text_of(NIGHTLY)
    assert ".venv/bin/python -m tests.mutants.disk ||" in text, "or it ends the night"
    assert "bash .ci/audit ||" in text


# What pip-audit does: with advisories and none, with one, and without a network.
NO_HOLE = {"dependencies": [{"name": "trio", "version": "1", "vulns": []}], "fixes": []}
HOLE = {"id": "PYSEC-1", "fix_versions": ["2", "3"], "aliases": [], "description": ""}
A_HOLE = {"dependencies": [{"name": "trio", "version": "1", "vulns": [HOLE]}], "fixes": []}


@pytest.mark.parametrize(
    ("found", "status", "code", "said"),
    [
        (NO_HOLE, 0, 0, ""),
        (A_HOLE, 1, 1, "trio 1: PYSEC-1, mended in 2, 3\n"),
        (None, 1, 0, "NOT RUN: pip-audit: Failed to connect\n"),
    ],
)
def test_advisories_that_cannot_be_had_are_said_and_a_hole_fails(
    tmp_path: Path, found: dict[str, Any] | None, status: int, code: int, said: str
) -> None:
    program = tmp_path / "pip-audit"
    write = f'echo {shlex.quote(json.dumps(found))} >"$out"' if found else ":"
    program.write_text(
        '#!/bin/sh\nwhile [ "$1" != --output ]; do shift; done\nout=$2\n'
        f"{write}\necho Failed to connect >&2\nexit {status}\n"
    )
    program.chmod(0o700)
    for path in (".ci/audit", ".ci/constraints.txt"):
        copy = tmp_path / path
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes((ROOT / path).read_bytes())
    done = subprocess.run(
        ["bash", tmp_path / ".ci" / "audit", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (code, said), done.stderr


def test_what_the_night_names_is_there_and_has_a_budget() -> None:
    named = paths_in(" ".join(each for step in steps_of_the_night() for each in step))
    assert named
    assert all(path.exists() for path in named)
    assert all(re.fullmatch(r"\d+m", budget) for budget, *_ in steps_of_the_night())
    assert "source .ci/flaky.sh" in text_of(NIGHTLY)
