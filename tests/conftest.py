"""For all tests: those that run beside each other are not in each other's way."""

import contextlib
import gc
import os
import sys
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).parents[1]
# Of real sockets and processes: what takes so long hangs, however much else the machine does.
HANGS_S = 60.0


def open_files() -> int:
    """Return how many file descriptors this process has, but for those of what is garbage."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def pytest_configure() -> None:
    """One thread for each test, and the lowest priority, which workers give themselves.

    Several tests run at once. Two threads of torch in each of them wait for each other more than
    they compute, and workers, which are polite, would load torch for half a minute beside them.

    Bytecode is kept, even where the environment says that none is to be written (images of
    containers do): else each of the hundreds of processes that tests start compiles all it imports.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    # Examples have no time limit, nor has their making: both are of the wall clock, and a machine
    # with other work passed them.
    slow = hypothesis.HealthCheck.too_slow
    hypothesis.settings.register_profile("swarmnode", deadline=None, suppress_health_check=[slow])
    hypothesis.settings.load_profile("swarmnode")
    with contextlib.suppress(OSError):  # it is not ours to set
        os.setpriority(os.PRIO_PROCESS, 0, 19)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave what is collected out of garbage collection: it stays until the end.

    A full collection looks at all that lives, here thousands of tests and torch, each time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


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
