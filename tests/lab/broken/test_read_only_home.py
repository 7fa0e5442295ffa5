"""What `swarmnode chaos` does to a node as root, done to a process that is as busy as it can be."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from swarmnode.bench.chaos.world import allow_writing, forbid_writing

# It has files open for writing all the time, and begins another as soon as one can be.
WRITER = """
import sys, time
kept, number = [], 0
while True:
    try:
        kept = [*kept[-20:], open(f"{sys.argv[1]}/f{number % 50}", "w")]
        number += 1
        number == 1 and print("begun", flush=True)
    except OSError:
        time.sleep(0.001)
"""


@contextmanager
def writer(home: Path) -> Iterator[subprocess.Popen[str]]:
    """Run one that sees mounts of its own."""
    command = ["unshare", "-m", "--propagation", "private", sys.executable, "-c", WRITER, str(home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            process.stdout.close()
            yield process
        finally:
            process.kill()


def can_write(pid: int, home: Path) -> bool:
    touch = ["nsenter", "-t", str(pid), "-m", "touch", str(home / "here")]
    return subprocess.run(touch, capture_output=True, check=False).returncode == 0


def test_a_home_is_made_read_only_whatever_is_written_there(able: None, tmp_path: Path) -> None:
    """A file that was opened between two mounts kept the home writable, and ended a run."""
    home = tmp_path / "n1"
    home.mkdir()
    with writer(home) as process:
        for _ in range(20):
            forbid_writing(process.pid, home)
            assert not can_write(process.pid, home)
            allow_writing(process.pid, home)
            assert can_write(process.pid, home)
