"""Every guard has a test that notices when it is switched off."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.mutants.table import MUTANTS

_FAILED = 1  # of pytest: some tests ran, and not all of them passed
# Each takes seconds. A test that only a guard ends would else go on for ever without it: such a
# test has no verdict, and needs a bound.
_DEADLINE_S = 600.0


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_without_the_guard_a_test_turns_red(name: str) -> None:
    pytest_words = ("pytest", "-n", "0", "-x", "-q", "-m", "", "-p", "no:cacheprovider")
    test = shlex.split(MUTANTS[name].test)
    found = subprocess.run(
        [sys.executable, "-m", *pytest_words, "-p", "tests.mutants.plugin", *test],
        cwd=ROOT,
        env=os.environ | {"SWARMNODE_MUTANT": name},
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=_DEADLINE_S,
    )
    assert found.returncode == _FAILED, found.stdout + found.stderr
