"""Worker processes, our own and those of a service manager: wait for one, end it, take its status.

A worker that a service manager starts: one connection to its socket is one worker.

The daemon's sandbox (no devices, few system calls) is inherited by whatever it starts, and a worker
needs other things: a GPU, memory that is written and executed. So under systemd the worker is
a unit of its own, without network, behind a socket (``swarmnode/services``).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Protocol

import trio

from swarmnode import limits
from swarmnode.errors import WorkerCrashed
from swarmnode.ipc.handover import (
    GREETING,
    Credentials,
    credentials_room,
    descriptors,
    sender,
)


class ProcessHold(Protocol):
    """Power over one process."""

    @property
    def pid(self) -> int | None:
        """The process, if this machine has a number for it."""

    @property
    def status(self) -> int | None:
        """As of ``subprocess``; None while it runs, and for ever if it is not our child."""

    async def wait_exit(self) -> None:
        """Wait until it has ended, without reaping it where the system allows that."""

    def terminate(self) -> None:
        """Ask it to end (SIGTERM)."""

    async def reap(self) -> None:
        """Kill what is left of it, and wait for its end. May be called again."""


class ChildProcess:
    """A process that the daemon started itself, the leader of a process group."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen

    @property
    def pid(self) -> int | None:
        """The process, which is also the number of its group."""
        return self._popen.pid

    @property
    def status(self) -> int | None:
        """How it ended; None before it was reaped."""
        return self._popen.returncode

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._popen.terminate()

    async def wait_exit(self) -> None:
        """See ``ProcessHold``."""
        if not hasattr(os, "pidfd_open"):
            await trio.to_thread.run_sync(self._popen.wait, abandon_on_cancel=True)
            return
        if self._popen.returncode is not None:
            return
        descriptor = os.pidfd_open(self._popen.pid)
        try:
            await trio.lowlevel.wait_readable(descriptor)
        finally:
            os.close(descriptor)

    async def reap(self) -> None:
        """Kill what is left of the process group, and take the status."""
        if self._popen.returncode is None:
            # Not reaped yet, so the group's number cannot have been given to another.
            os.killpg(self._popen.pid, signal.SIGKILL)
            await self.wait_exit()
            self._popen.wait()


class ForeignProcess:
    """A process that a service manager started for us. Owns: a descriptor of it (Linux).

    What it has started in its turn is ended by that manager, with the rest of its unit.
    """

    status = None

    def __init__(self, pid: int) -> None:
        """Take hold of it. Raises ProcessLookupError if it has ended already."""
        self._pid = pid
        self._fd: int | None = os.pidfd_open(pid)

    @property
    def pid(self) -> int | None:
        """The process."""
        return self._pid

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._send(signal.SIGTERM)

    async def wait_exit(self) -> None:
        """See ``ProcessHold``."""
        if self._fd is not None:
            await trio.lowlevel.wait_readable(self._fd)

    async def reap(self) -> None:
        """Kill it if it still runs."""
        if self._fd is None:
            return
        self._send(signal.SIGKILL)
        await self.wait_exit()
        os.close(self._fd)
        self._fd = None

    def _send(self, number: signal.Signals) -> None:
        assert self._fd is not None, "it has been reaped"
        with contextlib.suppress(ProcessLookupError):  # it has ended: its manager has taken note
            signal.pidfd_send_signal(self._fd, number)


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
