"""One node among the faults: its lives, what it has promised, what its processes hold."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

import swarmnode
from swarmnode import limits
from swarmnode.bench.chaos.world import World
from swarmnode.errors import SwarmNodeError
from swarmnode.processes.node_process import NodeProcess
from swarmnode.store.keys import load_or_create_identity

# Python imports it before anything else. The wall clock is wrong by what the file beside it says
# now, as far as Python can tell; how long the import of torch takes is left in a file, which is
# open before a worker's sandbox lets it open none.
SITE = """\
import os, sys, time
_here = os.path.dirname(os.path.abspath(__file__))
_right, _right_ns = time.time, time.time_ns
def _off():
    try:
        with open(os.environ["SWARMNODE_CHAOS_CLOCK"]) as file:
            return float(file.read() or 0)
    except (KeyError, OSError, ValueError):
        return 0.0
time.time = lambda: _right() + _off()
time.time_ns = lambda: _right_ns() + int(_off() * 1e9)
_took = open(os.path.join(_here, "torch-%d" % os.getpid()), "w")
class _Torch:
    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        import importlib.util
        began = time.monotonic()
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        def timed(module):
            run(module)
            with _took:
                _took.write(str(time.monotonic() - began))
        spec.loader.exec_module = timed
        return spec
sys.meta_path.insert(0, _Torch())
"""
_ASK_S = 5.0  # of a node that may stand still
_END_S = 60.0  # of a daemon that was told to end, and of a worker that lost its daemon
_LOOK_S = 0.1
_READY = re.compile(r" worker ready .*\bstep=(\d+)")


@dataclass(frozen=True)
class Sample:
    """What one process held at one moment."""

    at_s: float
    rss_bytes: int
    fds: int
    memfds: int
    threads: int


@dataclass
class Life:
    """One process of a node, from start to end."""

    node: int
    process: str  # daemon or worker
    pid: int
    samples: list[Sample] = field(default_factory=list)


class ChaosNode(NodeProcess):
    """A node that can be started again, by another version too.

    Attributes:
        promised_step: of the newest snapshot that it said was written.
        lives: what its processes held.
    """

    def __init__(self, number: int, home: Path, world: World, site: Path) -> None:
        super().__init__(home, world.addresses[number])
        self.number = number
        self.python = sys.executable
        self.promised_step = 0
        self.lives: dict[int, Life] = {}
        self._world, self._site = world, site
        self._clock = site / f"clock-{number}"

    def command(self, *arguments: str) -> list[str]:
        """Return what starts it on its host, by its version."""
        own = [str(Path(swarmnode.__file__).parent.parent)] if self.python == sys.executable else []
        path = os.pathsep.join([str(self._site), *own])
        settings = [f"PYTHONPATH={path}", f"SWARMNODE_CHAOS_CLOCK={self._clock}"]
        run = [shutil.which("env") or "env", *settings, self.python, "-P", "-m", "swarmnode"]
        return [*self._world.prefix(self.number), *run, *arguments]

    def set_clock(self, off_s: float) -> None:
        """Let its wall clock be wrong by so much, at once."""
        self._clock.write_text(str(off_s))

    @property
    def is_running(self) -> bool:
        """Whether its daemon is there."""
        return self.process is not None and self.process.poll() is None

    @property
    def worker_pid(self) -> int:
        """The worker's process as far as it has said, 0 if it has not."""
        return self.status.get("worker_pid") or 0

    @property
    def peer(self) -> str:
        """Its id."""
        return str(load_or_create_identity(self.paths.node_key).peer_id)

    @property
    def merged(self) -> int:
        """How many exchanges, or rounds of the log, are in its model since its daemon began."""
        rounds = self.status.get("strategy", {}).get("rounds_closed", 0)
        return int(self.status.get("exchanges_applied", 0) + rounds)

    def daemon_pid(self) -> int:
        """Return the daemon's process. Raises AssertionError: there is none."""
        assert self.process is not None
        return self.process.pid

    async def look(self) -> bool:
        """Take its newest status; False if it does not answer in time."""
        found = await self.answer("GET", "/status")
        if found is not None:
            self.status = found
        return found is not None

    async def answer(self, method: str, path: str, within_s: float = _ASK_S) -> Any:
        """Return what its control socket answers, None if nothing comes in time."""
        with trio.move_on_after(within_s), contextlib.suppress(SwarmNodeError):
            return await self.ask(method, path)
        return None

    async def promise(self) -> str:
        """Have it write a snapshot; what it answers must survive. Return it in words."""
        saved = await self.answer("POST", "/snapshot", _END_S)
        if saved is None:
            return "no snapshot promised"
        self.promised_step = max(self.promised_step, int(saved["step"]))
        return f"snapshot of step {saved['step']} promised"

    def begun_step(self) -> int:
        """Return where its newest worker began, by its log.

        The status has the last step of the worker before until the next one has taken a step.
        """
        return begun_step((self.home / "daemon.log").read_text(errors="replace"))

    def send(self, number: signal.Signals, pids: Sequence[int]) -> None:
        """Send a signal to processes of it that are there."""
        for pid in filter(None, pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    async def kill_daemon(self) -> int:
        """End the daemon at once; return its worker, which is to end by itself."""
        worker, self.status = self.worker_pid, {}
        await self.kill()
        return worker

    async def end(self) -> str:
        """Tell it to leave; return what it took, in words. Raises WorkerError if it failed."""
        took_s = await self.interrupt(_END_S)
        self.process, self.status = None, {}
        return f"ended by itself within {took_s:.1f} s"

    def torch_s(self, pid: int) -> float:
        """Return how long the import of torch took in one of its processes, 0 if there is none."""
        try:
            return float((self._site / f"torch-{pid}").read_text() or 0)
        except (OSError, ValueError):
            return 0.0

    def sample(self, now_s: float) -> None:
        """Note what its processes hold."""
        daemon = self.process.pid if self.process is not None else 0
        for name, pid in (("daemon", daemon), ("worker", self.worker_pid)):
            seen = sample_of(pid, now_s) if pid else None
            if seen is not None:
                life = self.lives.setdefault(pid, Life(self.number, name, pid))
                life.samples.append(seen)


def is_spent(lives: Iterable[Life], now_s: float) -> bool:
    """Whether a daemon with these processes would give up on few more deaths of its worker."""
    since_s = now_s - limits.WORKER_RESTARTS_WINDOW_S
    begun = [x for x in lives if x.process == "worker" and x.samples[0].at_s > since_s]
    return len(begun) >= limits.WORKER_RESTARTS_MAX - 1


def begun_step(log: str) -> int:
    """Return the step at which the last worker of a log was ready, 0 if none was."""
    found = _READY.findall(log)
    return int(found[-1]) if found else 0


async def ended(pid: int) -> bool:
    """Wait for the end of a process that may not be our child; False if there is none in time."""
    with trio.move_on_after(_END_S):
        while pid and is_there(pid):  # noqa: ASYNC110 -- not our child
            await trio.sleep(_LOOK_S)
        return True
    return False


def is_there(pid: int) -> bool:
    """Return whether a process has not ended."""
    try:
        return _proc(pid, "stat").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def sample_of(pid: int, now_s: float) -> Sample | None:
    """Return what a process holds, or None if there is no such process."""
    try:
        said = dict(line.split(":", 1) for line in _proc(pid, "status").splitlines() if ":" in line)
        fds = [_target(each) for each in Path(f"/proc/{pid}/fd").iterdir()]
        rss_bytes = int(said["VmRSS"].split()[0]) * 1024
    except (OSError, KeyError):  # it has just ended
        return None
    memfds = sum(target.startswith("/memfd:") for target in fds)
    return Sample(now_s, rss_bytes, len(fds), memfds, int(said["Threads"]))


def _target(descriptor: Path) -> str:
    with contextlib.suppress(OSError):  # closed meanwhile
        return str(descriptor.readlink())
    return ""


def _proc(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
