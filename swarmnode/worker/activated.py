"""A worker that systemd started for a connection of the daemon: ``Accept=yes`` of a socket unit.

Source: sd_listen_fds(3): descriptors begin at 3, LISTEN_FDS counts them, LISTEN_PID says whose.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import MutableMapping

from swarmnode import limits
from swarmnode.errors import ConfigError
from swarmnode.ipc.handover import receive_descriptors

_FIRST_FD = 3


def take_over() -> tuple[int, int] | None:
    """Return the descriptors of the control socket and the segment; None if nobody is there.

    From here on standard output and error are the daemon's log of its worker.

    Raises:
        ConfigError: no service manager gave us a connection.
        MalformedMessage: what is connected is no daemon of this version.
    """
    control = socket.socket(fileno=_inherited_fd(os.environ))
    control.settimeout(limits.WORKER_START_S)
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
    """Return the one descriptor that was passed, and let nobody take it for theirs."""
    pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    environ.pop("LISTEN_FDNAMES", None)
    if (pid, count) != (str(os.getpid()), "1"):
        raise ConfigError(
            "an activated worker: expected one connection from systemd (LISTEN_FDS=1 for this"
            f" process), got LISTEN_FDS={count!r} for process {pid!r}: a unit with Accept=yes"
            " starts this"
        )
    return _FIRST_FD
