"""The run of the demo: real daemons through the real command line, one of them killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from swarmnode.cli.client import ControlClient
from swarmnode.cli.demo_view import LiveView, Row
from swarmnode.cli.export import export_model
from swarmnode.config import Paths
from swarmnode.errors import DeadlineExceeded, SwarmNodeError, WorkerError
from swarmnode.ipc.spawn import worker_command, worker_environment

SWARM_NAME = "demo"
_POLL_S = 0.5
_KILL_AT = 0.45  # of the training time
_DOWN_S = 2.0
_START_DEADLINE_S = 120.0
_STOP_DEADLINE_S = 10.0


@dataclass(frozen=True)
class DemoSettings:
    """What the user chose; ``work`` is where the homes of the nodes go."""

    nodes: int
    seconds: float
    data: Path | None
    out: Path
    work: Path


@dataclass
class DemoNode:
    """One daemon, as its command line sees it."""

    index: int
    home: Path
    address: str
    process: trio.Process | None = None
    status: dict[str, Any] = field(default_factory=dict)
    curve: list[tuple[int, float]] = field(default_factory=list)  # (step, held-out loss)
    # Counters of lives that a kill has ended.
    past_exchanges: int = 0
    past_bytes: int = 0

    @property
    def name(self) -> str:
        return f"n{self.index}"

    @property
    def paths(self) -> Paths:
        return Paths(self.home)

    def row(self) -> Row:
        state = "down" if self.process is None else self.status.get("state", "starting")
        return Row(
            name=self.name,
            state=state,
            step=self.status.get("step", 0),
            loss=self.status.get("eval_loss"),
            exchanges=self.past_exchanges + self.status.get("exchanges_committed", 0),
            peers=self.status.get("peers_connected", 0),
            sent_bytes=self.past_bytes + sum(self.status.get("sent_bytes", {}).values()),
        )


class DemoRun:
    """Everything that happened in one demo; :meth:`run` fills it."""

    def __init__(self, settings: DemoSettings, view: LiveView) -> None:
        self.settings = settings
        self._view = view
        self.link = ""
        self.nodes = [
            DemoNode(i, settings.work / f"node{i}", address)
            for i, address in enumerate(_free_addresses(settings.nodes))
        ]
        self.victim = self.nodes[-1] if settings.nodes < 3 else self.nodes[2]
        self.killed_at_step = 0
        self.rejoined_s: float | None = None
        self.leave_s: list[float] = []
        self.snapshots: list[Path] = []

    async def run(self) -> None:
        """Create, start, train, kill, restart, train on, save, leave.

        Raises:
            SwarmNodeError: a node did not do what it should; its log is in the message.
        """
        self.link = await self._create()
        self._view.say(f"created a swarm: {self.link}")
        try:
            for node in self.nodes:
                await self._start(node)
            await self._wait_until_training()
            self._view.say(f"{len(self.nodes)} nodes train together")
            await self._train()
            await self._save()
            await trio.to_thread.run_sync(
                export_model, self.nodes[0].paths, SWARM_NAME, self.settings.out / "model"
            )
            await self._leave()
        finally:
            self._kill_all()

    # --- phases ---------------------------------------------------------------------------

    async def _create(self) -> str:
        first = self.nodes[0]
        command = ["create", SWARM_NAME, "--task", "bytes-lm", "--home", str(first.home)]
        command += ["--listen", first.address, "--advertise", first.address, "--json"]
        if self.settings.data is not None:
            command += ["--data", str(self.settings.data)]
        done = await trio.run_process(
            worker_command("swarmnode", *command),
            env=worker_environment(),
            capture_stdout=True,
            check=False,
        )
        answer = json.loads(done.stdout or b"{}")
        if done.returncode:
            raise WorkerError(f"swarmnode create failed: {answer.get('error', done.returncode)}")
        return str(answer["link"])

    async def _start(self, node: DemoNode) -> None:
        node.home.mkdir(parents=True, exist_ok=True)
        command = ["join", self.link, "--home", str(node.home), "--metrics", "off"]
        command += ["--listen", node.address, "--advertise", node.address]
        if self.settings.data is not None:
            command += ["--data", str(self.settings.data)]
        with (node.home / "daemon.log").open("ab") as log:
            node.process = await trio.lowlevel.open_process(
                worker_command("swarmnode", *command),
                env=worker_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the demo; it ends the nodes itself
            )

    async def _wait_until_training(self) -> None:
        with trio.move_on_after(_START_DEADLINE_S):
            while not all(self._is_training(node) for node in self.nodes):
                await trio.sleep(_POLL_S)
                await self._poll()
            return
        raise DeadlineExceeded("waiting for every node to train", _START_DEADLINE_S)

    async def _train(self) -> None:
        total_s = self.settings.seconds
        begin = trio.current_time()
        kill_at, restart_at = total_s * _KILL_AT, total_s * _KILL_AT + _DOWN_S
        killed_s: float | None = None
        restarted_s: float | None = None
        while (elapsed := trio.current_time() - begin) < total_s:
            if killed_s is None and elapsed >= kill_at:
                await self._kill(self.victim)
                killed_s = elapsed
            elif restarted_s is None and elapsed >= restart_at:
                await self._start(self.victim)
                restarted_s = elapsed
            elif restarted_s is not None and self.rejoined_s is None and self._has_rejoined():
                self.rejoined_s = elapsed - restarted_s
                self._view.say(
                    f"{self.victim.name} is back after {self.rejoined_s:.1f} s,"
                    f" at step {self.victim.status['step']}"
                )
            self._view.show(elapsed, total_s, [node.row() for node in self.nodes])
            await trio.sleep(_POLL_S)
            await self._poll()

    async def _kill(self, node: DemoNode) -> None:
        """As a power cut would: daemon and worker at once, with no chance to say anything."""
        assert node.process is not None
        row = node.row()
        self.killed_at_step = row.step
        node.past_exchanges, node.past_bytes = row.exchanges, row.sent_bytes
        worker_pid = node.status.get("worker_pid")
        os.kill(node.process.pid, signal.SIGKILL)
        if worker_pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker_pid, signal.SIGKILL)
        await node.process.wait()
        node.process, node.status = None, {}
        self._view.say(f"killed {node.name} with SIGKILL at step {self.killed_at_step}")

    def _has_rejoined(self) -> bool:
        """Training again, and an exchange has counted since."""
        status = self.victim.status
        return self._is_training(self.victim) and status["exchanges_applied"] > 0

    async def _save(self) -> None:
        for node in self.nodes:
            answer = await self._ask(node, "POST", "/snapshot")
            self.snapshots.append(Path(answer["path"]))
        await self._poll()

    async def _leave(self) -> None:
        """Stop every node as Ctrl-C would, and time it."""
        async with trio.open_nursery() as nursery:
            for node in self.nodes:
                nursery.start_soon(self._leave_one, node)

    async def _leave_one(self, node: DemoNode) -> None:
        assert node.process is not None
        begin = trio.current_time()
        node.process.send_signal(signal.SIGINT)
        with trio.move_on_after(_STOP_DEADLINE_S):
            await node.process.wait()
            self.leave_s.append(trio.current_time() - begin)
        if node.process.returncode != 0:
            raise self._failed(node)

    # --- parts ----------------------------------------------------------------------------

    async def _poll(self) -> None:
        for node in self.nodes:
            if node.process is None:
                continue
            if node.process.poll() is not None:
                raise self._failed(node)
            with contextlib.suppress(SwarmNodeError):  # it is still starting
                node.status = await self._ask(node, "GET", "/status")
                self._note_loss(node)

    def _note_loss(self, node: DemoNode) -> None:
        loss, step = node.status["eval_loss"], node.status["step"]
        if loss is not None and (not node.curve or node.curve[-1][1] != loss):
            node.curve.append((step, loss))

    async def _ask(self, node: DemoNode, method: str, path: str) -> Any:
        client = ControlClient(node.paths)
        call = client.get if method == "GET" else client.post
        return await trio.to_thread.run_sync(call, path)

    def _is_training(self, node: DemoNode) -> bool:
        return node.process is not None and node.status.get("state") == "training"

    def _failed(self, node: DemoNode) -> WorkerError:
        log = (node.home / "daemon.log").read_text(errors="replace").strip().splitlines()
        code = node.process.returncode if node.process is not None else None
        return WorkerError(f"{node.name} ended with status {code}: {' | '.join(log[-3:])}")

    def _kill_all(self) -> None:
        """After an error or Ctrl-C nothing may stay behind; workers end with their daemon."""
        for node in self.nodes:
            if node.process is not None and node.process.poll() is None:
                node.process.kill()


def _free_addresses(count: int) -> list[str]:
    """Return loopback addresses that were free a moment ago."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{sock.getsockname()[1]}" for sock in sockets]
    for sock in sockets:
        sock.close()
    return addresses
