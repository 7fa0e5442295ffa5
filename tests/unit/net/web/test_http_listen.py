from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest
import trio

from swarmnode.config import HostPort
from swarmnode.errors import ConfigError, Refused
from swarmnode.net.web.http import serve_http
from swarmnode.net.web.listen import unix_listener
from tests.kits.http_kit import ROUTES, get


async def ask_stream(stream: trio.SocketStream, raw: bytes) -> bytes:
    async with stream:
        await stream.send_all(raw)
        return bytes(await stream.receive_some())


async def test_tcp_round_trip_and_rebinding(nursery: trio.Nursery) -> None:
    [listener] = await nursery.start(serve_http, HostPort("127.0.0.1", 0), ROUTES)
    host, port = listener.socket.getsockname()
    answer = await ask_stream(await trio.open_tcp_stream(host, port), get("/echo"))
    assert answer.startswith(b"HTTP/1.1 200")
    foreign = b"GET /echo HTTP/1.1\r\nHost: evil.example\r\n\r\n"
    answer = await ask_stream(await trio.open_tcp_stream(host, port), foreign)
    assert answer.startswith(b"HTTP/1.1 403")


async def test_reset_by_the_client_does_not_stop_the_server(nursery: trio.Nursery) -> None:
    [listener] = await nursery.start(serve_http, HostPort("127.0.0.1", 0), ROUTES)
    address = listener.socket.getsockname()
    for raw in (b"", b"GET /ec", get("/ticks")):
        with socket.create_connection(address) as client:
            client.sendall(raw)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    answer = await ask_stream(await trio.open_tcp_stream(*address), get("/echo"))
    assert answer.startswith(b"HTTP/1.1 200")


async def test_port_in_use_names_port_and_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"metrics: cannot listen on port {port} .*uses it"):
            await serve_http(HostPort("127.0.0.1", port), ROUTES)


async def test_host_of_another_machine() -> None:
    with pytest.raises(ConfigError, match=r"listen: cannot listen on port 0 of 192\.0\.2\.1"):
        await serve_http(HostPort("192.0.2.1", 0), ROUTES, setting="listen")


async def test_unix_round_trip_permissions_and_removal(tmp_path: Path) -> None:
    path = tmp_path / "run" / "control.sock"
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_http, path, ROUTES)
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        any_host = b"GET /echo HTTP/1.1\r\nHost: whatever\r\n\r\n"
        answer = await ask_stream(await trio.open_unix_socket(path), any_host)
        assert answer.startswith(b"HTTP/1.1 200")
        nursery.cancel_scope.cancel()
    assert not path.exists()


def leave_dead_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))


async def test_socket_left_by_a_crash_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    leave_dead_socket(path)
    with unix_listener(path):
        stream = await trio.open_unix_socket(path)
        await stream.aclose()


async def test_living_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with unix_listener(path):
        with pytest.raises(Refused, match="another swarmnode listens"), unix_listener(path):
            pass
        assert path.exists()


async def test_socket_of_a_successor_is_left_alone(tmp_path: Path) -> None:
    path, kept = tmp_path / "control.sock", tmp_path / "first.sock"
    with unix_listener(path):
        path.rename(kept)  # its inode stays in use, so the successor cannot get the same one
        leave_dead_socket(path)
    assert path.exists()


def test_other_file_in_the_way(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    path.write_text("notes")
    with pytest.raises(ConfigError, match="is none"), unix_listener(path):
        pass
    assert path.read_text() == "notes"


def test_open_directory_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with (
        pytest.raises(ConfigError, match=r"mode 0755.*chmod 700"),
        unix_listener(tmp_path / "control.sock"),
    ):
        pass


def test_directory_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    with pytest.raises(ConfigError, match="another user"), unix_listener(tmp_path / "control.sock"):
        pass


def test_path_too_long(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"at most 103 bytes.*shorter SWARMNODE_HOME"),
        unix_listener(tmp_path / ("x" * 110)),
    ):
        pass


def test_file_where_the_directory_should_be(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(ConfigError, match="cannot listen"), unix_listener(tmp_path / "run" / "c"):
        pass
