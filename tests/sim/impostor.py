"""A member made of a bare session, that says what a test wants instead of what a node would.

It says hello, answers probes and says that it trains, so that nodes take it for a partner.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from swarmnode.daemon.exchange.pair.exchanges import EXCHANGE_SERVICE, MESSAGE_SERVICE
from swarmnode.daemon.membership.members import HELLO_SERVICE, SWIM_SERVICE
from swarmnode.daemon.membership.report import ROLE
from swarmnode.daemon.membership.shared_state import ADDRESS, STATE_SERVICE
from swarmnode.errors import SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.net.channel import Channel
from swarmnode.net.peering import run_session
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.net.stream import Stream
from swarmnode.protocol.crdt.records import NO_HASH, seal
from swarmnode.protocol.crdt.views import MEMBER
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.membership.claims import Ed25519Notary
from swarmnode.protocol.session.records import Role
from swarmnode.protocol.swarm import SwarmLink, network_id
from swarmnode.testing.swarm import UNIX_START_S, SimSwarm
from swarmnode.wire import crdt, swim
from swarmnode.wire.admission import Credentials
from swarmnode.wire.exchange import gossip as wire
from swarmnode.wire.membership import SwarmHello
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.swarm import Signed

Conversation = Callable[[Stream, wire.Offer], Awaitable[None]]
NETWORK = network_id("main")
NOWHERE = ("mem:nowhere",)
_SWIM_MESSAGE: Any = swim.Message
_GOSSIP_MESSAGE: Any = wire.Message


async def ignore(stream: Stream, offer: wire.Offer) -> None:
    """Answer an offer with nothing."""


class Impostor:
    """Joins a swarm as a trainer; ``answer`` is what it does with an offer.

    Attributes:
        services: what it answers; a test may add more.
        received: requests for what it sends others as shared state.
    """

    def __init__(self, swarm: SimSwarm, seed: bytes, answer: Conversation = ignore) -> None:
        self.identity = Identity.from_seed(seed * 32)
        self.peer = self.identity.peer_id
        self.services = Services()
        self.offers = 0
        self.link: SwarmLink = swarm.link((0,))
        self.notary = Ed25519Notary(self.identity, self.link.swarm_id)
        self._swarm = swarm
        self._answer = answer
        self._sessions: dict[PeerId, Session] = {}
        for service, handler in [
            (HELLO_SERVICE, self._answer_hello),
            (SWIM_SERVICE, self._answer_swim),
            (STATE_SERVICE, self._ignore_state),
        ]:
            self.services.add_request(self.name(service), handler)
        self.services.add_stream(self.name(EXCHANGE_SERVICE), self._take_offer)

    def name(self, service: str) -> str:
        """Return what a service of the swarm is called on the wire."""
        return f"{service}@{self.link.tag}"

    async def join(self, index: int) -> Session:
        """Become a member, as far as one node can tell."""
        session = await self.enter(index)
        await self.ask(session, SWIM_SERVICE, swim.Sync(False, (self.claim(),)))
        pushed = crdt.Push((crdt.Carried(state_record(self.identity, self.link.swarm_id), 0),))
        await self.ask(session, STATE_SERVICE, pushed)
        return session

    async def enter(self, index: int) -> Session:
        """Say hello, so that the services of the swarm may be used, and no more."""
        session = await self.connect(index)
        await self.ask(session, HELLO_SERVICE, self._hello())
        return session

    async def connect(self, index: int) -> Session:
        """Open a session with one node, and say nothing."""
        node = self._swarm.nodes[index]
        name = f"impostor-{self.peer.short}"
        channel = await self._swarm.network.transport(name).dial(f"mem:{node.name}")

        async def run(*, task_status: trio.TaskStatus[Session]) -> None:
            await run_session(
                channel,
                identity=self.identity,
                network_id=NETWORK,
                services=self.services,
                role=Role.CLIENT,
                expected=node.peer,
                task_status=task_status,
            )

        session: Session = await self._swarm.nursery.start(run)
        self._sessions[node.peer] = session
        return session

    async def serve(
        self, name: str, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Let nodes dial it at ``mem:NAME``."""

        async def accept(channel: Channel) -> None:
            with contextlib.suppress(SwarmNodeError):
                await run_session(
                    channel,
                    identity=self.identity,
                    network_id=NETWORK,
                    services=self.services,
                    role=Role.SERVER,
                )

        transport = self._swarm.network.transport(name)
        await transport.serve(f"mem:{name}", accept, task_status=task_status)

    async def ask(self, session: Session, service: str, message: Any) -> bytes:
        """Make a request to a service of the swarm; ``message`` is a record or bytes."""
        payload = message if isinstance(message, bytes) else encode_record(message)
        return await session.request(self.name(service), payload, deadline_s=5)

    async def open_exchange(self, session: Session) -> Stream:
        """Open a stream on which an offer is expected."""
        return await session.open_stream(self.name(EXCHANGE_SERVICE))

    async def tell(self, session: Session, message: wire.Message) -> bytes:
        """Say something of an exchange without its stream."""
        return await self.ask(session, MESSAGE_SERVICE, message)

    def claim(self, epoch: int = 1, incarnation: int = 0) -> swim.Claim:
        """Return its word that it is alive."""
        signature = self.notary.sign(epoch, incarnation, None)
        return swim.Claim(self.identity.public_key, epoch, incarnation, signature)

    # --- what it answers --------------------------------------------------------------------

    def _hello(self) -> SwarmHello:
        return SwarmHello("trainer", Credentials(None))

    async def _answer_hello(self, _peer: PeerId, _payload: bytes) -> bytes:
        return encode_record(self._hello())

    async def _answer_swim(self, peer: PeerId, payload: bytes) -> bytes:
        message: swim.Message = decode_record(payload, _SWIM_MESSAGE)
        if isinstance(message, swim.Ping) and peer in self._sessions:
            answer = swim.Ack(message.seq, (self.claim(),))
            self._swarm.nursery.start_soon(self._say, peer, answer)
        return b""

    async def _say(self, peer: PeerId, answer: swim.Message) -> None:
        with contextlib.suppress(SwarmNodeError):
            await self.ask(self._sessions[peer], SWIM_SERVICE, answer)

    async def _ignore_state(self, _peer: PeerId, _payload: bytes) -> bytes:
        return b""

    async def _take_offer(self, _session: Session, stream: Stream) -> None:
        header, _ = await stream.receive_message(0)
        offer: wire.Offer = decode_record(header, _GOSSIP_MESSAGE)
        self.offers += 1
        await self._answer(stream, offer)


