"""A volunteer's controls on real daemons: the verbs, a restart, the CPU's share, memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from swarmnode.config import Paths
from swarmnode.daemon.volunteer.machine import process_use
from tests.conftest import HANGS_S
from tests.kits.daemon_kit import (
    Daemon,
    Swarm,
    is_alive,
    make_home,
    new_swarm,
    sandbox_here,
    swarmnode,
)

QUIET = {"SWARMNODE_DASHBOARD": "off"}


@pytest.fixture
def swarm() -> Swarm:
    return new_swarm()


@pytest.fixture
def home(tmp_path: Path, swarm: Swarm) -> Path:
    # Another model than the tiny one: steps of a millisecond would mostly measure Python.
    make_home(tmp_path / "home", swarm, swarm.signed())
    return tmp_path / "home"


@pytest.fixture
def daemons() -> Iterator[list[Daemon]]:
    started: list[Daemon] = []
    yield started
    for daemon in started:
        daemon.kill()


def cpu_s(pid: int) -> float:
    use = process_use(pid)
    assert use is not None
    return use.cpu_s


def wanted_cpu_s(pid: int) -> float:
    """Return how long the threads of a process were ready to run and others ran."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[1]) for task in tasks) / 1e9


def test_a_pause_by_hand_survives_a_restart(home: Path, daemons: list[Daemon]) -> None:
    daemon = Daemon(home, "demo", env=QUIET | {"SWARMNODE_SCHEDULE": "mon-sun"})
    daemons.append(daemon)
    daemon.wait_training()
    assert swarmnode(home, "pause", "2h", "--json").json["until_unix_s"] == pytest.approx(
        time.time() + 7200, abs=60
    )
    status = daemon.wait(lambda s: s["state"] == "paused", "paused")
    assert status["paused_by"] == ["manual"]
    assert "paused by hand" in status["reason"]
    assert "until" in status["reason"]
    shown = swarmnode(home, "limits")
    assert "manual" in shown.out
    assert "schedule" in shown.out

    daemon.kill()  # as a power failure would
    daemon.start()
    status = daemon.wait(lambda s: s["state"] == "paused", "paused after the restart")
    assert status["paused_by"] == ["manual"]
    assert status["paused_until_unix_s"] == pytest.approx(time.time() + 7200, abs=120)
    assert "state       paused: paused by hand" in swarmnode(home, "status").out

    answer = swarmnode(home, "resume", "--json").json
    assert answer == {"paused": False, "why": "", "until_unix_s": None}
    daemon.wait_training(2)
    assert not Paths(home).manual_pause.exists()


def test_finish_completes_and_stops(home: Path, daemons: list[Daemon]) -> None:
    daemon = Daemon(home, "demo", env=QUIET)
    daemons.append(daemon)
    worker = daemon.wait_training()["worker_pid"]
    answer = swarmnode(home, "finish")
    assert answer.code == 0, answer.err
    assert "finished and left" in answer.out
    assert daemon.process is not None
    assert daemon.process.wait(HANGS_S) == 0
    assert not is_alive(worker)
    assert "leaving: asked to finish" in daemon.log


@pytest.mark.parametrize(
    ("setting", "said"), [("auto", ""), ("off", "not sandboxed: the setting sandbox is off")]
)
def test_status_says_what_the_worker_gave_up(
    home: Path, daemons: list[Daemon], setting: str, said: str
) -> None:
    said = said or sandbox_here()[1]
    daemon = Daemon(home, "demo", env=QUIET | {"SWARMNODE_SANDBOX": setting})
    daemons.append(daemon)
    status = daemon.wait_training()
    assert status["sandbox"] == said
    assert f"worker      {said}\n" in swarmnode(home, "status").out
    about = Path(f"/proc/{status['worker_pid']}/status").read_text()
    is_filtered = "network)" in said
    assert f"\nSeccomp:\t{2 if is_filtered else 0}\n" in about


@pytest.mark.parametrize("percent", [50, 20])
def test_a_share_of_the_cpu_is_kept(home: Path, daemons: list[Daemon], percent: int) -> None:
    daemon = Daemon(home, "demo", "--cpu-percent", str(percent), "--threads", "1", env=QUIET)
    daemons.append(daemon)
    worker = daemon.wait_training(20)["worker_pid"]
    begin, used, waited = time.monotonic(), cpu_s(worker), wanted_cpu_s(worker)
    trio.run(trio.sleep, 6)  # what is measured takes its time
    seconds = time.monotonic() - begin
    share = (cpu_s(worker) - used) / seconds
    # On a busy machine others have some of its share: the system tells how long it had to wait.
    kept_from = (wanted_cpu_s(worker) - waited) / seconds
    assert share <= 1.1 * percent / 100
    assert share >= 0.9 * percent / 100 - kept_from
    lines = {line["setting"]: line for line in swarmnode(home, "limits", "--json").json["limits"]}
    assert lines["cpu_percent"]["allowed"] == f"{percent} %"
    assert lines["cpu_percent"]["used"].endswith(" cores")


def test_a_worker_that_needs_too_much_memory_gives_it_back(
    home: Path, daemons: list[Daemon]
) -> None:
    daemon = Daemon(home, "demo", env=QUIET | {"SWARMNODE_RAM": "50 MB"})  # torch alone takes more
    daemons.append(daemon)
    status = daemon.wait(lambda s: s["paused_by"] == ["memory"], "paused for memory")
    status = daemon.wait(lambda s: s["state"] == "paused", "the worker to be gone")
    assert status["worker_pid"] is None
    assert "more than the 50 MB that `ram` allows" in status["reason"]
    assert status["paused_until_unix_s"] == pytest.approx(time.time() + 600, abs=60)
    assert status["worker_restarts"] == 0
