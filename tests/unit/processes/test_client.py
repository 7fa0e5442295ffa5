"""The command line's client against the real server on a real socket."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

import swarmnode
from swarmnode.config import Paths
from swarmnode.errors import (
    ConfigError,
    DeadlineExceeded,
    NotRunning,
    Overloaded,
    Refused,
    SwarmNodeError,
    TransportError,
)
from swarmnode.net.web.http import HttpServer, serve_http
from swarmnode.net.web.routes import Request, Response, Route, json_response
from swarmnode.processes import client as client_module
from swarmnode.processes.client import ControlClient


async def status(request: Request) -> Response:
    return json_response({"state": "training"})


async def double(request: Request) -> Response:
    return json_response({name: 2 * n for name, n in request.json(dict[str, int]).items()})


async def failing(request: Request) -> Response:
    errors: dict[str, SwarmNodeError] = {
        "config": ConfigError("which one?"),
        "running": NotRunning("no worker"),
        "refused": Refused("not yours"),
        "busy": Overloaded("later"),
        "other": TransportError("lost"),
    }
    raise errors[request.parameter]


async def slow(request: Request) -> Response:
    await trio.sleep_forever()
    raise AssertionError


async def no_json(request: Request) -> Response:
    return Response(b"hello", content_type="text/plain")


ROUTES = (
    Route("GET", "/status", status),
    Route("POST", "/double", double),
    Route("GET", "/failing/{how}", failing),
    Route("GET", "/slow", slow),
    Route("GET", "/text", no_json),
)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path)


async def serve(paths: Paths, nursery: trio.Nursery) -> ControlClient:
    await nursery.start(serve_http, paths.control_socket, ROUTES)
    return ControlClient(paths)


async def test_get_and_post(paths: Paths, nursery: trio.Nursery) -> None:
    client = await serve(paths, nursery)
    assert await trio.to_thread.run_sync(client.get, "/status") == {"state": "training"}
    assert await trio.to_thread.run_sync(client.post, "/double", {"a": 2}) == {"a": 4}
    assert await trio.to_thread.run_sync(client.post, "/double") == {}


async def test_what_a_node_of_another_version_does_not_say_is_named(
    paths: Paths, nursery: trio.Nursery
) -> None:
    client = await serve(paths, nursery)
    said = await trio.to_thread.run_sync(client.get, "/status")
    assert said.get("shared") is None
    with pytest.raises(TransportError, match="does not say 'shared': it is of another version"):
        said["shared"]


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ("config", ConfigError, "which one?"),
        ("running", NotRunning, "no worker"),
        ("refused", Refused, "not yours"),
        ("busy", Refused, "later"),
        ("other", SwarmNodeError, "lost"),
    ],
)
async def test_refusals_come_back_with_class_exit_code_and_text(
    paths: Paths, nursery: trio.Nursery, how: str, kind: type[SwarmNodeError], message: str
) -> None:
    client = await serve(paths, nursery)
    with pytest.raises(SwarmNodeError) as caught:
        await trio.to_thread.run_sync(client.get, f"/failing/{how}")
    assert type(caught.value) is kind
    assert str(caught.value) == message


async def test_unknown_path_is_an_error(paths: Paths, nursery: trio.Nursery) -> None:
    client = await serve(paths, nursery)
    with pytest.raises(SwarmNodeError, match="there is nothing at /nowhere"):
        await trio.to_thread.run_sync(client.get, "/nowhere")


async def test_answer_that_is_no_json(paths: Paths, nursery: trio.Nursery) -> None:
    client = await serve(paths, nursery)
    with pytest.raises(TransportError, match="of another version"):
        await trio.to_thread.run_sync(client.get, "/text")


async def test_deadline(paths: Paths, nursery: trio.Nursery) -> None:
    client = await serve(paths, nursery)
    with pytest.raises(DeadlineExceeded, match=r"GET /slow .*no result within 0\.05 s"):
        await trio.to_thread.run_sync(lambda: client.get("/slow", deadline_s=0.05))


def test_no_daemon(paths: Paths) -> None:
    with pytest.raises(NotRunning, match=rf"no swarmnode runs on {paths.home}: start it with"):
        ControlClient(paths).get("/status")


def test_daemon_that_was_killed(paths: Paths) -> None:
    paths.control_socket.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(paths.control_socket))
    with pytest.raises(NotRunning):
        ControlClient(paths).get("/status")


def test_daemon_that_dies_in_the_middle(paths: Paths) -> None:
    paths.control_socket.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(paths.control_socket))
        listening.listen()

        def accept_and_close() -> None:
            connection, _ = listening.accept()
            connection.recv(10_000)
            connection.close()

        thread = threading.Thread(target=accept_and_close)
        thread.start()
        with pytest.raises(TransportError, match="went away while answering /status"):
            ControlClient(paths).get("/status")
        thread.join()


def listening_at(paths: Paths, backlog: int = 8) -> socket.socket:
    paths.control_socket.parent.mkdir()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(paths.control_socket))
    listening.listen(backlog)
    return listening


def test_half_an_answer(paths: Paths) -> None:
    def answer_half(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(10_000)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 30\r\n\r\n{")

    with listening_at(paths) as listening:
        thread = threading.Thread(target=answer_half, args=[listening])
        thread.start()
        with pytest.raises(TransportError, match=r"answering /status: 1 bytes came, 29 more were"):
            ControlClient(paths).get("/status")
        thread.join()


def test_a_daemon_that_refuses_unread_is_not_called_gone(paths: Paths) -> None:
    """It closed with the request unread: once with an answer before that, once without."""
    refusal = b'{"error": "too many", "exit_code": 1}'
    head = b"HTTP/1.1 503 Busy\r\ncontent-length: %d\r\n\r\n" % len(refusal)
    with listening_at(paths) as listening:

        def refuse(answer: bytes) -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1)  # the request has come
                connection.sendall(answer)

        for answer, message in [(head + refusal, "too many"), (b"", "before it read the request")]:
            thread = threading.Thread(target=refuse, args=[answer])
            thread.start()
            with pytest.raises(SwarmNodeError, match=message):
                ControlClient(paths).get("/status")
            thread.join()


def test_an_answer_that_comes_before_the_request_is_heard(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon has closed already when the command line begins to send."""
    refusal = b'{"error": "too many", "exit_code": 1}'
    head = b"HTTP/1.1 503 Busy\r\ncontent-length: %d\r\n\r\n" % len(refusal)
    connect = client_module._UnixConnection.connect
    with listening_at(paths) as listening:

        def connect_and_be_refused(connection: client_module._UnixConnection) -> None:
            connect(connection)
            accepted, _ = listening.accept()
            with accepted:
                accepted.sendall(head + refusal)

        monkeypatch.setattr(client_module._UnixConnection, "connect", connect_and_be_refused)
        with pytest.raises(SwarmNodeError, match="too many"):
            ControlClient(paths).get("/status")


