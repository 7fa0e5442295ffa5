"""A swarm of whole daemons in one process: virtual time, in-memory network, fake workers.

::

    async with sim_swarm(tmp_path, 8, seed=3) as swarm:     # on Trio's MockClock
        await trio.sleep(60)                                # they meet, train and exchange
        await swarm.kill(5)                                 # as kill -9
        await swarm.start(5)                                # its next boot
        await swarm.leave_all()                             # as Ctrl-C everywhere
        swarm.check_ledgers()

Everything but the network, the worker and the clock is the real daemon: handshakes, records,
streams, codecs, files. Equal seeds give equal runs, because Trio's scheduler is seeded as well;
keys of sessions come from the system, but only their bytes depend on them.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import trio

from swarmnode.config import NodeConfig, Paths
from swarmnode.daemon.app.node import Node, TrainingChoice
from swarmnode.daemon.membership.swarm import SwarmPart
from swarmnode.daemon.status.phases import PeerView
from swarmnode.daemon.status.view import NodeStatus
from swarmnode.daemon.volunteer.rules import Machine
from swarmnode.env import Env
from swarmnode.errors import SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.swarm import Hint, SwarmLink, sign_manifest
from swarmnode.store.files import make_private_dir, read_history, write_atomic
from swarmnode.testing.fake_files import Vector
from swarmnode.testing.fake_worker import FakeWorker
from swarmnode.testing.memory_network import MemoryNetwork
from swarmnode.wire.packing import encode_record
from swarmnode.wire.recipe import Recipe
from swarmnode.wire.swarm import Manifest

SWARM_KEY = Identity.from_seed(b"s" * 32)
UNIX_START_S = 1_000_000_000.0


def make_manifest(
    codec: str = "Q8B64",
    numel: int = 640,
    topology: str = "",
    recipe: Recipe | None = None,
) -> Manifest:
    """Return the manifest of the simulated swarm."""
    return Manifest(
        name="sim",
        swarm_key=SWARM_KEY.public_key,
        task="synthetic",
        task_version=1,
        task_config={},
        numel=numel,
        layout_hash=bytes(32),
        data_hash=b"",
        strategy="pair-average",
        strategy_settings={"every": 8},
        codec=codec,
        seed=1,
        admission="open",
        min_version="0.1.0",
        created_at=1,
        expires_at=0,
        topology=topology,
        recipe=recipe or msgspec.UNSET,
    )


def seed_scheduler(seed: int) -> None:
    """Make Trio run tasks in an order that depends on ``seed`` only.

    There is no public way; Trio's own plugin for pytest sets the same two.
    """
    run: Any = trio._core._run
    run._ALLOW_DETERMINISTIC_SCHEDULING = True
    run._r.seed(seed)


@dataclass
class SimNode:
    """One node over all its boots. ``node`` is None while it is down.

    Args:
        hints: the nodes that its link names.
        link: another one than the swarm's with these hints.
        role: a ``keeper`` or ``monitor`` runs no worker.
        network: nodes of other networks refuse it.
        bootstrap: nodes of its network that it knows, of whatever swarm.
        clock_error_s: by how much its wall clock is ahead.
        training: what its owner decides.
        settings: those of its owner; what they leave out keeps the node off the real network.
        machine: what its owner's rules look at.

    Attributes:
        failure: what ended the last boot, if it was an error.
    """

    swarm: SimSwarm
    index: int
    worker: FakeWorker
    identity: Identity
    hints: tuple[int, ...] = (0,)
    link: SwarmLink | None = None
    role: Literal["trainer", "keeper", "monitor"] = "trainer"
    network: str = "main"
    bootstrap: tuple[int, ...] = ()
    clock_error_s: float = 0.0
    training: TrainingChoice = TrainingChoice()  # noqa: RUF009 -- frozen
    settings: Mapping[str, Any] = field(default_factory=dict)
    machine: Machine | None = None
    node_name: str = ""
    boots: int = 0
    node: Node | None = None
    failure: SwarmNodeError | None = None
    down: trio.Event = field(default_factory=trio.Event)
    _scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    _disk: bytes | None = None  # the history, if the node was killed

    @property
    def name(self) -> str:
        """Its name in the network."""
        return f"n{self.index}"

    @property
    def peer(self) -> PeerId:
        """Its identity."""
        return self.identity.peer_id

    @property
    def paths(self) -> Paths:
        """Its home."""
        return NodeConfig(home=self.swarm.home / self.name).paths

    @property
    def running(self) -> Node:
        """The node, which must be up."""
        assert self.node is not None, f"{self.name} is down"
        return self.node

    @property
    def status(self) -> NodeStatus:
        """What ``swarmnode status`` would show."""
        return self.running.view.node_status(trio.current_time())

    @property
    def part(self) -> SwarmPart:
        """Its part in the swarm. Raises NotRunning: it has not joined yet."""
        return self.running.view.member().part

    def view_of(self, other: SimNode) -> PeerView:
        """Return what ``swarmnode peers`` would show of another node."""
        views = {view.peer: view for view in self.running.view.peers()}
        return views[str(other.peer)]

    @property
    def history(self) -> list[dict[str, Any]]:
        """What it wrote about exchanges, over all boots."""
        return list(read_history(self.paths.history))

    def committed(self, since_s: float = 0.0) -> list[dict[str, Any]]:
        """Return its history of committed exchanges that ended after a virtual time."""
        since_unix_s = UNIX_START_S + since_s
        return [
            entry
            for entry in self.history
            if entry["event"] == "finished"
            and entry["outcome"] == "committed"
            and entry["unix_s"] >= since_unix_s
        ]

    async def live(self, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Run one boot, to its end or until it is killed."""
        self.boots += 1
        self.failure, self.down = None, trio.Event()
        make_private_dir(self.swarm.home / self.name)
        self.node = self._make()
        with trio.CancelScope() as self._scope:
            try:
                await self.node.run(task_status=task_status)
            except SwarmNodeError as error:
                self.failure = error
        self.node = None
        if self._disk is not None:
            self.paths.history.write_bytes(self._disk)
            self._disk = None
        self.down.set()

    def _make(self) -> Node:
        swarm = self.swarm
        config = NodeConfig(
            home=swarm.home / self.name,
            listen=f"mem:{self.name}",
            metrics="off",
            dashboard="off",
            lan=False,
            role=self.role,
            node_name=self.node_name,
            network=self.network,
            bootstrap=tuple(str(swarm.hint(index)) for index in self.bootstrap),
        )
        return Node(
            config=msgspec.structs.replace(config, **self.settings),
            link=self.link or swarm.link(self.hints),
            identity=self.identity,
            boot_epoch=self.boots,
            transport=swarm.network.transport(self.name),
            start_worker=self.worker.start,
            env=Env(
                monotonic=trio.current_time,
                wall=lambda: UNIX_START_S + self.clock_error_s + trio.current_time(),
                rng=random.Random(f"{swarm.seed}/{self.index}/{self.boots}"),
            ),
            training=self.training,
            find_addresses=lambda bound: (bound,),
            machine=self.machine,
        )

    async def kill(self, *, unplug: bool = True) -> None:
        """Die as by ``kill -9``: the worker is gone, and the disk stays as it is now.

        The system then resets every link, unless it died too: that is what ``unplug`` says.
        """
        self.worker.crash()
        if unplug:
            self.swarm.unplug(self.index)
        self._disk = self.paths.history.read_bytes()
        self._scope.cancel()
        await self.down.wait()

    async def leave(self) -> float:
        """End as by Ctrl-C; return how long that took, in virtual seconds."""
        started = trio.current_time()
        self.running.stop("Ctrl-C")
        await self.down.wait()
        return trio.current_time() - started


