"""A custom task from a link: what it asks is shown, answered once, installed, and trained."""

from __future__ import annotations

import hashlib
import os
import pty
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swarmnode.config import Paths
from swarmnode.ipc.spawn import worker_command
from swarmnode.processes import pip
from swarmnode.processes.client import ControlClient
from swarmnode.protocol.swarm import parse_link
from swarmnode.store.swarms import read_manifest
from swarmnode.wire.environment import PinnedPackage
from tests.kits.daemon_kit import (
    DEADLINE_S,
    Daemon,
    environment,
    free_port,
    swarmnode,
    wait_until,
)
from tests.kits.index_kit import Index, serving, wheel

POINTS = b"1,2\n" * 100


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with serving(tmp_path / "index") as found:
        (found.folder / "points.csv").write_bytes(POINTS)
        yield found


@pytest.fixture
def creator(tmp_path: Path, index: Index) -> dict[str, str]:
    """Return the variables of a machine on which the package of the task is installed."""
    task, target = index.add_level()
    named = (("swarmnode-level", "1.0", task), ("level-target", "2.1", target))
    packages = [PinnedPackage(*each[:2], (hashlib.sha256(each[2]).digest(),)) for each in named]
    python = pip.make_venv(tmp_path / "theirs")
    pip.install_exactly(python, packages, index.address)
    site = next((tmp_path / "theirs" / "lib").glob("python*/site-packages"))
    return {"PYTHONPATH": str(site)}


def created(tmp_path: Path, index: Index, creator: dict[str, str], *options: str) -> str:
    home, address = tmp_path / "creator", f"127.0.0.1:{free_port()}"
    command = ["create", "levels", "--task", "level", "--index", index.address, "--listen", address]
    made = swarmnode(home, *command, *options, "--json", env=creator)
    assert made.code == 0, made.out + made.err
    return str(made.json["link"])


def join(tmp_path: Path, link: str, *options: str) -> list[str]:
    address = f"127.0.0.1:{free_port()}"
    more = ["--listen", address, "--metrics", "off", "--steps", "20", *options]
    return ["join", link, "--home", str(tmp_path / "volunteer"), *more]


def brought(tmp_path: Path) -> None:
    """Put the manifest into the volunteer's home, as if a member had given it."""
    theirs = Paths(tmp_path / "creator").swarm("levels").manifest
    ours = Paths(tmp_path / "volunteer").swarm("levels").manifest
    ours.parent.mkdir(parents=True)
    ours.write_bytes(theirs.read_bytes())


def test_create_names_what_the_task_needs_with_the_hashes_of_the_index(
    tmp_path: Path, index: Index, creator: dict[str, str]
) -> None:
    created(tmp_path, index, creator, "--data-from", f"{index.base}/points.csv")
    named = read_manifest("levels", Paths(tmp_path / "creator")).environment
    assert named
    assert [(each.name, each.version) for each in named.packages] == [
        ("swarmnode-level", "1.0"),
        ("level-target", "2.1"),
    ]
    for each, page in zip(named.packages, ("swarmnode-level", "level-target"), strict=True):
        (path,) = (index.folder / "simple" / page).glob("*.whl")
        assert each.hashes == (hashlib.sha256(path.read_bytes()).digest(),)
    assert named.index == index.address
    assert named.data
    assert named.data.sha256 == hashlib.sha256(POINTS).digest()
    assert named.memory_bytes > 10**8  # torch alone
    assert named.disk_bytes > len(POINTS)


def test_a_requirement_that_is_not_what_is_installed_is_refused(
    tmp_path: Path, index: Index, creator: dict[str, str]
) -> None:
    command = ["create", "levels", "--task", "level", "--listen", "127.0.0.1:7999"]
    command += ["--index", index.address, "--task-requirement", "swarmnode-level==2.0"]
    made = swarmnode(tmp_path / "creator", *command, env=creator)
    assert made.code == 2
    assert "expected the package that has task 'level' here, swarmnode-level==1.0" in made.line


def test_without_a_terminal_the_command_that_says_yes_is_named(
    tmp_path: Path, index: Index, creator: dict[str, str]
) -> None:
    link = created(tmp_path, index, creator)
    brought(tmp_path)
    refused = swarmnode(tmp_path / "volunteer", *join(tmp_path, link))
    assert refused.code == 4
    (line,) = [each for each in refused.lines if "no terminal is there to ask" in each]
    assert line.endswith("--yes-install")
    assert "swarmnode join 'swarm:levels?k=" in line
    assert not Paths(tmp_path / "volunteer").swarm("levels").directory.joinpath("agreed").exists()
    assert not list(tmp_path.glob("volunteer/swarms/levels/environment"))


