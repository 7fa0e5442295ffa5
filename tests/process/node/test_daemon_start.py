"""Nodes that cannot start or must not join: one line that says why, and nothing harmed."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from swarmnode.config import Paths
from swarmnode.ipc.spawn import worker_command
from swarmnode.net.channel import Channel
from swarmnode.net.peering import run_session
from swarmnode.net.services import Services
from swarmnode.net.tcp import TcpTransport
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.session.records import Role
from swarmnode.protocol.swarm import Hint, SwarmLink, network_id
from swarmnode.store.files import HomeLock, write_atomic
from swarmnode.wire.packing import encode_record
from swarmnode.wire.swarm import ManifestReply, Signed
from tests.kits.daemon_kit import (
    CREATED_UNIX_S,
    DEADLINE_S,
    LOOPBACK,
    Answer,
    Daemon,
    environment,
    free_port,
    make_home,
    new_swarm,
    swarmnode,
    wait_until,
    without_torch,
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def join(home: Path, link: str = "demo", *flags: str, **options: object) -> Answer:
    """Join and expect to be refused."""
    arguments = ("--listen", f"{LOOPBACK}:0", *flags)
    if "--metrics" not in flags:
        arguments += ("--metrics", "off")
    return swarmnode(home, "join", link, *arguments, **options)  # type: ignore[arg-type]


# --- this machine -------------------------------------------------------------------------


def test_a_port_in_use_is_named_with_what_to_do(home: Path) -> None:
    make_home(home, new_swarm())
    with socket.create_server((LOOPBACK, 0)) as other:
        port = other.getsockname()[1]
        answer = join(home, "demo", "--listen", f"{LOOPBACK}:{port}")
        assert answer.code == 2
        assert f"cannot listen on {LOOPBACK}:{port}: the port is in use" in answer.line
        answer = join(home, "demo", "--metrics", f"{LOOPBACK}:{port}", "--json")
    assert answer.code == answer.json["exit_code"] == 2
    assert f"metrics: cannot listen on port {port}" in answer.json["error"]
    assert "another program uses it" in answer.json["error"]
    assert "Traceback" not in answer.err


def test_a_home_serves_one_daemon(home: Path) -> None:
    make_home(home, new_swarm())
    with HomeLock(Paths(home).lock):
        answer = join(home)
    assert answer.code == 4
    assert f"another swarmnode (pid {os.getpid()}) already runs on this home" in answer.line


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    link = str(new_swarm().link(Hint(Identity.generate().peer_id, "127.0.0.1:1")))
    answer = join(tmp_path / "file" / "home", link)
    assert answer.code == 2
    assert f"cannot read {tmp_path}/file/home/config.toml: Not a directory" in answer.line
    assert (tmp_path / "file").read_text() == "mine"
    answer = join(Path("/proc/home"), link)
    assert answer.code == 1
    assert "cannot make the directory /proc/home" in answer.line


def test_a_secret_key_that_others_can_read_is_not_used(home: Path) -> None:
    make_home(home, new_swarm())
    Paths(home).node_key.chmod(0o640)
    answer = join(home)
    assert answer.code == 2
    assert f"(mode 0640): chmod 600 {home}/node.key" in answer.line


def test_a_damaged_key_is_never_replaced(home: Path) -> None:
    make_home(home, new_swarm())
    Paths(home).node_key.write_text("not a key")
    answer = join(home)
    assert answer.code == 2
    assert "node.key is damaged" in answer.line
    assert Paths(home).node_key.read_text() == "not a key"


def test_torch_is_asked_for_where_it_is_missing(home: Path, tmp_path: Path) -> None:
    make_home(home, new_swarm())
    answer = join(home, env=without_torch(tmp_path / "site"))
    assert answer.code == 2
    advice = "pip install '.[torch]' in the clone of swarmnode"
    assert answer.line == f"swarmnode: this task needs torch: {advice}"


# --- what is trained ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"task": "nosuch"}, 2, "task 'nosuch' is not installed here; installed: bytes-lm"),
        ({"task_version": 7}, 4, "the swarm uses version 7, version 1 is installed here"),
        ({"layout_hash": bytes(32)}, 4, "the swarm's model has layout 000000000000, here it is"),
        ({"strategy": "nosuch"}, 2, "got 'nosuch'; a newer swarmnode may have it"),
        (
            {"strategy_version": 2},
            4,
            "the swarm uses version 2 of the strategy pair-average, version 1 is installed here",
        ),
        ({"task_config": {"width": 3}}, 2, "task synthetic: unknown setting 'width'"),
        ({"codec": "RAW99"}, 2, "no codec 'RAW99'"),
    ],
)
def test_a_swarm_that_this_machine_cannot_train_is_refused(
    home: Path, changes: dict[str, object], code: int, message: str
) -> None:
    swarm = new_swarm()
    make_home(home, swarm, swarm.signed(**changes))
    answer = join(home)
    assert answer.code == code
    assert message in answer.line


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"expires_at": CREATED_UNIX_S + 1}, 4, "expired"),
        ({"created_at": 2**40}, 4, "was made in the future: check this machine's clock"),
        (
            {"min_version": "99.1"},
            4,
            "expected swarmnode >= 99.1, this is 0.1.0: update it: git pull in its clone, then",
        ),
        ({"name": "other"}, 4, "the link calls the swarm 'demo', its manifest 'other'"),
    ],
)
def test_a_manifest_on_disk_that_does_not_count_is_refused(
    home: Path, changes: dict[str, object], code: int, message: str
) -> None:
    swarm = new_swarm()
    make_home(home, swarm, swarm.signed(**changes))
    answer = join(home)
    assert answer.code == code
    assert message in answer.line


def test_a_forged_and_a_damaged_manifest_on_disk_are_refused(home: Path) -> None:
    swarm = new_swarm()
    signed = swarm.signed()
    make_home(home, swarm, Signed(signed.body + b" ", signed.public_key, signed.signature))
    answer = join(home)
    assert answer.code == 4
    assert f"{home}/swarms/demo/manifest was tampered with" in answer.line
    write_atomic(Paths(home).swarm("demo").manifest, b"\xff garbage")
    answer = join(home)
    assert answer.code == 2
    assert "manifest is damaged" in answer.line
    assert "remove it and join again" in answer.line


def test_another_swarm_of_the_same_name_needs_another_home(home: Path) -> None:
    make_home(home, new_swarm())
    link = new_swarm().link(Hint(Identity.generate().peer_id, "127.0.0.1:1"))
    answer = join(home, str(link))
    assert answer.code == 4
    assert "this home already holds another swarm named 'demo'" in answer.line


# --- what comes from peers ----------------------------------------------------------------


@asynccontextmanager
async def peer_with(signed: Signed | None, *, network: bytes | None = None) -> AsyncIterator[Hint]:
    """Run a peer that gives ``signed`` to whoever asks; yield where it is."""
    identity = Identity.generate()
    services = Services()

    async def answer(peer: bytes, payload: bytes) -> bytes:
        assert signed is not None
        return encode_record(ManifestReply(signed))

    services.add_request("manifest/1", answer)

    async def accept(channel: Channel) -> None:
        await run_session(
            channel,
            identity=identity,
            network_id=network or network_id("main"),
            services=services,
            role=Role.SERVER,
        )

    async with trio.open_nursery() as nursery:
        address = await nursery.start(TcpTransport().serve, f"{LOOPBACK}:0", accept)
        yield Hint(identity.peer_id, address)
        nursery.cancel_scope.cancel()


async def join_from(home: Path, link: SwarmLink) -> Answer:
    """Join with ``--json`` while the test's own peer runs, and expect to be refused."""
    command = worker_command("swarmnode", "join", str(link), "--json", "--metrics", "off")
    with trio.fail_after(DEADLINE_S):
        done = await trio.run_process(
            [*command, "--listen", f"{LOOPBACK}:0"],
            env=environment(home),
            stdin=subprocess.DEVNULL,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
    answer = Answer(done.returncode, done.stdout.decode(), done.stderr.decode())
    assert "Traceback" not in answer.err, answer.err
    for line in answer.out.splitlines()[:-1]:
        assert set(json.loads(line)) == {"event"}
    assert answer.json.keys() == {"error", "exit_code"}
    assert answer.json["exit_code"] == answer.code
    assert not Paths(home).swarm(link.name).manifest.exists()
    return answer


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"expires_at": CREATED_UNIX_S + 1}, "ask its creator for a new link"),
        ({"min_version": "0.1.1"}, "expected swarmnode >= 0.1.1, this is 0.1.0"),
        ({"name": "other"}, "the link calls the swarm 'demo', its manifest 'other'"),
    ],
)
async def test_a_manifest_from_a_peer_that_does_not_count_is_refused(
    home: Path, changes: dict[str, object], message: str
) -> None:
    swarm = new_swarm()
    async with peer_with(swarm.signed(**changes)) as hint:
        answer = await join_from(home, swarm.link(hint))
    assert answer.code == 4
    assert message in answer.json["error"]


