"""``swarmnode chaos``, short: among faults nothing goes wrong, and nothing stays behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from swarmnode.ipc.spawn import worker_command, worker_environment
from tests.kits.daemon_kit import wait_until

pytestmark = pytest.mark.slow
RUN_S = 900.0  # a minute and a half of faults, and nodes that begin and come back on a busy machine


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        worker_command("swarmnode", "chaos", *arguments, "--json"),
        env=worker_environment() | {"TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def left_behind(folder: Path) -> list[str]:
    """Return what shows that the folder is in use: mounts and processes."""
    mounts = Path("/proc/mounts").read_text().splitlines()
    found = [line for line in mounts if str(folder) in line]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        found += [command] if str(folder) in command else []
    return found


def namespaces() -> list[str]:
    """Return those of the machine that are named as ours are; laboratories have others."""
    return sorted(path.name for path in Path("/run/netns").glob("*") if path.name[0] in "hn")


def test_four_nodes_among_faults_keep_what_they_promise(tmp_path: Path) -> None:
    before = namespaces()
    # The version on the other side of an update is this one: that it is left and come back to.
    process = start(
        tmp_path, "--seed", "5", "--minutes", "1.5", "--nodes", "4", "--other", sys.executable
    )
    out, err = process.communicate(timeout=RUN_S)
    print(err)
    found = json.loads(out)
    assert found["violations"] == []
    assert process.returncode == 0
    assert found["half_applied"] == found["lost_acknowledged"] == found["orphans"] == 0
    done = [fault for fault in found["faults"] if "left_out" not in fault]
    assert len(done) >= 4
    assert all(fault["ended_s"] >= fault["began_s"] >= 0 and fault["did"] for fault in done)
    assert found["committed"] > 10
    assert found["commit_ratio"] > 0.5
    assert left_behind(tmp_path) == list(tmp_path.glob("swarmnode-chaos-*")) == []
    assert namespaces() == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_stays_of_one_that_is_ended_midway(tmp_path: Path, number: int) -> None:
    before = namespaces()
    process = start(tmp_path, "--seed", "1", "--minutes", "5", "--nodes", "2")
    assert process.stderr is not None
    assert "2 nodes train" in process.stderr.readline()
    process.send_signal(number)
    process.communicate(timeout=RUN_S)
    assert process.returncode not in (None, 0)
    wait_until(lambda: not left_behind(tmp_path), "the end of its nodes and mounts")
    assert namespaces() == before


def test_a_process_that_a_node_leaves_behind_is_found(tmp_path: Path) -> None:
    """The version that creates the swarm leaves one that is none of its children any more."""
    leaves = tmp_path / "python"
    leaves.write_text(f'#!/bin/sh\n(sleep 600 >/dev/null 2>&1 &)\nexec {sys.executable} "$@"\n')
    leaves.chmod(0o700)
    process = start(tmp_path, "--minutes", "0.5", "--nodes", "2", "--other", str(leaves))
    out, err = process.communicate(timeout=RUN_S)
    print(err)
    found = json.loads(out)
    assert process.returncode == 1
    assert found["orphans"] >= 1
    assert [each for each in found["violations"] if each.startswith("orphan: ")]
    assert "sleep 600" in " ".join(found["violations"])
