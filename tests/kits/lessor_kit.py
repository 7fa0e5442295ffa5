"""Nodes with real sessions and a worker of a few lines: what kinds of exchange need to run."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import trio

from swarmnode.daemon.membership.swarm import Communicator, Partners
from swarmnode.daemon.worker.leases import BufferLease, NoLease
from swarmnode.env import Env
from swarmnode.ids import PeerId
from swarmnode.ipc.control import PostedIntent
from swarmnode.ipc.records import Partner, ViewShape
from swarmnode.net.channel import Channel, Transport
from swarmnode.net.services import ScopedServices, Services
from swarmnode.net.session import Session
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.session.records import Role
from swarmnode.protocol.trust import Trust
from swarmnode.testing.memory_network import MemoryNetwork
from tests.kits.session_kit import start

KEY = b"k" * 32
SWARM_ID = b"s" * 32
TAG = "tag"


class Tossed(random.Random):
    """A generator whose coins fall as they are told to: ``share`` is what ``random`` returns."""

    def __init__(self, share: float) -> None:
        super().__init__(0)
        self._share = share

    def random(self) -> float:
        return self._share


def intent(number: int = 1, kind: Any = "group", **fields: Any) -> PostedIntent:
    """Return an intent of 640 elements, unless told otherwise."""
    given: dict[str, Any] = {
        "tag": "outer",
        "fragment": 0,
        "round": 1,
        "selector": "all",
        "views": (ViewShape("delta", "", 640),),
    }
    return PostedIntent(number, kind, **(given | fields))


@dataclass
class FakeLessor:
    """A worker: lends ``vector``, and keeps what becomes of it."""

    vector: np.ndarray
    step_s: float = 0.0
    refuses: str = ""
    told: list[tuple[Any, ...]] = field(default_factory=list)
    lent: list[BufferLease] = field(default_factory=list)
    partners: list[Partner | None] = field(default_factory=list)
    means: dict[bytes, np.ndarray] = field(default_factory=dict)
    prefers: int = 1
    compare_s: float = 0.0
    compared: list[tuple[int, list[bytes]]] = field(default_factory=list)

    async def borrow(
        self, intent: PostedIntent, partner: Partner | None = None, round_number: int | None = None
    ) -> BufferLease:
        await trio.sleep(self.step_s)
        if self.refuses:
            raise NoLease(self.refuses)
        slot = np.zeros(2 * intent.numel, np.float32)
        slot[: intent.numel] = self.vector[: intent.numel]
        whole = slot.data.cast("B")
        half = 4 * intent.numel
        lease = BufferLease(
            intent, len(self.lent), 7, whole[:half], whole[half:], step=11, tokens=22
        )
        self.lent.append(lease)
        self.partners.append(partner)
        return lease

    def apply(
        self,
        lease: BufferLease,
        xid: bytes,
        partner: Partner | None = None,
        present: tuple[bytes, ...] = (),
    ) -> bool:
        self.lent.remove(lease)
        self.means[xid] = np.frombuffer(lease.room, np.float32).copy()
        self.told.append(("apply", lease.intent.number, partner, present))
        return True

    def give_back(self, lease: BufferLease, why: str) -> None:
        self.lent.remove(lease)
        self.told.append(("give_back", lease.intent.number, why))

    async def compare(self, lease: BufferLease, begin: int, candidates: Any) -> int:
        self.compared.append((begin, [bytes(each) for each in candidates]))
        await trio.sleep(self.compare_s)
        return self.prefers

    def drop(self, intent: PostedIntent, why: str) -> None:
        self.told.append(("drop", intent.number, why))

    @property
    def kinds(self) -> list[str]:
        return [told[0] for told in self.told]


class PartyNode:
    """Services, and sessions with all others. ``party`` says which nodes are alive."""

    def __init__(self, party: Party, name: str) -> None:
        self.party, self.name = party, name
        self.identity = Identity.from_seed(name.encode().ljust(32, b"."))
        self.peer = self.identity.peer_id
        self.trust = Trust(b"\x07" * 16)
        self.registry = Services()
        self.services = ScopedServices(self.registry, TAG, self._may_use)
        self.sessions: dict[PeerId, Session] = {}
        self.scope = trio.CancelScope()
        self.env = Env(trio.current_time, lambda: 0.0, random.Random(name))
        self.address = ""
        self.nursery: trio.Nursery

    def communicator(self, key: bytes = KEY, partners: Partners | None = None) -> Communicator:
        """What exchanges of this node are made with; ``partners``: if not those of the party."""
        return Communicator(
            self_id=self.peer,
            key=key,
            partners=partners or self,
            services=self.services,
            live=self.live,
            trust=self.trust,
            env=self.env,
        )

    async def _may_use(self, _peer: PeerId) -> bool:
        return True

    def want(self, peers: tuple[PeerId, ...]) -> None:
        """All that there are have a session."""

    def partners(self) -> tuple[PeerId, ...]:
        return tuple(sorted(self.party.alive | {self.peer}))

    def active(self) -> tuple[PeerId, ...]:
        return tuple(peer for peer in self.partners() if peer not in self.party.resting)

    def live(self) -> tuple[PeerId, ...]:
        return self.partners()

    async def live_until_killed(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        with self.scope:
            async with trio.open_nursery() as self.nursery:
                transport = self.party.transport(self.name)
                listen = self.party.listen(self.name)
                self.address = await self.nursery.start(transport.serve, listen, self._accept)
                self.party.alive.add(self.peer)
                task_status.started()
                await trio.sleep_forever()

    async def _accept(self, channel: Channel) -> None:
        await self._run_session(channel, Role.SERVER, None)

    async def dial(self, other: PeerId, address: str) -> None:
        channel = await self.party.transport(self.name).dial(address)
        await self.nursery.start(self._run_session, channel, Role.CLIENT, other)

    async def _run_session(
        self,
        channel: Channel,
        role: Role,
        expected: PeerId | None,
        task_status: trio.TaskStatus[Session] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        async with trio.open_nursery() as nursery:
            session = await start(nursery, channel, self.identity, role, self.registry, expected)
            self.sessions[session.peer] = session
            task_status.started(session)

    def die(self) -> None:
        """Vanish as a killed process does."""
        self.party.alive.discard(self.peer)
        self.scope.cancel()


class Party:
    """Nodes in one process over memory links."""

    def __init__(self, network: MemoryNetwork) -> None:
        self.network = network
        self.alive: set[PeerId] = set()
        self.resting: set[PeerId] = set()  # their workers take no steps
        self.nodes: list[PartyNode] = []
        self.nursery: trio.Nursery

    def transport(self, name: str) -> Transport:
        return self.network.transport(name)

    def listen(self, name: str) -> str:
        return f"mem:{name}"

    async def add(self, name: str, prepare: Callable[[PartyNode], Any]) -> Any:
        """Start a node and connect it with all that are there."""
        node = PartyNode(self, name)
        made = prepare(node)
        await self.nursery.start(node.live_until_killed)
        await node.nursery.start(made.run)
        for other in self.nodes:
            if other.peer in self.alive:
                await node.dial(other.peer, other.address)
        await self.until(lambda: all(node.peer in n.sessions for n in self.up if n is not node))
        self.nodes.append(node)
        return made

    @property
    def up(self) -> list[PartyNode]:
        return [node for node in self.nodes if node.peer in self.alive]

    async def until(self, condition: Callable[[], object], limit_s: float = 60.0) -> None:
        with trio.fail_after(limit_s):
            while not condition():  # noqa: ASYNC110 -- of virtual time
                await trio.sleep(0.01)


@asynccontextmanager
async def party(delay_s: float = 0.01) -> AsyncIterator[Party]:
    """Give a party to add nodes to; all end with the block."""
    made = Party(MemoryNetwork(delay_s=delay_s))
    async with trio.open_nursery() as made.nursery:
        yield made
        made.nursery.cancel_scope.cancel()
