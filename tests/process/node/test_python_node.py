"""``swarmnode.Node``: a node that a Python program starts, from any loop, and stops again."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
import trio

import swarmnode
from swarmnode.errors import ConfigError, DeadlineExceeded, NotRunning, SwarmNodeError
from tests.kits.daemon_kit import (
    DEADLINE_S,
    DIM,
    environment,
    free_port,
    is_alive,
    make_home,
    new_swarm,
    snapshots,
    wait_until,
)


@pytest.fixture
def join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what joins a swarm of ``synthetic`` whose manifest is in the home already."""
    monkeypatch.setenv("SWARMNODE_THREADS", "1")
    swarm = new_swarm()
    make_home(tmp_path / "home", swarm)

    def join(**settings: Any) -> Any:
        fields = {"listen": f"127.0.0.1:{free_port()}", "metrics": "off", "lan": False}
        fields |= {"dashboard": "off"} | settings
        return swarmnode.Node.join("demo", home=tmp_path / "home", **fields)

    return join


def test_a_blocking_program_runs_a_node(join: Any, tmp_path: Path) -> None:
    with join() as node:
        assert node.wait_ready(DEADLINE_S)["state"] == "training"
        assert node.status()["swarm"] == "demo"
        assert node.peers() == []
        state = node.model_state()
        assert state["weight"].shape == (1, DIM)
        model = torch.nn.Linear(DIM, 1, bias=False)
        model.load_state_dict(state)
        node.pause()
        wait_until(lambda: node.status()["state"] == "paused", "it pauses")
        node.resume()
        wait_until(lambda: node.status()["state"] == "training", "it goes on")
        worker_pid = node.status()["worker_pid"]
        assert swarmnode.Node.running(node.home).status()["pid"] == node.pid
    assert not is_alive(node.pid)
    assert not is_alive(worker_pid)
    assert snapshots(tmp_path / "home")
    with pytest.raises(NotRunning):
        node.status()


async def use_it(join: Any) -> tuple[int, int]:
    async with join() as node:
        status = await node.wait_ready(DEADLINE_S)
        assert status["state"] == "training"
        await node.pause()
        assert (await node.model_state())["weight"].shape == (1, DIM)
        await node.resume()
        return node.node.pid, status["worker_pid"]


@pytest.mark.parametrize("run", [trio.run, lambda f, *a: asyncio.run(f(*a))], ids=["trio", "aio"])
def test_an_async_program_runs_a_node(join: Any, run: Any) -> None:
    for pid in run(use_it, join):
        assert not is_alive(pid)


def test_cancelled_under_trio_it_leaves_no_node(join: Any) -> None:
    pids = []

    async def main() -> None:
        with trio.move_on_after(0.5):
            async with join() as node:
                pids.append(node.node.pid)
                await node.wait_ready(DEADLINE_S)
                await trio.sleep_forever()

    trio.run(main)
    assert not is_alive(pids[0])


def test_cancelled_under_asyncio_it_leaves_no_node(join: Any) -> None:
    pids = []

    async def part() -> None:
        async with join() as node:
            pids.append(node.node.pid)
            await node.wait_ready(DEADLINE_S)
            await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(part())
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()  # also in the midst of leaving
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert not is_alive(pids[0])


def test_a_wrong_setting_is_an_error_at_once(join: Any) -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'lisen'.*did you mean 'listen'"):
        join(lisen="*:1")
    with pytest.raises(ConfigError, match="data: expected a folder"):
        swarmnode.Node.join("demo", data="/nowhere")


def test_what_a_node_ends_with_is_raised(join: Any) -> None:
    with join() as node:
        node.wait_ready(DEADLINE_S)
        with join() as second, pytest.raises(SwarmNodeError, match="home"):
            second.wait_ready(DEADLINE_S)
        assert node.status()["state"] == "training"


def test_waiting_ends_with_what_it_waits_for(join: Any) -> None:
    with join() as node, pytest.raises(DeadlineExceeded, match="waiting for the node to be ready"):
        node.wait_ready(0.0)


def test_a_killed_program_takes_its_node_with_it(tmp_path: Path) -> None:
    swarm = new_swarm()
    make_home(tmp_path / "home", swarm)
    program = textwrap.dedent(f"""
        import swarmnode, time
        with swarmnode.Node.join("demo", listen="127.0.0.1:{free_port()}", metrics="off",
                                 dashboard="off") as node:
            status = node.wait_ready()
            print(status["pid"], status["worker_pid"], flush=True)
            time.sleep(600)
    """)
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        encoding="utf-8",
        env=environment(tmp_path / "home"),
    ) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 2
        process.send_signal(signal.SIGKILL)
    for pid in pids:
        wait_until(lambda pid=pid: not is_alive(pid), "the node has left")
    assert snapshots(tmp_path / "home")


def test_importing_swarmnode_loads_nothing_else() -> None:
    code = (
        "import sys, swarmnode; "
        "sys.exit(any(n in sys.modules for n in ('torch', 'trio', 'msgspec', 'asyncio')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    code = (
        "import sys, swarmnode; swarmnode.Node; swarmnode.Task; "
        "sys.exit('torch' in sys.modules or 'trio' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert {"Node", "AsyncNode", "Task", "TaskConfig"} <= set(dir(swarmnode))
    with pytest.raises(AttributeError, match="no attribute 'Knot'"):
        _ = swarmnode.Knot
