"""For all tests: none is in the way of the workers that another one has started."""

import contextlib
import os


def pytest_configure() -> None:
    """Give everything here the lowest priority, which workers give themselves.

    They would load torch for half a minute otherwise, beside tests that compute.
    """
    with contextlib.suppress(OSError):  # it is not ours to set
        os.setpriority(os.PRIO_PROCESS, 0, 19)