async def test_a_manifest_that_a_peer_forged_is_refused(home: Path) -> None:
    swarm, forger = new_swarm(), new_swarm()
    async with peer_with(forger.signed()) as hint:
        answer = await join_from(home, swarm.link(hint))
    assert answer.code == 4
    assert "the link names the swarm key" in answer.json["error"]
    assert "no manifest" in answer.err


async def test_trust_believes_no_forged_manifest_either(home: Path) -> None:
    swarm, forger = new_swarm(), new_swarm()
    async with peer_with(forger.signed()) as hint:
        ask = functools.partial(swarmnode, home, "trust", str(swarm.link(hint)), "--json")
        answer = await trio.to_thread.run_sync(ask)
    assert answer.code == answer.json["exit_code"] == 4
    assert "the link names the swarm key" in answer.json["error"]


async def test_a_peer_with_another_key_than_the_link_says_is_refused(home: Path) -> None:
    swarm = new_swarm()
    async with peer_with(swarm.signed()) as hint:
        stranger = Identity.generate().peer_id
        answer = await join_from(home, swarm.link(Hint(stranger, hint.address)))
    assert answer.code == 4
    assert f"expected peer {stranger}, but {hint.peer} answered" in answer.json["error"]


async def test_a_peer_of_another_network_is_refused(home: Path) -> None:
    swarm = new_swarm()
    async with peer_with(swarm.signed(), network=bytes(32)) as hint:
        answer = await join_from(home, swarm.link(hint))
    assert answer.code == 4
    assert "network" in answer.json["error"]


