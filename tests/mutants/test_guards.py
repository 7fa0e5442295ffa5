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
    )
    assert found.returncode == _FAILED, found.stdout + found.stderr
