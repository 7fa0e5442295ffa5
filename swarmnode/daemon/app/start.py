"""A node as a process: one home, one lock, signals, and an end that says why.

What a service manager is told: that the node is up, what it does, that its loop still turns.

Source: sd_notify(3), sd_watchdog_enabled(3). A message is one datagram of ``KEY=VALUE`` lines to
the socket that ``NOTIFY_SOCKET`` names; without that no message is sent.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import time
from collections.abc import Callable, MutableMapping
from contextlib import AbstractAsyncContextManager, closing
from functools import partial
from pathlib import Path

import trio

from swarmnode import limits
from swarmnode.config import NodeConfig
from swarmnode.daemon.app.node import Node, TrainingChoice
from swarmnode.daemon.volunteer import machine
from swarmnode.daemon.worker.link import StartWorker, WorkerLink
from swarmnode.daemon.worker.process import start_worker_process
from swarmnode.env import real_env
from swarmnode.errors import one_error
from swarmnode.ipc.control import Configure
from swarmnode.ipc.names import PROGRAM_TASK
from swarmnode.memory import return_freed, share_one_heap
from swarmnode.net.proxy import find_proxy
from swarmnode.net.tcp import TcpTransport
from swarmnode.protocol.swarm import SwarmLink
from swarmnode.store.files import HomeLock
from swarmnode.store.keys import load_or_create_identity, next_boot_epoch
from swarmnode.telemetry.logs import configure_logging, log_everything, relay_line

_STATUS_CHARACTERS_MAX = 200
_MEMORY_RETURN_S = 60.0


class ServiceManager:
    """Owns: a socket, if there is a manager."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        """Take the manager's address out of the environment: what we start is not the service."""
        address = environ.pop("NOTIFY_SOCKET", "")
        watchdog_us, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket = None
        if address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
        is_ours = pid in ("", str(os.getpid()))
        # Two more chances for a ping that is late.
        self.watchdog_s = int(watchdog_us) / 3e6 if watchdog_us.isdecimal() and is_ours else None

    def tell(self, **values: str | int) -> None:
        """Send a message; a manager that is busy or gone misses it."""
        if self._socket is None:
            return
        text = "\n".join(f"{key}={_line(value)}" for key, value in values.items())
        with contextlib.suppress(OSError):
            self._socket.sendto(text.encode(), self._address)

    async def follow(self, status: Callable[[], str]) -> None:
        """Say that the node is up, then what it does, and ping the watchdog, until cancelled.

        The pings come from the event loop: one that hangs is ended and started anew.
        """
        if self._socket is None:
            return
        self.tell(READY=1, STATUS=status(), MAINPID=os.getpid())
        async with trio.open_nursery() as nursery:
            if self.watchdog_s is not None:
                nursery.start_soon(self._ping, self.watchdog_s)
            while True:
                await trio.sleep(limits.PROGRESS_LINE_S)
                self.tell(STATUS=status())

    async def _ping(self, every_s: float) -> None:
        while True:
            self.tell(WATCHDOG=1)
            await trio.sleep(every_s)

    def close(self) -> None:
        """Give the socket back."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _line(value: str | int) -> str:
    """Return one line: some of a status is text from peers."""
    text = "".join(char if char.isprintable() else " " for char in str(value))
    return text[:_STATUS_CHARACTERS_MAX]


class LastingClock(trio.abc.Clock):
    """Time that goes on while the machine is suspended, as it does for all other members.

    Trio's own stands still meanwhile (CLOCK_MONOTONIC on Linux): a laptop that slept for a night
    would go on as if nothing had been, with leases and links that ended hours ago. By this one it
    wakes up as a process does that was stopped: what was due is over, and is begun anew.
    """

    # On macOS the other one goes on, and Linux has this one since 2.6.39.
    _SOURCE = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def start_clock(self) -> None:
        """It runs since the machine was started."""

    def current_time(self) -> float:
        """Return seconds since then."""
        return time.clock_gettime(self._SOURCE)

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Return the seconds from now on, of which those of a suspension come on top."""
        return deadline - self.current_time()


