"""A worker that a service manager starts: one connection to its socket is one worker.

The daemon's sandbox (no devices, few system calls) is inherited by whatever it starts, and a worker
needs other things: a GPU, memory that is written and executed. So under systemd the worker is
a unit of its own, without network, behind a socket (``swarmnode/services``).
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import trio

from swarmnode import limits
from swarmnode.daemon.worker.hold import ForeignProcess
from swarmnode.errors import WorkerCrashed
from swarmnode.ipc.handover import (
    GREETING,
    Credentials,
    credentials_room,
    descriptors,
    sender,
)

_HINT = "is the unit of the worker's socket started, and of this version?"


async def connect_worker(
    path: Path, segment_fd: int, log_fd: int
) -> tuple[trio.SocketStream, ForeignProcess]:
    """Have a worker started by whoever listens at ``path``, and hand it what it needs.

    Raises:
        WorkerCrashed: nobody listens there, or what answers is no worker of ours.
    """
    try:
        with trio.fail_after(limits.WORKER_START_S):
            sock = await _connect(path)
            try:
                return trio.SocketStream(sock), await _meet(sock, path, segment_fd, log_fd)
            except BaseException:  # whatever the reason: the socket is closed, and it goes on up
                sock.close()
                raise
    except trio.TooSlowError:
        raise WorkerCrashed(
            f"worker_socket: no worker at {path} within {limits.WORKER_START_S:.0f} s: {_HINT}"
        ) from None


async def _connect(path: Path) -> trio.socket.SocketType:
    sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Before the worker can have answered: its credentials go with what it sends.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        await sock.connect(os.fspath(path))
    except OSError as error:
        sock.close()
        raise WorkerCrashed(
            f"worker_socket: cannot connect to {path} ({error.strerror}): {_HINT}"
        ) from error
    except BaseException:  # cancelled: the socket is closed, and it goes on up
        sock.close()
        raise
    return sock


async def _meet(
    sock: trio.socket.SocketType, path: Path, segment_fd: int, log_fd: int
) -> ForeignProcess:
    try:
        await sock.sendmsg([GREETING], descriptors(segment_fd, log_fd))
        answer, ancillary, _, _ = await sock.recvmsg(len(GREETING), credentials_room())
    except OSError as error:
        raise WorkerCrashed(f"worker_socket: {path}: {error.strerror}: {_HINT}") from error
    if answer != GREETING:
        raise WorkerCrashed(f"worker_socket: what listens at {path} is no worker: {_HINT}")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
    return _take_hold(sender(ancillary), path)


def _take_hold(worker: Credentials | None, path: Path) -> ForeignProcess:
    """Check that the worker is of our user: we share files, and end it where it hangs."""
    if worker is None or worker.pid <= 0:
        raise WorkerCrashed(f"worker_socket: the worker at {path} runs in another container")
    if worker.uid != os.geteuid():
        raise WorkerCrashed(
            f"worker_socket: the worker at {path} runs as uid {worker.uid}, this node as "
            f"{os.geteuid()}: give both units the same User="
        )
    try:
        return ForeignProcess(worker.pid)
    except ProcessLookupError:
        raise WorkerCrashed(f"worker_socket: the worker at {path} ended at once") from None
