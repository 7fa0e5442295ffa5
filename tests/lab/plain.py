"""Plain sockets that show what a NAT does, opened in the namespaces of a lab by this process.

The test is at both ends of every packet, so nothing has to be told over the network.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.lab.natlab import NatLab

# Packets in the lab take microseconds; what has not come by then was dropped.
DROPPED_AFTER_S = 0.25
_OPEN_S = 10.0
_RTT_AT = 68  # of tcpi_rtt in struct tcp_info, in microseconds

Endpoint = tuple[str, int]


@dataclass
class Plain:
    """Sockets of one lab, all closed at the end."""

    lab: NatLab
    _closing: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def udp(self, host: str, address: str = "0.0.0.0", port: int = 0) -> socket.socket:
        """Return a bound UDP socket of a host."""
        return self._bound(host, socket.SOCK_DGRAM, address, port)

    def tcp(self, host: str, address: str = "0.0.0.0", port: int = 0) -> socket.socket:
        """Return a TCP socket of a host, bound so that others may share its port."""
        return self._bound(host, socket.SOCK_STREAM, address, port)

    def listener(self, host: str, address: str = "0.0.0.0", port: int = 0) -> socket.socket:
        """Return a TCP socket of a host that listens."""
        sock = self.tcp(host, address, port)
        sock.listen()
        return sock

    def connects(self, host: str, target: Endpoint, *, port: int = 0) -> bool:
        """Whether a TCP connection from a host comes about."""
        with contextlib.suppress(OSError):
            self.tcp(host, port=port).connect(target)
            return True
        return False

    def source_at(self, listener: socket.socket, client: str, *, port: int) -> Endpoint | None:
        """Connect from a client's ``port``; return the address that the listener sees, if any."""
        if not self.connects(client, listener.getsockname(), port=port):
            return None
        accepted, source = listener.accept()
        self._closing.enter_context(accepted)
        return source[0], source[1]

    def close(self) -> None:
        """Close all of them."""
        self._closing.close()

    def _bound(self, host: str, kind: socket.SocketKind, address: str, port: int) -> socket.socket:
        with self.lab.inside(host):
            sock = self._closing.enter_context(socket.socket(socket.AF_INET, kind))
        sock.settimeout(DROPPED_AFTER_S)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((address, port))
        return sock


@contextlib.contextmanager
def plain_sockets(lab: NatLab) -> Iterator[Plain]:
    """Sockets for one test."""
    plain = Plain(lab)
    try:
        yield plain
    finally:
        plain.close()


def received(sock: socket.socket) -> tuple[bytes, Endpoint] | None:
    """Return a datagram and where it came from, or None if none arrives."""
    try:
        data, source = sock.recvfrom(2048)
    except TimeoutError:
        return None
    return data, (source[0], source[1])


def seen_from(sender: socket.socket, receiver: socket.socket) -> Endpoint | None:
    """Send a datagram to ``receiver``; return where it came from there, None if it did not."""
    with contextlib.suppress(OSError):  # a router may say that it is not allowed
        sender.sendto(b"who am I?", receiver.getsockname())
    got = received(receiver)
    return got[1] if got else None


def reaches(sender: socket.socket, target: Endpoint, receiver: socket.socket) -> bool:
    """Whether a datagram to ``target`` arrives at ``receiver``."""
    with contextlib.suppress(OSError):
        sender.sendto(b"hello", target)
    got = received(receiver)
    return got is not None and got[1] == sender.getsockname()


def round_trips_ms(lab: NatLab, clients: Sequence[str], server: str, port: int) -> list[float]:
    """Return the round trip from each client to a server, as its kernel measured it.

    The kernel's clock, because this process may wait for the processor. The shortest of three: by
    the first of them the neighbours learn each other's addresses.
    """
    with lab.inside(server):
        listener = socket.create_server((lab.ip(server), port))
    with listener:
        return [min(_open_ms(lab, client, listener) for _ in range(3)) for client in clients]


def _open_ms(lab: NatLab, client: str, listener: socket.socket) -> float:
    with (
        lab.inside(client),
        socket.create_connection(listener.getsockname(), _OPEN_S) as connection,
    ):
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RTT_AT + 4)
    listener.accept()[0].close()
    return int.from_bytes(info[_RTT_AT:], sys.byteorder) / 1e3
