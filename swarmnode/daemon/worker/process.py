"""The worker as a process: have it started, talk to it, notice its death, leave none behind.

It is a child of the daemon, or was started by a service manager (``foreign.py``).

The file that takes a worker's output: bounded, and read for the last line of a crash.

The worker writes to it directly, so its output survives the daemon; the daemon cuts it
back to its tail now and then.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Protocol

import trio

from swarmnode import limits
from swarmnode.daemon.worker.link import SAID_NOTHING, StartWorker, WorkerWire
from swarmnode.errors import WorkerCrashed, WorkerHung
from swarmnode.ipc.control import Configure, FromWorker, Progress, Stop, ToWorker, WorkerFailed
from swarmnode.ipc.segment import Segment
from swarmnode.ipc.spawn import worker_command, worker_environment

_LAST_LINE_BYTES = 4 * limits.KIB
_LINE_CHARACTERS_MAX = 300


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
    """A process that the daemon started itself, the leader of a session of its own."""

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


class WorkerLog:
    """Owns: a descriptor of the file, opened for appending.

    ``relay`` takes each line that is written from now on, without its end.
    """

    def __init__(self, path: Path, relay: Callable[[str], None] | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._begin_bytes = self._relayed_bytes = os.fstat(self.fd).st_size
        self._relay = relay

    def look(self) -> None:
        """Pass on what is new, and keep the file small; called now and then, and at the end."""
        if self._relay is not None:
            for line in self._new_lines():
                self._relay(line)
        self.cut()

    def _new_lines(self) -> list[str]:
        """Return the lines that are whole by now; of very many the last ones."""
        size = os.fstat(self.fd).st_size
        begin = max(self._relayed_bytes, size - limits.LOG_RELAYED_BYTES_MAX)
        data = os.pread(self.fd, max(0, size - begin), begin)
        whole, end, _ = data.rpartition(b"\n")
        self._relayed_bytes = begin + len(whole) + len(end)
        if not end and len(data) == limits.LOG_RELAYED_BYTES_MAX:  # one that does not end
            whole, self._relayed_bytes = data, size
        lines = whole.decode(errors="replace").splitlines()
        return [line for line in lines if line.strip()]

    def cut(self) -> None:
        """Keep only the tail of a file that has grown too large."""
        size = os.fstat(self.fd).st_size
        if size <= limits.WORKER_LOG_BYTES_MAX:
            return
        tail = os.pread(self.fd, limits.WORKER_LOG_KEPT_BYTES, size - limits.WORKER_LOG_KEPT_BYTES)
        os.ftruncate(self.fd, 0)
        with contextlib.suppress(OSError):  # a disk so full that even the tail has no room
            os.write(self.fd, tail)
        self._begin_bytes = 0
        self._relayed_bytes = os.fstat(self.fd).st_size

    def last_line(self) -> str:
        """Return the last line that is not empty, written since this object was made."""
        size = os.fstat(self.fd).st_size
        begin = max(self._begin_bytes, size - _LAST_LINE_BYTES)
        text = os.pread(self.fd, max(0, size - begin), begin).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return _words(lines[-1])[:_LINE_CHARACTERS_MAX] if lines else ""

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.fd)


def _words(line: str) -> str:
    """Return what an event in JSON says, or the line as it is."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return line
    if not isinstance(event, dict):
        return line
    said = event.get("traceback") or event.get("line") or event.get("message") or event.get("event")
    return str(said or line).strip().splitlines()[-1]


def start_worker_process(
    log_path: Path, *, manager: str = "", relay: Callable[[str], None] | None = None
) -> StartWorker:
    """Return what starts worker processes whose output goes to ``log_path``.

    ``manager``: the socket of the manager that starts them; "" makes them children of this process.
    ``relay``: takes each line of their output.
    """
    socket_path = Path(manager) if manager else None

    def start(configure: Configure) -> AbstractAsyncContextManager[WorkerProcess]:
        return run_worker(configure, log_path=log_path, socket_path=socket_path, relay=relay)

    return start


@asynccontextmanager
async def run_worker(
    configure: Configure,
    *,
    log_path: Path,
    socket_path: Path | None = None,
    relay: Callable[[str], None] | None = None,
) -> AsyncIterator[WorkerProcess]:
    """Run a worker while the block is open; at the end it saves, or is killed.

    Raises:
        WorkerCrashed: no process could be started.
    """
    with ExitStack() as stack:
        with _start_errors():
            log = stack.enter_context(closing(WorkerLog(log_path, relay)))
            segment = stack.enter_context(closing(Segment.create()))
            if socket_path is None:
                stream, hold = _start_child(segment, log, configure.python)
            else:  # few nodes have a service manager that starts their workers
                from swarmnode.daemon.worker.foreign import connect_worker

                stream, hold = await connect_worker(socket_path, segment.fd, log.fd)
            stack.enter_context(closing(stream.socket))
        worker = WorkerProcess(hold, WorkerWire(stream, segment), log)
        try:
            await worker.send(configure)
            yield worker
        finally:
            with trio.CancelScope(shield=True):
                await worker.stop()


