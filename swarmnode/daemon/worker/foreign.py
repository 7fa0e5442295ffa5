"""Workers that others start: a service manager, or a person with a training loop of their own.

The daemon's sandbox (no devices, few system calls) is inherited by whatever it starts, and a worker
needs other things: a GPU, memory that is written and executed. So under systemd the worker is
a unit of its own, without network, behind a socket (``swarmnode/services``): one connection to that
socket is one worker.

A program of the owner's comes to us::

    program                              daemon
      --connects to run/program.sock-->
                  <--one byte, and the descriptor of the segment (SCM_RIGHTS)
                  <--Configure
      --WorkerReady, and whatever a worker says-->

The directory of the socket is private, so a program that connects is the owner's. One program at a
time: while it trains, the node does not listen. It may be silent for as long as it likes, between
two steps it may evaluate for minutes; that it is gone shows in its socket.
"""

from __future__ import annotations

import array
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path

import trio

from swarmnode import limits
from swarmnode.daemon.worker.link import SAID_NOTHING, WorkerWire
from swarmnode.errors import WorkerCrashed, WorkerLeft
from swarmnode.ipc.control import (
    Configure,
    FromWorker,
    Stop,
    ToWorker,
    WorkerFailed,
)
from swarmnode.ipc.handover import (
    GREETING,
    Credentials,
    credentials_room,
    descriptors,
    sender,
)
from swarmnode.ipc.segment import Segment


@asynccontextmanager
async def wait_for_program(configure: Configure, path: Path) -> AsyncIterator[ProgramLink]:
    """Listen at ``path`` until a program connects, and lend the way to it.

    Raises:
        WorkerCrashed: the socket cannot be made.
        WorkerLeft: it hung up at once.
    """
    sock = await _accept(path)
    with closing(Segment.create()) as segment:
        link = ProgramLink(trio.SocketStream(sock), segment)
        try:
            await _greet(sock, segment)
            await link.send(configure)
            yield link
        finally:
            with trio.CancelScope(shield=True):
                await link.stop()


async def _accept(path: Path) -> trio.socket.SocketType:
    with trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            _unlink(path)  # what a daemon left that was killed
            await listener.bind(str(path))
            listener.listen(1)
        except OSError as error:
            raise WorkerCrashed(f"cannot listen at {path}: {error.strerror}") from error
        try:
            sock, _ = await listener.accept()
        finally:
            with contextlib.suppress(OSError):
                _unlink(path)
    return sock


def _unlink(path: Path) -> None:
    path.unlink(missing_ok=True)


async def _greet(sock: trio.socket.SocketType, segment: Segment) -> None:
    fds = array.array("i", [segment.fd])
    try:
        await sock.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
    except OSError as error:
        raise WorkerLeft("the program that trains hung up at once") from error


class ProgramLink:
    """The daemon's side of a program; implements ``WorkerLink``. Owns: the stream."""

    pid: int | None = None  # not ours to end

    def __init__(self, stream: trio.SocketStream, segment: Segment) -> None:
        self._wire = WorkerWire(stream, segment)
        self._failed = SAID_NOTHING

    async def send(self, message: ToWorker) -> None:
        """Send a message; see ``WorkerLink``."""
        await self._wire.send(message)

    async def receive(self) -> FromWorker:
        """Return the next message. Raises WorkerLeft: there will be no more. Checkpoint: yes."""
        try:
            message = await self._wire.receive()
        except WorkerCrashed as error:
            raise WorkerLeft(str(error)) from error
        except trio.EndOfChannel:
            why = f": {self._failed.message}" if self._failed.kind else ""
            raise WorkerLeft(f"the program that trained has gone{why}") from None
        if isinstance(message, WorkerFailed):
            self._failed = message
        return message

    def slot_view(self, slot: int, generation: int) -> memoryview:
        """Return the bytes of a slot that is the daemon's; see ``WorkerLink``."""
        return self._wire.slot_view(slot, generation)

    async def stop(self) -> None:
        """Tell it to stop, wait a moment until it has hung up, and hang up."""
        with trio.move_on_after(limits.WORKER_STOP_S):
            if not self._wire.is_sending:
                await self.send(Stop())
            with contextlib.suppress(WorkerLeft):
                while True:
                    await self.receive()
        await self._wire.aclose()
        self._wire.reclaim()


# --- of a service manager ----------------------------------------------------------------


class ForeignProcess:
    """A process that a service manager started for us. Owns: a descriptor of it (Linux).

    What it has started in its turn is ended by that manager, with the rest of its unit.
    """

    status = None

    def __init__(self, pid: int) -> None:
        """Take hold of it. Raises ProcessLookupError if it has ended already."""
        self._pid = pid
        self._fd = os.pidfd_open(pid)

    @property
    def pid(self) -> int | None:
        """The process."""
        return self._pid

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._send(signal.SIGTERM)

    async def wait_exit(self) -> None:
        """See ``process.ProcessHold``."""
        if self._fd >= 0:
            await trio.lowlevel.wait_readable(self._fd)

    async def reap(self) -> None:
        """Kill it if it still runs."""
        if self._fd < 0:
            return
        self._send(signal.SIGKILL)
        await self.wait_exit()
        os.close(self._fd)
        self._fd = -1

    def _send(self, number: signal.Signals) -> None:
        assert self._fd >= 0, "it has been reaped"
        with contextlib.suppress(ProcessLookupError):  # it has ended: its manager has taken note
            signal.pidfd_send_signal(self._fd, number)


_HINT = "is the unit of the worker's socket started, and of this version?"


async def connect_worker(
    path: Path, segment_fd: int, log_fd: int
) -> tuple[trio.SocketStream, ForeignProcess]:
    """Have a worker started by the manager that listens at ``path``, and hand it what it needs.

    Raises:
        WorkerCrashed: no manager listens there, or what answers is no worker of ours.
    """
    try:
        with trio.fail_after(limits.WORKER_START_S), ExitStack() as undo:
            sock = await _connect(path)
            undo.callback(sock.close)
            connected = trio.SocketStream(sock), await _meet(sock, path, segment_fd, log_fd)
            undo.pop_all()
            return connected
    except trio.TooSlowError:
        raise WorkerCrashed(
            f"worker_socket: no worker at {path} within {limits.WORKER_START_S:.0f} s: {_HINT}"
        ) from None


async def _connect(path: Path) -> trio.socket.SocketType:
    sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with ExitStack() as undo:
        undo.callback(sock.close)
        try:
            # Before the worker can have answered: its credentials go with what it sends.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            await sock.connect(os.fspath(path))
        except OSError as error:
            raise WorkerCrashed(
                f"worker_socket: cannot connect to {path} ({error.strerror}): {_HINT}"
            ) from error
        undo.pop_all()
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
