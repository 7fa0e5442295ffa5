"""Networks that do other than they say, or less than is needed."""

from __future__ import annotations

import contextlib
import functools
import shutil
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from tests.lab.broken.lines import two_behind_nats
from tests.lab.broken.world import PORT, Condition, World
from tests.lab.shaper import Shape

_NAME = "relay.example.org"
_WEB_PAGE = b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\nPlease log in"
_WORDS_S = 5.0
_A, _AAAA, _QUESTION_AT = 1, 28, 12


def _one_relay(world: World) -> None:
    world.other = "pub0"
    world.hint("pub0")
    world.public()
    world.start("c0")


# --- names ----------------------------------------------------------------------------------------


def _ask_names_of(world: World, server: str) -> None:
    """The machine c0 asks ``server`` for names; the host's own file is of no use to it."""
    folder = Path("/etc/netns") / world.lab.namespace("c0")  # ``ip netns exec`` lays it over /etc
    folder.mkdir(parents=True)
    world.at_end.callback(shutil.rmtree, folder)
    (folder / "resolv.conf").write_text(f"nameserver {server}\n", encoding="ascii")


def _answer_names(world: World, answers: dict[int, str], rcode: int = 0) -> None:
    """Answer every question on pub1 with an address for its type, or with none."""
    with world.lab.inside("pub1"):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind((world.lab.ip("pub1"), 53))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                question, source = sock.recvfrom(512)
                if not question:
                    return  # it was shut
                sock.sendto(_answer(question, answers, rcode), source)

    _serve_until_end(world, sock, serve)
    _ask_names_of(world, world.lab.ip("pub1"))


def _answer(question: bytes, answers: dict[int, str], rcode: int) -> bytes:
    """Return an answer of DNS (RFC 1035): the question, and its name with an address."""
    end = question.index(b"\0", _QUESTION_AT) + 5
    kind = int.from_bytes(question[end - 4 : end - 2], "big")
    address = answers.get(kind, "")
    flags = 0x8180 | rcode
    head = question[:2] + struct.pack(">HHHHH", flags, 1, bool(address), 0, 0)
    body = question[_QUESTION_AT:end]
    if address:
        family = socket.AF_INET if kind == _A else socket.AF_INET6
        data = socket.inet_pton(family, address)
        body += struct.pack(">HHHIH", 0xC000 | _QUESTION_AT, kind, 1, 60, len(data)) + data
    return head + body


def _names_silent(world: World) -> None:
    world.hint("pub0", address=_NAME)
    world.public()
    world.filter("r0", "forward", "udp dport 53 drop")
    _ask_names_of(world, world.lab.ip("pub1"))
    world.start("c0")


def _names_unknown(world: World) -> None:
    world.hint("pub0", address=_NAME)
    world.public()
    _answer_names(world, {}, rcode=3)
    world.start("c0")


def _names_lie(world: World) -> None:
    """Every name leads to the login page, as hotels do it."""
    world.hint("pub0", address=_NAME)
    world.public()
    _portal(world, "pub1", world.lab.ip("pub1"), 443)
    _answer_names(world, {_A: world.lab.ip("pub1")})
    world.start("c0")


def _ipv6_dead(world: World) -> None:
    """A name with two addresses, of which the first leads nowhere."""
    world.other = "pub0"
    world.hint("pub0", address=_NAME)
    world.public()
    _answer_names(world, {_A: world.lab.ip("pub0"), _AAAA: world.lab.ip6("pub0")})
    world.filter("r0", "forward", "drop", "ip6")
    world.start("c0")


# --- what answers instead -------------------------------------------------------------------------


