"""How much main memory a process may still take here, and whether the kernel has killed for it.

Memory of the machine and of the control groups around this process, containers among them: what
is left is the least of them. Read from files of Linux; None or 0 where there are none. And how many
heaps a process may have, and what it gives back of them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")
_CGROUP_V1 = "memory"


class MainMemory(NamedTuple):
    """What may still be taken, and what there is in all.

    ``is_of_group``: a control group leaves less than the machine has.
    """

    available_bytes: int
    total_bytes: int
    is_of_group: bool = False


def main_memory(proc: Path = _PROC, cgroup: Path = _CGROUP) -> MainMemory | None:
    """Return what this process may use of main memory; None where the system does not tell."""
    facts = _fields(proc / "meminfo")
    if "MemAvailable" not in facts or "MemTotal" not in facts:
        return None
    available, machine = 1024 * facts["MemAvailable"], 1024 * facts["MemTotal"]
    total, is_of_group = machine, False
    for folder in _groups(proc, cgroup):
        for names in (("memory.max", "memory.current"), _V1_NAMES):
            limit, used = (_number(folder / name) for name in names)
            if limit is None or used is None or limit >= machine:
                continue
            stat = _fields(folder / "memory.stat")
            # What was read from files is given up before anything is killed.
            files = stat.get("total_inactive_file", stat.get("inactive_file", 0))
            left = max(0, limit - used + files)
            if left < available:
                available, is_of_group = left, True
            total = min(total, limit)
    return MainMemory(available, total, is_of_group)


_V1_NAMES = ("memory.limit_in_bytes", "memory.usage_in_bytes")


def oom_kills(proc: Path = _PROC, cgroup: Path = _CGROUP) -> int:
    """Return how often the kernel has killed a process of our control group for want of memory.

    Where the group does not count, those of the whole machine are counted.
    """
    for folder in _groups(proc, cgroup):
        for name in ("memory.events", "memory.oom_control"):
            counted = _fields(folder / name).get("oom_kill")
            if counted is not None:
                return counted
    return _fields(proc / "vmstat").get("oom_kill", 0)


def _groups(proc: Path, cgroup: Path) -> Iterator[Path]:
    """Yield the folders of our control group and of those around it, the innermost first."""
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and _CGROUP_V1 not in controllers.split(","):
            continue
        root = cgroup / _CGROUP_V1 if controllers else cgroup
        folder = root / path.strip("/")
        # In a container the path can be one of the host's, which is not there: the root is ours.
        while True:
            if folder.is_dir():
                yield folder
            if folder == root or root not in folder.parents:
                break
            folder = folder.parent


def _fields(path: Path) -> dict[str, int]:
    """Read lines such as ``MemTotal:  123 kB`` or ``oom_kill 3``."""
    found = {}
    for line in _text(path).splitlines():
        name, *values = line.split()
        if values and values[0].isdecimal():
            found[name.rstrip(":")] = int(values[0])
    return found


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


_M_ARENA_MAX = -8  # of malloc.h


def share_one_heap() -> None:
    """Let all threads that this process will start allocate from one heap, where it has glibc.

    Else each that runs beside others begins a heap of its own, a megabyte and more, up to eight for
    each core, and all are kept. They would not wait for one another: the interpreter has one lock.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # other C libraries have one heap anyhow, or none to set
        mallopt(_M_ARENA_MAX, 1)


def return_freed() -> None:
    """Give the system back what malloc holds free, where the process has glibc: 0.3 ms for a node.

    Else the heap stays as large as the largest burst made it: what is free at its end is only given
    back beyond twice the largest block that was ever freed, up to 64 MB.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
