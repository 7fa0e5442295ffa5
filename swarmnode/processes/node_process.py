"""A node as a process of its own, driven through its command line and control socket."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import trio

from swarmnode.config import Paths
from swarmnode.daemon.worker.process import ChildProcess
from swarmnode.errors import SwarmNodeError, WorkerError
from swarmnode.ipc.spawn import worker_command
from swarmnode.processes.children import child, start_child
from swarmnode.processes.client import ControlClient


class NodeProcess:
    """``swarmnode join`` in the background, with everything it owns in ``home``."""

    def __init__(self, home: Path, address: str) -> None:
        self.home = home
        self.address = address
        self.process: subprocess.Popen[bytes] | None = None
        self.status: dict[str, Any] = {}  # the newest answer; empty while it is down
        self.curve: list[tuple[int, float]] = []  # (step, held-out loss)

    @property
    def paths(self) -> Paths:
        """Its files."""
        return Paths(self.home)

    @property
    def is_training(self) -> bool:
        """Whether it said so last."""
        return self.process is not None and self.status.get("state") == "training"

    async def create(self, name: str, *options: str) -> str:
        """Create a swarm from this home and return its link. Raises WorkerError."""
        command = ["create", name, "--home", str(self.home), "--json", *options]
        command += ["--listen", self.address, "--advertise", self.address]
        with child(self.command(*command), stdout=subprocess.PIPE) as process:
            said, _ = await trio.to_thread.run_sync(process.communicate, abandon_on_cancel=True)
        answer = json.loads(said or b"{}")
        if process.returncode:
            raise WorkerError(f"swarmnode create failed: {answer.get('error', process.returncode)}")
        return str(answer["link"])

    async def start(self, link: str, *options: str) -> None:
        """Run ``swarmnode join``; what it prints goes to ``daemon.log`` in its home."""
        self.home.mkdir(parents=True, exist_ok=True)
        command = ["join", link, "--home", str(self.home), "--metrics", "off"]
        command += ["--dashboard", "off", *options]
        command += ["--listen", self.address, "--advertise", self.address]
        with (self.home / "daemon.log").open("ab") as log:
            # From this thread: Linux takes the end of the thread that started it for our own.
            self.process = start_child(
                self.command(*command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        await trio.lowlevel.checkpoint()

    def command(self, *arguments: str) -> list[str]:
        """Return the whole command of a verb; others may run it elsewhere, or another version."""
        return worker_command("swarmnode", *arguments)

    async def poll(self) -> None:
        """Take its newest status and note a new loss. Raises WorkerError if it has ended."""
        if self.process is None:
            return
        if self.process.poll() is not None:
            raise self.failure()
        with contextlib.suppress(SwarmNodeError):  # it is still starting
            self.status = await self.ask("GET", "/status")
        loss = self.status.get("eval_loss")
        if loss is not None and (not self.curve or self.curve[-1][1] != loss):
            self.curve.append((self.status["step"], loss))

    async def ask(self, method: str, path: str) -> Any:
        """Ask its control socket. Raises SwarmNodeError."""
        client = ControlClient(self.paths)
        call = client.get if method == "GET" else client.post
        return await trio.to_thread.run_sync(call, path, abandon_on_cancel=True)

    async def interrupt(self, deadline_s: float) -> float:
        """Stop it as Ctrl-C would; return how long that took. Raises WorkerError."""
        assert self.process is not None
        begin = trio.current_time()
        self.process.send_signal(signal.SIGINT)
        with trio.move_on_after(deadline_s):
            await self._wait_end()
        if self.process.returncode != 0:
            raise self.failure()
        return trio.current_time() - begin

    async def kill(self) -> None:
        """End daemon and worker at once, as a power cut would."""
        assert self.process is not None
        self._kill_both()
        await self._wait_end()
        self.process, self.status = None, {}

    async def _wait_end(self) -> None:
        assert self.process is not None
        await ChildProcess(self.process).wait_exit()
        self.process.wait()

    def kill_if_running(self) -> None:
        """After an error nothing may stay behind, not even a last snapshot of the worker."""
        if self.process is not None and self.process.poll() is None:
            self._kill_both()

    def _kill_both(self) -> None:
        assert self.process is not None
        self.process.kill()
        if worker_pid := self.status.get("worker_pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker_pid, signal.SIGKILL)

    def failure(self) -> WorkerError:
        """Return what to say about a node that should not have ended."""
        log = (self.home / "daemon.log").read_text(errors="replace").strip().splitlines()
        code = self.process.returncode if self.process is not None else None
        return WorkerError(f"{self.home.name} ended with status {code}: {' | '.join(log[-3:])}")


def free_addresses(count: int) -> list[str]:
    """Return loopback addresses that were free a moment ago."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{sock.getsockname()[1]}" for sock in sockets]
    for sock in sockets:
        sock.close()
    return addresses