async def test_one_good_peer_is_enough(home: Path) -> None:
    """A peer with an old manifest must not keep a newcomer out."""
    swarm = new_swarm()
    good = swarm.signed(task="nosuch")  # so that the node ends as soon as it has it
    expired = swarm.signed(expires_at=CREATED_UNIX_S + 1)
    async with contextlib.AsyncExitStack() as stack:
        hints = [await stack.enter_async_context(peer_with(s)) for s in (expired, good)]
        link = swarm.link(*hints)
        command = worker_command("swarmnode", "join", str(link), "--metrics", "off")
        with trio.fail_after(DEADLINE_S):
            done = await trio.run_process(
                [*command, "--listen", f"{LOOPBACK}:0"],
                env=environment(home),
                capture_stderr=True,
                capture_stdout=True,
                check=False,
            )
    assert done.returncode == 2
    assert b"task 'nosuch' is not installed here" in done.stderr
    assert Paths(home).swarm("demo").manifest.read_bytes() == encode_record(good)


def test_sigterm_ends_a_node_that_waits_for_its_manifest(home: Path) -> None:
    link = str(new_swarm().link(Hint(Identity.generate().peer_id, f"{LOOPBACK}:{free_port()}")))
    daemon = Daemon(home, link)
    try:
        reason = "looking for a peer that has the manifest"
        assert daemon.wait(lambda s: s["reason"] == reason, reason)["state"] == "syncing"
        wait_until(lambda: "no manifest" in daemon.log, "the reason in the log")
        code = daemon.signal(signal.SIGTERM)
    finally:
        daemon.kill()
    assert code == 0
    assert "leaving: SIGTERM" in daemon.log


def test_a_link_without_a_node_to_ask_is_refused_at_once(home: Path) -> None:
    answer = join(home, str(new_swarm().link()))
    assert answer.code == 2
    assert "names no peer (b=) to join through" in answer.line
    assert not Paths(home).node_key.exists()


def test_every_interface_means_both_families(home: Path) -> None:
    """The default of ``listen`` must not leave IPv6 out."""
    make_home(home, new_swarm())
    port = free_port()
    with socket.create_server(("::1", port), family=socket.AF_INET6):
        answer = join(home, "demo", "--listen", f"*:{port}")
    assert answer.code == 2
    assert f"cannot listen on *:{port}: the port is in use" in answer.line