def accept_of(offer: wire.Offer) -> bytes:
    """Return an ACCEPT with nothing wrong with it."""
    return encode_record(wire.Accept(xid=offer.xid, round=offer.round, step=1, tokens=1))


async def say(stream: Stream, message: wire.Message, payload: bytes = b"") -> None:
    """Send one message."""
    await stream.send_message(encode_record(message), payload)


def state_record(
    author: Identity,
    swarm_id: bytes,
    *,
    sequence: int = 1,
    ahead_s: int = 0,
    loss: float = 0.0,
    counters: dict[str, int] | None = None,
    maxima: dict[str, int] | None = None,
    registers: dict[str, float] | None = None,
) -> Signed:
    """Return a checkpoint in which an author says that it is a trainer, and what else is given."""
    record = crdt.StateRecord(
        swarm_id=swarm_id,
        epoch=1,
        sequence=sequence,
        previous=NO_HASH,
        clock_ms=int(UNIX_START_S + ahead_s) * 1000,
        checkpoint=True,
        leases=(
            crdt.Lease(MEMBER, str(author.peer_id), 86_400),
            crdt.Lease(ROLE, "trainer", 86_400),
            crdt.Lease(ADDRESS, NOWHERE[0], 86_400),
        ),
        counters=counters or {},
        registers={"state": "training", "loss": loss, **(registers or {})},
        maxima=maxima or {},
    )
    return seal(record, author).signed
