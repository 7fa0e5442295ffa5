"""What a worker takes of the machine, decided before torch is imported."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

from swarmnode.errors import ConfigError

NICE = 10  # beside a busy torch the daemon's timers are 0.15 ms late instead of 4 ms
THREADS_VARIABLE = "SWARMNODE_THREADS"
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP = 1, 24
_CAPABILITY_VERSION_3 = 0x2008_0522
# Of a root's: files of all users, CAP_KILL, and CAP_IPC_LOCK and CAP_SYS_NICE for memory of GPUs.
_KEPT_CAPABILITIES = (0, 1, 2, 3, 4, 5, 14, 23)
_CAPABILITIES = 64


def end_with_parent(how: signal.Signals = signal.SIGTERM) -> None:
    """Have the system send this signal to this process when its parent is gone (Linux)."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            prctl(_PR_SET_PDEATHSIG, how)


def yield_to_others() -> None:
    """Let everything else on this machine go first: other sessions, too, not this one's alone.

    Where each session has its share of the cores (Linux without systemd's groups), nice counts
    within one session only. Two processes on two cores that answered each other after 1 ms of
    work, beside four busy ones in sessions of their own, waited 7 ms for a core in a round trip,
    and 1.1 ms where the busy ones were niced so.
    """
    os.nice(NICE)
    with contextlib.suppress(OSError):  # there are no such shares, or it is not ours to say
        Path("/proc/self/autogroup").write_text(str(NICE))


def drop_capabilities() -> None:
    """Give up what makes root more than the owner of all files, for children too (Linux).

    With CAP_PERFMON alone, root reads the environment of any process.
    """
    if sys.platform != "linux":
        return
    kept = sum(1 << number for number in _KEPT_CAPABILITIES)
    for number in set(range(_CAPABILITIES)) - set(_KEPT_CAPABILITIES):
        with contextlib.suppress(OSError):  # it has none to drop, or this kernel has not so many
            prctl(_PR_CAPBSET_DROP, number)
    library = ctypes.CDLL(None, use_errno=True)
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0))
    sets = ctypes.create_string_buffer(24)  # effective, permitted, inheritable; then the upper ones
    if library.capget(header, sets) == 0:
        masks = [kept & 0xFFFF_FFFF] * 3 + [kept >> 32] * 3
        left = [
            had & mask for had, mask in zip(struct.unpack("=6I", sets.raw[:24]), masks, strict=True)
        ]
        library.capset(header, struct.pack("=6I", *left))


def prctl(option: int, *arguments: int) -> None:
    """Call prctl(2). Raises OSError."""
    words = [ctypes.c_ulong(word) for word in (*arguments, 0, 0, 0, 0)[:4]]
    if ctypes.CDLL(None, use_errno=True).prctl(option, *words) < 0:
        raise _last_error()


def system_call(number: int, *arguments: int | bytes | None) -> int:
    """Make a call that the C library has no name for. Raises OSError."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = call(ctypes.c_long(number), *words)
    if result < 0:
        raise _last_error()
    return int(result)


def _last_error() -> OSError:
    return OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


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
    return max(1, core_count() - 1)


def core_count() -> int:
    """Return how many cores this process may use; macOS tells of all that there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
