"""Out through an HTTP proxy, in networks that let nothing else out: CONNECT (RFC 9110, 9.3.6).

The direct way is tried as if there were no proxy, and has a head start::

    0 s      directly
    2 s      through the proxy, or when the direct way has failed; after 0.3 s where it was silent
             before, and the proxy led on

The first that opens is used, of two at once the direct one. What leads to this machine or to its
own network never goes to the proxy. Most proxies let port 443 out only, where relays listen.

:class:`Asking` is the conversation, without a socket::

    CONNECT HOST:PORT  ->  an answer, of PROXY_ANSWER_BYTES_MAX at most  ->  bytes of the target

Names are the proxy's to look up: behind one, they often cannot be looked up here. The password goes
to the proxy only, and stands in no text of ours. Deviation: no status but 200 is taken for success.
"""

from __future__ import annotations

import base64
import ipaddress
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

import trio

from swarmnode import limits
from swarmnode.errors import ConfigError, DialCause, DialFailed, SwarmNodeError
from swarmnode.net.channel import aclose_forcefully
from swarmnode.net.paths import PROXIED_WORD
from swarmnode.net.tcp import TcpChannel, format_address, parse_address
from swarmnode.protocol.hosts import is_near
from swarmnode.quantities import PROXY_EXPECTED, hide_password
from swarmnode.wire.session import printable

_log = logging.getLogger("swarmnode.tcp")

OFF: Final = "off"
AUTO: Final = "auto"
_VARIABLES: Final = ("https_proxy", "HTTPS_PROXY")
_EXCEPTIONS: Final = ("no_proxy", "NO_PROXY")
_NAME: Final = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+\.?")
_HOME_NAMES: Final = (".local", ".localhost", ".home.arpa", ".internal")
_READ_BYTES: Final = 4096
_REASON_CHARACTERS_MAX: Final = 80
_OK, _WANTS_PASSWORD, _TOO_LONG, _SERVER_ERRORS = 200, 407, 431, 500
_CHALLENGE: Final = b"proxy-authenticate"
_CLOSED: Final = "it closed the connection"
_ENDLESS: Final = f"its answer has no end within {limits.PROXY_ANSWER_BYTES_MAX} bytes"
# Less than the whole dial may take: else the reasons would never be heard.
_BOTH_S: Final = limits.DIAL_DEADLINE_S - 0.5


@dataclass(frozen=True)
class Server:
    """A proxy. ``authorization``: what proves the user to it, "" if there is none."""

    host: str
    port: int
    authorization: str = field(default="", repr=False)

    @classmethod
    def parse(cls, text: str) -> Server:
        """Read ``http://[USER:PASSWORD@]HOST:PORT``, parts of which may be %-encoded.

        Raises:
            ConfigError: it is none; what may be a password is not in the message.
        """
        try:
            parts = urlsplit(text if "://" in text else f"http://{text}")
            host, port = parts.hostname or "", parts.port or 0
        except ValueError:
            parts, host, port = urlsplit(""), "", 0
        if parts.scheme != "http" or not (host and port) or parts.path.strip("/"):
            raise ConfigError(f"expected {PROXY_EXPECTED}; got {hide_password(text)[:80]!r}")
        authorization = ""
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            authorization = f"Basic {base64.b64encode(pair.encode()).decode()}"
        return cls(host, port, authorization)

    def __str__(self) -> str:
        return format_address(self.host, self.port)