@dataclass
class SimSwarm:
    """Nodes and the network between them."""

    home: Path
    nursery: trio.Nursery
    seed: int
    network: MemoryNetwork
    nodes: list[SimNode] = field(default_factory=list)

    def link(self, hints: tuple[int, ...]) -> SwarmLink:
        """Return the swarm's link with hints to some nodes."""
        return SwarmLink("sim", SWARM_KEY.public_key, tuple(map(self.hint, hints)))

    def hint(self, index: int) -> Hint:
        """Return the id of node ``index``, and where it is."""
        return Hint(make_identity(index).peer_id, f"mem:n{index}")

    @property
    def up(self) -> list[SimNode]:
        """The nodes that run."""
        return [node for node in self.nodes if node.node is not None]

    def add(self, worker: FakeWorker, hints: tuple[int, ...] = (0,), **options: Any) -> SimNode:
        """Make one more node, which is down; ``options`` are fields of :class:`SimNode`."""
        index = len(self.nodes)
        node = SimNode(self, index, worker, make_identity(index), hints, **options)
        self.nodes.append(node)
        return node

    async def start(self, index: int) -> None:
        """Boot a node; returns once it listens."""
        await self.nursery.start(self.nodes[index].live)

    async def kill(self, index: int) -> None:
        """See :meth:`SimNode.kill`."""
        await self.nodes[index].kill()

    async def leave_all(self) -> None:
        """Stop every node that runs, all at once; exchanges that are almost through end."""
        async with trio.open_nursery() as nursery:
            for node in self.up:
                nursery.start_soon(node.leave)

    def cut(self, one: int, other: int) -> int:
        """Break the links between two nodes; both notice. Returns how many there were."""
        return self.network.cut(f"n{one}", f"n{other}")

    def unplug(self, index: int) -> None:
        """Break every link of one node."""
        for other in range(len(self.nodes)):
            self.cut(index, other)

    def partition(self, *sides: range) -> None:
        """Let nothing pass between nodes of different sides, unnoticed."""
        self.network.partition(*([f"n{index}" for index in side] for side in sides))

    def histories(self) -> Mapping[str, list[dict[str, Any]]]:
        """Return every node's history by peer id, as an audit wants them."""
        return {str(node.peer): node.history for node in self.nodes}

    def digest(self) -> str:
        """Return a digest of everything that every node wrote about exchanges."""
        whole = hashlib.sha256()
        for node in self.nodes:
            whole.update(node.paths.history.read_bytes())
        return whole.hexdigest()

    # --- the mean -----------------------------------------------------------------------------

    def total(self) -> Vector:
        """Sum over the nodes: float64 [numel]."""
        return np.sum([node.worker.x for node in self.nodes], axis=0)  # type: ignore[no-any-return]

    def expected_total(self) -> Vector:
        """What nodes began with and training added since: float64 [numel]."""
        return np.sum(  # type: ignore[no-any-return]
            [np.asarray(node.worker.initial) + node.worker.drift_sum for node in self.nodes],
            axis=0,
        )

    def drift(self) -> float:
        """How far the sum is from where it belongs, in its worst coordinate."""
        return float(np.abs(self.total() - self.expected_total()).max())

    def variance(self) -> float:
        """Mean over coordinates of the variance between nodes."""
        return float(np.var([node.worker.x for node in self.nodes], axis=0).mean())

    def one_sided(self) -> dict[bytes, tuple[int, Vector]]:
        """Exchanges that are part of one node only: its index and what was added there."""
        merged: dict[bytes, list[tuple[int, Vector]]] = {}
        for node in self.nodes:
            for xid, change in node.worker.ledger.items():
                merged.setdefault(xid, []).append((node.index, change))
        for sides in merged.values():
            assert len(sides) <= 2
            assert len(sides) == 1 or np.array_equal(sides[0][1], -sides[1][1])
        return {xid: sides[0] for xid, sides in merged.items() if len(sides) == 1}


