"""Entry point of every rank but the first: ``python -m swarmnode.worker.ranks.follow``.

It does what rank 0 orders until there are no more orders. It saves nothing and talks to no daemon:
signals that ask a worker to end are for rank 0, which may need this rank to save.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import pickle
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

from swarmnode.worker.failures import EXIT_STATUS, classify
from swarmnode.worker.main import begin_log
from swarmnode.worker.runtime import end_with_parent, hide_other_gpus

_log = logging.getLogger("swarmnode.worker.ranks.follow")


def main(argv: list[str] | None = None) -> int:
    """Follow rank 0 to the end; return the exit status."""
    parser = argparse.ArgumentParser(prog="swarmnode.worker.ranks.follow")
    for name in ("--orders-fd", "--words-fd", "--memory-fd"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--store", required=True)
    arguments = parser.parse_args(argv)
    end_with_parent(signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    for descriptor in (arguments.orders_fd, arguments.words_fd, arguments.memory_fd):
        os.set_inheritable(descriptor, False)  # what a task starts would keep them open
    begin_log()
    orders = Connection(arguments.orders_fd)
    try:
        follow(orders, arguments.memory_fd, arguments.store)
    except (EOFError, ConnectionError):
        return 0  # rank 0 has ended
    except Exception as error:  # noqa: BLE001 -- rank 0 supervises this process, and is told why
        return _report_failure(error, arguments.words_fd)
    return 0


def follow(orders: Connection, memory_fd: int, store: str) -> None:
    """Build the part of this rank, and do as told. Raises EOFError: there are no more orders."""
    import torch  # before the first order: rank 0 loads it at the same time

    from swarmnode.worker.model.device import limit_gpu_memory
    from swarmnode.worker.ranks.build import follow_state

    rank = int(os.environ["RANK"])
    configure, size, threads, precision = _next(orders)
    begin_log(configure.log_format, configure.log_level)
    hide_other_gpus(configure.gpus)
    torch.set_num_threads(threads)
    limit_gpu_memory(configure.gpu_memory_bytes)
    state = follow_state(configure, rank, size, store, memory_fd, precision)
    while True:
        name, *details = _next(orders)
        state.obey(name, *details)


def _next(orders: Connection) -> Any:
    return pickle.loads(orders.recv_bytes())  # noqa: S301 -- of the process that started this one


def _report_failure(error: Exception, words_fd: int) -> int:
    kind, message = classify(error)
    trace = error if kind == "crash" else None
    _log.error("rank %s failed (%s): %s", os.environ["RANK"], kind, message, exc_info=trace)
    with contextlib.suppress(OSError):
        os.write(words_fd, json.dumps([kind, message]).encode())
    return EXIT_STATUS[kind]


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # torch's teardown would wait for ranks that are gone
