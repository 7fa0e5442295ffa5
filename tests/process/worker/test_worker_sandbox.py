"""A task that means harm, in a real worker: what it tries works without a sandbox, and not in it.

Each attempt is one that a hostile author would make. Without the sandbox all of them succeed, so
none is refused here for another reason.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import trio

from swarmnode.daemon.worker.process import run_worker
from swarmnode.errors import WorkerCrashed
from swarmnode.ipc.control import Configure, Progress, SaveSnapshot, SnapshotSaved, WorkerReady
from swarmnode.tasks.installed import ENTRY_POINT_GROUP
from tests.kits.daemon_kit import sandbox_here
from tests.process.worker.test_worker_process import next_of

HOSTILE = """
    import ctypes, json, os, socket, subprocess, sys, tempfile, time
    from pathlib import Path

    from swarmnode.tasks.digits import Digits

    WORLD = json.loads(os.environ["HOSTILE_WORLD"])
    LIBC = ctypes.CDLL(None, use_errno=True)


    def connect():
        socket.create_connection(("127.0.0.1", WORLD["tcp"]), timeout=10).close()


    def listen():
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))


    def send():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"out", ("127.0.0.1", WORLD["udp"]))


    def ask_the_daemon():
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(WORLD["home"] + "/run/control.sock")


    def read_key():
        assert Path(WORLD["home"], "node.key").read_text() == "the key"


    def read_swarm_key():
        assert Path(WORLD["home"], "swarms/ours/swarm.key").read_text() == "the key"


    def write_home():
        Path(WORLD["home"], "planted").write_text("x")


    def write_user():
        Path.home().joinpath(".profile").write_text("x")


    def write_by_a_shell():
        subprocess.run(["sh", "-c", "echo x > $HOME/planted"], check=True, capture_output=True)


    def remove():
        Path.home().joinpath("precious").unlink()


    def link_key():
        Path(WORLD["home"], "swarms/ours/snapshots/x").symlink_to(WORLD["home"] + "/node.key")


    def signal_the_daemon():
        os.kill(os.getppid(), 0)


    def trace():
        child = subprocess.Popen(["sleep", "60"])
        try:
            if LIBC.ptrace(0x4206, child.pid, None, None) < 0:  # PTRACE_SEIZE
                raise OSError(ctypes.get_errno(), "ptrace")
        finally:
            child.kill()
            child.wait()


    def look_into_the_daemon():
        Path(f"/proc/{os.getppid()}/environ").read_bytes()


    def work_as_usual():
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"x")
        with tempfile.TemporaryDirectory() as folder:  # as compilers of torch do
            made = Path(folder, "made.c")
            made.write_text("int main(void) { return 0; }")
            subprocess.run(["cc", made, "-o", f"{folder}/made"], check=True, capture_output=True)
            subprocess.run([f"{folder}/made"], check=True, stderr=subprocess.DEVNULL)
        one, other = socket.socketpair()
        one.close(), other.close()
        os.kill(os.getpid(), 0)
        Path(WORLD["data"], "text").read_text()


    ATTEMPTS = [
        connect, listen, send, ask_the_daemon, read_key, read_swarm_key, write_home, write_user,
        write_by_a_shell, remove, link_key, signal_the_daemon, trace, look_into_the_daemon,
        work_as_usual,
    ]


    class Hostile(Digits):
        name = "hostile"
        version = 1
        tried = False

        def loss(self, model, batch):
            if not self.tried:
                self.tried = True
                found = {}
                for attempt in ATTEMPTS:
                    try:
                        attempt()
                    except Exception as error:
                        found[attempt.__name__] = f"{type(error).__name__}: {error}"
                    else:
                        found[attempt.__name__] = "worked"
                print("TRIED " + json.dumps(found), flush=True)
            return super().loss(model, batch)
"""
USUAL = "work_as_usual"


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user with a node and the task of a hostile author."""
    user, site = tmp_path / "user", tmp_path / "site"
    swarm = user / "node" / "swarms" / "ours"
    for folder in (swarm, user / "node" / "run", user / "data"):
        folder.mkdir(parents=True)
    for key in (user / "node" / "node.key", swarm / "swarm.key"):
        key.write_text("the key")
    (user / "precious").write_text("")
    (user / "data" / "text").write_text("")
    about = site / "hostile_tasks-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "hostile_tasks.py").write_text(dedent(HOSTILE))
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: hostile-tasks\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        f"[{ENTRY_POINT_GROUP}]\nhostile = hostile_tasks:Hostile\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("HOME", str(user))
    monkeypatch.chdir(user / "node" / "run")  # an address of a Unix socket is short
    return user


