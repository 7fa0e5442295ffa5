"""TCP with small segments, for lines that lose large packets and do not say so."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Sequence

import trio

from swarmnode import limits


def limit_segments(sock: socket.socket | trio.socket.SocketType) -> None:
    """Before it connects: let neither side send packets that some line does not carry."""
    with contextlib.suppress(OSError, AttributeError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, limits.TCP_SMALL_SEGMENT_BYTES)


async def connect_small(hosts: Sequence[str], port: int) -> trio.socket.SocketType:
    """Connect with small segments to the first of these that answers. Raises OSError."""
    for number, host in enumerate(hosts, 1):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = trio.socket.socket(family, socket.SOCK_STREAM)
        try:
            limit_segments(sock)
            await sock.connect((host, port))
        except BaseException as error:  # cancelled, too
            sock.close()
            if not isinstance(error, OSError) or number == len(hosts):
                raise
        else:
            return sock
    raise OSError(errno.EADDRNOTAVAIL, "the host has no address")
