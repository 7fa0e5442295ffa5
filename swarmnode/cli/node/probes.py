"""What this machine can find out about its line by itself: no node is asked, nothing is changed.

Each probe takes PROBE_S at most, a few at a time, and talks only to addresses that the node was
given, and to the router beyond the router (a datagram that lives for two hops).
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, ip_address
from pathlib import Path
from typing import Final, Literal

from swarmnode import limits
from swarmnode.config import parse_host_port
from swarmnode.errors import ConfigError
from swarmnode.net.lan.interfaces import Interface, list_interfaces

# A SYN is sent again after 1 s: the second one has come back by then, too.
PROBE_S: Final = 3.0
PROBES_S: Final = 3 * PROBE_S + 1.0  # an address takes three of them, one after the other
_HOP_S: Final = 1.0
_ADDRESSES_MAX: Final = 8
# Ports that almost every firewall lets out.
WEB_PORTS: Final = (443, 80)
_GREETING_BYTES_MIN: Final = 2000  # more than a packet of Ethernet
_CARRIERS: Final = IPv4Network("100.64.0.0/10")  # RFC 6598
_FAR: Final = "192.0.2.1"  # a documentation address: nothing is sent to it to learn of our route
_HOP_PORT: Final = 33434
_IP_RECVERR: Final = 11  # Linux; socket has no name for it before Python 3.14
_ARP_HARDWARE_OF_TUNNELS: Final = (65534, 768, 776, 778)  # none (tun, WireGuard), IPIP, SIT, GRE

Answer = Literal["open", "refused", "silent", "no-name", "no-route", "blocked"]
Greeting = Literal["", "answers", "small-only", "mute", "cut-off"]


@dataclass(frozen=True)
class Reached:
    """What came of one address. ``web``: the same host at the ports of the web."""

    answer: Answer
    greeting: Greeting = ""
    web: tuple[Answer, ...] = ()


@dataclass(frozen=True)
class Probed:
    """What was found. ``beyond``: a private address behind the router; "" if there is none."""

    reached: Mapping[str, Reached] = field(default_factory=dict)
    interface: str = ""  # by which packets leave; "" without a network
    is_tunnel: bool = False
    beyond: str = ""
    proxy: str = ""  # HOST:PORT that this shell, or this machine, names for programs to use


class Probes:
    """Run in threads from the moment that they are made."""

    def __init__(self, addresses: Iterable[str], target: str = "") -> None:
        """``addresses`` are looked at; ``target``: an IPv4 host out there, whatever it is."""
        chosen = list(dict.fromkeys(addresses))[:_ADDRESSES_MAX]
        # Unless they say otherwise: a name server that is silent holds a lookup up for a minute.
        self._reached = dict.fromkeys(chosen, Reached("no-name"))
        self._beyond = ""
        self._until = time.monotonic() + PROBES_S
        self._hop = self._start(self._look_beyond, target or _FAR)
        self._looks = [self._start(self._look, address) for address in chosen]

    def beyond(self) -> str:
        """Return the private address behind the router, "" if there is none."""
        self._hop.join(2 * _HOP_S)
        return self._beyond

    def result(self) -> Probed:
        """Wait for all of them, PROBES_S at most since they were made."""
        for thread in self._looks:
            thread.join(max(0.0, self._until - time.monotonic()))
        interface, is_vpn = interface_out()
        beyond, proxy = "" if is_vpn else self.beyond(), named_proxy(os.environ)
        return Probed(dict(self._reached), interface, is_vpn, beyond, proxy)

    def _look(self, address: str) -> None:
        self._reached[address] = look_at(address)

    def _look_beyond(self, target: str) -> None:
        self._beyond = beyond_the_router(target)

    @staticmethod
    def _start(run: Callable[[str], None], what: str) -> threading.Thread:
        thread = threading.Thread(target=run, args=(what,), daemon=True)  # ends with the verb
        thread.start()
        return thread


def look_at(address: str) -> Reached:
    """Return what comes of connecting to HOST:PORT."""
    try:
        host, port = parse_host_port(address, setting="address")
    except ConfigError:
        return Reached("no-name")
    if host is None:
        return Reached("no-name")
    answer = connect(host, port)
    if answer == "open":
        return Reached(answer, greet(host, port))
    if answer == "silent" and is_forbidden(host, port):
        return Reached("blocked")
    if answer == "silent":
        return Reached(answer, web=tuple(connect(host, each) for each in WEB_PORTS if each != port))
    return Reached(answer)


def connect(host: str, port: int) -> Answer:
    """Return what comes of one TCP connection; the names of a host are looked up before."""
    try:
        with _connected(host, port, 0):
            return "open"
    except socket.gaierror:
        return "no-name"
    except OSError as error:
        return _ANSWERS.get(error.errno or 0, "silent")


def is_forbidden(host: str, port: int) -> bool:
    """Whether this machine itself keeps packets in, as the kill switch of a VPN does.

    Of a dropped datagram the system says so; a SYN that is dropped is silence.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"\0", address)
    except PermissionError:
        return True
    except OSError:
        pass
    return False