async def test_a_daemon_that_has_yet_to_accept_others_is_waited_for(
    paths: Paths, nursery: trio.Nursery
) -> None:
    with listening_at(paths, backlog=0) as listening, socket.socket(socket.AF_UNIX) as first:
        first.connect(str(paths.control_socket))  # now no other fits
        with pytest.raises(DeadlineExceeded, match=r"no result within 0\.1 s"):
            await trio.to_thread.run_sync(
                lambda: ControlClient(paths).get("/status", deadline_s=0.1)
            )

        async def ask() -> None:
            answers.append(await trio.to_thread.run_sync(ControlClient(paths).get, "/status"))
            answered.set()

        answers: list[object] = []
        answered = trio.Event()
        nursery.start_soon(ask)
        server = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
        nursery.start_soon(
            trio.serve_listeners, HttpServer(ROUTES, any_host=True).serve_connection, [server]
        )
        with trio.fail_after(30):
            await answered.wait()
        assert answers == [{"state": "training"}]
        nursery.cancel_scope.cancel()


def test_socket_of_another_user(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(connection: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(client_module._UnixConnection, "connect", forbidden)
    with pytest.raises(Refused, match="belongs to another user"):
        ControlClient(paths).get("/status")


@pytest.fixture
def long_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Paths]:
    home = tmp_path / ("x" * 110)
    home.mkdir()
    # Not below tmp_path: its own length, which grows with the number of runs, must not count.
    short = tempfile.mkdtemp(prefix="sn")
    monkeypatch.setattr("tempfile.tempdir", short)
    yield Paths(home)
    shutil.rmtree(short)


async def test_home_with_a_long_path(long_home: Paths, nursery: trio.Nursery) -> None:
    client = await serve(long_home, nursery)
    assert await trio.to_thread.run_sync(client.get, "/status") == {"state": "training"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_directory_squatted_by_another_user(long_home: Paths) -> None:
    directory = long_home.control_socket.parent
    directory.mkdir()
    os.chown(directory, 12345, 12345)
    with pytest.raises(Refused, match="belongs to uid 12345"):
        ControlClient(long_home).get("/status")


def test_importing_it_loads_nothing_heavy() -> None:
    code = (
        "import sys, swarmnode.processes.client\n"
        "print(*{'trio', 'numpy', 'cryptography', 'torch', 'h11', 'platformdirs', 'tomllib'}"
        " & set(sys.modules))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(swarmnode.__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    assert loaded.stdout.split() == []