def _serve_until_end(world: World, sock: socket.socket, serve: Callable[[], None]) -> None:
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    # A socket that is only closed would still be waited on.
    world.at_end.callback(sock.close)
    world.at_end.callback(functools.partial(_shut, sock))


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _portal(
    world: World, host: str, address: str, port: int, context: ssl.SSLContext | None = None
) -> None:
    """Answer whatever is asked at an address with a page; within TLS where there is a context."""
    with world.lab.inside(host):
        server = socket.create_server((address, port))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                threading.Thread(target=_say, args=(connection, context), daemon=True).start()

    _serve_until_end(world, server, serve)


def _say(connection: socket.socket, context: ssl.SSLContext | None) -> None:
    connection.settimeout(_WORDS_S)
    with connection, contextlib.suppress(OSError):
        if context is not None:
            connection = context.wrap_socket(connection, server_side=True)
        with connection:
            connection.recv(65536)
            connection.sendall(_WEB_PAGE)
            connection.recv(65536)


def _captive_portal(world: World, context: ssl.SSLContext | None = None) -> None:
    """The router answers in the place of everything beyond it."""
    world.hint("pub0")
    world.public()
    own = world.lab.ip("c0").rpartition(".")[0] + ".1"
    _portal(world, "r0", own, 8080, context)
    hook = "type nat hook prerouting priority -101"
    rule = f'iifname "lan" meta l4proto tcp dnat to {own}:8080'
    world.nft("r0", f"table ip portal {{ chain p {{ {hook}; {rule}\n}}\n}}")
    world.start("c0")


def _captive_portal_tls(world: World) -> None:
    key, certificate = world.folder / "portal.key", world.folder / "portal.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30"]
    files = ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=login.hotel.example"]
    subprocess.run([*command, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    _captive_portal(world, context)


# --- one way only, and bad quality ----------------------------------------------------------------


def _only_inwards(world: World) -> None:
    """Connections come in, none goes out: others open them."""
    world.other = "pub0"
    world.hint("pub0", PORT)
    world.filter("c0", "output", 'oifname "eth0" tcp flags & (syn | ack) == syn drop')
    to_c0 = world.swarm.link()
    world.hint("c0", PORT)
    both = world.link
    world.link = to_c0
    world.start("pub0", "keeper", link=both)
    world.start("c0", link=both)


def _mtu(world: World) -> None:
    """Smaller packets beyond the router, which says so to those that send larger ones."""
    for device in ("wan", "lan"):
        world.ip("r0", "link", "set", device, "mtu", "1280")
    _one_relay(world)


NETWORKS: dict[str, Condition] = {
    "dns-silent": Condition(_names_silent, "cannot be looked up"),
    "dns-unknown-name": Condition(_names_unknown, "cannot be looked up"),
    "dns-lies": Condition(_names_lie, "no node: perhaps the login page"),
    "ipv6-dead": Condition(
        _ipv6_dead, "ok: Connected", expected="direct", is_fail=False, lab={"ipv6": True}
    ),
    "captive-portal": Condition(_captive_portal, "no node: perhaps the login page"),
    "captive-portal-tls": Condition(_captive_portal_tls, "no node: perhaps the login page"),
    "only-inwards": Condition(
        _only_inwards, "ok: Connected", ("none",), expected="direct", is_fail=False
    ),
    "mtu-1280": Condition(_mtu, "ok: Connected", expected="direct", is_fail=False),
    "udp-blocked": Condition(
        two_behind_nats,
        "drops UDP",
        ("udp-blocked", "symmetric"),
        expected="relay",
        is_fail=False,
    ),
    "only-443-relayed": Condition(
        two_behind_nats,
        "drops UDP",
        ("tcp-443", "port-restricted"),
        expected="relay",
        is_fail=False,
    ),
    "slow-line": Condition(
        _one_relay,
        "Connected",
        expected="direct",
        is_fail=False,
        shape=Shape(delay_ms=100, rate_mbit=0.064),
    ),
    "jitter": Condition(
        _one_relay,
        "ok: Connected",
        expected="direct",
        is_fail=False,
        shape=Shape(delay_ms=5, jitter_ms=60),
    ),
}
