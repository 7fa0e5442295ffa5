"""Nodes with blobs, joined by real sessions over memory links or over TCP on loopback."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio

from swarmnode import limits
from swarmnode.daemon.snapshots.blobs import Blobs
from swarmnode.env import real_env
from swarmnode.errors import DialFailed
from swarmnode.ids import PeerId
from swarmnode.net.channel import Channel, Transport
from swarmnode.net.peering import run_session
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.net.tcp import TcpTransport
from swarmnode.protocol.blobs.holders import bitmap_of
from swarmnode.protocol.blobs.merkle import MerkleTree, blob_name, leaf_hash
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.session.records import Role
from swarmnode.store.blobs import BlobStore
from swarmnode.store.shelf import Runner
from swarmnode.testing.memory_network import MemoryNetwork
from swarmnode.wire.blobs import BlobManifest
from tests.kits.session_kit import NETWORK_ID, start

T = TypeVar("T")
CHUNK = limits.BLOB_CHUNK_BYTES


async def at_once(work: Callable[[], T], /) -> T:
    """Run what blocks right here: on virtual time there are no threads."""
    await trio.lowlevel.checkpoint()
    return work()


def content(n_chunks: int, seed: int = 1) -> bytes:
    """Return bytes that make a blob of ``n_chunks``; the last chunk is short."""
    return random.Random(seed).randbytes(n_chunks * CHUNK - 1000)


N_CHUNKS = 5
DATA = content(N_CHUNKS)
CHUNKS = [DATA[i : i + CHUNK] for i in range(0, len(DATA), CHUNK)]
TREE = MerkleTree([leaf_hash(chunk) for chunk in CHUNKS])
MANIFEST = BlobManifest(len(DATA), CHUNK, TREE.root)
NAME = blob_name(MANIFEST)
ALL = bitmap_of(range(N_CHUNKS), N_CHUNKS)


class BlobNode:
    """A store, a service, and sessions that are dialled when first wanted."""

    def __init__(self, world: BlobWorld, name: str, **settings: Any) -> None:
        self.name = name
        self.world = world
        self.identity = Identity.from_seed(name.encode().ljust(32, b"."))
        self.peer = self.identity.peer_id
        self.services = Services()
        self.folder = world.folder / name
        self.store = BlobStore(self.folder, bytes_max=2**30)
        env = real_env(trio.current_time)
        env.rng = random.Random(name)
        self.blobs = Blobs(
            self.store, self.services, self.open_session, env, run=world.runner, **settings
        )
        self.address = ""
        self.sessions: dict[PeerId, Session] = {}
        self.scope = trio.CancelScope()
        self.progress: list[tuple[int, int]] = []
        self.watcher: Callable[[int], object] = lambda done_bytes: None

    async def open_session(self, peer: PeerId) -> Session:
        session = self.sessions.get(peer)
        if session is None or session.is_closed:
            address = self.world.addresses.get(peer)
            if address is None:
                raise DialFailed(f"nobody knows where {peer.short} is")
            channel = await self.world.transport(self.name).dial(address)
            session = await start(
                self.nursery, channel, self.identity, Role.CLIENT, self.services, peer
            )
            self.sessions[peer] = session
        return session

    async def accept(self, channel: Channel) -> None:
        await run_session(
            channel,
            identity=self.identity,
            network_id=NETWORK_ID,
            services=self.services,
            role=Role.SERVER,
        )

    async def live(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with self.scope:
            async with trio.open_nursery() as self.nursery:
                self.address = await self.nursery.start(
                    self.world.transport(self.name).serve, self.world.listen(self.name), self.accept
                )
                self.world.addresses[self.peer] = self.address
                task_status.started()
                await trio.sleep_forever()

    def die(self) -> None:
        """Vanish as a killed process does, as far as others can tell."""
        del self.world.addresses[self.peer]
        self.scope.cancel()
        self.store.close()

    async def give(self, data: bytes) -> bytes:
        """Add a file with this content; return its name."""
        source = self.world.folder / f"{self.name}.source"
        source.write_bytes(data)
        return await self.blobs.add_file(source)

    async def fetch(self, name: bytes, *holders: BlobNode, size_bytes_max: int = 2**30) -> Path:
        peers = [holder.peer for holder in holders]

        def on_progress(done_bytes: int, total_bytes: int) -> None:
            self.progress.append((done_bytes, total_bytes))
            self.watcher(done_bytes)

        return await self.blobs.fetch(
            name, lambda: peers, on_progress=on_progress, size_bytes_max=size_bytes_max
        )

    def data_file(self, name: bytes) -> Path:
        return self.folder / name.hex() / "data"

    @property
    def sent(self) -> int:
        return self.blobs.statistics().chunks_sent_total


class BlobWorld:
    """Nodes in one process; ``network`` None: over TCP."""

    def __init__(self, folder: Path, network: MemoryNetwork | None, runner: Runner | None) -> None:
        self.folder = folder
        self.network = network
        self.runner = runner
        self.addresses: dict[PeerId, str] = {}
        self.nursery: trio.Nursery

    def transport(self, name: str) -> Transport:
        return TcpTransport() if self.network is None else self.network.transport(name)

    def listen(self, name: str) -> str:
        return "127.0.0.1:0" if self.network is None else f"mem:{name}"

    async def node(self, name: str, **settings: Any) -> BlobNode:
        node = BlobNode(self, name, **settings)
        await self.nursery.start(node.live)
        return node


@asynccontextmanager
async def blob_world(
    folder: Path, *, network: MemoryNetwork | None = None, runner: Runner | None = at_once
) -> AsyncIterator[BlobWorld]:
    """Give a world to put nodes into; all of them end with the block."""
    world = BlobWorld(folder, network, runner)
    async with trio.open_nursery() as world.nursery:
        yield world
        world.nursery.cancel_scope.cancel()


def mem_world(folder: Path) -> AbstractAsyncContextManager[BlobWorld]:
    """Return a world over memory links, where everything that blocks runs at once."""
    return blob_world(folder, network=MemoryNetwork(delay_s=0.01))


def flip_bit(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


def log_lines(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, object]]:
    return [vars(record)["fields"] for record in caplog.records if record.getMessage() == event]
