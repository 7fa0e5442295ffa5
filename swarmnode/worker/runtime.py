"""What a worker takes of the machine, decided before torch is imported."""

from __future__ import annotations

import os

from swarmnode.errors import ConfigError

THREADS_VARIABLE = "SWARMNODE_THREADS"


def thread_count() -> int:
    """Return torch's threads: all cores but one, which is the daemon's, or SWARMNODE_THREADS.

    Raises:
        ConfigError: that variable is no number of threads.
    """
    wanted = os.environ.get(THREADS_VARIABLE, "")
    if wanted:
        if not wanted.isdecimal() or int(wanted) == 0:
            raise ConfigError(f"{THREADS_VARIABLE}: expected a number from 1 on, got {wanted!r}")
        return int(wanted)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) - 1)
