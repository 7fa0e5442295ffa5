"""Real nodes for tests: homes, command lines, daemons, and waiting for what they do."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import trio

from swarmnode.config import Paths
from swarmnode.errors import SwarmNodeError
from swarmnode.ipc.spawn import worker_command, worker_environment
from swarmnode.processes.client import ControlClient
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.swarm import Hint, SwarmLink, sign_manifest
from swarmnode.store.files import make_private_dir, write_atomic
from swarmnode.store.keys import load_or_create_identity
from swarmnode.store.swarms import save_link
from swarmnode.strategies.installed import installed_strategies
from swarmnode.tensor.layout import Layout
from swarmnode.wire.packing import encode_record
from swarmnode.wire.swarm import Manifest, Signed

DEADLINE_S = 120.0  # torch from a cold disk on a busy machine
DIM = 2048
CREATED_UNIX_S = 1_700_000_000
LOOPBACK = "127.0.0.1"


@functools.cache
def sandbox_here() -> tuple[int, str]:
    """Return what the kernel of this machine has for workers: Landlock's version, and in words."""
    script = (
        "from swarmnode.worker.sandbox import offered_here as found;"
        " print(found().landlock, found().words, sep='\\n')"
    )
    command = [sys.executable, "-c", script]  # in a process without threads
    done = subprocess.run(command, env=worker_environment(), capture_output=True, check=True)
    version, words = done.stdout.decode().splitlines()
    return int(version), words


# --- command lines ------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What one run of the command line left behind."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """Lines of ours on standard error: what is being done, and what went wrong."""
        assert "Traceback" not in self.out + self.err, self.out + self.err
        return [one for one in self.err.splitlines() if one.startswith("swarmnode: ")]

    @property
    def line(self) -> str:
        """The one line that an error is."""
        assert len(self.lines) == 1, self.err
        return self.lines[0]

    @property
    def json(self) -> Any:
        """The only, or the last, JSON value on standard output."""
        values = [json.loads(one) for one in self.out.splitlines()]
        assert values, self.err
        return values[-1]


def environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    inherited = {k: v for k, v in worker_environment().items() if not k.startswith("SWARMNODE_")}
    # Nodes of other tests on this machine, and of other machines, are none of a test's business.
    ours = {"SWARMNODE_HOME": str(home), "SWARMNODE_THREADS": "1", "SWARMNODE_LAN": "false"}
    ours["SWARMNODE_DASHBOARD"] = "off"  # one port, which the first of many nodes would take
    ours["SWARMNODE_RENDEZVOUS"] = "link,contacts"  # a test asks no DHT and no DNS of the world
    ours["SWARMNODE_PROXY"] = "off"  # that of this machine is for people
    # Nodes that train all they can would starve those that other tests are just starting.
    ours["SWARMNODE_CPU_PERCENT"] = "30"
    ours |= extra or {}
    path = os.pathsep.join(filter(None, (ours.get("PYTHONPATH"), inherited["PYTHONPATH"])))
    return inherited | ours | {"PYTHONPATH": path}


def swarmnode(
    home: Path, *arguments: str, env: Mapping[str, str] | None = None, **popen: Any
) -> Answer:
    """Run one verb to its end."""
    done = subprocess.run(
        worker_command("swarmnode", *arguments),
        capture_output=True,
        encoding="utf-8",
        timeout=DEADLINE_S,
        stdin=subprocess.DEVNULL,
        env=environment(home, env),
        check=False,
        **popen,
    )
    return Answer(done.returncode, done.stdout, done.stderr)