class Asking:
    """One CONNECT, of which the caller moves the bytes.

    Attributes:
        request: what to send.
    """

    def __init__(self, target: str, authorization: str = "") -> None:
        """Ask for ``target``, HOST:PORT."""
        import h11  # the daemon has it for its pages; the command line goes without

        self._has_password = bool(authorization)
        self._received_bytes = 0
        self._h11 = h11.Connection(
            h11.CLIENT, max_incomplete_event_size=limits.PROXY_ANSWER_BYTES_MAX
        )
        headers = [("Host", target)]
        if authorization:
            headers.append(("Proxy-Authorization", authorization))
        request = h11.Request(method="CONNECT", target=target, headers=headers)
        self.request: bytes = self._h11.send(request) or b""

    def receive(self, data: bytes) -> bytes | None:
        """Take what the proxy sent, b"" if it has closed.

        Returns:
            Once it has opened the way, what the target has said so far; None: not yet.

        Raises:
            DialFailed: it says no, or no HTTP.
        """
        import h11

        self._received_bytes += len(data)
        try:
            self._h11.receive_data(data)
            event = self._h11.next_event()
            while isinstance(event, h11.InformationalResponse):
                event = self._h11.next_event()
        except h11.RemoteProtocolError as error:
            if not data:
                raise DialFailed(_CLOSED) from error
            if error.error_status_hint == _TOO_LONG:
                raise DialFailed(_ENDLESS) from error
            raise DialFailed(f"it does not speak HTTP: {error}") from error
        if isinstance(event, h11.Response):
            if event.status_code == _OK:
                return self._h11.trailing_data[0]
            raise self._refusal(event.status_code, event.reason, list(event.headers))
        if not data:
            raise DialFailed(_CLOSED)
        if self._received_bytes > limits.PROXY_ANSWER_BYTES_MAX:  # of answers that are none yet
            raise DialFailed(_ENDLESS)
        return None

    def _refusal(
        self, status: int, reason: bytes, headers: list[tuple[bytes, bytes]]
    ) -> DialFailed:
        """Return what an answer means; one about the target says nothing of the proxy."""
        text = printable(reason.decode("ascii", "replace"))[:_REASON_CHARACTERS_MAX]
        said = f"it answers {status} {text}".rstrip()
        if status == _WANTS_PASSWORD:
            ways = [value.split(b" ")[0] for name, value in headers if name == _CHALLENGE]
            if ways and b"basic" not in [way.lower() for way in ways]:
                names = printable(b", ".join(ways).decode("ascii", "replace"))
                names = names[:_REASON_CHARACTERS_MAX]
                said += f": it wants a log-in that no node speaks ({names})"
            elif self._has_password:
                said += ": it does not take this user and password"
            else:
                said += ": it wants a user and a password"
        return DialFailed(said, cause="proxy" if status < _SERVER_ERRORS else "silent")


class ProxiedChannel(TcpChannel):
    """A connection to a proxy that passes on all bytes; the other side's host is not its own."""

    def __init__(
        self, trio_socket: trio.socket.SocketType, server: Server, address: str, early: bytes
    ) -> None:
        """``early``: of the other side, read already."""
        super().__init__(trio_socket)
        self._remote = None
        self._description = f"{PROXIED_WORD}:{server} {address}"
        self._early = memoryview(early)

    async def receive_into(self, buffer: memoryview) -> int:
        """Receive at most ``len(buffer)`` bytes."""
        if not self._early:
            return await super().receive_into(buffer)
        await trio.lowlevel.checkpoint()
        n_bytes = min(len(buffer), len(self._early))
        buffer[:n_bytes] = self._early[:n_bytes]
        self._early = self._early[n_bytes:]
        return n_bytes


class _Try:
    """One of two ways, and what came of it."""

    def __init__(self) -> None:
        self.channel: TcpChannel | None = None
        self.error: SwarmNodeError | None = None
        self.failed = trio.Event()
        self.is_tried = False

    async def run(
        self, dial: Callable[[str], Awaitable[TcpChannel]], address: str, race: trio.CancelScope
    ) -> None:
        """Dial; the first that opens ends the race."""
        self.is_tried = True
        try:
            self.channel = await dial(address)
            race.cancel()
        except SwarmNodeError as error:
            self.error = error
            self.failed.set()


