"""Nodes without a swarm: a network each, on one in-memory network and virtual time."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from swarmnode.daemon.transport.network import Network
from swarmnode.env import Env
from swarmnode.errors import KeyInUse
from swarmnode.ids import PeerId
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.protocol.identity import Identity
from swarmnode.testing.memory_network import MemoryChannel, MemoryNetwork, MemoryTransport
from tests.kits.session_kit import NETWORK_ID

UNIX_START_S = 1_000_000_000.0


class SlowTransport(MemoryTransport):
    """Dialling takes so long, for a reason that only this side has; dials are counted."""

    dial_s = 0.0
    dials = 0

    async def dial(self, address: str) -> MemoryChannel:
        self.dials += 1
        await trio.sleep(self.dial_s)
        return await super().dial(address)


class Party:
    """One node's sessions, and what it heard of them.

    Args:
        name: its address is ``mem:NAME``.
        key: a letter; nodes with the same one have the same key.
    """

    def __init__(self, links: MemoryNetwork, name: str, key: str = "") -> None:
        self.name = name
        self.address = f"mem:{name}"
        self.identity = Identity.from_seed((key or name)[:1].encode() * 32)
        self.peer: PeerId = self.identity.peer_id
        self.links = links
        self.transport = SlowTransport(links, name)
        self.services = Services()
        self.env = Env(
            trio.current_time, lambda: UNIX_START_S + trio.current_time(), random.Random(name)
        )
        self.network = Network(
            identity=self.identity,
            network_id=NETWORK_ID,
            transport=self.transport,
            services=self.services,
            env=self.env,
        )
        self.opened: list[Session] = []
        self.closed: list[Session] = []
        self.ended: list[Session] = []
        self.key_conflicts: list[KeyInUse] = []
        self.network.watchers.append(self)
        self.network.on_session_end = self.ended.append
        self.network.on_key_in_use = self.key_conflicts.append
        self._scope = trio.CancelScope()

    def session_opened(self, session: Session) -> None:
        self.opened.append(session)

    def session_closed(self, session: Session) -> None:
        self.closed.append(session)

    async def start(self, nursery: trio.Nursery, *, listen: bool = True) -> None:
        bound = self.address if listen else ""
        assert await nursery.start(self._live, bound) == bound

    async def _live(self, listen: str, *, task_status: trio.TaskStatus[str]) -> None:
        with self._scope:
            await self.network.run(listen, task_status=task_status)

    def stop(self) -> None:
        """End as a process that was told to: its sessions say goodbye."""
        self._scope.cancel()

    async def connect(self, other: Party, *, dial_anew: bool = False) -> Session:
        return await self.network.connect(other.peer, (other.address,), dial_anew=dial_anew)

    def session(self, other: Party) -> Session | None:
        return self.network.sessions.get(other.peer)

    async def is_heard_by(self, other: Party) -> bool:
        """Whether the session with the other works."""
        session = self.session(other)
        assert session is not None
        return await session.request("alive/1", b"", deadline_s=1.0) == b""


@asynccontextmanager
async def parties(*names: str, delay_s: float = 0.01) -> AsyncIterator[list[Party]]:
    """Give nodes that listen; a name may say whose key it has: ``twin=a``."""
    links = MemoryNetwork(delay_s=delay_s)
    made = [Party(links, name, key) for name, _, key in (each.partition("=") for each in names)]
    async with trio.open_nursery() as nursery:
        for party in made:
            await party.start(nursery)
        yield made
        nursery.cancel_scope.cancel()