def without_torch(folder: Path) -> dict[str, str]:
    """Return an environment in which torch is not installed, as far as Python can tell."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "class NoTorch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch':\n"
        "            raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n"
        "sys.meta_path.insert(0, NoTorch())\n"
    )
    return {"PYTHONPATH": str(folder)}


def wait_until(condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """Return what ``condition`` returns as soon as that is true."""

    async def poll() -> Any:
        with trio.move_on_after(deadline_s):
            # In a thread, so that it may wait for a process or run Trio itself.
            while not (found := await trio.to_thread.run_sync(condition)):  # noqa: ASYNC110
                await trio.sleep(0.03)
            return found
        raise AssertionError(f"not within {deadline_s} s: {what}")

    return trio.run(poll)


_given: set[int] = set()


def free_port() -> int:
    """Return a port that none listens on, and that the system gives no outgoing connection.

    Those it chooses itself are 32768 and above (Linux): a connection of another test could take
    one before the node listens there. None is given twice, by any worker of this run: nodes begin
    to listen some time after they are told where.
    """
    lane = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    lanes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    while True:
        port = 10_000 + lane + lanes * secrets.randbelow(22_768 // lanes)
        if port not in _given:
            with contextlib.suppress(OSError), socket.create_server((LOOPBACK, port)):
                _given.add(port)
                return port


# --- swarms and homes ---------------------------------------------------------------------


@dataclass(frozen=True)
class Swarm:
    """A swarm whose creator is the test: it can sign anything."""

    key: Identity
    name: str = "demo"

    def manifest(self, **changes: Any) -> Manifest:
        """Return the manifest of ``synthetic`` with DIM numbers, or something else."""
        strategy = installed_strategies().get(changes.get("strategy", "pair-average"))
        manifest = Manifest(
            name=self.name,
            swarm_key=self.key.public_key,
            task="synthetic",
            task_version=1,
            task_config={"dim": DIM, "batch": 256},
            numel=DIM,
            layout_hash=Layout.of([("weight", (1, DIM), "float32")]).layout_hash,
            data_hash=b"",
            strategy="pair-average",
            strategy_version=strategy.version if strategy else 1,
            strategy_settings={"every": 8},
            codec="Q8B64",
            seed=7,
            admission="open",
            min_version="0.1.0",
            created_at=CREATED_UNIX_S,
            expires_at=0,
        )
        return msgspec.structs.replace(manifest, **changes)

    def signed(self, **changes: Any) -> Signed:
        return sign_manifest(self.manifest(**changes), self.key)

    def link(self, *hints: Hint) -> SwarmLink:
        return SwarmLink(self.name, self.key.public_key, hints)


def new_swarm(name: str = "demo") -> Swarm:
    return Swarm(Identity.generate(), name)


def make_home(home: Path, swarm: Swarm, signed: Signed | None = None) -> Identity:
    """Make a home that has joined ``swarm`` before; return its node's identity."""
    paths = Paths(home)
    make_private_dir(paths.swarm(swarm.name).directory)
    identity = load_or_create_identity(paths.node_key)
    save_link(swarm.link(), paths)
    write_atomic(paths.swarm(swarm.name).manifest, encode_record(signed or swarm.signed()))
    return identity


# --- daemons ------------------------------------------------------------------------------


class Daemon:
    """``swarmnode join`` as a process of its own; always stopped by :meth:`kill`."""

    def __init__(
        self,
        home: Path,
        link: str,
        *flags: str,
        env: Mapping[str, str] | None = None,
        host: str = LOOPBACK,
        port: int = 0,
    ) -> None:
        self.home, self.env = home, env
        self.host, self.port = host, port or free_port()
        self._link, self._flags = link, flags
        self._client = ControlClient(Paths(home))
        self.process: subprocess.Popen[bytes] | None = None
        self.log_path = home.parent / f"{home.name}.log"
        self.start()

    def arguments(self) -> list[str]:
        """Return the command line without the name of the program."""
        arguments = ["join", self._link, *self._flags, "--listen", f"{self.host}:{self.port}"]
        return arguments if "--metrics" in self._flags else [*arguments, "--metrics", "off"]

    def command(self) -> list[str]:
        """Return the whole command line."""
        return worker_command("swarmnode", *self.arguments())

    def start(self) -> None:
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(self.home, self.env),
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def status(self) -> dict[str, Any]:
        """Return its status; empty while it cannot answer."""
        assert self.process is not None
        assert self.process.poll() is None, f"it ended: {self.log}"
        try:
            status: dict[str, Any] = self._client.get("/status")
        except SwarmNodeError:
            return {}
        return status

    def get(self, path: str) -> Any:
        return self._client.get(path)

    def ask(self, path: str) -> Any:
        return self._client.post(path)

    def peers(self) -> list[dict[str, Any]]:
        peers: list[dict[str, Any]] = self._client.get("/peers")
        return peers

    def wait(
        self,
        condition: Callable[[dict[str, Any]], Any],
        what: str,
        deadline_s: float = DEADLINE_S,
    ) -> dict[str, Any]:
        """Return the first status for which ``condition`` holds."""

        def holds() -> dict[str, Any] | None:
            status = self.status()
            return status if status and condition(status) else None

        try:
            found: dict[str, Any] = wait_until(holds, what, deadline_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; status {self.status()}; log:\n{self.log}") from None
        return found

    def wait_training(self, step: int = 1) -> dict[str, Any]:
        return self.wait(
            lambda s: s["state"] == "training" and s["step"] >= step, f"training at step {step}"
        )

    def signal(self, number: signal.Signals) -> int:
        """Send a signal; return the exit code. Raises TimeoutExpired if it hangs."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)

    def kill(self) -> None:
        """End it at once if it still runs."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that its parent has not waited for yet is dead."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def snapshots(home: Path, name: str = "demo") -> list[str]:
    folder = Paths(home).swarm(name).snapshots
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
