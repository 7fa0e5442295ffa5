"""Entry point of the worker process: ``python -m swarmnode.worker.main``.

The daemon that starts it names two descriptors; a service manager that does (``--activated``,
``Accept=yes`` of a socket unit of systemd) gives it a connection to the daemon, over which they
come. Source: sd_listen_fds(3): descriptors begin at 3, LISTEN_FDS counts them, LISTEN_PID says
whose.

Torch is imported only once the control socket works, so that its absence is one message
to the daemon and not a traceback. Every failure becomes one WorkerFailed message and an
exit status of its own (``failures.py``).

Standard output and error lead to ``worker.log``, whatever writes to them, line by line in the
format that the owner asked for. In JSON that goes for what a task or a library prints, too; only
what native code prints stays as it is.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING

from swarmnode import limits
from swarmnode.errors import ConfigError, MalformedMessage
from swarmnode.ipc.control import Configure, WorkerFailed
from swarmnode.ipc.segment import Segment
from swarmnode.log_format import LogFormat, LogLevel, formatter_of
from swarmnode.worker.channel import Channel, DaemonGone
from swarmnode.worker.failures import EXIT_STATUS, classify
from swarmnode.worker.runtime import end_with_parent, hide_other_gpus, thread_count, yield_to_others
from swarmnode.worker.sandbox import lock_in

if TYPE_CHECKING:
    from swarmnode.worker.model.state import TrainState

LAST_WORDS_S = 1.0

_log = logging.getLogger(__name__ if __name__ != "__main__" else "swarmnode.worker.main")

_FIRST_FD = 3  # of those that systemd passes

# What a program prints without ever ending a line is cut into lines of this length.
_LINE_CHARACTERS_MAX = 4096


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
            return 0  # the daemon that connected has gone
        control_fd, segment_fd = inherited
    else:
        control_fd, segment_fd = arguments.control_fd, arguments.segment_fd
        end_with_parent()
    begin_log()
    for descriptor in (control_fd, segment_fd):
        os.set_inheritable(descriptor, False)
    channel = Channel(socket.socket(fileno=control_fd))
    _follow_the_daemon(channel)
    yield_to_others()
    try:
        work(channel, Segment(segment_fd), lock_in)
    except DaemonGone:
        return 0  # before there was anything to save
    except Exception as error:  # noqa: BLE001 -- the daemon is told why, and starts another worker
        return _report_failure(channel, error)
    return 0


def _stay_open(_configure: Configure) -> str:
    return ""


def work(
    channel: Channel, segment: Segment, lock_in: Callable[[Configure], str] = _stay_open
) -> None:
    """Build what the daemon wants trained, and train it until told to stop.

    Args:
        lock_in: gives up, for good, what this process does not need then; returns what, in words.
    """
    configure = wait_configure(channel)
    begin_log(configure.log_format, configure.log_level)
    threads = configure.threads or thread_count()
    os.environ["OMP_NUM_THREADS"] = str(threads)
    hide_other_gpus(configure.gpus)
    sandbox = lock_in(configure)
    _log.info("the worker is %s", sandbox)
    with contextlib.ExitStack() as stack:
        prepare: Callable[[Configure], TrainState] | None = None
        if configure.nproc > 1:
            prepare, threads = _with_other_ranks(configure, threads, stack)
        train(configure, channel, segment, threads=threads, prepare=prepare, sandbox=sandbox)
    channel.flush(LAST_WORDS_S)


def _with_other_ranks(
    configure: Configure, threads: int, stack: contextlib.ExitStack
) -> tuple[Callable[[Configure], TrainState], int]:
    """Start the other ranks; return what builds the state that they share, and our threads."""
    from swarmnode.worker.ranks.team import Team  # most workers are one process

    team = stack.enter_context(Team(configure, threads))

    def prepare(configure: Configure) -> TrainState:
        from swarmnode.worker.ranks.build import lead_state

        return lead_state(configure, team)

    return prepare, team.threads


def train(
    configure: Configure,
    channel: Channel,
    segment: Segment,
    *,
    threads: int,
    prepare: Callable[[Configure], TrainState] | None,
    sandbox: str,
) -> None:
    """Build the state, with ``prepare`` if it is shared, and train it until told to stop."""
    import torch

    from swarmnode.worker.begin import begin
    from swarmnode.worker.model.device import limit_gpu_memory
    from swarmnode.worker.model.prepare import compile_where_it_pays, prepare_state
    from swarmnode.worker.training.loop import Loop

    torch.set_num_threads(threads)
    limit_gpu_memory(configure.gpu_memory_bytes)
    state = (prepare or prepare_state)(configure)
    if prepare is None:  # ranks compute in other ways
        compile_where_it_pays(state)
    with begin(
        configure,
        state,
        channel,
        segment,
        threads=threads,
        loop_type=Loop,
        sandbox=sandbox,
        wants_another=True,
    ) as loop:
        loop.run(configure.shard_seed)


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


def take_over() -> tuple[int, int] | None:
    """Return the descriptors of the control socket and the segment; None if no daemon is there.

    From here on standard output and error are the daemon's log of its worker.

    Raises:
        ConfigError: no service manager gave us a connection.
        MalformedMessage: what is connected is no daemon of this version.
    """
    control = socket.socket(fileno=_inherited_fd(os.environ))
    control.settimeout(limits.WORKER_START_S)
    from swarmnode.ipc.handover import receive_descriptors  # most workers are children of a daemon

    try:
        handed = receive_descriptors(control)
    except (ConnectionError, TimeoutError):
        handed = None
    if handed is None:
        control.close()
        return None
    control.settimeout(None)
    sys.stdout.flush()
    sys.stderr.flush()
    for standard in (1, 2):
        os.dup2(handed.log_fd, standard)
    os.close(handed.log_fd)
    return control.detach(), handed.segment_fd


def _inherited_fd(environ: MutableMapping[str, str]) -> int:
    """Return the one descriptor that was passed, and close it to all other code."""
    pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    environ.pop("LISTEN_FDNAMES", None)
    if (pid, count) != (str(os.getpid()), "1"):
        raise ConfigError(
            "an activated worker: expected one connection from systemd (LISTEN_FDS=1 for this"
            f" process), got LISTEN_FDS={count!r} for process {pid!r}: a unit with Accept=yes"
            " starts this"
        )
    return _FIRST_FD


def begin_log(log_format: LogFormat = "text", level: LogLevel = "info") -> None:
    """Write events and warnings to standard error, those of libraries too; the last call counts."""
    handler = logging.StreamHandler(sys.__stderr__)
    handler.setFormatter(formatter_of(log_format))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    if log_format == "json":
        sys.stdout = sys.stderr = Printed()


class Printed(io.TextIOBase):
    """Takes what is printed, and logs each line."""

    def __init__(self) -> None:
        self._log = logging.getLogger("swarmnode.worker")
        self._begun = ""

    def writable(self) -> bool:
        """It is only written to."""
        return True

    def write(self, text: str) -> int:
        """Log the lines that are whole."""
        *lines, self._begun = (self._begun + text).split("\n")
        if len(self._begun) > _LINE_CHARACTERS_MAX:
            lines, self._begun = [*lines, self._begun], ""
        for line in lines:
            if line.strip():
                self._log.info("printed", extra={"fields": {"line": line}})
        return len(text)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # All is saved; torch's teardown would take another half second of a node's leaving.
    os._exit(status)
