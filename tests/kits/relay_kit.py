"""Nodes that relay, and nodes that are relayed, on one in-memory network and virtual time."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import trio

from swarmnode.daemon.transport.relay import RelayService
from swarmnode.env import Env
from swarmnode.errors import SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.net.channel import Channel, ChannelHandler, Transport, receive_exactly
from swarmnode.net.relays.address import RelayAddress, is_relayed
from swarmnode.net.relays.relay import Relays
from swarmnode.net.relays.wrapped import receive_wrapped
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.relay.accounts import Quota
from swarmnode.protocol.session.records import Role
from swarmnode.testing.memory_network import MemoryNetwork
from swarmnode.wire.connect.relay import LEG_AS_TLS, LEG_MAGIC
from tests.kits.session_kit import start

FIRST_BYTES = 5
UNIX_START_S = 1_000_000_000.0
GENEROUS = Quota(
    bytes_per_s=None, peer_bytes_per_s=None, bytes_per_day=None, peer_bytes_per_day=None
)


class Node:
    """One node: sessions over its transport, relays for others, and reaches others by relays.

    ``dialled`` lists the addresses that were dialled, ``legs`` the second connections to relays;
    while ``has_one_way_only`` there can be none. ``hosts``: where it sees peers, as a relay.
    ``take_relayed`` gets what comes through relays.
    """

    def __init__(self, transport: Transport, name: str, quota: Quota = GENEROUS) -> None:
        self.name = name
        self.identity = Identity.from_seed(name.encode().ljust(32, b".")[:32])
        self.peer: PeerId = self.identity.peer_id
        self.transport = transport
        self.services = Services()
        self.env = Env(
            trio.current_time, lambda: UNIX_START_S + trio.current_time(), random.Random(name)
        )
        self.sessions: dict[PeerId, Session] = {}
        self.accepted: list[Session] = []
        self.dialled: list[str] = []
        self.legs: list[Channel] = []
        self.has_one_way_only = False
        self.hosts: dict[PeerId, str] = {}
        self.address = ""
        self.take_relayed: ChannelHandler = self.accept
        self.relays = Relays(self.services, self.connect, self.dial_leg)
        self.relay = RelayService(
            self.services,
            self.env,
            quota=quota,
            sessions=self.sessions,
            host_of=lambda peer: self.hosts.get(peer, ""),
        )
        self.services.add_request("echo", self._echo)
        self.scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None

    async def _echo(self, _peer: PeerId, payload: bytes) -> bytes:
        return payload

    async def run(
        self, listen: str, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        with self.scope:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await nursery.start(self.relay.run)
                await nursery.start(self.relays.run, self._take_relayed)
                self.address = await nursery.start(self.transport.serve, listen, self._sort)
                task_status.started()
                await trio.sleep_forever()

    def through(self, relay: Node) -> str:
        """Return the address at which it is reached through a relay."""
        return str(RelayAddress(relay.peer, relay.address, self.peer))

    async def keep(self, relay: Node) -> None:
        """Hold a reservation in the background, until it breaks."""
        assert self._nursery is not None
        held = trio.Event()

        async def hold() -> None:
            try:
                async with trio.open_nursery() as nursery:
                    await nursery.start(self.relays.keep, relay.peer, relay.address)
                    held.set()
            except* SwarmNodeError:
                held.set()

        self._nursery.start_soon(hold)
        await held.wait()

    async def connect(self, peer: PeerId, addresses: tuple[str, ...]) -> Session:
        """Return the session with a peer, dialled if there is none."""
        session = self.sessions.get(peer)
        if session is None or session.is_closed:
            address = addresses[0]
            channel: Channel
            if is_relayed(address):
                channel = await self.relays.dial(address)
            else:
                self.dialled.append(address)
                channel = await self.transport.dial(address)
            session = await self._start(channel, Role.CLIENT, peer)
        return session

    async def dial_leg(self, address: str) -> Channel:
        if self.has_one_way_only:
            await trio.sleep_forever()
        self.dialled.append(address)
        leg = await self.transport.dial(address)
        self.legs.append(leg)
        return leg

    async def _sort(self, channel: Channel) -> None:
        first = bytearray(FIRST_BYTES)
        await receive_exactly(channel, memoryview(first))
        if first.startswith(LEG_AS_TLS):
            await self.relay.serve_leg(channel, await receive_wrapped(channel, bytes(first)))
        elif LEG_MAGIC.startswith(first):
            await self.relay.serve_leg(channel, bytes(first))
        else:
            await self.accept(channel, bytes(first))

    async def _take_relayed(self, channel: Channel) -> None:
        await self.take_relayed(channel)

    async def accept(self, channel: Channel, first_bytes: bytes = b"") -> None:
        session = await self._start(channel, Role.SERVER, None, first_bytes)
        self.accepted.append(session)
        await session.wait_closed()

    async def _start(
        self, channel: Channel, role: Role, expected: PeerId | None, first_bytes: bytes = b""
    ) -> Session:
        assert self._nursery is not None
        session = await start(
            self._nursery, channel, self.identity, role, self.services, expected, first_bytes
        )
        self.sessions[session.peer] = session
        self._nursery.start_soon(self._watch, session)
        return session

    async def _watch(self, session: Session) -> None:
        await session.wait_closed()
        if self.sessions.get(session.peer) is session:
            del self.sessions[session.peer]
            self.relay.session_closed(session)


@asynccontextmanager
async def nodes(
    *names: str,
    quota: Quota = GENEROUS,
    quotas: Mapping[str, Quota] | None = None,
    delay_s: float = 0.01,
) -> AsyncIterator[list[Node]]:
    """Give running nodes, which all listen. ``quotas``: of those that have another ``quota``."""
    links = MemoryNetwork(delay_s=delay_s)
    async with trio.open_nursery() as nursery:
        made = []
        for name in names:
            node = Node(links.transport(name), name, (quotas or {}).get(name, quota))
            await nursery.start(node.run, f"mem:{name}")
            made.append(node)
        yield made
        nursery.cancel_scope.cancel()
