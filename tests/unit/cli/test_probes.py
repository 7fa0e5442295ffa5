"""What this machine finds out about its line by itself; large packets that vanish: tests/lab."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from swarmnode.cli.node.probes import (
    Probes,
    connect,
    greet,
    is_tunnel,
    look_at,
    named_proxy,
    private_offender,
)
from swarmnode.net.lan.interfaces import Interface
from tests.kits.daemon_kit import LOOPBACK, free_port


@contextmanager
def server(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Do ``serve`` with the first connection."""
    with socket.create_server((LOOPBACK, 0)) as listening:

        def run() -> None:
            connection, _ = listening.accept()
            with connection:
                serve(connection)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        thread.join(10)


def answer(connection: socket.socket) -> None:
    hello = connection.recv(65536)
    while len(hello) < 2000:
        hello += connection.recv(65536)
    assert hello[0] == 22, "a record of TLS"
    connection.sendall(b"\x15")


def cut(connection: socket.socket) -> None:
    connection.recv(1)
    # Closed with bytes unread: the other side gets a reset.


def test_a_node_answers_a_greeting_that_fills_more_than_a_packet() -> None:
    with server(answer) as port:
        assert greet(LOOPBACK, port) == "answers"


def test_a_greeting_that_is_cut_off() -> None:
    with server(cut) as port:
        assert greet(LOOPBACK, port) == "cut-off"


def test_a_port_without_a_program_refuses() -> None:
    port = free_port()
    assert connect(LOOPBACK, port) == "refused"
    assert look_at(f"{LOOPBACK}:{port}").answer == "refused"


@pytest.mark.parametrize("address", ["", "no-port", "*:7337", ":7337"])
def test_what_is_no_address_is_not_dialled(address: str) -> None:
    assert look_at(address).answer == "no-name"


def test_all_are_looked_at_side_by_side() -> None:
    addresses = [f"{LOOPBACK}:{free_port()}" for _ in range(3)]
    probed = Probes(addresses, target=LOOPBACK).result()
    assert {each: reached.answer for each, reached in probed.reached.items()} == dict.fromkeys(
        addresses, "refused"
    )
    assert probed.beyond == ""


@pytest.mark.parametrize(
    ("offender", "icmp_type", "origin", "found"),
    [
        ("100.64.0.1", 11, 2, "100.64.0.1"),
        ("10.0.0.1", 11, 2, "10.0.0.1"),
        ("11.11.11.1", 11, 2, ""),
        ("100.64.0.1", 3, 2, ""),
        ("100.64.0.1", 11, 1, ""),
    ],
)
def test_a_private_router_behind_the_router_is_found(
    offender: str, icmp_type: int, origin: int, found: str
) -> None:
    error = struct.pack("=IBBBBII", 113, origin, icmp_type, 0, 0, 0, 0)
    error += struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(offender))
    assert private_offender(error) == found
    assert private_offender(error[:16]) == ""


@pytest.mark.parametrize(
    ("name", "hardware", "found"),
    [
        ("eth0", "1", False),
        ("ppp0", "512", False),
        ("home", "65534", True),
        ("gre1", "778", True),
        ("wg0", "", True),
        ("en0", "", False),
    ],
)
def test_tunnels(tmp_path: Path, name: str, hardware: str, found: bool) -> None:
    if hardware:
        (tmp_path / name).mkdir()
        (tmp_path / name / "type").write_text(hardware + "\n")
    assert is_tunnel(Interface(name, 1, 0, ()), tmp_path) is found


def test_a_proxy_that_programs_here_use_is_found_without_its_password(tmp_path: Path) -> None:
    of_all = tmp_path / "environment"
    assert named_proxy({}, of_all) == ""
    assert named_proxy({"HTTPS_PROXY": "http://u:swordfish@a.example:1/"}, of_all) == "a.example:1"
    of_all.write_text('PATH="/bin"\nexport http_proxy="http://u:swordfish@b.example:2"\n')
    assert named_proxy({}, of_all) == "b.example:2"
    assert named_proxy({"https_proxy": "c.example:3"}, of_all) == "c.example:3"
