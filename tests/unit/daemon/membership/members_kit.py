"""Members of one swarm on an in-memory network, without shared state or training."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from swarmnode.daemon.membership.members import Members
from swarmnode.errors import Refused
from swarmnode.ids import PeerId
from swarmnode.net.session import Session
from swarmnode.protocol.membership.swim_events import Changed
from swarmnode.protocol.swarm import Hint, SwarmLink
from swarmnode.testing.memory_network import MemoryNetwork
from swarmnode.wire.admission import Credentials
from swarmnode.wire.membership import SwarmHello
from tests.kits.party_kit import Party

LINK = SwarmLink("sim", b"k" * 32)
HELLO = SwarmHello("trainer", Credentials(None))


class ListGate:
    """Admits whoever is not on a list."""

    def __init__(self) -> None:
        self.is_open = True
        self.banned: set[PeerId] = set()
        self.expelled = ""
        self.refreshes = 0
        self.asks_work = False
        self.shown: list[bytes] = []  # proofs of work
        self._greeted: set[PeerId] = set()

    def hello(self) -> SwarmHello:
        return HELLO

    def admit(self, peer: PeerId, hello: SwarmHello) -> None:
        assert (hello.role, hello.credentials) == (HELLO.role, HELLO.credentials)
        self.shown.append(hello.work)
        if self.asks_work and not hello.work:
            raise Refused("your network has many members in this swarm: expected a proof of work")
        if peer in self.banned:
            raise Refused("you are not on the list")
        self._greeted.add(peer)

    def is_member(self, peer: PeerId) -> bool:
        return peer in self._greeted and peer not in self.banned

    def refresh(self) -> None:
        self.refreshes += 1
        if self.expelled:
            raise Refused(self.expelled)


class Member(Party):
    """A node in a swarm, and what it heard of the others."""

    def __init__(self, links: MemoryNetwork, name: str, key: str = "", *, epoch: int = 1) -> None:
        super().__init__(links, name, key)
        self.gate = ListGate()
        self.up: list[Session] = []
        self.down: list[PeerId] = []
        self.news: list[tuple[PeerId, str, str]] = []
        self.resolved: list[PeerId] = []
        self.where: dict[PeerId, tuple[str, ...]] = {}  # what the DHT knows
        self.conflicts: list[int] = []
        self.expelled: list[Refused] = []
        self.members = Members(
            identity=self.identity,
            link=LINK,
            boot_epoch=epoch,
            network=self.network,
            services=self.services,
            gate=self.gate,
            resolve=self._resolve,
            env=self.env,
        )
        self.network.keepers.append(self.members.keeps)
        self.members.watchers.append(self)
        self.members.on_changed = self._changed
        self.members.on_key_conflict = self.conflicts.append
        self.members.on_expelled = self.expelled.append

    def neighbour_up(self, session: Session) -> None:
        self.up.append(session)

    def neighbour_down(self, peer: PeerId) -> None:
        self.down.append(peer)

    def _changed(self, changed: Changed) -> None:
        self.news.append((changed.peer, str(changed.state), changed.reason))

    async def _resolve(self, peer: PeerId) -> tuple[str, ...]:
        self.resolved.append(peer)
        await trio.sleep(0.1)
        return self.where.get(peer, ())

    async def run_in(self, nursery: trio.Nursery) -> None:
        await self.start(nursery)
        await nursery.start(self.members.run)

    def knows(self, other: Party) -> None:
        self.members.add_hints((Hint(other.peer, other.address),))

    def neighbour(self, other: Party) -> Session | None:
        return self.members.sessions.get(other.peer)


@asynccontextmanager
async def members(*names: str) -> AsyncIterator[list[Member]]:
    """Give members that know no other yet."""
    links = MemoryNetwork(delay_s=0.01)
    made = [Member(links, name) for name in names]
    async with trio.open_nursery() as nursery:
        for member in made:
            await member.run_in(nursery)
        yield made
        nursery.cancel_scope.cancel()
