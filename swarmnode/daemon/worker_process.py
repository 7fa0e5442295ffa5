"""The worker as a process: spawn it, talk to it, notice that it died, leave none behind."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, closing
from pathlib import Path

import trio

from swarmnode import limits
from swarmnode.daemon.worker_link import StartWorker
from swarmnode.daemon.worker_log import WorkerLog
from swarmnode.errors import MalformedMessage, SpecMismatch, WorkerCrashed, WorkerHung
from swarmnode.ipc.control import (
    Apply,
    Configure,
    FromWorker,
    Progress,
    Release,
    SlotReady,
    Stop,
    ToWorker,
    Wish,
    WorkerFailed,
    WorkerReady,
    decode_from_worker,
    encode_message,
)
from swarmnode.ipc.segment import Owner, Segment, StaleSlot
from swarmnode.ipc.spawn import worker_command, worker_environment

_READ_BYTES = 64 * limits.KIB
_LENGTH_BYTES = 4


def start_worker_process(log_path: Path) -> StartWorker:
    """Return what starts worker processes whose output goes to ``log_path``."""

    def start(configure: Configure) -> AbstractAsyncContextManager[WorkerProcess]:
        return run_worker(configure, log_path=log_path)

    return start


@asynccontextmanager
async def run_worker(configure: Configure, *, log_path: Path) -> AsyncIterator[WorkerProcess]:
    """Run a worker while the block is open; at the end it saves, or is killed.

    Raises:
        WorkerCrashed: no process could be started.
    """
    with ExitStack() as stack:
        with _start_errors():
            log = stack.enter_context(closing(WorkerLog(log_path)))
            segment = stack.enter_context(closing(Segment.create()))
            ours, theirs = socket.socketpair()
            stack.enter_context(closing(ours))
            with theirs:
                popen = _spawn(theirs, segment, log)
        worker = WorkerProcess(popen, ours, segment, log)
        try:
            await worker.send(configure)
            yield worker
        finally:
            with trio.CancelScope(shield=True):
                await worker.stop()


@contextlib.contextmanager
def _start_errors() -> Iterator[None]:
    """No memory, no descriptors, a full disk: it may pass, so it counts as a death."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise WorkerCrashed(f"cannot start a worker: {error.strerror}{where}") from error


def _spawn(control: socket.socket, segment: Segment, log: WorkerLog) -> subprocess.Popen[bytes]:
    """Start the process, from this thread.

    Not through ``trio.lowlevel.open_process``: that forks in a thread of Trio's pool, and
    when the thread has been idle for ten seconds and ends, Linux takes it for the death of
    the parent and sends the worker its PR_SET_PDEATHSIG. It costs the loop a few ms.
    """
    descriptors = ["--control-fd", str(control.fileno()), "--segment-fd", str(segment.fd)]
    return subprocess.Popen(
        worker_command("swarmnode.worker.main", *descriptors),
        stdin=subprocess.DEVNULL,
        stdout=log.fd,
        stderr=log.fd,
        pass_fds=(control.fileno(), segment.fd),
        process_group=0,
        env=worker_environment(),
    )


async def _wait_exit(popen: subprocess.Popen[bytes]) -> None:
    """Wait until the process has ended, without reaping it where the system allows that."""
    if not hasattr(os, "pidfd_open"):
        await trio.to_thread.run_sync(popen.wait, abandon_on_cancel=True)
        return
    if popen.returncode is not None:
        return
    descriptor = os.pidfd_open(popen.pid)
    try:
        await trio.lowlevel.wait_readable(descriptor)
    finally:
        os.close(descriptor)