_REASONS = {
    signal.SIGINT: "Ctrl-C",
    signal.SIGTERM: "SIGTERM",
    signal.SIGHUP: "the terminal was closed",
}


def run_daemon(
    config: NodeConfig,
    link: SwarmLink,
    training: TrainingChoice,
    *,
    on_event: Callable[[str], None],
) -> None:
    """Run one node in the foreground until Ctrl-C, SIGTERM or ``leave``.

    Raises:
        SwarmNodeError: it could not start, or could not go on.
    """
    configure_logging(config.log_format, config.log_level, log_file=config.log_file)
    if config.log_file or config.log_format == "json":
        log_everything()
    share_one_heap()  # before there are threads
    relay = partial(relay_line, config.log_format) if config.log_file else None
    paths = config.paths
    with HomeLock(paths.lock):
        identity = load_or_create_identity(paths.node_key)
        boot_epoch = next_boot_epoch(paths.boot_epoch)

        async def main() -> None:
            node = Node(
                config=config,
                link=link,
                identity=identity,
                boot_epoch=boot_epoch,
                transport=TcpTransport(find_proxy(config.proxy, os.environ)),
                start_worker=_programs_or(
                    start_worker_process(
                        paths.swarm(link.name).worker_log,
                        manager=config.worker_socket,
                        relay=relay,
                    ),
                    paths.program_socket,
                ),
                env=real_env(trio.current_time, trio.to_thread.run_sync),
                training=training,
                on_event=on_event,
                machine=machine,
            )
            async with trio.open_nursery() as nursery:
                await nursery.start(_stop_on_signals, node)
                async with trio.open_nursery() as running:
                    await running.start(node.run)
                    _collect_what_is_new()
                    nursery.start_soon(keep_small, return_freed)
                    nursery.start_soon(_tell_manager, node, manager)
                nursery.cancel_scope.cancel()

        with closing(ServiceManager(os.environ)) as manager, one_error():
            trio.run(main, clock=LastingClock())


def _collect_what_is_new() -> None:
    """Let collections of garbage pass over what a node that runs consists of.

    Else a full one comes only once a quarter as much has been added, some 30,000 objects: what
    sessions and errors leave behind in cycles is there for ten minutes.
    """
    gc.collect()
    gc.freeze()
    gc.collect()  # counts from now on


async def keep_small(release: Callable[[], None]) -> None:
    """Give free memory back every minute, until cancelled."""
    while True:
        await trio.sleep(_MEMORY_RETURN_S)
        release()


def _programs_or(start_worker: StartWorker, path: Path) -> StartWorker:
    """Return what starts workers, but waits at ``path`` in a swarm that programs train."""

    def start(configure: Configure) -> AbstractAsyncContextManager[WorkerLink]:
        if configure.task != PROGRAM_TASK:
            return start_worker(configure)
        from swarmnode.daemon.worker.foreign import wait_for_program  # few owners bring a program

        return wait_for_program(configure, path)

    return start


async def _tell_manager(node: Node, manager: ServiceManager) -> None:
    """Tell a service manager, if one started us, what this node does, until it has stopped."""

    def status() -> str:
        said = node.view.node_status(node.env.monotonic())
        return (
            f"{said.swarm}: {said.state} ({said.reason}), step {said.step:,},"
            f" {said.peers_connected} peers"
        )

    async with trio.open_nursery() as nursery:
        nursery.start_soon(manager.follow, status)
        await node.wait_stopping()
        manager.tell(STOPPING=1, STATUS="leaving the swarm")


async def _stop_on_signals(
    node: Node, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Leave cleanly on the first signal; the second ends the process at once."""
    wanted = set(_REASONS)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        wanted.remove(signal.SIGHUP)  # started with nohup
    with trio.open_signal_receiver(*wanted) as signals:
        task_status.started()
        is_first = True
        async for number in signals:
            if not is_first:
                os._exit(128 + number)
            is_first = False
            node.stop(_REASONS[signal.Signals(number)])
