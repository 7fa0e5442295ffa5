"""TCP channels: ``HOST:PORT`` or ``[IPV6]:PORT``."""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import socket
import struct
import sys
from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from swarmnode import limits
from swarmnode.errors import (
    ChannelBroken,
    ChannelClosed,
    ConfigError,
    DialCause,
    DialFailed,
    first_leaf,
)
from swarmnode.net.accept import run_accepted
from swarmnode.net.channel import ChannelHandler
from swarmnode.net.paths import DIRECT_WORD
from swarmnode.protocol.uplink import Delays

# Linux, linux/tcp.h: of struct tcp_info the time since the last acknowledgement, the smoothed round
# trip and how much it varies, the bytes that were acknowledged, and the shortest round trip of some
# minutes. What varies is no queue of ours but a radio, or a machine that is busy.
_TCP_INFO = getattr(socket, "TCP_INFO", 11)
_TCP_INFO_PARTS = struct.Struct("=56xI8xII44xQ20xI")
_TCP_INFO_BYTES = _TCP_INFO_PARTS.size
_UNKNOWN_US = 2**32 - 1
_SILENT_MS_MAX = 1000
_SETTLED_BYTES = 100_000  # some 35 acknowledgements, each for two packets
_LOOKS_KEPT = 3000  # ten a second: as long as the kernel keeps its own, for a route may change
_log = logging.getLogger("swarmnode.tcp")
_RESET_WHEN_CLOSED, _DELIVER_WHEN_CLOSED = struct.pack("ii", 1, 0), struct.pack("ii", 0, 0)

# At 50 ms and 0.5 % loss BBR moves 38 times what cubic does.
CONGESTION_CONTROL = b"bbr"
_PORT_MAX = 65535
_EVERY_INTERFACE = "*"  # IPv4 and IPv6
_CAUSES: dict[int | None, DialCause] = {
    errno.ECONNREFUSED: "refused",
    errno.EPERM: "blocked",
    errno.EACCES: "blocked",
    errno.ENETUNREACH: "no-route",
    errno.EHOSTUNREACH: "no-route",
    errno.ENETDOWN: "no-route",
    errno.EADDRNOTAVAIL: "no-route",
}


def parse_address(address: str) -> tuple[str, int]:
    """Split ``HOST:PORT``; IPv6 hosts stand in brackets.

    Raises:
        ConfigError: it is not of that form.
    """
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not (colon and host and port.isascii() and port.isdigit() and int(port) <= _PORT_MAX):
        raise ConfigError(
            f"expected HOST:PORT or [IPV6]:PORT with a port up to {_PORT_MAX}, got {address!r}"
        )
    return host, int(port)