def test_a_no_installs_nothing_and_a_yes_trains(
    tmp_path: Path, index: Index, creator: dict[str, str]
) -> None:
    link = created(tmp_path, index, creator, "--data-from", f"{index.base}/points.csv")
    brought(tmp_path)
    said = on_terminal(tmp_path, join(tmp_path, link), answer=b"\n", until=b"nothing was installed")
    assert b"package swarmnode-level 1.0" in said
    assert b"what it needs: level-target 2.1" in said
    assert f"from: {index.address}, an index that the manifest names".encode() in said
    assert f"data: {index.base}/points.csv".encode() in said
    assert b"install that? [y/N]" in said
    assert not list(tmp_path.glob("volunteer/swarms/levels/environment"))

    home = Paths(tmp_path / "volunteer")

    def has_trained() -> bool:
        return bool(ControlClient(home).get("/status")["step"] >= 20)

    command = join(tmp_path, link)
    on_terminal(tmp_path, command, answer=b"y\n", until=b"training on", then=has_trained)
    folder = tmp_path / "volunteer" / "swarms" / "levels"
    assert (folder / "data" / "points.csv").read_bytes() == POINTS
    assert (folder / "environment" / "swarmnode-environment").exists()

    index.asked.clear()  # the second time there is no question, and nothing is fetched
    said = on_terminal(tmp_path, join(tmp_path, link), answer=b"", until=b"swarm levels: task")
    assert b"install that" not in said
    assert index.asked == []


def test_a_changed_byte_at_the_index_ends_the_join_with_its_name(
    tmp_path: Path, index: Index, creator: dict[str, str]
) -> None:
    link = created(tmp_path, index, creator)
    brought(tmp_path)
    index.add("level-target", "2.1", wheel("level-target", "2.1", {"level_target.py": "T = 1\n"}))
    refused = swarmnode(tmp_path / "volunteer", *join(tmp_path, link, "--yes-install"))
    assert refused.code == 4
    assert "package level-target 2.1 at the index is not the one" in refused.err


def test_with_a_link_alone_three_commands_lead_to_training(
    tmp_path: Path, index: Index, creator: dict[str, str]
) -> None:
    """As the page of the volunteer has them, with settings of this machine in the environment."""
    link = created(tmp_path, index, creator, "--data-from", f"{index.base}/points.csv")
    port = int(parse_link(link).hints[0].address.rpartition(":")[2])
    member = Daemon(tmp_path / "creator", "levels", "--role", "keeper", port=port)
    home, theirs = tmp_path / "volunteer", Paths(tmp_path / "creator").swarm("levels")
    variables = {"SWARMNODE_LISTEN": f"127.0.0.1:{free_port()}", "SWARMNODE_METRICS": "off"}
    try:
        member.wait(lambda s: s["state"] == "serving", "a member that serves")
        shown = swarmnode(home, "trust", link, env=variables)
        assert shown.code == 0, shown.err
        assert "package swarmnode-level 1.0" in shown.out
        assert not list(home.glob("swarms/*")), "nothing is written"
        index.asked.clear()
        with (tmp_path / "volunteer.log").open("wb") as log:
            node = subprocess.Popen(
                worker_command("swarmnode", "join", link, "--yes-install"),
                env=environment(home, variables),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

        def has_trained() -> bool:
            assert node.poll() is None, (tmp_path / "volunteer.log").read_text()
            status = swarmnode(home, "status", "--json")
            return status.code == 0 and status.json["step"] >= 20

        try:
            wait_until(has_trained, "twenty steps")
        finally:
            node.terminate()
            node.wait(DEADLINE_S)
    finally:
        member.kill()
    assert Paths(home).swarm("levels").manifest.read_bytes() == theirs.manifest.read_bytes()
    wheels = {path.name for path in index.folder.rglob("*.whl")}
    assert {line.rpartition("/")[2] for line in index.asked} >= {"points.csv", *wheels}
    assert len(wheels) == 2


def on_terminal(
    tmp_path: Path,
    command: list[str],
    *,
    answer: bytes,
    until: bytes,
    then: Callable[[], bool] = lambda: True,
) -> bytes:
    """Run a verb on a terminal, answer its question; end it when it has said ``until``, and then
    ``then`` is true.
    """
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        worker_command("swarmnode", *command),
        env=environment(tmp_path / "volunteer", {"PYTHONPATH": ""}) | {"COLUMNS": "400"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        said, is_answered = b"", False
        while part := _read(ours):
            said += part
            if b"[y/N]" in said and not is_answered:
                os.write(ours, answer)
                is_answered = True
            if until in said:
                wait_until(then, "what follows")
                process.terminate()
                break
        while _read(ours):
            pass
        process.wait(DEADLINE_S)
    os.close(ours)
    assert until in said, said.decode(errors="replace")
    return said


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # so a terminal says that no process has its other side any more
        return b""
