"""Entry point of the worker process: ``python -m swarmnode.worker.main``.

The daemon that starts it names two descriptors; a service manager that does (``--activated``)
gives it a connection to the daemon, over which they come.

Torch is imported only once the control socket works, so that its absence is one message
to the daemon and not a traceback. Every failure becomes one WorkerFailed message and an
exit status of its own (``failures.py``).
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
import time

from swarmnode import limits
from swarmnode.errors import MalformedMessage
from swarmnode.ipc.control import Configure, WorkerFailed
from swarmnode.ipc.segment import Segment
from swarmnode.worker.activated import take_over
from swarmnode.worker.channel import Channel, DaemonGone
from swarmnode.worker.failures import EXIT_STATUS, classify
from swarmnode.worker.log import begin_log
from swarmnode.worker.runtime import end_with_parent, hide_other_gpus, thread_count

_NICE = 10  # beside a busy torch the daemon's timers are 0.15 ms late instead of 4 ms
LAST_WORDS_S = 1.0

_log = logging.getLogger(__name__ if __name__ != "__main__" else "swarmnode.worker.main")


def main(argv: list[str] | None = None) -> int:
    """Run one worker; return its exit status."""
    parser = argparse.ArgumentParser(prog="swarmnode.worker.main")
    parser.add_argument("--control-fd", type=int)
    parser.add_argument("--segment-fd", type=int)
    parser.add_argument("--activated", action="store_true", help="take both from systemd")
    arguments = parser.parse_args(argv)
    if arguments.activated:
        inherited = take_over()
        if inherited is None:
            return 0  # whoever connected has gone
        control_fd, segment_fd = inherited
    else:
        control_fd, segment_fd = arguments.control_fd, arguments.segment_fd
        end_with_parent()
    begin_log()
    for descriptor in (control_fd, segment_fd):
        os.set_inheritable(descriptor, False)
    channel = Channel(socket.socket(fileno=control_fd))
    _follow_the_daemon(channel)
    os.nice(_NICE)
    try:
        work(channel, Segment(segment_fd))
    except DaemonGone:
        return 0  # before there was anything to save
    # The whole process is supervised by the daemon: it is told why, and starts another.
    except Exception as error:  # noqa: BLE001
        return _report_failure(channel, error)
    return 0


def work(channel: Channel, segment: Segment) -> None:
    """Build what the daemon wants trained, and train it until told to stop."""
    configure = wait_configure(channel)
    begin_log(configure.log_format, configure.log_level)
    threads = configure.threads or thread_count()
    os.environ["OMP_NUM_THREADS"] = str(threads)
    hide_other_gpus(configure.gpus)
    import torch

    from swarmnode.worker.begin import begin
    from swarmnode.worker.model.device import limit_gpu_memory
    from swarmnode.worker.model.prepare import prepare_state
    from swarmnode.worker.training.loop import Loop

    torch.set_num_threads(threads)
    limit_gpu_memory(configure.gpu_memory_bytes)
    state = prepare_state(configure)
    with begin(
        configure, state, channel, segment, threads=threads, loop_type=Loop, wants_another=True
    ) as loop:
        loop.run(configure.shard_seed)
    channel.flush(LAST_WORDS_S)


def wait_configure(channel: Channel) -> Configure:
    """Return the first message of the daemon. Raises DaemonGone, MalformedMessage."""
    until = time.monotonic() + limits.WORKER_START_S
    while time.monotonic() < until:
        messages = channel.poll(limits.WORKER_IDLE_POLL_S)
        if messages:
            configure, *after = messages
            if not isinstance(configure, Configure):
                raise MalformedMessage(f"expected what to train first, got {configure}")
            channel.put_back(after)
            return configure
    raise DaemonGone("the daemon never said what to train")


def _follow_the_daemon(channel: Channel) -> None:
    """Save and leave when the daemon dies or asks; leave Ctrl-C to the daemon.

    The control socket closes when the daemon dies, too: the signal is for a worker that is
    then deep in a long step or whose socket was inherited by a process that the task started.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: channel.abandon("terminated"))


def _report_failure(channel: Channel, error: Exception) -> int:
    kind, message = classify(error)
    trace = error if kind == "crash" else None
    _log.error("worker failed (%s): %s", kind, message, exc_info=trace)
    try:
        channel.send(WorkerFailed(kind=kind, message=message))
        channel.flush(LAST_WORDS_S)
    except DaemonGone:
        pass  # then the exit status has to do
    return EXIT_STATUS[kind]


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # All is saved; torch's teardown would take another half second of a node's leaving.
    os._exit(status)
