"""For all tests: those that run beside each other are not in each other's way."""

import contextlib
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def pytest_configure() -> None:
    """One thread for each test, and the lowest priority, which workers give themselves.

    Several tests run at once. Two threads of torch in each of them wait for each other more than
    they compute, and workers, which are polite, would load torch for half a minute beside them.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with contextlib.suppress(OSError):  # it is not ours to set
        os.setpriority(os.PRIO_PROCESS, 0, 19)


def long_tests() -> set[str]:
    """Return the tests of long_tests.txt, by node id, or by function for all its cases."""
    lines = (ROOT / "tests" / "long_tests.txt").read_text().splitlines()
    return {line for line in lines if line and not line.startswith("#")}


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what everyday runs leave out."""
    chosen = long_tests()
    for item in items:
        if item.nodeid in chosen or item.nodeid.partition("[")[0] in chosen:
            item.add_marker(pytest.mark.long)