def format_address(host: str, port: int) -> str:
    """Return what :func:`parse_address` reads."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class RoundTrips:
    """The shortest round trip of a connection that both sides have opened at once.

    The kernel's own is wrong there for minutes: it takes the answer to one SYN, which a NAT had
    dropped, for that to another, and of 161 ms it says 23. What is smoothed is right after some
    thirty acknowledgements; until then no queue is seen.
    """

    def __init__(self) -> None:
        self._least_us = _UNKNOWN_US
        self._looks = 0

    def least_us(self, rtt_us: int, arrived_bytes: int) -> int:
        """Return it; ``rtt_us`` is the smoothed one of now, ``arrived_bytes`` all that arrived."""
        self._looks += 1
        if arrived_bytes < _SETTLED_BYTES or self._looks > _LOOKS_KEPT:
            self._least_us, self._looks = _UNKNOWN_US, 0
        self._least_us = min(self._least_us, rtt_us)
        return self._least_us


class TcpChannel:
    """A connected TCP socket.

    It calls the socket itself and asks Trio only to wait: the wrappers of ``trio.socket``
    cost as much as encrypting a record does.
    """

    def __init__(
        self,
        trio_socket: trio.socket.SocketType,
        word: str = DIRECT_WORD,
        on_stall: Callable[[str], None] = lambda _host: None,
    ) -> None:
        """``word`` begins the description, see ``net/paths.py``; ``on_stall`` takes the host."""
        self._on_stall = on_stall
        self._socket = sock = socket.socket(fileno=trio_socket.detach())
        sock.setblocking(False)
        self._is_closed = False
        # A read that did not fill its buffer has emptied the socket: the next one would only
        # learn that there is nothing.
        self._may_have_more = True
        self._remote: tuple[str, int] | None = None
        self._seen = None if word == DIRECT_WORD else RoundTrips()
        with contextlib.suppress(OSError):
            host, port, *_ = sock.getpeername()
            self._remote = host, port
            self._description = f"{word} {format_address(host, port)}"
            _tune(sock)
            return
        self._description = f"{word} (gone)"  # the next read or write says why

    @property
    def description(self) -> str:
        """``tcp HOST:PORT`` of the other side, or ``punched-tcp HOST:PORT``."""
        return self._description

    @property
    def remote(self) -> tuple[str, int] | None:
        """Host and port of the other side; None if it was gone before we looked."""
        return self._remote

    @property
    def local(self) -> tuple[str, int]:
        """Host and port of this side. Raises ChannelBroken if the connection is gone."""
        try:
            host, port, *_ = self._socket.getsockname()
        except OSError as error:
            raise self._translate(error) from error
        return host, port

    def delays(self) -> Delays | None:
        """Return what TCP has measured; None: not of late, or this system does not tell."""
        if sys.platform != "linux":
            return None
        try:
            info = self._socket.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _TCP_INFO_BYTES)
            silent_ms, rtt_us, varies_us, arrived_bytes, least_us = _TCP_INFO_PARTS.unpack_from(
                info
            )
        except (OSError, struct.error):
            return None
        if silent_ms > _SILENT_MS_MAX or least_us == _UNKNOWN_US:
            return None
        if self._seen is not None:
            least_us = self._seen.least_us(rtt_us, arrived_bytes)
        steady_us = max(least_us, rtt_us - varies_us)
        return Delays(steady_us / 1e6, least_us / 1e6, arrived_bytes)

    def stalled(self) -> None:
        """See ``Abandonable``."""
        if self._remote is not None:
            self._on_stall(self._remote[0])

    def give_up(self) -> None:
        """Let :meth:`aclose` reset it, so that another one can have its two ports at once.

        The system would keep a connection whose way is gone for minutes, to deliver the last bytes
        (FIN-WAIT-1), and one that has ended well for a minute (TIME-WAIT).
        """
        if not self._is_closed:
            reset_when_closed(self._socket)

    def detach(self) -> socket.socket:
        """Give the socket away; for this channel it is as if it had been closed.

        No task may be waiting on it.
        """
        self._is_closed = True
        return socket.socket(fileno=self._socket.detach())

    async def send_all(self, data: memoryview) -> None:
        """Send every byte."""
        await trio.lowlevel.checkpoint_if_cancelled()
        has_waited = False
        try:
            while True:
                try:
                    sent = self._socket.send(data)
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(self._socket)
                    has_waited = True
                    continue
                if sent == len(data):
                    break
                data = data[sent:]
        except (OSError, trio.ClosedResourceError) as error:
            raise self._translate(error) from error
        if not has_waited:
            await trio.lowlevel.cancel_shielded_checkpoint()

    def send_nowait(self, data: memoryview) -> int:
        """Send what the kernel takes now."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._translate(error) from error

    async def receive_into(self, buffer: memoryview) -> int:
        """Receive at most ``len(buffer)`` bytes."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._is_closed:  # there is no descriptor to wait for
            raise ChannelClosed(f"{self._description}: this side closed it")
        n_bytes = None
        try:
            if self._may_have_more:
                with contextlib.suppress(BlockingIOError):
                    n_bytes = self._socket.recv_into(buffer)
                    await trio.lowlevel.cancel_shielded_checkpoint()
            while n_bytes is None:
                await trio.lowlevel.wait_readable(self._socket)
                with contextlib.suppress(BlockingIOError):
                    n_bytes = self._socket.recv_into(buffer)
        except (OSError, trio.ClosedResourceError) as error:
            raise self._translate(error) from error
        self._may_have_more = n_bytes == len(buffer)
        return n_bytes

    async def aclose(self) -> None:
        """Close the socket."""
        if self._is_closed:
            await trio.lowlevel.checkpoint()
            return
        self._is_closed = True
        _limit_closing(self._socket)
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()
        await trio.lowlevel.checkpoint()

    def _translate(self, error: Exception) -> ChannelBroken | ChannelClosed:
        if self._is_closed:
            return ChannelClosed(f"{self._description}: this side closed it")
        return ChannelBroken(f"{self._description}: {_reason(error)}")


class Detour(Protocol):
    """Another way out than the direct one, such as ``net/proxy.py``."""

    async def dial(
        self, address: str, directly: Callable[[str], Awaitable[TcpChannel]]
    ) -> TcpChannel:
        """Connect, ``directly`` where that works. Raises DialFailed, ConfigError."""


class TcpTransport:
    """Dials and listens with TCP.

    Where a connection opened and then nothing came, perhaps only small packets get through: the
    next ones to that host have small segments, in both directions, as both sides keep to the less.
    """

    def __init__(self, detour: Detour | None = None) -> None:
        """``detour`` is asked to dial, where there is one."""
        self._detour = detour
        self._small_until: dict[str, float] = {}  # by host

    async def dial(self, address: str) -> TcpChannel:
        """Connect, trying every address that the host name has."""
        if self._detour is not None:
            return await self._detour.dial(address, self._dial_directly)
        return await self._dial_directly(address)

    async def _dial_directly(self, address: str) -> TcpChannel:
        host, port = parse_address(address)
        try:
            hosts = await _look_up(host, port, address)
            if any(self._wants_small(each) for each in hosts):
                from swarmnode.net.segments import connect_small  # few lines need it

                sock = await connect_small(hosts, port)
            else:
                sock = (await trio.open_tcp_stream(host, port)).socket
        except OSError as error:
            raise DialFailed(
                f"tcp {address}: {_reason(error)}", address=address, cause=_cause(error)
            ) from error
        return TcpChannel(sock, on_stall=self._note_stall)

    def _wants_small(self, host: str) -> bool:
        return trio.current_time() < self._small_until.get(host, -math.inf)

    def _note_stall(self, host: str) -> None:
        if not self._wants_small(host):
            _log.info("nothing came from %s: small packets for an hour, if it can be dialled", host)
        self._small_until.pop(host, None)
        self._small_until[host] = trio.current_time() + limits.TCP_SMALL_SEGMENTS_S
        while len(self._small_until) > limits.TCP_SMALL_HOSTS_MAX:  # the oldest goes
            del self._small_until[next(iter(self._small_until))]

    async def serve(
        self,
        address: str,
        handle_channel: ChannelHandler,
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept connections until cancelled; see ``Transport.serve``."""
        host, port = parse_address(address)
        try:
            listeners = await _open_listeners(None if host == _EVERY_INTERFACE else host, port)
        except OSError as error:
            raise ConfigError(_bind_advice(address, error)) from error
        bound_host, bound_port = listeners[0].socket.getsockname()[:2]
        if host == _EVERY_INTERFACE:
            bound_host = host
        for listener in listeners:
            # Connections may leave from this port, for hole punching. Set after binding: no other
            # socket can listen on it all the same.
            listener.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        async with trio.open_nursery() as nursery:
            take = self._stream_handler(handle_channel)
            await nursery.start(trio.serve_listeners, take, listeners)
            task_status.started(format_address(bound_host, bound_port))

    def _stream_handler(
        self, handle_channel: ChannelHandler
    ) -> Callable[[trio.SocketStream], Awaitable[None]]:
        async def handle(stream: trio.SocketStream) -> None:
            channel = TcpChannel(stream.socket, on_stall=self._note_stall)
            await run_accepted(channel, handle_channel)

        return handle


