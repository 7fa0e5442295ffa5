"""A peer made of a bare session, that says what a test wants instead of what a node would."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

import trio

from swarmnode.daemon.exchange import EXCHANGE_SERVICE
from swarmnode.daemon.neighbours import PEERS_SERVICE
from swarmnode.errors import SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.net.channel import Channel
from swarmnode.net.services import Services
from swarmnode.net.session import Session, run_session
from swarmnode.net.stream import Stream
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.membership.peerbook import sign_peer_record
from swarmnode.protocol.session.records import Role
from swarmnode.testing.swarm import SimSwarm
from swarmnode.wire import gossip as wire
from swarmnode.wire.membership import PeerList, PeerRecord, PeerStatus
from swarmnode.wire.packing import decode_record, encode_record

Conversation = Callable[[Stream, wire.Offer], Awaitable[None]]


class Impostor:
    """Joins a swarm as a trainer; ``answer`` is what it does with an offer."""

    def __init__(self, swarm: SimSwarm, seed: bytes, answer: Conversation) -> None:
        self.identity = Identity.from_seed(seed * 32)
        self.services = Services()
        self.offers = 0
        self._swarm = swarm
        self._answer = answer
        self.services.add_request(PEERS_SERVICE, self._tell_peers)
        self.services.add_stream(EXCHANGE_SERVICE, self._take_offer)

    async def join(self, index: int) -> Session:
        """Open a session with one node and get into its book."""
        node = self._swarm.nodes[index]
        name = f"impostor-{self.identity.peer_id.short}"
        channel = await self._swarm.network.transport(name).dial(f"mem:{node.name}")

        async def run(*, task_status: trio.TaskStatus[Session]) -> None:
            await run_session(
                channel,
                identity=self.identity,
                network_id=self._swarm.link((0,)).network_id,
                services=self.services,
                role=Role.CLIENT,
                expected=node.peer,
                task_status=task_status,
            )

        session: Session = await self._swarm.nursery.start(run)
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
                    network_id=self._swarm.link((0,)).network_id,
                    services=self.services,
                    role=Role.SERVER,
                )

        transport = self._swarm.network.transport(name)
        await transport.serve(f"mem:{name}", accept, task_status=task_status)

    async def _tell_peers(self, _peer: PeerId, _payload: bytes) -> bytes:
        record = PeerRecord(
            network_id=self._swarm.link((0,)).network_id,
            public_key=self.identity.public_key,
            addresses=(),
            role="trainer",
            version="0.1.0",
            boot_epoch=1,
            sequence=1,
            status=PeerStatus("training"),
        )
        return encode_record(PeerList((sign_peer_record(record, self.identity),)))

    async def _take_offer(self, _session: Session, stream: Stream) -> None:
        header, _ = await stream.receive_message(0)
        offer: wire.Offer = decode_record(header, wire.Message)  # type: ignore[arg-type,assignment]
        self.offers += 1
        await self._answer(stream, offer)


def accept_of(offer: wire.Offer) -> bytes:
    """Return an ACCEPT with nothing wrong with it."""
    return encode_record(wire.Accept(xid=offer.xid, round=offer.round, step=1, tokens=1))


async def say(stream: Stream, message: wire.Message, payload: bytes = b"") -> None:
    """Send one message."""
    await stream.send_message(encode_record(message), payload)
