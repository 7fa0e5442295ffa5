"""How much memory this process could still have, and whether a model fits into it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from swarmnode import limits
from swarmnode.errors import Refused

# The parameters as they are built, and their copy in one vector; measured: 2.0 times at most.
_BYTES_PER_PARAMETER = 2 * 4
_GB = 1e9


def check_room(task: str, numel: int, root: Path = Path("/")) -> None:
    """Refuse to build a model for which the memory will not do; 0 is a size that nobody knows.

    Raises:
        Refused: with what is needed and what is there.
    """
    needed_bytes = numel * _BYTES_PER_PARAMETER
    free_bytes, whose = free_memory(root)
    if free_bytes is not None and needed_bytes > free_bytes:
        raise Refused(
            f"task {task}: building its {numel:,} parameters takes {needed_bytes / _GB:.1f} GB of"
            f" memory, {whose} has {free_bytes / _GB:.1f} GB free: end something else, choose a"
            " smaller model, or create the swarm on a larger machine"
        )


def free_memory(root: Path = Path("/")) -> tuple[int | None, str]:
    """Return how many bytes are free and where; None where the system does not say.

    ``root``: where /proc and /sys are.
    """
    found = [(free_bytes, "this machine") for free_bytes in _of_machine(root)]
    found += [(free_bytes, "this control group (container)") for free_bytes in _of_groups(root)]
    return min(found, default=(None, "this machine"))


def _of_machine(root: Path) -> Iterator[int]:
    with contextlib.suppress(OSError, KeyError, ValueError, IndexError):
        text = (root / "proc/meminfo").read_text()
        lines = dict(line.split(":", 1) for line in text.splitlines())
        yield int(lines["MemAvailable"].split()[0]) * limits.KIB


def _of_groups(root: Path) -> Iterator[int]:
    """Yield what is left in each control group around us that has a limit: of version 2, or 1."""
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = (*line.split(":", 2), "", "")[:3]
            if controllers not in ("", "memory"):
                continue
            top = root / "sys/fs/cgroup" / controllers
            # In a container the path may be the host's: what is not there is passed over.
            group = top / path.lstrip("/")
            for folder in (group, *group.parents):
                yield from _left_in(folder, is_old=bool(controllers))
                if folder == top:
                    break


def _left_in(folder: Path, *, is_old: bool) -> Iterator[int]:
    limit, used = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes")
        if is_old
        else ("memory.max", "memory.current")
    )
    with contextlib.suppress(OSError, ValueError):  # not there, or "max": no limit
        left_bytes = int((folder / limit).read_text()) - int((folder / used).read_text())
        yield max(0, left_bytes + _cached_bytes(folder))


def _cached_bytes(folder: Path) -> int:
    """Return what the group uses for files and would give back."""
    with contextlib.suppress(OSError, ValueError):
        for line in (folder / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name in ("inactive_file", "total_inactive_file"):
                return int(value)
    return 0
