"""Verbs that start processes, ended from outside: with one line, and nothing stays.

Two seconds are promised: ``stopping`` ends at once what has not unwound by then. How much of them
others take from a test depends on the machine, so here only what hangs fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from swarmnode.ipc.spawn import worker_command, worker_environment
from tests.conftest import HANGS_S
from tests.kits.daemon_kit import wait_until

START_S = 90.0
TOKEN = "SWARMNODE_TEST_TOKEN"
WAYS = {
    "SIGTERM": "swarmnode: stopped by SIGTERM",
    "SIGINT": "swarmnode: stopped by Ctrl-C",
    "pipe": "swarmnode: stopped: the output is read no more (broken pipe)",
}
# What is run, and how many processes it has at least when all that it starts is there.
STARTERS = {
    "bench exchange --params 1000000": 2,
    "bench group --params 1000000": 4,
    "bench link": 1,
    "bench link --path relay": 2,
    "bench link --path rtc": 2,
    "bench blob --size 16M --rounds 100": 3,
    "bench snapshot": 1,
    "bench swarm --nodes 4": 4,
    "bench fidelity --quick --only noloco-digits": 1,
    "bench fidelity --quick --only daemons": 1,
    "bench step": 1,
    "chaos --nodes 2": 2,
    "create demo --task bytes-lm": 1,
    "demo": 1,
    "doctor": 1,
    "generate nothing": 1,
    "simulate --nodes 4 --strategy pair-average": 1,
}


class Verb:
    """A verb as a process of its own; whatever carries its token was started by it."""

    def __init__(self, line: str, folder: Path) -> None:
        self._token = secrets.token_hex(8)
        home = {"SWARMNODE_HOME": str(folder / "home"), "TMPDIR": str(folder)}
        self.process = subprocess.Popen(
            worker_command("swarmnode", *line.split()),
            env=worker_environment() | home | {TOKEN: self._token},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def below(self) -> list[int]:
        """Return the processes that it has started, at any remove, and that have not ended."""
        mark = f"{TOKEN}={self._token}".encode()
        return [pid for pid in _pids() if pid != self.process.pid and mark in _environment(pid)]

    def has_used_cpu_s(self, wanted_s: float) -> bool:
        """Return whether it has worked for so long: it is past its imports then."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") >= wanted_s

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait for something that it is about to do."""

        def runs_and_is_so() -> bool:
            assert self.process.poll() is None, self.process.communicate()
            return is_so()

        wait_until(runs_and_is_so, "it did not come to that", START_S)

    def end(self, way: str) -> tuple[int, str]:
        """End it; return exit code and standard error. Raises TimeoutExpired if it hangs."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        if way == "pipe":
            self.process.stdout.close()
        else:
            self.process.send_signal(signal.Signals[way])
        code = self.process.wait(HANGS_S)
        return code, self.process.stderr.read().decode()


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _environment(pid: int) -> bytes:
    """Return what a process was started with; nothing of one that has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: the path of a Unix socket has at most 103 bytes."""
    with tempfile.TemporaryDirectory(prefix="sn", ignore_cleanup_errors=True) as name:
        yield Path(name)


@contextmanager
def started(line: str, folder: Path) -> Iterator[Verb]:
    verb = Verb(line, folder)
    try:
        yield verb
    finally:
        for pid in (verb.process.pid, *verb.below()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        verb.process.communicate()


def check_end(verb: Verb, way: str) -> None:
    code, said = verb.end(way)
    assert said.splitlines() == [WAYS[way]]
    assert code == 1
    # What was killed is seen until the system has taken its memory back.
    wait_until(lambda: not verb.below(), "the end of all", HANGS_S)


@pytest.mark.parametrize("line", STARTERS)
def test_a_verb_that_is_ended_leaves_no_process(line: str, folder: Path) -> None:
    check_ends("SIGTERM", line, folder)


@pytest.mark.parametrize("way", ["SIGINT", "pipe"])
@pytest.mark.parametrize("line", ["bench exchange --params 1000000", "create x --task bytes-lm"])
def test_ctrl_c_and_a_closed_output_are_as_sigterm(line: str, way: str, folder: Path) -> None:
    check_ends(way, line, folder)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["SIGINT", "pipe"])
@pytest.mark.parametrize("line", STARTERS)
def test_every_verb_ends_in_every_way(line: str, way: str, folder: Path) -> None:
    check_ends(way, line, folder)


def check_ends(way: str, line: str, folder: Path) -> None:
    with started(line, folder) as verb:
        verb.wait_until(lambda: len(verb.below()) >= STARTERS.get(line, 1))
        check_end(verb, way)


@pytest.mark.parametrize("way", WAYS)
def test_a_verb_without_processes_ends_with_one_line_too(way: str, folder: Path) -> None:
    with started("bench metrics --peers 200", folder) as verb:
        verb.wait_until(lambda: verb.has_used_cpu_s(2.0))  # nodes meet: deep inside of Trio
        check_end(verb, way)


def test_what_breaks_inside_of_trio_is_one_line_too(folder: Path) -> None:
    long = folder / ("x" * 100)
    long.mkdir()
    with started("bench metrics --peers 3", long) as verb:
        _, said = verb.process.communicate(timeout=START_S)
    assert verb.process.returncode == 2
    (line,) = said.decode().splitlines()
    assert line.startswith("swarmnode: the path of a Unix socket has at most 103 bytes, this one")


def test_with_json_the_line_is_an_object(folder: Path) -> None:
    with started("bench link --json", folder) as verb:
        verb.wait_until(lambda: len(verb.below()) >= 1)
        verb.process.send_signal(signal.SIGTERM)
        out, said = verb.process.communicate(timeout=START_S)
    assert json.loads(out) == {"error": "stopped by SIGTERM", "exit_code": 1}
    assert said == b""


def test_nothing_stays_when_the_verb_itself_is_killed(folder: Path) -> None:
    """SIGKILL leaves it no time: the system ends what it has started."""
    with started("bench exchange --params 1000000", folder) as verb:
        verb.wait_until(lambda: len(verb.below()) >= 2)
        verb.end("SIGKILL")
        wait_until(lambda: not verb.below(), "the end of all", HANGS_S)


@pytest.mark.slow
@pytest.mark.parametrize("way", [*WAYS, "SIGKILL"])
def test_nodes_do_not_go_on_training(way: str, folder: Path) -> None:
    """Two daemons, each with a worker: four processes, once the swarm has been created."""
    with started("bench step", folder) as verb:
        verb.wait_until(lambda: len(verb.below()) >= 4)
        if way != "SIGKILL":
            check_end(verb, way)
            return
        verb.end("SIGKILL")
        # Workers save and leave, and may be in the middle of loading torch.
        wait_until(lambda: not verb.below(), "the end of all", START_S)