class Proxy:
    """Dials through a proxy what cannot be dialled without.

    Args:
        exceptions: hosts that are never reached through it, as ``NO_PROXY`` has them: names, of
            which all below are meant too, addresses and networks; ``*`` is all.
    """

    def __init__(self, server: Server, exceptions: str = "") -> None:
        self.server = server
        self._exceptions = [each.strip().lower() for each in exceptions.split(",") if each.strip()]
        # Hosts that the proxy led to, and the direct way did not; the newest last.
        self._led_to: dict[str, None] = {}

    async def dial(
        self, address: str, directly: Callable[[str], Awaitable[TcpChannel]]
    ) -> TcpChannel:
        """Return the first of both ways that opens.

        Raises:
            DialFailed: none does; the text has the reasons of both.
        """
        host, _ = parse_address(address)
        if not self.leads_to(host):
            return await directly(address)
        direct, proxied = _Try(), _Try()
        chosen: TcpChannel | None = None
        try:
            async with trio.open_nursery() as nursery:
                race = nursery.cancel_scope
                race.deadline = trio.current_time() + _BOTH_S
                nursery.start_soon(direct.run, directly, address, race)
                if await self._is_due(host, direct):
                    await proxied.run(self._connect, address, race)
            chosen = direct.channel or proxied.channel
        finally:
            for each in (direct.channel, proxied.channel):
                if each is not None and each is not chosen:
                    each.give_up()
                    await aclose_forcefully(each)
        if chosen is None:
            raise self._failed(address, direct, proxied)
        self._note(host, is_proxied=chosen is proxied.channel)
        return chosen

    def leads_to(self, host: str) -> bool:
        """Whether a host may be reached through the proxy: no name or address of our network."""
        name = host.lower().rstrip(".")
        try:
            ip = ipaddress.ip_address(name.partition("%")[0])
        except ValueError:
            is_excepted = any(_is_below(name, each) for each in self._exceptions)
            is_ours = not _NAME.fullmatch(name) or name.endswith(_HOME_NAMES)
            return not (is_ours or is_excepted)
        return not is_near(ip) and not any(_is_within(ip, each) for each in self._exceptions)

    async def _is_due(self, host: str, direct: _Try) -> bool:
        """Return after the head start; False: the name is that of a host in our own network."""
        head_start_s = limits.PROXY_AGAIN_S if host in self._led_to else limits.PROXY_HEAD_START_S
        with trio.move_on_after(head_start_s):
            if _NAME.fullmatch(host):
                found = await _look_up(host)
                if found and not any(self.leads_to(each) for each in found):
                    return False
            await direct.failed.wait()
        return True

    async def _connect(self, address: str) -> TcpChannel:
        try:
            stream = await trio.open_tcp_stream(self.server.host, self.server.port)
        except OSError as error:
            raise DialFailed("it cannot be reached", address=address) from error
        try:
            asking = Asking(address, self.server.authorization)
            await stream.send_all(asking.request)
            early = None
            while early is None:
                early = asking.receive(await stream.receive_some(_READ_BYTES))
        except BaseException as error:  # cancelled, too
            stream.socket.close()
            if isinstance(error, trio.BrokenResourceError):
                raise DialFailed(_CLOSED, address=address) from error
            raise
        return ProxiedChannel(stream.socket, self.server, address, early)

    def _note(self, host: str, *, is_proxied: bool) -> None:
        self._led_to.pop(host, None)
        if is_proxied:
            _log.info("%s is reached through the proxy %s only", host, self.server)
            self._led_to[host] = None
        while len(self._led_to) > limits.PROXY_HOSTS_MAX:
            del self._led_to[next(iter(self._led_to))]

    def _failed(self, address: str, direct: _Try, proxied: _Try) -> SwarmNodeError:
        in_vain = f"no answer within {_BOTH_S:g} s"
        why = str(direct.error or f"tcp {address}: {in_vain}")
        cause: DialCause = direct.error.cause if isinstance(direct.error, DialFailed) else "silent"
        if proxied.is_tried:
            why += f"; through the proxy {self.server}: {proxied.error or in_vain}"
        if isinstance(proxied.error, DialFailed) and proxied.error.cause == "proxy":
            # Of a machine that says itself that no node runs there, that counts.
            cause = cause if cause == "refused" else "proxy"
        return DialFailed(why, address=address, cause=cause)


async def _look_up(host: str) -> list[str]:
    try:
        found = await trio.socket.getaddrinfo(host, None)
    except OSError:
        return []
    return [str(where[0]) for *_, where in found]


def _is_below(name: str, exception: str) -> bool:
    bare = exception.partition(":")[0].removeprefix("*").removeprefix(".")
    return not bare or name == bare or name.endswith(f".{bare}")


def _is_within(ip: ipaddress.IPv4Address | ipaddress.IPv6Address, exception: str) -> bool:
    try:
        return exception == "*" or ip in ipaddress.ip_network(exception.strip("[]"), strict=False)
    except ValueError:
        return False  # a name


def find_proxy(setting: str, environ: Mapping[str, str]) -> Proxy | None:
    """Return the proxy of the setting ``proxy``, for ``auto`` that of the environment.

    Raises:
        ConfigError: the setting is none.
    """
    if setting == OFF:
        return None
    if setting != AUTO:
        return Proxy(Server.parse(setting))
    named = next((environ[each] for each in _VARIABLES if environ.get(each)), "")
    exceptions = next((environ[each] for each in _EXCEPTIONS if environ.get(each)), "")
    try:
        return Proxy(Server.parse(named), exceptions) if named else None
    except ConfigError as error:  # the environment is for other programs, too
        _log.warning("the proxy of the environment is not used: %s", error)
        return None
