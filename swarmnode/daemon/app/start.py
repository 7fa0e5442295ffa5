"""A node as a process: one home, one lock, signals, and an end that says why."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import closing
from functools import partial

import trio

from swarmnode.config import NodeConfig
from swarmnode.daemon.app.node import Node, TrainingChoice
from swarmnode.daemon.app.systemd import ServiceManager
from swarmnode.daemon.volunteer import machine
from swarmnode.daemon.worker.process import start_worker_process
from swarmnode.daemon.worker.program import programs_or
from swarmnode.env import real_env
from swarmnode.errors import one_error
from swarmnode.net.tcp import TcpTransport
from swarmnode.protocol.swarm import SwarmLink
from swarmnode.store.files import HomeLock
from swarmnode.store.keys import load_or_create_identity, next_boot_epoch
from swarmnode.telemetry.logs import configure_logging, log_everything, relay_line

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
                transport=TcpTransport(),
                start_worker=programs_or(
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
                    nursery.start_soon(_tell_manager, node, manager)
                nursery.cancel_scope.cancel()

        with closing(ServiceManager(os.environ)) as manager, one_error():
            trio.run(main)


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
