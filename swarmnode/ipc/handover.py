"""How a worker that another process started gets what a child would inherit.

A service manager listens on a Unix socket and starts a worker for each connection, in a
sandbox of its own: a worker that may not use the network, beside a daemon that does little else.
Both then talk over that connection as they would over a socketpair, once this is done::

    daemon                                     worker
      --GREETING, segment and log-->
                                <--GREETING--          with its credentials, from the kernel

The log takes the place of the worker's standard output and error.
"""

from __future__ import annotations

import array
import socket
import struct
from typing import NamedTuple

from swarmnode.errors import MalformedMessage

GREETING = b"swarmnode worker 1\n"  # the number changes with what is handed over
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
Ancillary = list[tuple[int, int, bytes]]


class Handed(NamedTuple):
    """Descriptors that the worker got; it owns them."""

    segment_fd: int
    log_fd: int


class Credentials(NamedTuple):
    """The sender of a message, says the kernel; ``pid`` 0: it is in a container of its own."""

    pid: int
    uid: int
    gid: int


def descriptors(segment_fd: int, log_fd: int) -> Ancillary:
    """Return what goes with the daemon's greeting."""
    both = array.array("i", [segment_fd, log_fd])
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, both.tobytes())]


def receive_descriptors(sock: socket.socket) -> Handed | None:
    """Take what the daemon hands over, and answer (worker); None: it went away before.

    Raises:
        MalformedMessage: it is no daemon of this version.
    """
    data, received, _, _ = socket.recv_fds(sock, len(GREETING), len(Handed._fields))
    if not data:
        return None
    if data != GREETING or len(received) != len(Handed._fields):
        raise MalformedMessage(
            f"worker socket: expected {GREETING!r} and {len(Handed._fields)} descriptors, got "
            f"{data!r} and {len(received)}: are daemon and worker of the same version?"
        )
    sock.sendall(GREETING)
    return Handed(*received)


def credentials_room() -> int:
    """Return the size of the buffer that :func:`sender` needs."""
    return socket.CMSG_SPACE(_CREDENTIALS.size)


def sender(ancillary: Ancillary) -> Credentials | None:
    """Return the sender of the message that this came with, sent after SO_PASSCRED was set."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            return Credentials(*_CREDENTIALS.unpack(data))
    return None