def make_identity(index: int) -> Identity:
    """Return the identity of node ``index``, the same in every simulation."""
    return Identity.from_seed(bytes([index + 1]) * 32)


def give_manifest(node: SimNode, manifest: Manifest, key: Identity = SWARM_KEY) -> None:
    """Put a signed manifest where the node looks for it."""
    path = node.paths.swarm(manifest.name).manifest
    make_private_dir(path.parent)
    write_atomic(path, encode_record(sign_manifest(manifest, key)))


@asynccontextmanager
async def sim_swarm(
    home: Path,
    count: int,
    *,
    seed: int = 1,
    delay_s: float = 0.01,
    numel: int = 640,
    codec: str = "Q8B64",
    topology: str = "",
    recipe: Recipe | None = None,
    worker: FakeWorker | None = None,
    **options: Any,
) -> AsyncIterator[SimSwarm]:
    """Start ``count`` nodes, all of which but node 0 know node 0 from the link.

    Args:
        delay_s: of the network, one way.
        topology: which nodes meet, as a manifest says it.
        recipe: how all train; None: a manifest without one.
        worker: what all workers are like; each begins with values of its own.
        options: what else all nodes have, fields of :class:`SimNode`.
    """
    seed_scheduler(seed)
    rng = np.random.default_rng(seed)
    like = FakeWorker(np.zeros(0)) if worker is None else worker
    async with trio.open_nursery() as nursery:
        swarm = SimSwarm(home, nursery, seed, MemoryNetwork(delay_s=delay_s))
        for _ in range(count):
            swarm.add(replace(like, initial=rng.standard_normal(numel)), **options)
        for node in swarm.nodes[:1]:
            give_manifest(node, make_manifest(codec, numel, topology, recipe))
        for index in range(count):
            await swarm.start(index)
        yield swarm
        nursery.cancel_scope.cancel()
