"""Pairs of sessions and of session cores for tests."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.net.channel import Channel
from swarmnode.net.peering import run_session
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.net.stream import Stream
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.session.core import SessionCore
from swarmnode.protocol.session.effects import Effect
from swarmnode.protocol.session.records import Role
from swarmnode.testing.memory_network import MemoryNetwork

ALICE = Identity.from_seed(b"a" * 32)
BOB = Identity.from_seed(b"b" * 32)
NETWORK_ID = b"n" * 32


async def start(
    nursery: trio.Nursery,
    channel: Channel,
    identity: Identity,
    role: Role,
    services: Services | None = None,
    expected: PeerId | None = None,
    first_bytes: bytes = b"",
) -> Session:
    """Start one side of a session."""
    session: Session = await nursery.start(
        functools.partial(
            run_session,
            channel,
            identity=identity,
            network_id=NETWORK_ID,
            services=services or Services(),
            role=role,
            expected=expected,
            first_bytes=first_bytes,
        )
    )
    return session


async def echo_messages(_session: Session, stream: Stream) -> None:
    """Handle a stream: send back each message until the other side ends."""
    while True:
        try:
            header, payload = await stream.receive_message(16 * limits.MIB)
        except trio.EndOfChannel:
            return
        await stream.send_message(header, bytes(payload))


async def start_both(
    nursery: trio.Nursery,
    ends: tuple[Channel, Channel],
    services: Services | None = None,
    own_services: Services | None = None,
) -> tuple[Session, Session]:
    """Return the sessions of Alice, the client, and of Bob, the server that offers ``services``."""
    sessions: dict[str, Session] = {}

    async def start_alice() -> None:
        sessions["alice"] = await start(
            nursery, ends[0], ALICE, Role.CLIENT, own_services, BOB.peer_id
        )

    async with trio.open_nursery() as starting:
        starting.start_soon(start_alice)
        sessions["bob"] = await start(nursery, ends[1], BOB, Role.SERVER, services)
    return sessions["alice"], sessions["bob"]


@asynccontextmanager
async def session_pair(
    services: Services | None = None,
    *,
    network: MemoryNetwork | None = None,
    own_services: Services | None = None,
) -> AsyncIterator[tuple[Session, Session]]:
    """Give (Alice's, Bob's) open sessions over a memory link; stop both afterwards."""
    ends = (network or MemoryNetwork()).link("alice", "bob")
    async with trio.open_nursery() as nursery:
        yield await start_both(nursery, ends, services, own_services)
        nursery.cancel_scope.cancel()


class CorePair:
    """Two cores, plaintext passed between them by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.client = SessionCore(Role.CLIENT, self.now)
        self.server = SessionCore(Role.SERVER, self.now)
        self._head = memoryview(bytearray(limits.RECORD_HEAD_BYTES_MAX))

    def records(self, core: SessionCore, turns: int | None = None) -> list[bytes]:
        """Take up to ``turns`` turns (None: all) from ``core`` as plaintext records."""
        records: list[bytes] = []
        while turns is None or turns > 0:
            used, body = core.take(self._head, self.now)
            if not used:
                break
            records.append(bytes(self._head[:used]))
            if body is not None:
                records.append(bytes(body))
            turns = turns if turns is None else turns - 1
        return records

    def deliver(self, records: list[bytes], core: SessionCore) -> None:
        """Hand records to ``core`` the way the shell does."""
        for record in records:
            destination = core.body_destination(len(record))
            if destination is None:
                core.handle(memoryview(record), self.now)
            else:
                destination[:] = record
                core.body_received(len(record))

    def pump(self) -> tuple[list[Effect], list[Effect]]:
        """Exchange records until nothing is due; return both sides' effects."""
        for _ in range(10_000):
            to_server, to_client = self.records(self.client), self.records(self.server)
            if not to_server and not to_client:
                return self.client.poll_effects(), self.server.poll_effects()
            self.deliver(to_server, self.server)
            self.deliver(to_client, self.client)
        raise AssertionError("the cores never came to rest")
