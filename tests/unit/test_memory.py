"""What is left of main memory: of the machine, of a container, of a group around it."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from swarmnode.daemon.app.start import keep_small
from swarmnode.memory import MainMemory, main_memory, oom_kills

GIB = 2**30

# Eight threads that are there at once, each with blocks from malloc; glibc reserves 64 MiB at a
# multiple of that for a heap, of which the first are in use. A stack may begin there by chance.
ALLOCATE_IN_EIGHT_THREADS = """
import threading
from swarmnode.memory import share_one_heap

share_one_heap()
meeting = threading.Barrier(8)

def allocate():
    meeting.wait()
    kept = [bytearray(2000) for _ in range(100)]
    meeting.wait()

threads = [threading.Thread(target=allocate) for _ in range(8)]
[each.start() for each in threads], [each.join() for each in threads]
maps = [line.split()[:2] for line in open("/proc/self/maps")]
maps = [(*(int(end, 16) for end in ends.split("-")), may) for ends, may in maps]
print(sum(
    begin % 2**26 == 0 and may == "rw-p"
    and (begins, may_there) == (end, "---p") and ends >= begin + 2**26
    for (begin, end, may), (begins, ends, may_there) in zip(maps, maps[1:])
))
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable:   6291456 kB\nHugePages")
    write(tmp_path / "proc/vmstat", "pgfault 12\noom_kill 5\n")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def looked(root: Path) -> MainMemory | None:
    return main_memory(root / "proc", root / "cgroup")


def killed(root: Path) -> int:
    return oom_kills(root / "proc", root / "cgroup")


def test_a_machine_without_groups(root: Path) -> None:
    assert looked(root) == (6 * GIB, 8 * GIB, False)
    assert killed(root) == 5


def test_the_narrowest_group_counts(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/box/inner\n")
    write(root / "cgroup/box/memory.max", str(4 * GIB))
    write(root / "cgroup/box/memory.current", str(3 * GIB))
    write(root / "cgroup/box/memory.stat", f"anon 7\ninactive_file {GIB}\n")
    write(root / "cgroup/box/inner/memory.max", "max\n")
    write(root / "cgroup/box/inner/memory.current", str(GIB))
    write(root / "cgroup/box/inner/memory.events", "max 3\noom_kill 2\n")
    assert looked(root) == (2 * GIB, 4 * GIB, True), "what files take is given back"
    assert killed(root) == 2


def test_a_larger_group_that_others_have_filled_counts(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/box/inner\n")
    write(root / "cgroup/box/memory.max", str(4 * GIB))
    write(root / "cgroup/box/memory.current", str(3 * GIB))
    write(root / "cgroup/box/inner/memory.max", str(2 * GIB))
    write(root / "cgroup/box/inner/memory.current", "0")
    assert looked(root) == (GIB, 2 * GIB, True)


def test_groups_of_the_older_kind(root: Path) -> None:
    write(root / "proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/host/path\n0::/\n")
    write(root / "cgroup/memory/memory.limit_in_bytes", str(2 * GIB))
    write(root / "cgroup/memory/memory.usage_in_bytes", str(GIB))
    write(root / "cgroup/memory/memory.oom_control", "under_oom 0\noom_kill 1\n")
    assert looked(root) == (GIB, 2 * GIB, True), "in a container the path is the host's"
    assert killed(root) == 1


def test_a_system_that_does_not_tell(tmp_path: Path) -> None:
    assert looked(tmp_path) is None
    assert killed(tmp_path) == 0


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have one heap")
@pytest.mark.parametrize(("shares", "heaps"), [(True, {0}), (False, set(range(2, 9)))])
def test_threads_share_one_heap_where_they_are_told_to(*, shares: bool, heaps: set[int]) -> None:
    """Each of its own takes a megabyte and more, for good."""
    program = ALLOCATE_IN_EIGHT_THREADS
    if not shares:
        program = program.replace("share_one_heap()\n", "")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) in heaps


# A large block is freed first: glibc takes it that more such come, and keeps twice as much.
FREE_A_BURST = """
from swarmnode.memory import return_freed

def own_kb():
    return int(next(line for line in open("/proc/self/status") if "RssAnon" in line).split()[1])

large = bytearray(8 * 2**20)
del large
before = own_kb()
burst = [bytearray(100_000) for _ in range(100)]
del burst
return_freed()
print(own_kb() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries give it back")
@pytest.mark.parametrize("returns", [True, False])
def test_what_a_burst_took_is_given_back(*, returns: bool) -> None:
    program = FREE_A_BURST if returns else FREE_A_BURST.replace("return_freed()\n", "")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert (int(done.stdout) < 1000) == returns
    assert (int(done.stdout) > 9000) != returns


async def test_a_node_gives_back_once_a_minute(autojump_clock) -> None:
    releases: list[float] = []
    with trio.move_on_after(200):
        await keep_small(lambda: releases.append(trio.current_time()))
    assert releases == [60, 120, 180]
