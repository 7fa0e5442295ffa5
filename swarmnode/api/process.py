"""The daemon as a child process of a program.

A process and not a thread: torch in the same interpreter makes the daemon's timers tens of
milliseconds late, a daemon owns signals, logging and file locks of its process, and a crash of
either would take the other with it. The node is asked over its control socket, as the command
line asks it, so that nothing of it runs in the program. Those calls block, so Trio or asyncio,
whichever runs, makes them in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import sniffio

from swarmnode import limits
from swarmnode.config import ENVIRONMENT_PREFIX, HOME_VARIABLE, NodeConfig
from swarmnode.errors import ConfigError, NotRunning, Refused, SwarmNodeError, TransportError
from swarmnode.ipc.spawn import worker_command, worker_environment
from swarmnode.processes.client import ControlClient

# Leaving takes two seconds; a node that has to end exchanges over a slow line takes longer.
_NODE_STOP_S = 30.0
# One answer of a node that runs: it gives it from memory.
_NODE_LOOK_DEADLINE_S = 2.0

_ERRORS: dict[int, type[SwarmNodeError]] = {
    error.exit_code: error for error in (SwarmNodeError, ConfigError, NotRunning, Refused)
}
_LINE_BEGIN = "swarmnode: "
_LOG_TAIL_BYTES = 8 * limits.KIB

T = TypeVar("T")


class NodeProcess:
    """``swarmnode join`` in the background. What it prints goes to ``node.log`` in its home.

    Args:
        config: checked here, so that a wrong setting is an error of the caller at once.
        settings: those of them that were given, as ``SWARMNODE_<NAME>`` takes them.
        arguments: of the verb.
    """

    def __init__(
        self, config: NodeConfig, settings: Mapping[str, Any], arguments: list[str]
    ) -> None:
        self.config = config
        self._environment = {HOME_VARIABLE: str(config.home)} | {
            ENVIRONMENT_PREFIX + name.upper(): _as_text(value, name)
            for name, value in settings.items()
        }
        self._arguments = arguments
        self._popen: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._stopping = threading.Lock()

    @property
    def log_path(self) -> Path:
        """What the node prints, from its last start on."""
        return self.config.home / "node.log"

    @property
    def pid(self) -> int | None:
        """The daemon; None before it was started."""
        return self._popen.pid if self._popen is not None else None

    def start(self) -> None:
        """Start it; returns at once. Raises SwarmNodeError: no process can be started."""
        ours, theirs = -1, -1
        try:
            self.config.home.mkdir(parents=True, exist_ok=True)
            theirs, ours = os.pipe()
            with self.log_path.open("wb") as log:
                self._popen = subprocess.Popen(
                    worker_command("swarmnode.api.child", str(theirs), *self._arguments),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(theirs,),
                    env=worker_environment() | self._environment,
                    start_new_session=True,  # Ctrl-C is for the program, which stops the node then
                )
        except OSError as error:
            raise SwarmNodeError(f"cannot start a node: {error.strerror or error}") from error
        finally:
            if theirs >= 0:
                os.close(theirs)
            if self._popen is None and ours >= 0:
                os.close(ours)
        self._pipe = ours

    def check_alive(self) -> None:
        """Raise what the node ended with, if it has."""
        if self._popen is None:
            raise NotRunning("this node was not started: use it in a `with` block")
        status = self._popen.poll()
        if status is not None:
            line = self._last_line()
            raise _ERRORS.get(status, SwarmNodeError)(line or f"the node ended, status {status}")

    def wait_a_moment(self) -> None:
        """Wait until it has ended, but no longer than until it is worth asking it again."""
        assert self._popen is not None, "it was asked before, and then it runs"
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(limits.NODE_LOOK_S)

    def stop(self) -> None:
        """Have it leave its swarm, and wait until it has; kill it if it is slow. Idempotent."""
        with self._stopping:
            if self._popen is None or self._pipe < 0:
                return
            if self._popen.poll() is None:
                self._popen.send_signal(signal.SIGTERM)
            try:
                self._popen.wait(_NODE_STOP_S)
            except subprocess.TimeoutExpired:
                self._popen.kill()
                self._popen.wait()
            os.close(self._pipe)
            self._pipe = -1

    def _last_line(self) -> str:
        with self.log_path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - _LOG_TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
        ours = [line.removeprefix(_LINE_BEGIN) for line in lines if line.startswith(_LINE_BEGIN)]
        return ours[-1] if ours else ""


def ask(config: NodeConfig, method: str, path: str, deadline_s: float) -> Any:
    """Ask the daemon of a home. Raises SwarmNodeError, see ``ControlClient``."""
    client = ControlClient(config.paths)
    if method == "GET":
        return client.get(path, deadline_s=deadline_s)
    return client.post(path, deadline_s=deadline_s)


def ask_if_up(config: NodeConfig, path: str) -> Any:
    """Return what the daemon has at ``path``, None while it does not answer."""
    try:
        return ask(config, "GET", path, _NODE_LOOK_DEADLINE_S)
    except (NotRunning, TransportError, TimeoutError):
        return None


def _as_text(value: Any, name: str) -> str:
    """Return a setting as an environment variable has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list):
        return (";" if name == "schedule" else ",").join(map(str, value))
    return str(value)


async def in_thread(call: Callable[[], T]) -> T:
    """Run ``call`` in a thread; a cancellation leaves it behind. Checkpoint: yes."""
    if _is_trio():
        import trio

        return await trio.to_thread.run_sync(call, abandon_on_cancel=True)
    return await asyncio.to_thread(call)


async def in_thread_to_the_end(call: Callable[[], None]) -> None:
    """Run ``call`` in a thread, and wait for its end also when cancelled meanwhile."""
    if _is_trio():
        import trio

        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(call)
        return
    running = asyncio.ensure_future(asyncio.to_thread(call))
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError as error:
            if running.cancelled():  # the loop itself ends
                raise
            cancelled = error
    running.result()
    if cancelled is not None:
        raise cancelled


async def sleep(seconds: float) -> None:
    """Sleep. Checkpoint: yes."""
    if _is_trio():
        import trio

        await trio.sleep(seconds)
    else:
        await asyncio.sleep(seconds)


def _is_trio() -> bool:
    return sniffio.current_async_library() == "trio"
