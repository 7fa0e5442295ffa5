"""Whole daemons on the virtual clock, over the in-memory network, with fake workers."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import trio

from swarmnode.config import NodeConfig
from swarmnode.daemon.node import Node, TrainingChoice
from swarmnode.env import Env
from swarmnode.net.memory import MemoryNetwork
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.swarm import Hint, SwarmLink, sign_manifest
from swarmnode.store.files import make_private_dir, read_history, write_atomic
from swarmnode.testing.fake_worker import FakeWorker
from swarmnode.wire.packing import encode_record
from swarmnode.wire.swarm import Manifest

SWARM = Identity.from_seed(b"s" * 32)
NUMEL = 640


def manifest(codec: str = "Q8B64") -> Manifest:
    return Manifest(
        name="sim",
        swarm_key=SWARM.public_key,
        task="synthetic",
        task_version=1,
        task_config={},
        numel=NUMEL,
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
    )


@dataclass
class SimNode:
    """One daemon, in and out of life."""

    swarm: SimSwarm
    index: int
    worker: FakeWorker
    identity: Identity
    boots: int = 0
    node: Node | None = None
    scope: trio.CancelScope | None = None

    @property
    def name(self) -> str:
        return f"n{self.index}"

    @property
    def home(self) -> Path:
        return self.swarm.home / self.name

    @property
    def status(self):
        assert self.node is not None
        return self.node.view.node_status(trio.current_time())

    @property
    def history(self) -> list[dict]:
        return list(read_history(self.home / "exchanges.jsonl"))

    async def live(self, task_status=trio.TASK_STATUS_IGNORED) -> None:
        """Run a daemon until it stops or is killed."""
        self.boots += 1
        make_private_dir(self.home)
        self.node = Node(
            config=NodeConfig(home=self.home, listen=f"mem:{self.name}", metrics="off"),
            link=self.swarm.link,
            identity=self.identity,
            boot_epoch=self.boots,
            transport=self.swarm.network.transport(self.name),
            start_worker=self.worker.start,
            env=Env(
                monotonic=trio.current_time,
                wall=lambda: 1_000_000 + trio.current_time(),
                rng=random.Random(f"{self.swarm.seed}/{self.index}/{self.boots}"),
            ),
            training=TrainingChoice(),
            find_addresses=lambda bound: (bound,),
        )
        with trio.CancelScope() as self.scope:
            await self.node.run(task_status=task_status)
        self.node = None

    def kill(self) -> None:
        """As ``kill -9``: the worker dies first, then every task stops where it is."""
        assert self.scope is not None
        self.worker.crash()
        self.swarm.network.cut_all(self.name)
        self.scope.cancel()


@dataclass
class SimSwarm:
    """A swarm of daemons in one process."""

    home: Path
    nursery: trio.Nursery
    seed: int
    network: MemoryNetwork
    nodes: list[SimNode] = field(default_factory=list)

    @property
    def link(self) -> SwarmLink:
        return SwarmLink("sim", SWARM.public_key, (Hint(identity(0).peer_id, "mem:n0"),))

    async def start(self, index: int) -> None:
        await self.nursery.start(self.nodes[index].live)

    def total(self) -> float:
        """Sum of all parameters of all nodes."""
        return float(sum(node.worker.x.sum() for node in self.nodes))

    def expected_total(self) -> float:
        """What it must be: what they began with and what training added since."""
        begun = sum(np.sum(node.worker.initial) for node in self.nodes)
        return float(begun + sum(node.worker.drift_sum.sum() for node in self.nodes))

    def variance(self) -> float:
        """Mean over coordinates of the variance between nodes."""
        return float(np.var([node.worker.x for node in self.nodes], axis=0).mean())


def identity(index: int) -> Identity:
    return Identity.from_seed(bytes([index + 1]) * 32)


@asynccontextmanager
async def sim_swarm(
    home: Path,
    count: int,
    *,
    seed: int = 1,
    delay_s: float = 0.01,
    drift: Callable | None = None,
    codec: str = "Q8B64",
) -> AsyncIterator[SimSwarm]:
    """Start ``count`` daemons that know node 0 from the link; stop them at the end."""
    rng = np.random.default_rng(seed)
    async with trio.open_nursery() as nursery:
        swarm = SimSwarm(home, nursery, seed, MemoryNetwork(delay_s=delay_s))
        for index in range(count):
            worker = FakeWorker(initial=rng.standard_normal(NUMEL), **({"drift": drift} if drift else {}))
            swarm.nodes.append(SimNode(swarm, index, worker, identity(index)))
        first = home / "n0" / "swarms" / "sim" / "manifest"
        make_private_dir(first.parent)
        write_atomic(first, encode_record(sign_manifest(manifest(codec), SWARM)))
        for index in range(count):
            await swarm.start(index)
        yield swarm
        nursery.cancel_scope.cancel()
