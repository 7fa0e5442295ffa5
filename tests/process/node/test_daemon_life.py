"""Two real nodes with real workers: they train, exchange, die, come back and leave.

One pair of daemons serves the whole module; every test leaves both of them training.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import resource
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from swarmnode import limits
from swarmnode.config import Paths
from swarmnode.daemon.discovery.dht import DHT_SERVICE
from swarmnode.daemon.membership.members import HELLO_SERVICE
from swarmnode.errors import AuthenticationFailed, SwarmNodeError, TransportError
from swarmnode.ids import PeerId
from swarmnode.net.peering import run_session
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.net.tcp import TcpChannel, TcpTransport
from swarmnode.processes.audit import audit_histories
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.session.records import Role
from swarmnode.protocol.swarm import Hint, network_id
from swarmnode.store.files import read_history
from swarmnode.wire.admission import Credentials
from swarmnode.wire.dht import Find
from swarmnode.wire.membership import SwarmHello
from swarmnode.wire.packing import encode_record
from tests.conftest import HANGS_S
from tests.kits.daemon_kit import (
    LOOPBACK,
    Daemon,
    Swarm,
    is_alive,
    make_home,
    new_swarm,
    snapshots,
    swarmnode,
    wait_until,
)

RSS_KIB_MAX = 80 * 1024
IDLE_CPU_SHARE_MAX = 0.01
IDLE_S = 4.0


@dataclass
class Pair:
    swarm: Swarm
    a: Daemon
    b: Daemon
    link: str

    def wait_exchanges(self, more: int = 3) -> None:
        """Return when each has applied so many exchanges from now on."""
        for node in (self.a, self.b):
            now = node.status().get("exchanges_applied", 0)
            node.wait(
                lambda s, now=now: s["exchanges_applied"] >= now + more,  # type: ignore[misc]
                f"{more} more exchanges",
            )


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    swarm = new_swarm()
    identity = make_home(folder / "a", swarm)
    a = Daemon(folder / "a", "demo")
    link = str(swarm.link(Hint(identity.peer_id, f"{LOOPBACK}:{a.port}")))
    b = Daemon(folder / "b", link)
    pair = Pair(swarm, a, b, link)
    try:
        a.wait_training()
        b.wait_training()
        yield pair
    finally:
        a.kill()
        b.kill()


# --- together -----------------------------------------------------------------------------


def test_two_nodes_exchange_and_see_each_other(pair: Pair) -> None:
    pair.wait_exchanges()
    for node, other in ((pair.a, pair.b), (pair.b, pair.a)):
        status = node.status()
        assert status["exchanges_half_applied"] == 0
        assert status["peers_connected"] == 1
        (peer,) = node.peers()
        assert peer["peer"] == other.status()["peer"]
        assert peer["connected"]
        text = swarmnode(node.home, "peers")
        assert text.code == 0
        assert peer["peer"][:15] in text.out
        one_line = swarmnode(node.home, "status", "--json")
        assert one_line.json["peer"] == status["peer"]
        assert len(one_line.out.splitlines()) == 1
    histories = {d.status()["peer"]: read_history(Paths(d.home).history) for d in (pair.a, pair.b)}
    assert audit_histories(histories).committed > 0


def test_a_second_daemon_on_the_same_home_is_refused(pair: Pair) -> None:
    answer = swarmnode(pair.a.home, "join", "demo", "--listen", f"{LOOPBACK}:0", "--metrics", "off")
    assert answer.code == 4
    assert f"another swarmnode (pid {pair.a.pid}) already runs on this home" in answer.line
    assert pair.a.status()["state"] == "training"


def test_an_idle_daemon_is_small_and_quiet(pair: Pair) -> None:
    for node in (pair.a, pair.b):
        node.ask("/pause")
    try:
        for node in (pair.a, pair.b):
            node.wait(lambda s: s["state"] == "paused", "paused")
        for node in (pair.a, pair.b):
            wait_until(functools.partial(_is_quiet, node), f"a quiet {node.home.name}")
            assert _rss_kib(node.pid) <= RSS_KIB_MAX
            maps = Path(f"/proc/{node.pid}/maps").read_text()
            assert "libtorch" not in maps
    finally:
        for node in (pair.a, pair.b):
            node.ask("/resume")
    pair.wait_exchanges(1)


def _is_quiet(node: Daemon) -> bool:
    """Return whether nothing happens for a while; beside busy neighbours all costs more."""
    begin_s = _cpu_s(node.pid)
    trio.run(trio.sleep, IDLE_S)
    ticks_s = 2 / os.sysconf("SC_CLK_TCK")
    return _cpu_s(node.pid) - begin_s <= IDLE_CPU_SHARE_MAX * IDLE_S + ticks_s


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS:")).split()[1])


# --- strangers ----------------------------------------------------------------------------


def test_garbage_and_half_open_connections_harm_nothing(pair: Pair) -> None:
    payloads = (
        b"",
        b"\0" * 70_000,
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x40\x00" + b"\xff" * 20_000,  # a TLS record that is too long
        b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",  # a client hello that is none
        os.urandom(4096),
    )
    idle = [socket.create_connection((LOOPBACK, pair.a.port)) for _ in range(200)]
    try:
        for payload in payloads:
            with socket.create_connection((LOOPBACK, pair.a.port)) as sock:
                sock.settimeout(HANGS_S)
                try:
                    sock.sendall(payload)
                    sock.shutdown(socket.SHUT_WR)
                    while sock.recv(65536):
                        pass
                except TimeoutError:
                    raise  # it must say something, or hang up
                except OSError:
                    pass  # it may hang up in the middle of our nonsense
        pair.wait_exchanges(1)
        assert _rss_kib(pair.a.pid) <= RSS_KIB_MAX
        assert (
            len(list(Path(f"/proc/{pair.a.pid}/fd").iterdir()))
            < limits.SILENT_STRANGERS_PER_BLOCK_MAX + limits.STRANGERS_PER_BLOCK_MAX + 40
        )
    finally:
        for sock in idle:
            sock.close()
    assert "Traceback" not in pair.a.log
    assert pair.a.log.count("refused a connection") < 20  # a flood is no flood of lines


def test_a_wrong_expected_peer_is_told_on_both_sides(pair: Pair) -> None:
    expected = Identity.generate().peer_id

    async def dial() -> None:
        channel = await TcpTransport().dial(f"{LOOPBACK}:{pair.a.port}")
        await run_session(
            channel,
            identity=Identity.generate(),
            network_id=network_id("main"),
            services=Services(),
            role=Role.CLIENT,
            expected=expected,
        )

    def is_refused_and_logged() -> bool:
        with (
            contextlib.suppress(TransportError),  # no room while strangers hold it
            pytest.raises(AuthenticationFailed, match=f"expected peer {expected}, but"),
        ):
            trio.run(dial)
        return f"refused this node: expected peer {expected}" in pair.a.log

    # Again, because refusals that come thick and fast share a line.
    wait_until(is_refused_and_logged, "both lines")


class DeafChannel(TcpChannel):
    """Reads until it is told to stop, and takes nothing more from the kernel then."""

    is_deaf = False

    async def receive_into(self, buffer: memoryview) -> int:
        if self.is_deaf:
            await trio.sleep_forever()
        return await super().receive_into(buffer)


async def ask_in_vain(session: Session, question: bytes) -> None:
    with contextlib.suppress(SwarmNodeError):
        await session.request(DHT_SERVICE, question, deadline_s=10.0)


def test_a_peer_that_stops_reading_holds_no_other_up(pair: Pair) -> None:
    async def be_deaf_while_others_train() -> None:
        stream = await trio.open_tcp_stream(LOOPBACK, pair.a.port)
        channel = DeafChannel(stream.socket)
        async with trio.open_nursery() as nursery:

            async def be_a_peer(
                task_status: trio.TaskStatus[Session] = trio.TASK_STATUS_IGNORED,
            ) -> None:
                await run_session(
                    channel,
                    identity=Identity.generate(),
                    network_id=network_id("main"),
                    services=Services(),
                    role=Role.CLIENT,
                    expected=PeerId.parse(pair.a.status()["peer"]),
                    task_status=task_status,
                )

            session: Session = await nursery.start(be_a_peer)
            hello = encode_record(SwarmHello("trainer", Credentials(None)))
            tag = pair.swarm.link().tag
            await session.request(f"{HELLO_SERVICE}@{tag}", hello, deadline_s=10.0)
            await trio.to_thread.run_sync(
                lambda: pair.a.wait(lambda s: s["peers_connected"] == 2, "the deaf peer")
            )
            channel.is_deaf = True
            question = encode_record(Find(1, (), bytes(32)))
            for _ in range(200):  # more than a session lets run at once; no answer is read
                nursery.start_soon(ask_in_vain, session, question)
            await trio.to_thread.run_sync(functools.partial(pair.wait_exchanges, 1))
            nursery.cancel_scope.cancel()

    trio.run(be_deaf_while_others_train)
    assert _rss_kib(pair.a.pid) <= RSS_KIB_MAX
    assert "Traceback" not in pair.a.log


# --- death --------------------------------------------------------------------------------


def test_a_killed_worker_is_replaced_and_goes_on_from_the_snapshot(pair: Pair) -> None:
    saved = pair.a.ask("/snapshot")
    before = pair.a.status()
    os.kill(before["worker_pid"], signal.SIGKILL)
    after = pair.a.wait(
        lambda s: s["state"] == "training" and s["worker_pid"] not in (None, before["worker_pid"]),
        "another worker",
    )
    assert after["worker_restarts"] == before["worker_restarts"] + 1
    assert after["pid"] == before["pid"]
    pair.a.wait_training(saved["step"])
    assert "killed by SIGKILL; out of memory?" in pair.a.log
    pair.wait_exchanges(1)


def test_a_killed_daemon_leaves_no_worker_and_comes_back_as_itself(pair: Pair) -> None:
    saved = pair.b.ask("/snapshot")
    before = pair.b.status()
    code = pair.b.signal(signal.SIGKILL)
    assert code == -signal.SIGKILL
    wait_until(lambda: not is_alive(before["worker_pid"]), "the end of the worker")
    answer = swarmnode(pair.b.home, "status")
    assert answer.code == 3  # the socket that the dead one left behind is no daemon
    assert "no swarmnode runs on" in answer.line
    pair.b.start()
    after = pair.b.wait_training(saved["step"])
    assert after["peer"] == before["peer"]
    pair.wait_exchanges(1)


def test_ctrl_c_saves_and_ends(pair: Pair) -> None:
    before = pair.b.status()
    code = pair.b.signal(signal.SIGINT)
    assert code == 0
    assert "leaving: Ctrl-C" in pair.b.log
    assert not is_alive(before["worker_pid"])
    newest = snapshots(pair.b.home)[-1]
    assert int(newest.split("-")[1].split(".")[0]) >= before["step"]
    pair.a.wait(lambda s: s["peers_connected"] == 0, "the goodbye")
    pair.b.start()
    pair.b.wait_training(before["step"])
    pair.wait_exchanges(1)


@contextlib.contextmanager
def no_room_for(pid: int) -> Iterator[None]:
    """Let a process write to no file past its first bytes, as on a full disk."""
    limit = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1000, limit[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)


def test_a_disk_without_room_costs_snapshots_and_nothing_else(pair: Pair) -> None:
    pair.a.ask("/snapshot")
    status = pair.a.status()
    kept = snapshots(pair.a.home)
    with no_room_for(status["worker_pid"]):
        answer = swarmnode(pair.a.home, "export", str(pair.a.home.parent / "export"))
        assert answer.code == 1
        assert "no space left to write snapshot-" in answer.line
        alarmed = pair.a.wait(lambda s: "ALARM" in s["reason"], "the alarm")
        assert alarmed["state"] == "training"
        assert snapshots(pair.a.home) == kept
        assert "snapshot not written" in pair.a.log
        with no_room_for(status["pid"]):  # neither the history nor the log can grow now
            pair.wait_exchanges()
            pair.a.wait_training(alarmed["step"] + 10)
    saved = pair.a.ask("/snapshot")
    assert Path(saved["path"]).name in snapshots(pair.a.home)
    pair.a.wait(lambda s: "ALARM" not in s["reason"], "the end of the alarm")
    pair.wait_exchanges(1)


# --- alone --------------------------------------------------------------------------------


@pytest.fixture
def lonely(tmp_path: Path) -> Iterator[Daemon]:
    """A node whose model needs more memory than there is."""
    swarm = new_swarm()
    signed = swarm.signed(task_config={"dim": 2048, "batch": 2**31 - 1})
    make_home(tmp_path / "home", swarm, signed)
    daemon = Daemon(tmp_path / "home", "demo", "--json")
    yield daemon
    daemon.kill()


def test_a_worker_out_of_memory_says_so_and_is_tried_again(lonely: Daemon) -> None:
    status = lonely.wait(lambda s: s["worker_restarts"] > 0, "a restart")
    assert "out of memory; use a smaller batch or model" in status["reason"]
    answer = swarmnode(lonely.home, "leave", "--json")
    assert answer.code == 0
    assert answer.json == {"left": True, "swarm": "demo", "pid": lonely.pid}
    assert lonely.process is not None
    assert lonely.process.wait(HANGS_S) == 0
    events = [line for line in lonely.log.splitlines() if line.startswith("{")]
    assert json.loads(events[-1]) == {"event": "leaving: asked to leave"}
    again = swarmnode(lonely.home, "leave", "--json")
    assert again.code == again.json["exit_code"] == 3
