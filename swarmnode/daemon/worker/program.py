"""A worker that comes from outside: a program of the owner's, with a training loop of its own.

::

    program                              daemon
      --connects to run/program.sock-->
                  <--one byte, and the descriptor of the segment (SCM_RIGHTS)
                  <--Configure
      --WorkerReady, and whatever a worker says-->

The directory of the socket is private, so whoever connects is the owner of the node. One program
at a time: while it trains, nobody listens. It may be silent for as long as it likes, between two
steps it may evaluate for minutes; that it is gone shows in its socket.
"""

from __future__ import annotations

import array
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path

import trio

from swarmnode import limits
from swarmnode.daemon.worker.link import StartWorker, WorkerLink, WorkerWire
from swarmnode.errors import WorkerCrashed, WorkerLeft
from swarmnode.ipc.control import (
    PROGRAM_TASK,
    Configure,
    FromWorker,
    Stop,
    ToWorker,
    WorkerFailed,
)
from swarmnode.ipc.segment import Segment


def programs_or(start_worker: StartWorker, path: Path) -> StartWorker:
    """Return what starts workers, but waits at ``path`` in a swarm that programs train."""

    def start(configure: Configure) -> AbstractAsyncContextManager[WorkerLink]:
        if configure.task == PROGRAM_TASK:
            return wait_for_program(configure, path)
        return start_worker(configure)

    return start


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
    descriptors = array.array("i", [segment.fd])
    try:
        await sock.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
    except OSError as error:
        raise WorkerLeft("the program that trains hung up at once") from error


class ProgramLink:
    """The daemon's side of a program; implements ``WorkerLink``. Owns: the stream."""

    pid: int | None = None  # not ours to end

    def __init__(self, stream: trio.SocketStream, segment: Segment) -> None:
        self._wire = WorkerWire(stream, segment)
        self._failed: WorkerFailed | None = None

    async def send(self, message: ToWorker) -> None:
        """Send a message; see ``WorkerLink``."""
        await self._wire.send(message)

    async def receive(self) -> FromWorker:
        """Return the next message. Raises WorkerLeft: there will be no more. Checkpoint: yes."""
        try:
            message = await self._wire.receive()
        except WorkerCrashed as error:
            raise WorkerLeft(str(error)) from error
        if message is None:
            why = f": {self._failed.message}" if self._failed else ""
            raise WorkerLeft(f"the program that trained has gone{why}")
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