@pytest.fixture
def received(user: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """What came over UDP, once the block of the worker is left; TCP and the daemon listen too."""
    got: list[bytes] = []
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as control,
    ):
        udp.bind(("127.0.0.1", 0))
        control.bind("control.sock")
        control.listen()
        world = {
            "tcp": tcp.getsockname()[1],
            "udp": udp.getsockname()[1],
            "home": str(user / "node"),
            "data": str(user / "data"),
        }
        monkeypatch.setenv("HOSTILE_WORLD", json.dumps(world))
        reader = threading.Thread(target=lambda: got.append(udp.recv(64)))
        reader.start()
        yield got
        udp.sendto(b"end", udp.getsockname())  # for a reader that still waits
        reader.join()


def configure(user: Path, **changes: Any) -> Configure:
    fields = {
        "task": "hostile",
        "task_config": {"batch": 8},
        "strategy": "pair-average",
        "strategy_settings": {"every": 4},
        "swarm_seed": 1,
        "shard_seed": 2,
        "snapshot_dir": str(user / "node" / "swarms" / "ours" / "snapshots"),
        "home": str(user / "node"),
        "device": "cpu",
    }
    return Configure(**(fields | changes))


async def tried(configured: Configure, log: Path) -> tuple[WorkerReady, dict[str, str]]:
    """Let it train, and save; return what it said at first, and what came of each attempt."""
    async with run_worker(configured, log_path=log) as link:
        ready = await next_of(link, WorkerReady)
        await next_of(link, Progress, lambda progress: progress.step > 5)
        await link.send(SaveSnapshot(request=1))
        await next_of(link, SnapshotSaved, lambda saved: saved.request == 1)
    lines = (await trio.Path(log).read_text()).splitlines()
    (line,) = [line for line in lines if line.startswith("TRIED ")]
    return ready, json.loads(line.removeprefix("TRIED "))


SIGNALS_SINCE = 6  # the version of Landlock that keeps them in
whole = pytest.mark.skipif(
    sandbox_here()[0] < SIGNALS_SINCE or sandbox_here()[1] != "sandboxed (files, network)",
    reason="this kernel has not all of it",
)


@whole
async def test_nothing_that_a_hostile_task_tries_works(
    user: Path, received: list[bytes], tmp_path: Path
) -> None:
    ready, found = await tried(configure(user), tmp_path / "worker.log")
    assert ready.sandbox == "sandboxed (files, network)"
    assert found.pop(USUAL) == "worked"
    assert len(found) == 14
    assert not [name for name, outcome in found.items() if outcome == "worked"], found
    assert not received
    assert not (user / ".profile").exists()
    assert not (user / "planted").exists()
    assert not (user / "node" / "planted").exists()
    assert (user / "precious").exists()


async def test_without_the_sandbox_all_of_it_works(
    user: Path, received: list[bytes], tmp_path: Path
) -> None:
    ready, found = await tried(configure(user, sandbox="off"), tmp_path / "worker.log")
    assert ready.sandbox == "not sandboxed: the setting sandbox is off"
    assert set(found.values()) == {"worked"}, found
    with trio.fail_after(10):
        while not received:  # noqa: ASYNC110
            await trio.sleep(0.01)
    assert received == [b"out"]


@whole
async def test_files_alone_leave_the_network_open(
    user: Path, received: list[bytes], tmp_path: Path
) -> None:
    ready, found = await tried(configure(user, sandbox="files"), tmp_path / "worker.log")
    assert ready.sandbox == "sandboxed (files); the network is open: as the setting sandbox says"
    worked = {name for name, outcome in found.items() if outcome == "worked"}
    assert worked == {"connect", "listen", "send", "ask_the_daemon", USUAL}
    assert received == [b"out"]


@whole
async def test_all_or_no_training_is_refused_where_not_all_can_be_had(
    user: Path, tmp_path: Path
) -> None:
    configured = configure(user, task="synthetic", task_config={}, sandbox="on")
    async with run_worker(configured, log_path=tmp_path / "worker.log") as link:
        assert (await next_of(link, WorkerReady)).sandbox == "sandboxed (files, network)"
    many = configure(user, task="synthetic", task_config={}, sandbox="on", nproc=2)
    with pytest.raises(WorkerCrashed) as caught:
        async with run_worker(many, log_path=tmp_path / "worker.log") as link:
            await next_of(link, WorkerReady)
    assert "failed (config)" in str(caught.value)
    assert "the network is open: the processes of --nproc talk over TCP" in str(caught.value)
