"""Processes that a verb starts: none of them, and nothing that they started, outlives it.

Four things see to that. A verb that fails or returns ends them in ``main``; SIGTERM, Ctrl-C and
a closed output do in ``stopping``; Linux gives us what our children leave behind when they end
(a worker whose daemon was killed), so that we find it; and where we are killed ourselves, Linux
kills the children (``ipc.tied``).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from swarmnode.ipc import spawn
from swarmnode.ipc.spawn import worker_environment
from swarmnode.processes import stopping

_PR_SET_CHILD_SUBREAPER = 36
_IS_LINUX = sys.platform == "linux"
# SIGKILL takes effect at once; a process that has gigabytes to give back takes some tenths.
_END_S = 1.0
_POLL_S = 0.01

_started: list[subprocess.Popen[Any]] = []
_begun = False  # a signal may come while the first one starts: it runs before we know its number


def start_child(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a command of :func:`worker_command` as ``subprocess.Popen`` does.

    In a session of its own: Ctrl-C in a terminal goes to its parent, which ends it then.

    Raises:
        OSError: the system refused.
    """
    global _begun
    environment = worker_environment(command[0])
    if _IS_LINUX:
        if not _begun:
            _adopt_orphans()
        program = str(Path(spawn.__file__).with_name("tied.py"))
        command = [sys.executable, "-I", "-S", program, str(os.getpid()), *command]
    stopping.watch(end_children)
    _begun = True
    process = subprocess.Popen(command, env=environment, start_new_session=True, **options)
    _started.append(process)
    return process


@contextmanager
def child(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Run a command beside the block; wait for its end, or bring it about if the block fails."""
    with start_child(command, **options) as process, ExitStack() as undo:
        undo.callback(process.kill)
        yield process
        undo.pop_all()


def end_children() -> None:
    """End at once all that was started and still runs, with all that it started."""
    if not _begun:
        return
    until = time.monotonic() + _END_S
    while pids := running():
        # All stand still before the first is gone: none is left to complain of the others.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        if time.monotonic() > until:
            return
        time.sleep(_POLL_S)


def running() -> list[int]:
    """Return the processes below this one that have not ended; reap orphans that have."""
    if not _IS_LINUX:
        return [process.pid for process in _started if process.returncode is None]
    parents = dict(_read_parents())
    own = os.getpid()
    ours = {process.pid for process in _started}
    found = []
    for pid, (parent, is_over) in parents.items():
        if is_over:
            if parent == own and pid not in ours:  # ``Popen`` reaps its own
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            continue
        above = parent
        while above not in (own, 0) and above in parents:
            above = parents[above][0]
        if above == own:
            found.append(pid)
    return found


def _read_parents() -> Iterator[tuple[int, tuple[int, bool]]]:
    """Yield each process of the machine: its number, its parent's, and whether it has ended."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        with contextlib.suppress(OSError):  # it has just ended
            text = (folder / "stat").read_text(errors="replace")
            state, parent = text.rpartition(")")[2].split()[:2]
            yield int(folder.name), (int(parent), state in "ZX")


def _adopt_orphans() -> None:
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
