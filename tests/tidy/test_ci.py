"""Every test is in a tier: `.ci/run`, before each landing, or `.ci/nightly`."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

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
    assert "-m lab tests/lab" in text_of(RUN)
    assert "bash .ci/release build/release ||" in text_of(NIGHTLY), "or it ends the night"


def test_the_night_has_faults_for_every_strategy_and_the_version_before() -> None:
    text = text_of(NIGHTLY)
    assert "chaos=(swarmnode chaos " in text
    assert "--strategy all" in text
    assert "bash .ci/before build/before ||" in text, "or it ends the night"
    assert '--other "$PWD/build/before/python"' in text
    assert set(STRATEGIES) == set(installed_strategies()), "what `all` leaves out is not tried"


def test_what_the_night_names_is_there_and_has_a_budget() -> None:
    named = paths_in(" ".join(each for step in steps_of_the_night() for each in step))
    assert named
    assert all(path.exists() for path in named)
    assert all(re.fullmatch(r"\d+m", budget) for budget, *_ in steps_of_the_night())
    assert "source .ci/flaky.sh" in text_of(NIGHTLY)
