"""What the daemon can do to a worker process: wait for it, end it, take its status."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import Protocol

import trio


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
