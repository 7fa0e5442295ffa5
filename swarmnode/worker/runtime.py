"""What a worker takes of the machine, decided before torch is imported."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

from swarmnode.errors import ConfigError

THREADS_VARIABLE = "SWARMNODE_THREADS"
_PR_SET_PDEATHSIG = 1


def end_with_parent(how: signal.Signals = signal.SIGTERM) -> None:
    """Have the system send this signal to this process when its parent is gone (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, how, 0, 0, 0)


def hide_other_gpus(gpus: Sequence[int]) -> None:
    """Let CUDA see only these, counted as ``nvidia-smi`` does; none named: as the system says."""
    if gpus:
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))


def thread_count() -> int:
    """Return torch's threads: SWARMNODE_THREADS, else all cores but one, the daemon's.

    Raises:
        ConfigError: that variable is no number of threads.
    """
    wanted = os.environ.get(THREADS_VARIABLE, "")
    if wanted and not wanted.isdecimal():
        raise ConfigError(
            f"{THREADS_VARIABLE}: expected a number from 1 on, or 0 for all cores but one, "
            f"got {wanted!r}"
        )
    if wanted and int(wanted):
        return int(wanted)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) - 1)