class WorkerProcess:
    """The daemon's side of one worker process; implements ``WorkerLink``."""

    def __init__(
        self, popen: subprocess.Popen[bytes], sock: socket.socket, segment: Segment, log: WorkerLog
    ) -> None:
        self._popen = popen
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        self._segment = segment
        self._log = log
        self._inbox = bytearray()
        self._is_sending = False
        self._failed: WorkerFailed | None = None
        self._silence_s = limits.WORKER_START_S
        self._payload_numel = 0

    @property
    def pid(self) -> int | None:
        """The process, which is also the leader of its process group."""
        return self._popen.pid

    async def send(self, message: ToWorker) -> None:
        """Send a message; see ``WorkerLink``."""
        if isinstance(message, Apply | Release):
            self._segment.hand_over(message.slot, message.generation, Owner.WORKER)
        self._is_sending = True
        try:
            await self._stream.send_all(encode_message(message))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # it has died: receive() says so, with the reason
        self._is_sending = False

    async def receive(self) -> FromWorker:
        """Return the next message; see ``WorkerLink``."""
        with trio.move_on_after(self._silence_s):
            message = await self._next_message()
            if message is None:
                raise await self._bury()
            self._take_note(message)
            return message
        await self._end_hung()
        raise WorkerHung(
            f"the worker (process {self._popen.pid}) was silent for {self._silence_s:.0f} s "
            "and has been ended"
        )

    def slot_view(self, slot: int, generation: int) -> memoryview:
        """Return the bytes of a slot that is the daemon's; see ``WorkerLink``."""
        self._segment.check(slot, generation, Owner.DAEMON)
        return self._segment.slot_view(slot)

    async def stop(self) -> None:
        """Let the worker save and exit, kill it if it is slow; its process group ends with it."""
        with trio.move_on_after(limits.WORKER_STOP_S):
            if self._is_sending:  # a message was cut off: only the end of the stream is left
                await self._stream.aclose()
            else:
                await self.send(Stop())
            await _wait_exit(self._popen)
        await self._reap()
        await self._stream.aclose()

    # --- reading ---------------------------------------------------------------------

    async def _next_message(self) -> FromWorker | None:
        """Return the next message, or None when there will be no more."""
        while len(self._inbox) < (end := self._next_end()):
            try:
                data = await self._stream.receive_some(_READ_BYTES)
            except trio.BrokenResourceError:
                return None
            if not data:
                return None
            self._inbox += data
        body = bytes(self._inbox[_LENGTH_BYTES:end])
        del self._inbox[:end]
        try:
            return decode_from_worker(body)
        except MalformedMessage as error:
            raise WorkerCrashed(f"the worker broke the contract: {error}") from error

    def _next_end(self) -> int:
        """Return where the first message in the inbox ends, or the most that is worth reading."""
        if len(self._inbox) < _LENGTH_BYTES:
            return _LENGTH_BYTES
        length = int.from_bytes(self._inbox[:_LENGTH_BYTES], "little")
        return _LENGTH_BYTES + min(length, limits.MESSAGE_BYTES_MAX)

    def _take_note(self, message: FromWorker) -> None:
        """Check what the message says against the segment, and learn how long silence may be."""
        try:
            if isinstance(message, WorkerReady):
                self._segment.map()
                self._payload_numel = message.payload_numel
                said = (2 * message.payload_numel, message.slots)
                if said != (self._segment.numel, self._segment.slots):
                    raise SpecMismatch(f"the segment differs from what {message} says")
            elif isinstance(message, Wish):
                if message.numel > self._payload_numel:
                    raise SpecMismatch(
                        f"a wish of {message.numel} numbers, half a slot has {self._payload_numel}"
                    )
            elif isinstance(message, SlotReady):
                self._segment.check(message.slot, message.generation, Owner.DAEMON)
        except (SpecMismatch, StaleSlot) as error:
            raise WorkerCrashed(f"the worker broke the contract: {error}") from error
        if isinstance(message, WorkerFailed):
            self._failed = message
        elif isinstance(message, Progress):
            self._log.cut()
            if not math.isnan(message.loss) or message.paused:  # past its first, slow step
                slow_steps_s = limits.WORKER_SILENCE_STEPS * message.step_time_s
                self._silence_s = max(limits.WORKER_SILENCE_S, slow_steps_s)

    # --- the end ---------------------------------------------------------------------

    async def _bury(self) -> WorkerCrashed:
        """Return why the worker, which has closed its socket, is gone."""
        with trio.move_on_after(limits.WORKER_TERMINATE_S):
            await _wait_exit(self._popen)
        await self._reap()
        status = self._popen.returncode
        if self._failed is not None:
            return WorkerCrashed(f"the worker failed ({self._failed.kind}): {self._failed.message}")
        if status is not None and status < 0:
            name = signal.Signals(-status).name
            hint = "; out of memory?" if -status == signal.SIGKILL else ""
            return WorkerCrashed(f"the worker was killed by {name}{hint}", signal_number=-status)
        return WorkerCrashed(f"the worker exited with status {status}: {self._log.last_line()}")

    async def _end_hung(self) -> None:
        with trio.CancelScope(shield=True):
            self._popen.terminate()
            with trio.move_on_after(limits.WORKER_TERMINATE_S):
                await _wait_exit(self._popen)
            await self._reap()

    async def _reap(self) -> None:
        """Kill what is left of the process group, and take the worker's status and slots."""
        with trio.CancelScope(shield=True):
            if self._popen.returncode is None:
                # Not reaped yet, so the group's number cannot have been given to another.
                os.killpg(self._popen.pid, signal.SIGKILL)
                await _wait_exit(self._popen)
                self._popen.wait()
        self._segment.reclaim_all()
