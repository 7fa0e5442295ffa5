"""For all tests: those that run beside each other are not in each other's way."""

import contextlib
import os


def pytest_configure() -> None:
    """One thread for each test, and the lowest priority, which workers give themselves.

    Several tests run at once. Two threads of torch in each of them wait for each other more than
    they compute, and workers, which are polite, would load torch for half a minute beside them.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with contextlib.suppress(OSError):  # it is not ours to set
        os.setpriority(os.PRIO_PROCESS, 0, 19)