_ANSWERS: Final[Mapping[int, Answer]] = {
    errno.ECONNREFUSED: "refused",
    errno.ENETUNREACH: "no-route",
    errno.EHOSTUNREACH: "no-route",
    errno.EPERM: "blocked",
    errno.EACCES: "blocked",
}


def greet(host: str, port: int) -> Greeting:
    """Send the greeting of TLS, in packets as large as they go, then in small ones."""
    for segment_bytes, found in ((0, "answers"), (limits.TCP_SMALL_SEGMENT_BYTES, "small-only")):
        try:
            with _connected(host, port, segment_bytes) as sock:
                sock.sendall(_client_hello())
                if sock.recv(1):
                    return found  # type: ignore[return-value]
                return "cut-off"
        except TimeoutError:
            continue
        except OSError:
            return "cut-off"
    return "mute"


def _connected(host: str, port: int, segment_bytes: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with contextlib.ExitStack() as on_failure:
        sock = on_failure.enter_context(socket.socket(family, socket.SOCK_STREAM))
        sock.settimeout(PROBE_S)
        if segment_bytes:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, segment_bytes)
        sock.connect(address)
        on_failure.pop_all()
    return sock


def _client_hello() -> bytes:
    """Return the first message of TLS, made long by protocols that no node speaks."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    n_fillers = _GREETING_BYTES_MIN // 200
    context.set_alpn_protocols(["swarmnode/1", *(f"{n:0>199}" for n in range(n_fillers))])
    received, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(received, to_send).do_handshake()
    return to_send.read()


# --- our own way out ------------------------------------------------------------------------------


def interface_out() -> tuple[str, bool]:
    """Return the interface by which packets leave, and whether it is a tunnel."""
    for family, far in ((socket.AF_INET, _FAR), (socket.AF_INET6, "2001:db8::1")):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((far, 9))  # sends nothing
            own = ip_address(sock.getsockname()[0])
            for each in list_interfaces():
                if any(address.ip == own for address in each.addresses):
                    return each.name, is_tunnel(each)
    return "", False


def named_proxy(environ: Mapping[str, str], of_all: Path = Path("/etc/environment")) -> str:
    """Return HOST:PORT of the HTTP proxy that programs started from here use, "" if there is none.

    A node that a service manager has started does not see all of that. ``of_all``: what every
    session of this machine has.
    """
    found = [environ.get(name, "") for name in _PROXY_VARIABLES]
    with contextlib.suppress(OSError, ValueError):
        lines = of_all.read_text("utf-8").splitlines()
        pairs = [line.removeprefix("export ").partition("=") for line in lines]
        found += [value.strip("\"' ") for name, _, value in pairs if name in _PROXY_VARIABLES]
    first = next(filter(None, found), "")
    return first.rpartition("@")[2].rpartition("//")[2].strip("/")  # a password is left out


_PROXY_VARIABLES: Final = ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY")


def is_tunnel(interface: Interface, classes: Path = Path("/sys/class/net")) -> bool:
    """Whether what leaves there goes into a VPN; a line of one's own provider (PPPoE) does not."""
    try:
        hardware = int((classes / interface.name / "type").read_text())
    except (OSError, ValueError):
        # /sys shows another network's interfaces in a container, and macOS has none.
        hardware = 0
    is_named = interface.name.startswith(("tun", "tap", "wg", "utun", "nordlynx", "proton"))
    return hardware in _ARP_HARDWARE_OF_TUNNELS or is_named


def beyond_the_router(target: str) -> str:
    """Return the second hop towards ``target`` if it is a private one: there is another NAT.

    A private router there may also be one that translates nothing, so this says "probably".
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 2)
            sock.settimeout(_HOP_S)
            sock.connect((target, _HOP_PORT))
            sock.send(b"swarmnode netcheck")
            with contextlib.suppress(OSError):
                sock.recv(1)  # the error wakes it
            _, ancillary, _, _ = sock.recvmsg(512, 512, socket.MSG_ERRQUEUE)
    except (OSError, AttributeError):  # nothing came, or this system has no such queue
        return ""
    for level, kind, data in ancillary:
        if level == socket.IPPROTO_IP and kind == _IP_RECVERR:
            return private_offender(data)
    return ""


def private_offender(error: bytes) -> str:
    """Return which router sent an ICMP error (``struct sock_extended_err``), if it is private."""
    _, origin, icmp_type, _, _, _, _ = struct.unpack_from("=IBBBBII", error)
    from_icmp, time_exceeded = 2, 11
    if (origin, icmp_type) != (from_icmp, time_exceeded) or len(error) < 16 + 8:
        return ""
    offender = IPv4Address(error[20:24])
    is_inner = offender.is_private or offender in _CARRIERS
    return str(offender) if is_inner and not offender.is_loopback else ""