def _start_child(
    segment: Segment, log: WorkerLog, python: str
) -> tuple[trio.SocketStream, ProcessHold]:
    ours, theirs = socket.socketpair()
    with theirs, ExitStack() as undo:
        undo.callback(ours.close)
        hold = ChildProcess(_spawn(theirs, segment, log, python))
        undo.pop_all()
    return trio.SocketStream(trio.socket.from_stdlib_socket(ours)), hold


@contextlib.contextmanager
def _start_errors() -> Iterator[None]:
    """No memory, no descriptors, a full disk: it may pass, so it counts as a death."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise WorkerCrashed(f"cannot start a worker: {error.strerror}{where}") from error


def _spawn(
    control: socket.socket, segment: Segment, log: WorkerLog, python: str
) -> subprocess.Popen[bytes]:
    """Start the process, from this thread.

    Not through ``trio.lowlevel.open_process``: that forks in a thread of Trio's pool, and
    when the thread has been idle for ten seconds and ends, Linux takes it for the death of
    the parent and sends the worker its PR_SET_PDEATHSIG. It costs the loop a few ms.
    """
    descriptors = ["--control-fd", str(control.fileno()), "--segment-fd", str(segment.fd)]
    return subprocess.Popen(
        worker_command("swarmnode.worker.main", *descriptors, python=python),
        stdin=subprocess.DEVNULL,
        stdout=log.fd,
        stderr=log.fd,
        pass_fds=(control.fileno(), segment.fd),
        start_new_session=True,  # what it takes of the cores is told apart by session
        env=worker_environment(python),
    )


class WorkerProcess:
    """The daemon's side of one worker process; implements ``WorkerLink``."""

    def __init__(self, hold: ProcessHold, wire: WorkerWire, log: WorkerLog) -> None:
        self._hold = hold
        self._wire = wire
        self._log = log
        self._failed = SAID_NOTHING
        self._silence_s = limits.WORKER_START_S

    @property
    def pid(self) -> int | None:
        """The process."""
        return self._hold.pid

    async def send(self, message: ToWorker) -> None:
        """Send a message; see ``WorkerLink``."""
        await self._wire.send(message)

    async def receive(self) -> FromWorker:
        """Return the next message; see ``WorkerLink``."""
        silent_s = 0.0
        while silent_s < self._silence_s:
            # In pieces: if the daemon, or all of the machine, stands still meanwhile, that is one.
            silent_s += limits.WORKER_PROGRESS_S
            try:
                with trio.move_on_after(limits.WORKER_PROGRESS_S):
                    message = await self._wire.receive()
                    self._take_note(message)
                    return message
            except trio.EndOfChannel:
                raise await self._bury() from None
        await self._end_hung()
        raise WorkerHung(
            f"the worker (process {self.pid}) was silent for {self._silence_s:.0f} s "
            "and has been ended"
        )

    def slot_view(self, slot: int, generation: int) -> memoryview:
        """Return the bytes of a slot that is the daemon's; see ``WorkerLink``."""
        return self._wire.slot_view(slot, generation)

    async def stop(self) -> None:
        """Let the worker save and exit, kill it if it is slow; its process group ends with it."""
        with trio.move_on_after(limits.WORKER_STOP_S):
            if self._wire.is_sending:  # a message was cut off: only the end of the stream is left
                await self._wire.aclose()
            else:
                await self.send(Stop())
            await self._hold.wait_exit()
        await self._reap()
        await self._wire.aclose()

    def _take_note(self, message: FromWorker) -> None:
        """Learn how long silence may be, and what it said last."""
        if isinstance(message, WorkerFailed):
            self._failed = message
        elif isinstance(message, Progress):
            self._log.look()
            if not math.isnan(message.loss) or message.paused:  # past its first, slow step
                slow_steps_s = limits.WORKER_SILENCE_STEPS * message.step_time_s
                self._silence_s = max(limits.WORKER_SILENCE_S, slow_steps_s)

    # --- the end ---------------------------------------------------------------------

    async def _bury(self) -> WorkerCrashed:
        """Return why the worker, which has closed its socket, is gone."""
        with trio.move_on_after(limits.WORKER_TERMINATE_S):
            await self._hold.wait_exit()
        await self._reap()
        status = self._hold.status
        if self._failed.kind:
            return WorkerCrashed(f"the worker failed ({self._failed.kind}): {self._failed.message}")
        last_line = self._log.last_line()
        if status is None:  # the manager that started it knows, we do not
            return WorkerCrashed(
                f"the worker (process {self.pid}) has ended; out of memory? the journal of its unit"
                f" says why; its log ends with: {last_line}"
            )
        if status < 0:
            name = signal.Signals(-status).name
            hint = "; out of memory?" if -status == signal.SIGKILL else ""
            return WorkerCrashed(f"the worker was killed by {name}{hint}", signal_number=-status)
        return WorkerCrashed(f"the worker exited with status {status}: {last_line}")

    async def _end_hung(self) -> None:
        with trio.CancelScope(shield=True):
            self._hold.terminate()
            with trio.move_on_after(limits.WORKER_TERMINATE_S):
                await self._hold.wait_exit()
            await self._reap()

    async def _reap(self) -> None:
        """End what is left of the worker, and take its slots."""
        with trio.CancelScope(shield=True):
            await self._hold.reap()
        self._log.look()
        self._wire.reclaim()
