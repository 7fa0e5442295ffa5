"""Real daemons as Prometheus and node_exporter see them."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarmnode.config import Paths
from swarmnode.protocol.swarm import Hint
from tests.conftest import HANGS_S
from tests.kits.daemon_kit import (
    LOOPBACK,
    Daemon,
    free_port,
    make_home,
    new_swarm,
    swarmnode,
    wait_until,
)
from tests.unit.net.web.test_http import HOSTILE


def get(port: int, path: str) -> tuple[int, str, bytes]:
    """Return status, content type and body."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=20)
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.getheader("content-type", ""), answer.read()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Daemon, Daemon, int]]:
    """Two nodes without workers that know each other, and the port of the first one's metrics."""
    swarm, port = new_swarm(), free_port()
    homes = [tmp_path / "one", tmp_path / "other"]
    peers = [make_home(home, swarm).peer_id for home in homes]
    files = {
        "SWARMNODE_METRICS_TEXTFILE": str(tmp_path / "node.prom"),
        "SWARMNODE_METRICS_FILE_SD": str(tmp_path / "sd.json"),
    }
    role = ("--role", "keeper")
    one = Daemon(homes[0], str(swarm.link()), *role, "--metrics", f"{LOOPBACK}:{port}", env=files)
    hint = Hint(peers[0], f"{LOOPBACK}:{one.port}")
    other = Daemon(homes[1], str(swarm.link(hint)), *role)
    try:
        one.wait(lambda status: status["peers_connected"] == 1, "two nodes that have met")
        yield one, other, port
    finally:
        one.kill()
        other.kill()


def test_one_node_shows_both_and_a_dead_one_is_down(
    pair: tuple[Daemon, Daemon, int], tmp_path: Path
) -> None:
    one, other, port = pair
    status, content_type, body = get(port, "/sd")
    assert (status, content_type) == (200, "application/json")
    targets = json.loads(body)
    assert [target["targets"] for target in targets] == [[f"{LOOPBACK}:{port}"]] * 2
    for target in targets:
        status, content_type, body = get(port, target["labels"]["__metrics_path__"])
        assert (status, content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert f'peer="{target["labels"]["instance"]}"'.encode() in body
        assert b"swarmnode_resident_memory_bytes{" in body
        if shutil.which("promtool") is not None:
            done = subprocess.run(
                ["promtool", "check", "metrics"],
                input=body,
                capture_output=True,
                timeout=30,
                check=False,
            )
            assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")

    text, file_sd = tmp_path / "node.prom", tmp_path / "sd.json"
    wait_until(lambda: text.exists() and file_sd.exists(), "the files")
    assert text.stat().st_mode & 0o777 == file_sd.stat().st_mode & 0o777 == 0o644
    assert text.read_bytes().startswith(b"# HELP swarmnode_build_info ")
    assert json.loads(file_sd.read_bytes())[0]["targets"] == [f"{LOOPBACK}:{port}"]

    other.kill()
    path = f"/peers/{other_peer(one, targets)}/metrics"
    assert wait_until(lambda: get(port, path)[0] == 504, "a dead peer that is down")
    assert get(port, "/peers/sn1nobody/metrics")[0] == 404
    assert get(port, targets[0]["labels"]["__metrics_path__"])[0] == 200
    assert one.status()["pid"] == one.pid


def other_peer(one: Daemon, targets: list[dict[str, dict[str, str]]]) -> str:
    own = one.status()["peer"]
    paths = (target["labels"]["__metrics_path__"].split("/")[2] for target in targets)
    return next(peer for peer in paths if peer != own)


def test_the_verb_prints_and_writes_once(pair: tuple[Daemon, Daemon, int], tmp_path: Path) -> None:
    one, _, _ = pair
    printed = swarmnode(one.home, "metrics")
    assert printed.code == 0
    assert printed.out.startswith("# HELP swarmnode_build_info ")
    text, file_sd = tmp_path / "once.prom", tmp_path / "once.json"
    done = swarmnode(one.home, "metrics", "--textfile", str(text), "--file-sd", str(file_sd))
    assert (done.code, done.out) == (0, "")
    assert b"swarmnode_local_steps_total 0.0\n" in text.read_bytes()
    targets = json.loads(file_sd.read_bytes())
    assert len(targets) == 2
    for target in targets:
        peer = target["labels"]["__metrics_path__"].split("/")[2]
        page = swarmnode(one.home, "metrics", "--peer", peer)
        assert f'peer="{target["labels"]["instance"]}"' in page.out
    assert swarmnode(one.home, "metrics", "--peer", "sn1x").code == 1
    wrong = swarmnode(one.home, "metrics", "--textfile", str(tmp_path / "no" / "x.prom"))
    assert wrong.code == 2
    assert "no such directory" in wrong.line


def test_hostile_bytes_over_tcp_and_unix_do_not_stop_the_daemon(
    pair: tuple[Daemon, Daemon, int],
) -> None:
    one, _, port = pair
    control = Paths(one.home).control_socket
    for raw in HOSTILE.values():
        for family, address in (
            (socket.AF_INET, (LOOPBACK, port)),
            (socket.AF_UNIX, str(control)),
        ):
            with socket.socket(family, socket.SOCK_STREAM) as client:
                client.settimeout(HANGS_S)
                client.connect(address)
                # It may refuse, and close, before it has read all.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    client.sendall(raw)
                    client.shutdown(socket.SHUT_WR)
                    while client.recv(65_536):
                        pass
    assert get(port, "/metrics")[0] == 200
    assert one.status()["pid"] == one.pid
    assert "Traceback" not in one.log
