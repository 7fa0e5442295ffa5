"""Whole swarms of real nodes for tests: how to make and join them, and what is on their disks."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

from swarmnode.config import Paths, SwarmPaths
from swarmnode.ids import PeerId
from swarmnode.protocol.swarm import Hint
from swarmnode.store.files import make_private_dir
from swarmnode.store.keys import load_or_create_identity
from swarmnode.tensor.layout import Layout
from tests.conftest import HANGS_S
from tests.kits.daemon_kit import LOOPBACK, Daemon, Swarm, make_home, wait_until, without_torch

NAME = "demo"
# `synthetic` of 2,048 numbers that learns slowly: a node that begins anew is known by its loss,
# which is the distance to the optimum, a minute after it began.
FRESH_LOSS = 2048**0.5
SLOW = {"batch": 8, "lr": 0.0005}
FIRST_STEPS = 20  # the first evaluation is after so many


class Party:
    """The nodes of one swarm, which talk to no others: their network has a name of its own.

    The creator's home is there from the beginning, with the swarm's key in it.
    """

    def __init__(self, folder: Path, *, dim: int = 2048, **changes: Any) -> None:
        self.folder = folder
        self.network = f"test-{os.getpid()}-{folder.name.replace('_', '-')}"[:64]
        paths = Paths(folder / "creator")
        make_private_dir(paths.swarm(NAME).directory)
        self.swarm = Swarm(load_or_create_identity(paths.swarm(NAME).swarm_key), NAME)
        layout = Layout.of([("weight", (1, dim), "float32")])
        model = {"numel": dim, "layout_hash": layout.layout_hash}
        changes = {"task_config": {**SLOW, "dim": dim}, **model, **changes}
        self.creator = make_home(folder / "creator", self.swarm, self.swarm.signed(**changes))
        self.nodes: list[Daemon] = []
        self.settings: dict[str, str] = {}  # variables of all nodes from now on

    def join(self, home: str, *flags: str, via: Daemon | None = None, **env: str) -> Daemon:
        """Start a node: by the link that leads to ``via``, else by the name of the swarm."""
        return self.join_by(self.link(via) if via else NAME, home, *flags, **env)

    def join_by(self, link: str, home: str, *flags: str, **env: str) -> Daemon:
        """Start a node with any link."""
        self.nodes.append(Daemon(self.folder / home, link, *flags, env=self.env(**env)))
        return self.nodes[-1]

    def keeper(self, home: str, *, via: Daemon, **env: str) -> Daemon:
        """Start a keeper, where there is no torch."""
        shim = without_torch(self.folder / "without-torch")
        return self.join(home, "--role", "keeper", via=via, **{**shim, **env})

    def env(self, **more: str) -> dict[str, str]:
        """Return the variables of a node that meets none but the party's on this machine."""
        apart = {"SWARMNODE_NETWORK": self.network, "SWARMNODE_LAN": "false"}
        return apart | self.settings | more

    def link(self, *nodes: Daemon) -> str:
        """Return the link that leads to these."""
        hints = (Hint(peer_of(node), f"{LOOPBACK}:{node.port}") for node in nodes)
        return str(self.swarm.link(*hints))

    def close(self) -> None:
        """Leave nothing behind; what they said is shown if the test has failed."""
        for node in self.nodes:
            node.kill()
        for log in sorted(self.folder.glob("*.log")):
            print(f"--- {log.stem}", log.read_text(errors="replace"), sep="\n")


def peer_of(node: Daemon) -> PeerId:
    """Return the id of a node, as soon as its key is on disk."""
    key = Paths(node.home).node_key
    wait_until(key.exists, f"the key of {node.home.name}")
    return load_or_create_identity(key).peer_id


def on_disk(node: Daemon) -> SwarmPaths:
    """Return where a node keeps what it has of the swarm."""
    return Paths(node.home).swarm(NAME)


def interrupt(*nodes: Daemon) -> None:
    """End nodes as Ctrl-C does, all at once."""
    for node in nodes:
        assert node.process is not None
        node.process.send_signal(signal.SIGINT)
    for node in nodes:
        assert node.process is not None
        assert node.process.wait(HANGS_S) == 0, node.log


def forget(*nodes: Daemon) -> None:
    """Remove homes."""
    for node in nodes:
        shutil.rmtree(node.home)


def ended(node: Daemon, within_s: float = 90.0) -> tuple[int, str]:
    """Return the exit code of a node that ends by itself, and the one line that says why."""
    assert node.process is not None
    code = node.process.wait(within_s)
    lines = [line for line in node.log.splitlines() if line.startswith("swarmnode: ")]
    assert "Traceback" not in node.log, node.log
    return code, lines[-1]


def whole_blobs(node: Daemon) -> list[Path]:
    """Return the snapshots that a node could give to others."""
    return sorted(on_disk(node).blobs.glob("*/data"))


def wait_copy(node: Daemon, name: str) -> None:
    """Return when a node holds this blob."""
    path = on_disk(node).blobs / name / "data"
    wait_until(path.exists, f"{node.home.name} has a copy of {name[:8]}; log:\n{node.log}")


def offer(node: Daemon) -> str:
    """Have a trainer write a snapshot, and return the blob's name once it is offered."""
    before = whole_blobs(node)
    node.ask("/snapshot")
    made = wait_until(lambda: set(whole_blobs(node)) - set(before), "the snapshot as a blob", 60.0)
    newest: Path = max(made, key=lambda path: path.stat().st_mtime)
    return newest.parent.name


def flip_bit(path: Path, at: float = 0.5) -> None:
    """Change one bit of a file, at this part of its length."""
    data = bytearray(path.read_bytes())
    data[int(at * (len(data) - 1))] ^= 0x10
    path.write_bytes(data)