def reset_when_closed(sock: socket.socket, *, wanted: bool = True) -> None:
    """Say what becomes of what a socket has not delivered when it is closed."""
    with contextlib.suppress(OSError):  # it may be gone already
        linger = _RESET_WHEN_CLOSED if wanted else _DELIVER_WHEN_CLOSED
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


def _limit_closing(sock: socket.socket) -> None:
    """Let the system try to deliver last words for a while, not for minutes."""
    with contextlib.suppress(OSError, AttributeError):
        milliseconds = int(limits.TCP_CLOSING_S * 1000)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


async def _look_up(host: str, port: int, address: str) -> list[str]:
    """Return the addresses of a host.

    Raises OSError or DialFailed if a host has no address: a name server that is silent says so.

    Without this, the deadline of the whole dial would not tell which of the two was silent.
    """
    with trio.move_on_after(limits.NAME_LOOKUP_S):
        # Of a number: at once.
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [str(where[0]) for *_, where in found]
    why = f"its name was not looked up within {limits.NAME_LOOKUP_S:g} s"
    raise DialFailed(f"tcp {address}: {why}", address=address, cause="no-name")


async def _open_listeners(host: str | None, port: int) -> list[trio.SocketListener]:
    """Listen on each address of ``host``, on the same port also where any free one will do."""
    listeners = await trio.open_tcp_listeners(port, host=host, backlog=limits.TCP_BACKLOG_MAX)
    if port or len(listeners) == 1:
        return listeners
    chosen = listeners[0].socket.getsockname()[1]
    for listener in listeners:
        listener.socket.close()
    return await trio.open_tcp_listeners(chosen, host=host, backlog=limits.TCP_BACKLOG_MAX)


def _tune(sock: socket.socket) -> None:
    """Set what helps and leave what the system refuses."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.suppress(OSError, AttributeError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONGESTION_CONTROL)
    with contextlib.suppress(OSError, AttributeError):
        # What lies unsent in the kernel is what a control frame has to wait behind.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, limits.TCP_UNSENT_BYTES_MAX)


def _first_cause(error: BaseException) -> BaseException:
    """Return the system's own error; of several attempts, the first one's."""
    cause = first_leaf(error.__cause__) if error.__cause__ is not None else None
    return cause if isinstance(cause, OSError) else error


def _cause(error: BaseException) -> DialCause:
    chosen = _first_cause(error)
    if isinstance(chosen, socket.gaierror):
        return "no-name"
    return _CAUSES.get(getattr(chosen, "errno", None), "silent")


def _reason(error: BaseException) -> str:
    chosen = _first_cause(error)
    return getattr(chosen, "strerror", None) or str(chosen) or type(chosen).__name__


def _bind_advice(address: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"cannot listen on {address}: the port is in use; "
            "stop the other program or choose another port (0 takes any free one)"
        )
    return f"cannot listen on {address}: {_reason(error)}"
