"""A worker that a service manager starts for a connection, as systemd does, in its own process."""

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from swarmnode import limits
from swarmnode.daemon.worker.process import run_worker, start_worker_process
from swarmnode.errors import ConfigError, MalformedMessage, WorkerCrashed
from swarmnode.ipc.control import (
    Applied,
    Apply,
    Progress,
    SaveSnapshot,
    SnapshotSaved,
    WorkerFailed,
    WorkerReady,
)
from swarmnode.ipc.handover import GREETING, receive_descriptors, sender
from swarmnode.ipc.spawn import worker_command, worker_environment
from swarmnode.worker.main import take_over
from tests.conftest import HANGS_S
from tests.kits.daemon_kit import is_alive
from tests.process.worker.test_worker_process import (  # noqa: F401
    PARTNER,
    configure,
    log_path,
    next_of,
    next_slot,
)

SYSTEMD = shutil.which("systemd-socket-activate")
WORKER = worker_command("swarmnode.worker.main", "--activated")
# What systemd does between the fork and the exec: the connection is descriptor 3.
EXEC = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.argv[2], sys.argv[2:])
"""


@asynccontextmanager
async def own_activation(path: Path):
    """Listen at ``path``; start a worker for each connection, as ``Accept=yes`` has it."""
    children = []

    async def accept(listener):
        while True:
            connection, _ = await listener.accept()
            with connection:
                children.append(spawn(connection.fileno()))

    def spawn(fd):
        environment = worker_environment() | {"LISTEN_FDS": "1", "SWARMNODE_THREADS": "1"}
        return subprocess.Popen(
            [sys.executable, "-c", EXEC, str(fd), *WORKER],
            env=environment,
            pass_fds=[fd],
            stdin=subprocess.DEVNULL,
        )

    with trio.socket.socket(socket.AF_UNIX) as listener:
        await listener.bind(str(path))
        listener.listen(4)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept, listener)
            try:
                yield path
            finally:
                nursery.cancel_scope.cancel()
                with trio.CancelScope(shield=True):
                    for child in children:
                        child.kill()
                        await trio.to_thread.run_sync(child.wait)


@asynccontextmanager
async def systemd_activation(path: Path):
    """The same by systemd's own program."""
    process = subprocess.Popen(  # noqa: ASYNC220
        [SYSTEMD, "--accept", f"--listen={path}", "-E", "PYTHONPATH", *WORKER],
        env=worker_environment() | {"SWARMNODE_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )
    try:
        with trio.fail_after(HANGS_S):
            while not path.exists():  # noqa: ASYNC110, ASYNC240
                await trio.sleep(0.01)
        yield path
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(
    params=[
        own_activation,
        pytest.param(
            systemd_activation,
            marks=pytest.mark.skipif(SYSTEMD is None, reason="needs systemd-socket-activate"),
        ),
    ],
    ids=["own", "systemd"],
)
async def manager(request, tmp_path):
    async with request.param(tmp_path / "worker.sock") as path:
        yield path


async def test_it_trains_exchanges_and_leaves(manager, configure, log_path):  # noqa: F811
    start = start_worker_process(log_path, manager=str(manager))
    async with start(configure()) as link:
        ready = await next_of(link, WorkerReady)
        assert ready.step == 0
        pid = link.pid
        assert is_alive(pid)
        assert pid != os.getpid()
        slot = await next_slot(link)
        view = link.slot_view(slot.slot, slot.generation).cast("f")
        view[ready.numel :] = view[: ready.numel]
        await link.send(Apply(slot.slot, slot.generation, b"e" * 16, PARTNER))
        assert (await next_of(link, Applied)).xid == b"e" * 16
        await link.send(SaveSnapshot(request=5))
        await next_of(link, SnapshotSaved, lambda saved: saved.request == 5)
    assert not is_alive(pid)
    async with start(configure()) as link:
        assert (await next_of(link, WorkerReady)).step > 0, "it resumes"
        assert link.pid != pid


async def test_its_output_is_in_the_daemons_log(manager, configure, log_path):  # noqa: F811
    async with run_worker(configure("nope"), log_path=log_path, socket_path=manager) as link:
        assert (await next_of(link, WorkerFailed)).kind == "task-unknown"
        with pytest.raises(WorkerCrashed, match="task 'nope' is not installed here"):
            await link.receive()
    assert "worker failed (task-unknown)" in log_path.read_text()


async def test_killed_it_is_reported(manager, configure, log_path):  # noqa: F811
    async with run_worker(configure(), log_path=log_path, socket_path=manager) as link:
        await next_of(link, Progress, lambda progress: progress.step > 3)
        os.kill(link.pid, signal.SIGKILL)
        with pytest.raises(WorkerCrashed, match=r"has ended; .*journal of its unit"):
            await next_of(link, WorkerFailed)


async def test_one_that_hangs_is_killed(manager, configure, log_path):  # noqa: F811
    async with run_worker(configure(), log_path=log_path, socket_path=manager) as link:
        await next_of(link, Progress, lambda progress: progress.step > 3)
        pid = link.pid
        os.kill(pid, signal.SIGSTOP)
    assert not is_alive(pid), "stopped, it cannot save: it is killed"


# --- what is no worker ----------------------------------------------------------------------


async def refused(message, log, path):
    with pytest.raises(WorkerCrashed) as caught:
        async with run_worker(message, log_path=log, socket_path=path):
            pass
    return str(caught.value)


async def test_no_worker_listens(configure, log_path, tmp_path):  # noqa: F811
    said = await refused(configure(), log_path, tmp_path / "none.sock")
    assert "cannot connect to" in said
    assert "No such file" in said
    assert "is the unit of the worker's socket started" in said


@asynccontextmanager
async def pretender(path: Path, answer: bytes | None):
    """A program that listens there and answers something, or nothing."""

    async def serve(stream):
        await stream.receive_some()
        if answer is None:
            await trio.sleep_forever()
        await stream.send_all(answer)
        await stream.aclose()

    listener = trio.socket.socket(socket.AF_UNIX)
    await listener.bind(str(path))
    listener.listen(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, [trio.SocketListener(listener)])
        yield path
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("answer", [b"", b"220 mail.example.org ESMTP\r\n"])
async def test_something_else_listens(configure, log_path, tmp_path, answer):  # noqa: F811
    async with pretender(tmp_path / "s", answer) as path:
        assert "is no worker" in await refused(configure(), log_path, path)


async def test_a_silent_one_is_given_up(configure, log_path, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(limits, "WORKER_START_S", 0.2)
    async with pretender(tmp_path / "s", None) as path:
        assert "no worker at" in await refused(configure(), log_path, path)


async def test_a_worker_of_another_user_is_refused(
    configure,  # noqa: F811
    log_path,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    async with pretender(tmp_path / "s", GREETING) as path:
        said = await refused(configure(), log_path, path)
    assert f"runs as uid {os.getuid()}, this node as 54321: give both units the same User=" in said


def test_a_worker_takes_descriptors_from_a_daemon_only():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(MalformedMessage, match="are daemon and worker of the same version"):
            receive_descriptors(theirs)
    ours, theirs = socket.socketpair()
    with theirs:
        ours.close()
        assert receive_descriptors(theirs) is None


@pytest.mark.parametrize(
    "environ", [{}, {"LISTEN_PID": "1", "LISTEN_FDS": "1"}, {"LISTEN_FDS": "2"}]
)
def test_without_a_manager_it_says_what_starts_it(monkeypatch, environ):
    for name in ("LISTEN_PID", "LISTEN_FDS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="a unit with Accept=yes starts this"):
        take_over()


def test_credentials_are_those_of_the_kernel():
    ancillary = [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, struct.pack("3i", 7, 8, 9))]
    assert sender(ancillary) == (7, 8, 9)
    assert sender([]) is None
